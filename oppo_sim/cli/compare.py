"""``oppo compare``: several policies on the same rollouts."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from oppo_sim.cli import options
from oppo_sim.cli.progress import told_progress

if TYPE_CHECKING:
    from oppo_sim.runs.best import Objective
    from oppo_sim.runs.execute import ExecutorName


@click.command(epilog="Example: oppo compare paper-stackexchange-7b --policies intra,inter,oppo --seeds 5")
@click.argument("scenario")
@click.option(
    "--policies",
    help=(
        "Comma-separated (oppo scenario policies); oppo:chunk_size=256:overcommit=8 has settings of its own."
        " Default: sequential, rollout-overlap, intra, inter, oppo and the scenario's own."
    ),
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 10_000),
    default=5,
    help="Paired seeds, from the scenario's seed on.",
)
@options.draws(
    options.DEFAULT_DRAWS,
    "Draws of what is unknown about the machine's seconds, each with all seeds. 0: the costs are exact.",
)
@click.option(
    "--objective",
    type=click.Choice(["rollouts", "time_to_reward"]),
    default="rollouts",
    help="What is best: least seconds a trained rollout, or least time to the target reward.",
)
@options.practical()
@options.STEPS
@options.overrides
@options.NUMBERED
@options.FORCE
@options.FIGURES
@click.option(
    "--attribution/--no-attribution",
    default=True,
    help="Replay without one cost to say where time went.",
)
@options.EXECUTOR
@options.JOBS
@options.RAY_ADDRESS
@options.JSON
def command(
    scenario: str,
    policies: str | None,
    seeds: int,
    draws: int,
    objective: "Objective",
    practical: float,
    steps: int | None,
    overrides: tuple[str, ...],
    output: Path | None,
    force: bool,
    figures: bool,
    attribution: bool,
    executor: "ExecutorName",
    jobs: int | None,
    ray_address: str | None,
    as_json: bool,
) -> int:
    """Compare policies on SCENARIO with the sequential baseline: speed-up with 95 % intervals of the rollouts
    (paired seeds) and of the machine (draws), and where it comes from.

    An interrupted comparison continues when the same command is run again.
    """
    from oppo_sim.cli.present import show_comparison
    from oppo_sim.comparison.folder import (
        compare_to_folder,
        default_policies,
        journal_path,
        left_unfinished,
        refuse_other,
    )
    from oppo_sim.comparison.plan import plan_comparison
    from oppo_sim.finished_run import read_run_folder
    from oppo_sim.report.labels import counted
    from oppo_sim.runs.execute import Executor
    from oppo_sim.scenario.load import load_scenario

    asked = None if policies is None else options.policies(policies)
    loaded = load_scenario(scenario, overrides)
    chosen = asked or tuple(default_policies(loaded))
    default = f"{options.safe_name(loaded.name)}-compare"
    folder = options.folder_to_write(output, default, force, left_unfinished)
    refuse_other(folder, force)
    where = Executor(executor, jobs, ray_address)
    plan = plan_comparison(loaded, chosen, seeds, steps, attribution, draws, practical, objective)
    try:
        with told_progress(loaded.name, "simulated runs", as_json, plan.runs) as on_progress:
            comparison = compare_to_folder(plan, folder, where, on_progress, force=force, figures=figures)
    except KeyboardInterrupt:
        if not journal_path(folder).is_file():
            raise
        return options.interrupted(f"finished runs are kept in {journal_path(folder)}")
    warmup = plan.scenario.warmup_steps
    title = f"{loaded.name}: {counted(seeds, 'seed')} × {plan.steps} steps, {warmup} of warm-up (simulated)"
    show_comparison(comparison, title, folder, read_run_folder(folder).manifest, as_json)
    return 0
