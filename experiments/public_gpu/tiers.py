"""Rows of the page, tier by tier."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import nan
from pathlib import Path

import pandas as pd
from fitted import FIRST, FIRST_STEPS, LEAST_REST, OTHER_RUNS, first_steps, other_runs, together
from kernels import all_reduce_rows, layer_rows
from package_points import point_rows
from ranges import DRAWS, range_table, ranges_of_run, ranges_of_served
from rows import Row, row_of
from served import DEVICES, served_rows, splitwise_rows
from steps import STAGES, Run, public_runs, unfitted, with_other_links

from oppo_sim.errors import OppoError

GPUS = {"a100": "A100-80", "a40": "A40", "h100": "H100"}
ROOFLINE, COMPOSED = "roofline", "composed"
KINDS = (ROOFLINE, COMPOSED)
SHIPPED_TABLES = ("A100-80", "H100", "H200")
"""Devices whose tables of the points' models are shipped, so that no extra is needed."""
SMALL_RUNS = ("20251130_191019", "20251201_212417", "20251203_192700")
"""Develop runs of few steps, which are simulated again in the tests."""


def kernel_rows(held_out: bool) -> Iterator[Row]:
    """Kernels of whole forwards by device and stage; layers and all-reduces as vidur profiled them."""
    for kind in KINDS:
        points = point_rows(kind, held_out, SHIPPED_TABLES if kind == COMPOSED else ())
        for (device, stage), part in points.groupby(["device", "stage"]):
            way = f"unfitted, {kind}"
            yield row_of("kernels", "aiconfigurator-core", str(stage), str(device), "vLLM kernels", way, part)
    layers = layer_rows(ROOFLINE, held_out)
    for (device, stage), part in layers.groupby(["device", "stage"]):
        what, gpu = f"a layer, {stage}", GPUS[str(device)]
        yield row_of("kernels", "vidur", what, gpu, "PyTorch kernels", "unfitted, roofline", part)
    rows = all_reduce_rows(ROOFLINE, held_out)
    for machine, part in rows.groupby("machine"):
        gpu = "DGX A100" if machine == "a100_dgx" else "DGX H100"
        yield row_of("kernels", "vidur", "all-reduce", gpu, "NCCL", "unfitted, roofline", part)


def composed_rows(held_out: bool) -> Iterator[Row]:
    """What needs tables that are not shipped (extra `kernels`): vidur's layers and the engines."""
    layers = layer_rows(COMPOSED, held_out, ("a100", "h100"))
    for (device, stage), part in layers.groupby(["device", "stage"]):
        what, gpu = f"a layer, {stage}", GPUS[str(device)]
        yield row_of("kernels", "vidur", what, gpu, "PyTorch kernels", "unfitted, composed", part)
    yield from _served(COMPOSED, held_out)


def engine_rows(held_out: bool) -> Iterator[Row]:
    """Time per output token by backend, model and device."""
    yield from _served(ROOFLINE, held_out)
    split = splitwise_rows(ROOFLINE, held_out)
    for (gpu, stage), part in split.groupby([split["unit"].str.split("/").str[1], "stage"]):
        name = DEVICES[str(gpu)]
        yield row_of(
            "served engine", "splitwise", str(stage), name, "vLLM of 2023", "unfitted, roofline", part
        )


def _served(kind: str, held_out: bool) -> Iterator[Row]:
    way = f"unfitted, {kind}"
    rows = served_rows(kind, held_out)
    for (backend, model, system), part in rows.groupby(["backend", "model_path", "system"]):
        name = str(model).rsplit("/", 1)[-1]
        gpu = str(system).split("_", maxsplit=1)[0].upper()
        yield row_of("served engine", "served_fp8_tpot", name, gpu, str(backend), way, part)
    vllm = rows[rows["backend"] == "vllm"]
    yield row_of("served engine", "served_fp8_tpot", "all of vLLM", "H100, H200", "vllm", way, vllm)


def unfitted_rows(held_out: bool, folder: Path, only: tuple[str, ...] = ()) -> tuple[list[Row], pd.DataFrame]:
    """Stages and steps of every run with the scenario of its own configuration; and the steps themselves."""
    runs = [each for found_run in _runs(held_out, only) for each in with_other_links(found_run)]
    return stage_rows(runs, folder)


def stage_rows(runs: Iterable[Run], folder: Path) -> tuple[list[Row], pd.DataFrame]:
    """A row a stage of each run, unfitted; and the steps of all, measured and predicted."""
    found, tables = [], []
    for run in runs:
        table = unfitted(run, folder)
        tables.append(table)
        found += [_stage_row(run, stage, table) for stage in STAGES if f"measured_{stage}" in table]
    return found, pd.concat(tables, ignore_index=True)


def fitted_rows(held_out: bool, folder: Path) -> list[Row]:
    """The first steps of every run against its rest, and runs against others of another batch or model.

    Held-out runs are judged by what all develop runs of the cluster gave.
    """
    runs = public_runs()
    asked = [run for run in runs if run.held_out == held_out]
    found = first_steps_rows([each for run in asked for each in with_other_links(run)], folder)
    cluster = [run for run in runs if run.source == "openagentrl" and not run.held_out]
    known = [run for run in cluster if len(run.steps) >= FIRST]
    if held_out:
        judged = other_runs(known, [run for run in asked if run.source == "openagentrl"], folder)
        return found + [each.row for each in judged] + together(judged, OTHER_RUNS)
    judged = []
    for batch in sorted({run.scenario["rollout_batch_size"] for run in cluster}):
        fitted = [run for run in known if run.scenario["rollout_batch_size"] == batch]
        others = [run for run in cluster if run not in fitted and len(run.steps) >= LEAST_REST]
        judged += other_runs(fitted, others, folder)
    return found + [each.row for each in judged]


def first_steps_rows(runs: Iterable[Run], folder: Path) -> list[Row]:
    """The rest of each run that is long enough, and of all runs of the cluster together."""
    judged = [each for run in runs if (each := first_steps(run, folder)) is not None]
    cluster = [each for each in judged if each.run.source != "gpg"]
    return [each.row for each in judged] + together(cluster, FIRST_STEPS)


def range_rows(held_out: bool, folder: Path) -> tuple[list[Row], pd.DataFrame]:
    """Whether the ranges of unfitted predictions hold units; and the ranges."""
    runs = range_table([ranges_of_run(run, folder) for run in public_runs() if run.held_out == held_out])
    tables = {"RL runs": runs.assign(source="RL runs")}
    for kind in KINDS:
        served = range_table([ranges_of_served(kind, held_out)])
        tables[f"served, {kind}"] = served.assign(source=f"served, {kind}")
    found = []
    for source, table in tables.items():
        what = "stages and step of runs" if source == "RL runs" else "configurations"
        inside = {"coverage": table["inside"].mean(), "width": (table["high"] - table["low"]).median()}
        numbers = dict.fromkeys(("median", "p90", "worst", "sign"), nan)
        row = Row("ranges", source, what, "", "", f"priors, {DRAWS} draws", len(table), **numbers)
        found.append(replace(row, **{name: float(value) for name, value in inside.items()}))
    return found, pd.concat(tables.values(), ignore_index=True)


def _runs(held_out: bool, only: tuple[str, ...]) -> list[Run]:
    runs = [run for run in public_runs() if run.held_out == held_out and (not only or run.name in only)]
    if not runs:
        raise OppoError(f"no run of the split is among {', '.join(only)}")
    return runs


def _stage_row(run: Run, stage: str, table: pd.DataFrame) -> Row:
    pairs = pd.DataFrame({"predicted": table[f"predicted_{stage}"], "measured": table[f"measured_{stage}"]})
    tier = "step" if stage == "step" else "stage"
    return row_of(tier, f"{run.source} {run.name}", stage, run.gpu, run.framework, "unfitted", pairs)
