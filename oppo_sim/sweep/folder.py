"""The folder of a sweep: runs as they come, then tables, the best point and figures; ``sweep.json`` last.

Unlike other run folders it is meant to be continued: the same sweep with more seeds or points takes over the
finished runs.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.files import (
    PARTIAL_SUFFIX,
    holds,
    last_file,
    partial_path,
    sync_tree,
    unmark,
    whole_file,
    write_errors,
)
from oppo_sim.given_command import COMMAND, keep_command
from oppo_sim.manifest import provenance
from oppo_sim.plain_json import json_bytes
from oppo_sim.progress import OnProgress
from oppo_sim.rewards import learning_of
from oppo_sim.run_files import file_facts
from oppo_sim.run_kinds import SWEEP as SWEEP_KIND
from oppo_sim.runs.differing import differing
from oppo_sim.runs.evaluate import setup_of
from oppo_sim.runs.execute import Executor
from oppo_sim.runs.journal import Entry, read_head
from oppo_sim.runs.store import RunStore
from oppo_sim.scenario.build import merged_warnings
from oppo_sim.scenario.schema import Scenario
from oppo_sim.sweep.axes import Axis, GridAxis
from oppo_sim.sweep.beyond import best_edges, best_warnings
from oppo_sim.sweep.edges import edge_records
from oppo_sim.sweep.plan import SweepPlan
from oppo_sim.sweep.result import Sweep, finish
from oppo_sim.sweep.run import make_runs
from oppo_sim.tables import write_frame

if TYPE_CHECKING:
    import pandas as pd

FORMAT: Final = "oppo-sweep-folder/1"
SWEEP: Final = "sweep.json"
RUNS: Final = "runs.jsonl"
POINTS: Final = "points.parquet"
POINTS_CSV: Final = "points.csv"
RUN_TABLE: Final = "runs.parquet"
BEST: Final = "best.json"
FIGURES: Final = "figures"
_MOST_NAMED: Final = 20
"""Reasons of failures that a summary names."""
_OWN: Final = (SWEEP, POINTS, POINTS_CSV, RUN_TABLE, BEST, COMMAND)


def sweep_to_folder(
    plan: SweepPlan,
    folder: Path,
    executor: Executor,
    *,
    force: bool,
    figures: bool,
    on_progress: OnProgress | None,
) -> Sweep:
    """Sweep into a folder. Runs that it holds are not made again.

    Raises OppoError for a folder of another sweep (unless ``force``, which deletes it) or with other files,
    where all points failed, and for a disk that refuses.
    """
    refuse_taken(plan, folder, force)
    with open_store(plan, folder, force=force) as store:
        if not len(store):
            remove_sweep(folder)
        sweep = finish(plan, make_runs(plan, store, executor, on_progress))
        write_tables(sweep, folder, figures)
    return sweep


def open_store(plan: SweepPlan, folder: Path, *, force: bool) -> RunStore:
    """The runs that the folder holds; none with ``force``, whatever sweep they are of. Raises OppoError as
    ``Journal``, and where another command writes there."""

    def differs(head: Entry) -> str | None:
        _refuse_other_command(head, folder)
        return "to be replaced" if force else _difference(plan, head, folder)

    store = RunStore(folder / RUNS, "sweep", _about(plan), differs, replace=force)
    store.give_way()
    return store


def refuse_taken(plan: SweepPlan, folder: Path, force: bool) -> None:
    """Raise OppoError, before any work is done, for a folder with other files, or with another sweep that
    ``force`` does not replace."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise OppoError(f"{folder} is a file: choose another folder with -o")
    present = [entry.name for entry in folder.iterdir()]
    if not present:
        return
    if RUNS not in present:
        raise OppoError(
            f"{folder} holds no sweep that could be continued, but other files: choose another folder with -o"
        )
    head = read_head(folder / RUNS)
    if head is not None:
        _refuse_other_command(head, folder)
    if force:
        return
    sentence = _difference(plan, head, folder) if head is not None else None
    if sentence is not None:
        raise OppoError(sentence)


def remove_sweep(folder: Path) -> None:
    """Delete what a sweep wrote into the folder but its runs, and nothing else."""
    with write_errors(folder):
        unmark(folder / SWEEP)
        for name in _OWN:
            (folder / name).unlink(missing_ok=True)
            partial_path(folder / name).unlink(missing_ok=True)
        _remove_figures(folder)


def write_tables(sweep: Sweep, folder: Path, figures: bool) -> None:
    """Write all but the runs; an earlier ``sweep.json`` goes first and the new one comes last. Without
    ``figures`` those that are there stay, as long as they show these points. Raises OppoError when the disk
    refuses."""
    shown = {POINTS_CSV: sweep.points.to_csv(index=False).encode(), BEST: json_bytes(best_record(sweep))}
    with write_errors(folder / SWEEP):
        same = holds(folder, shown)
        unmark(folder / SWEEP)
        if figures or not same:
            _remove_figures(folder)
    write_frame(folder / POINTS, sweep.points)
    write_frame(folder / RUN_TABLE, sweep.runs)
    for name, data in shown.items():
        with whole_file(folder / name) as file:
            file.write(data)
    record = sweep_record(sweep)
    names = [POINTS, POINTS_CSV, RUN_TABLE, BEST]
    keep_command(folder)
    with last_file(folder / SWEEP) as file:
        file.write(json_bytes({**record, "files": {name: file_facts(folder / name) for name in names}}))
    if figures:
        _write_figures(folder)
        with write_errors(folder):
            sync_tree(folder)


def best_record(sweep: Sweep) -> dict[str, Any]:
    """The best point, and the region of those that cannot be told apart from it."""
    table, plan = sweep.points, sweep.plan
    rows = table.iloc[list(sweep.alike)]
    best: Mapping[str, Any] | None = None
    if sweep.best is not None:
        measured = table.iloc[sweep.best].drop(labels=[*plan.fields, c.ERROR])
        row = {str(name): value for name, value in measured.items()}
        best = {"point": sweep.best, "values": plan.points[sweep.best], **row}
    return {
        "objective": plan.spec.objective,
        "best": best,
        "region": {
            "points": list(sweep.alike),
            "told_apart": len(plan.seeds) > 1 or c.P_BEST in table.columns,
            "values": {field: _range(rows[field]) for field in plan.fields} if len(rows) else {},
        },
        "edges": edge_records(*best_edges(sweep)),
    }


def sweep_record(sweep: Sweep) -> dict[str, Any]:
    """Everything about the sweep but its tables; no wall-clock time and no path that was not typed, so that
    the same sweep gives the same record."""
    plan = sweep.plan
    steps = sorted({point.request.steps for point in plan.runnable})
    warnings = best_warnings(sweep)
    warnings += merged_warnings(warning for point in plan.runnable for warning in point.warnings)
    return {
        "format": FORMAT,
        "kind": SWEEP_KIND,
        "spec": plan.spec.to_plain(),
        "fields": list(plan.fields),
        "axes": [_axis_record(axis) for axis in plan.axes],
        **({"splits": plan.splits} if plan.splits else {}),
        "objective": plan.spec.objective,
        "points": len(plan.points),
        "statuses": sweep.statuses,
        "best": sweep.best,
        "region": list(sweep.alike),
        "edges": edge_records(*best_edges(sweep)),
        "seeds": list(plan.seeds),
        "steps": steps[0] if len(steps) == 1 else steps,
        **({"machine": sweep.machine.record()} if sweep.machine.sentence else {}),
        "to_reward": learning_of(plan.scenario.rewards, plan.scenario.steps).record(),
        "engines": dict(sweep.engines),
        "baselines": dict(Counter(point.baseline_label for point in plan.runnable).most_common()),
        "failures": [
            {"error": failure.sentence, "points": failure.points, "first": failure.first}
            for failure in sweep.failures[:_MOST_NAMED]
        ],
        "other_failures": sum(failure.points for failure in sweep.failures[_MOST_NAMED:]),
        **provenance(plan.scenario, setup_of(plan.runnable[0].request)),
        "warnings": warnings[:_MOST_NAMED],
    }


# ---- inside ------------------------------------------------------------------------------------------------


def _about(plan: SweepPlan) -> dict[str, Any]:
    return {
        "scenario": plan.scenario.name,
        "scenario_sha256": plan.scenario.content_hash,
        "fields": sorted(plan.fields),
        "settings": plan.scenario.decisive(),
    }


def _refuse_other_command(head: Entry, folder: Path) -> None:
    if "scenario_sha256" not in head:
        raise OppoError(f"{folder} holds runs of another command than a sweep: choose another folder with -o")


def _difference(plan: SweepPlan, head: Mapping[str, Any], folder: Path) -> str | None:
    """Another scenario, or other fields: tables of the one would replace those of the other."""
    about = _about(plan)
    mend = "choose another folder with -o, or replace it with --force"
    if head.get("scenario_sha256") != about["scenario_sha256"]:
        return f"{folder} holds a sweep of another scenario ({_differs_in(plan.scenario, head)}): {mend}"
    if head.get("fields") != about["fields"]:
        return (
            f"{folder} holds a sweep over other fields ({', '.join(map(str, head.get('fields', ())))}):"
            f" {mend}"
        )
    return None


def _differs_in(scenario: Scenario, head: Mapping[str, Any]) -> str:
    """Settings; without those of the sweep, as before they were kept, its scenario's name."""
    said = differing(head["settings"], scenario.decisive()) if "settings" in head else ""
    return said or f"{head.get('scenario')}, or other values of --set"


def _axis_record(axis: Axis) -> dict[str, Any]:
    if isinstance(axis, GridAxis):
        return {"field": axis.field, "kind": "grid", "values": list(axis.values)}
    if axis.choices:
        return {"field": axis.field, "kind": "choice", "values": list(axis.choices)}
    return {
        "field": axis.field,
        "kind": "interval",
        "low": axis.low,
        "high": axis.high,
        "log": axis.log,
        "int": axis.integer,
    }


def _range(values: "pd.Series[Any]") -> dict[str, Any]:
    if values.dtype.kind in "if":
        return {"low": values.min(), "high": values.max()}
    return {"values": sorted(map(str, values.unique()))}


def _remove_figures(folder: Path) -> None:
    """Those of an earlier state of the sweep; files of others stay."""
    figures = folder / FIGURES
    if figures.is_symlink() or not figures.is_dir():
        return
    kinds = (f"*{kind}{suffix}" for kind in (".png", ".svg") for suffix in ("", PARTIAL_SUFFIX))
    for path in chain.from_iterable(map(figures.glob, kinds)):
        path.unlink()
    if not any(figures.iterdir()):
        figures.rmdir()


def _write_figures(folder: Path) -> None:
    from oppo_sim.report.points import read_sweep
    from oppo_sim.report.sweep_figures import write_figures

    sweep = read_sweep(folder)
    write_figures(sweep.points, folder / FIGURES, sweep.name, force=True)
