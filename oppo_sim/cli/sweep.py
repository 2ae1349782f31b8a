"""``oppo sweep``: many configurations on the same seeds."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oppo_sim.cli import options
from oppo_sim.cli.progress import progress_bar, told_progress

if TYPE_CHECKING:
    from oppo_sim.runs.execute import ExecutorName
    from oppo_sim.scenario.schema import Scenario
    from oppo_sim.sweep.plan import SweepPlan
    from oppo_sim.sweep.result import Sweep
    from oppo_sim.sweep.spec import SweepSpec

_EPILOG = """\b
Example, 24 × 16 points:
  oppo sweep paper-stackexchange-7b --set rollout.batching=continuous \\
    --grid policy.chunk_size=64:1536:+64 --grid policy.overcommit=0:30:+2 \\
    --seeds 5

VALUES of --grid are a list (128,256,512), a range that adds (0:32:+4) or multiplies (64:1024:*2),
or a mixture.

VALUES of --random are LOW..HIGH (64..1024; :log is uniform in the logarithm; whole numbers if both are,
unless :float is added), or a list to choose from.
"""


_OF_RECORD = ("points", "splits", "statuses", "seeds", "steps", "engines", "failures", "versions")
"""Of a sweep's record what ``--json`` prints."""


@click.command(epilog=_EPILOG)
@click.argument("scenario_or_file", metavar="SCENARIO|SWEEP.yaml", required=False)
@click.option(
    "--grid",
    "grid",
    multiple=True,
    metavar="FIELD=VALUES",
    help="A field and its values; all combinations are run.",
)
@click.option(
    "--random", "random", multiple=True, metavar="FIELD=VALUES", help="A field to draw; may be repeated."
)
@click.option(
    "--samples",
    type=click.IntRange(1, 1_000_000),
    help="Draws of all --random fields together.  [default: 64]",
)
@click.option("--sobol", is_flag=True, help="Draw from a Sobol sequence, which fills the space evenly.")
@click.option("--sampler-seed", type=click.IntRange(0), help="Seed of the draws.  [default: 0]")
@click.option(
    "--seeds",
    type=click.IntRange(1, 10_000),
    help="Seeds of every point, from the scenario's on.  [default: 5]",
)
@options.draws(
    None,
    "Draws of what is unknown about the machine's seconds, for points that could be the best. 0: the costs"
    " are exact.  [default: 40]",
)
@options.STEPS
@options.overrides
@click.option("--objective", type=click.Choice(["rollouts", "speedup", "time_to_reward"]),
help="What is best: seconds a trained rollout, speed-up over each "
              "point's own baseline, or time to the target reward.  [default: rollouts]")  # fmt: skip
@click.option(
    "--stop-dominated",
    is_flag=True,
    help="Give no further seeds to points that are significantly worse than the best so far.",
)
@options.practical(None)
@options.EXECUTOR
@options.JOBS
@options.RAY_ADDRESS
@click.option(
    "--dry-run",
    is_flag=True,
    help="Say how many points, runs and steps there are and how long they may take; write nothing.",
)
@click.option("--top", type=click.IntRange(1), default=10, help="Points to show.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of sweep files.")
@options.output("Sweep folder to write or continue. Default: runs/SCENARIO-sweep.")
@click.option(
    "--force",
    is_flag=True,
    help="Replace another sweep that the folder holds; its finished runs are deleted.",
)
@options.FIGURES
@options.JSON
def command(
    scenario_or_file: str | None,
    grid: tuple[str, ...],
    random: tuple[str, ...],
    sobol: bool,
    overrides: tuple[str, ...],
    executor: "ExecutorName",
    jobs: int | None,
    ray_address: str | None,
    dry_run: bool,
    top: int,
    schema: bool,
    output: Path | None,
    force: bool,
    figures: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Simulate many configurations of a scenario on the same seeds, and rank them with 95 % intervals.

    Any field of the scenario can vary: policy.name, policy.chunk_size, placement.scoring, trace.name,
    rollout_batch_size, costs…. Every finished run is kept at once: the same command continues a sweep that
    was interrupted, and more seeds or points reuse what is there. Points that cannot run are listed with
    their reason.
    """
    if schema:
        from oppo_sim.sweep.spec import json_schema

        click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
        return 0
    if scenario_or_file is None:
        raise click.UsageError("Missing argument 'SCENARIO|SWEEP.yaml', or --schema")
    if sobol:
        given["sampler"] = "sobol"
    changes = {name: value for name, value in given.items() if value is not None and value is not False}
    spec, scenario = _loaded(scenario_or_file, grid, random, overrides, changes)
    from oppo_sim.runs.execute import Executor
    from oppo_sim.sweep.folder import refuse_taken, sweep_to_folder
    from oppo_sim.sweep.plan import plan_sweep

    where = Executor(executor, jobs, ray_address)
    with progress_bar(f"{scenario.name}: checking points", 1, as_json) as (bar, task):
        plan = plan_sweep(spec, scenario, lambda done, total: bar.update(task, completed=done, total=total))
    folder = output or Path("runs") / f"{options.safe_name(scenario.name)}-sweep"
    if dry_run:
        return _show_plan(plan, folder, jobs, as_json)
    refuse_taken(plan, folder, force)
    try:
        with told_progress(scenario.name, "simulated runs", as_json) as on_progress:
            sweep = sweep_to_folder(
                plan, folder, where, force=force, figures=figures, on_progress=on_progress
            )
    except KeyboardInterrupt:
        return options.interrupted(f"finished runs are kept in {folder}")
    _show(sweep, folder, output, top, as_json)
    return 0


def _loaded(
    name: str,
    grid: tuple[str, ...],
    random: tuple[str, ...],
    overrides: tuple[str, ...],
    changes: dict[str, Any],
) -> "tuple[SweepSpec, Scenario]":
    """The spec that a sweep file or the options say, options over the file, and its scenario."""
    from oppo_sim.errors import OppoError
    from oppo_sim.scenario.load import load_scenario
    from oppo_sim.scenario.yaml_text import parse_yaml
    from oppo_sim.sweep.axes import split_assignment
    from oppo_sim.sweep.spec import checked_spec, is_sweep_file, load_spec

    def axes(texts: tuple[str, ...], option: str) -> dict[str, str]:
        pairs = [split_assignment(text, option) for text in texts]
        names = [field for field, _ in pairs]
        for field in names:
            if names.count(field) > 1:
                raise OppoError(f"{option} {field} is given twice: give it once, all values together")
        return dict(pairs)

    typed_grid, typed_random = axes(grid, "--grid"), axes(random, "--random")
    if is_sweep_file(name):
        file = load_spec(name)
        fields = typed_grid | typed_random
        merged = {
            name: {**{field: values for field, values in there.items() if field not in fields}, **typed}
            for name, there, typed in (("grid", file.grid, typed_grid), ("random", file.random, typed_random))
        }
        spec = checked_spec({**file.to_plain(), **merged, **changes}, name)
    else:
        given = {"scenario": name, "grid": typed_grid, "random": typed_random}
        spec = checked_spec({**given, **changes}, "the sweep")
    own = [f"{field}={json.dumps(value, ensure_ascii=False)}" for field, value in spec.overrides.items()]
    scenario = load_scenario(spec.scenario, (*own, *overrides))
    typed = {
        field.strip(): parse_yaml(value, field)
        for field, _, value in (text.partition("=") for text in overrides)
    }
    return spec.model_copy(update={"overrides": {**spec.overrides, **typed}}), scenario


def _show_plan(plan: "SweepPlan", folder: Path, jobs: int | None, as_json: bool) -> int:
    from collections import Counter
    from dataclasses import asdict

    from oppo_sim.plain_json import plain
    from oppo_sim.report.labels import counted
    from oppo_sim.runs.journal import known_keys
    from oppo_sim.sweep.estimate import estimate
    from oppo_sim.sweep.folder import RUNS
    from oppo_sim.text_lines import say

    cores = jobs or os.cpu_count() or 1
    known = known_keys(folder / RUNS)
    found = estimate(plan, known.__contains__, cores)
    reasons = Counter(point for point in plan.resolved if isinstance(point, str))
    if as_json:
        record = {
            "points": len(plan.points),
            "failing_points": sum(reasons.values()),
            "failures": [{"error": sentence, "points": count} for sentence, count in reasons.most_common()],
            **asdict(found),
            "jobs": cores,
        }
        click.echo(json.dumps(plain(record), indent=1))
        return 0
    seeds = counted(len(plan.seeds), "seed")
    say(f"points: {len(plan.points):,} over {', '.join(plan.fields)}; {seeds} each")
    for sentence, count in reasons.most_common(5):
        say(f"  {count:,} cannot run: {sentence}")
    say(
        f"runs: {found.runs:,} with baselines, of which {found.known_runs:,} are in {folder}; {found.steps:,}"
        " training steps to simulate"
    )
    if found.seconds is not None:
        took = f"about {found.seconds:,.0f} s" if found.seconds >= 1 else "less than a second"
        say(f"time: {took} in {cores} process(es), from one run timed here ({found.engine})")
    least, most = found.drawn_runs
    if most:
        between = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        took = ""
        if found.drawn_seconds is not None:
            took = (
                ", " + " to ".join(dict.fromkeys(f"{seconds:,.0f}" for seconds in found.drawn_seconds)) + " s"
            )
        say(
            f"draws: {between} more runs{took}, of points that could be the best, on"
            f" {len(plan.runnable[0].machine.draws)} draws of the machine"
        )
    return 0


def _show(sweep: "Sweep", folder: Path, output: Path | None, top: int, as_json: bool) -> None:
    from oppo_sim.cli.present import show_provenance, show_warnings
    from oppo_sim.plain_json import plain
    from oppo_sim.sweep.folder import best_record, sweep_record

    record = sweep_record(sweep)
    if as_json:
        shown = {
            "folder": str(folder),
            **best_record(sweep),
            **{name: record[name] for name in _OF_RECORD if name in record},
            "table": sweep.points.to_dict(orient="records"),
        }
        click.echo(json.dumps(plain(shown), indent=1))
        show_warnings(record)
        return
    from oppo_sim.report.terminal import left_out, table_console
    from oppo_sim.sweep.show import best_table, notes
    from oppo_sim.text_lines import say

    console = table_console()
    best, gone = best_table(sweep, top, console.width)
    console.print(best)
    if sentence := left_out(gone, console.width, "points.csv holds them"):
        say(sentence)
    for sentence in notes(sweep, gone, output):
        say(sentence)
    show_provenance(record)
    say(f"wrote {folder}")
