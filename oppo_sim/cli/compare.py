"""``oppo compare``: several policies on the same rollouts."""

import os
from pathlib import Path

import click

from oppo_sim.cli import options
from oppo_sim.cli.main import EXIT_INTERRUPTED


@click.command(epilog="Example: oppo compare paper-stackexchange-7b --policies intra,inter,oppo --seeds 5")
@click.argument("scenario")
@click.option(
    "--policies",
    help=(
        "Comma-separated policies. Default: sequential, rollout-overlap, intra, inter, oppo and the"
        " scenario's own."
    ),
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 10_000),
    default=5,
    show_default=True,
    help="Paired seeds, from the scenario's seed on.",
)
@options.STEPS
@options.OVERRIDES
@options.OUTPUT
@options.FORCE
@options.FIGURES
@click.option(
    "--attribution/--no-attribution",
    default=True,
    show_default=True,
    help="Replay without one cost to say where time went.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=None,
    help="Processes. Default: one a core. Results do not depend on it.",
)
@options.JSON
def command(
    scenario: str,
    policies: str | None,
    seeds: int,
    steps: int | None,
    overrides: tuple[str, ...],
    output: Path | None,
    force: bool,
    figures: bool,
    attribution: bool,
    jobs: int | None,
    as_json: bool,
) -> int:
    """Compare policies on SCENARIO with the sequential baseline: speed-up with 95 % intervals over paired
    seeds, and where it comes from.

    An interrupted comparison continues when the same command is run again.
    """
    from oppo_sim.cli.present import show_comparison
    from oppo_sim.comparison_folder import (
        CompareRequest,
        compare_to_folder,
        default_policies,
        journal_path,
        left_unfinished,
    )
    from oppo_sim.run_folder import read_run_folder
    from oppo_sim.scenario.load import load_scenario

    loaded = load_scenario(scenario, overrides)
    chosen = (
        tuple(default_policies(loaded))
        if policies is None
        else tuple(name.strip() for name in policies.split(",") if name.strip())
    )
    folder = output or Path("runs") / f"{options.safe_name(loaded.name)}-compare"
    if not left_unfinished(folder):
        options.refuse_taken(folder, force)
    request = CompareRequest(
        loaded,
        chosen,
        seeds,
        steps or loaded.steps,
        attribution,
        jobs or os.cpu_count() or 1,
        folder,
        force,
        figures,
    )
    try:
        with options.progress_bar(f"{loaded.name}: simulated runs", 1, as_json) as (bar, task):
            comparison = compare_to_folder(
                request, lambda done, total: bar.update(task, completed=done, total=total)
            )
    except KeyboardInterrupt:
        if not journal_path(folder).is_file():
            raise
        click.echo(
            f"oppo: interrupted: finished runs are kept in {journal_path(folder)}, the same command goes on"
            " from there",
            err=True,
        )
        return EXIT_INTERRUPTED
    title = (
        f"{loaded.name}: {seeds} seed(s) × {request.steps} steps, {loaded.warmup_steps} of warm-up"
        " (simulated)"
    )
    show_comparison(comparison, title, folder, read_run_folder(folder).manifest, as_json)
    return 0
