"""``oppo costs``: tables of measured kernels."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oppo_sim.cli import options
from oppo_sim.cli.progress import QUIET, progress_bar
from oppo_sim.cli.trace_common import AS_JSON, print_json, text_table
from oppo_sim.report.terminal import table_console

if TYPE_CHECKING:
    from oppo_sim.costs.kernels.devices import KernelSource
    from oppo_sim.costs.roofline_engine import RooflineEngine

    Wanted = list[tuple[str, RooflineEngine, KernelSource]]


@click.group()
def costs() -> None:
    """Make tables of measured kernels, which costs of kind composed are made of."""


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
@QUIET
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
    columns = text_table("for", "system", "engine", ">TP", "dtype", "origin", "file")
    for name, path, state in found.values():
        said = _plain(name, path, state)
        engine_name = f"{said['engine']} {said['version']}"
        columns.add_row(
            name, said["system"], engine_name, str(said["tensor_parallel"]), said["dtype"], state, path.name
        )
    console = table_console()
    console.print(columns)
    for folder in dict.fromkeys(path.parent for _, path, _ in found.values()):
        console.print(f"in {folder}", markup=False, highlight=False)


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
