"""``oppo validate``: real runs of several policies beside their predictions."""

from pathlib import Path

import click

from oppo_sim.cli import options


@click.command(
    epilog=(
        "Example: oppo validate my.yaml --policies sequential,intra,inter,oppo --repeats 5 -o runs/validated"
    )
)
@click.argument("scenario")
@click.option(
    "--policies",
    default="sequential,intra,inter,oppo",
    help="Comma-separated; speed-ups are against the first.",
)
@click.option(
    "--profile",
    type=options.PATH,
    help="Cost profile of these models on this machine. Default: calibrate first.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1, 1000),
    default=3,
    help="Real runs of each policy, interleaved.",
)
@click.option(
    "--budget-s",
    type=click.FloatRange(1),
    default=240.0,
    help="Seconds of the calibration, at most (about).",
)
@click.option("--contention/--no-contention", default=True, help="Calibrate decoding beside scoring, too.")
@options.STEPS
@options.overrides
@options.OUTPUT
@options.FORCE
@options.FIGURES
@options.JSON
def command(
    scenario: str,
    policies: str,
    profile: Path | None,
    repeats: int,
    budget_s: float,
    contention: bool,
    steps: int | None,
    overrides: tuple[str, ...],
    output: Path | None,
    force: bool,
    figures: bool,
    as_json: bool,
) -> int:
    """Run each policy of SCENARIO for real, simulate it from the calibrated profile alone, and report
    predicted, measured and error.

    Finished runs are kept beside the run folder: interrupt it, run the same command again, and it goes on.
    """
    from oppo_real.placement.engines import require_engine
    from oppo_sim.scenario.load import load_scenario

    require_engine("torch")
    from oppo_real.calibrate.session import Effort
    from oppo_real.validate.present import show
    from oppo_real.validate.session import ValidateRequest, validate
    from oppo_real.validate.write import write_validation

    loaded = load_scenario(scenario, overrides)
    chosen = options.policies(policies)
    folder = output or Path("runs") / f"{options.safe_name(loaded.name)}-validate"
    options.refuse_taken(folder, force)
    effort = Effort(repeats=5, budget_s=budget_s, contention=contention, seed=loaded.seed)
    request = ValidateRequest(loaded, chosen, repeats, steps or loaded.steps, profile, folder, effort)
    try:
        with options.progress_bar(f"validate {loaded.name}", 1, as_json) as (bar, task):

            def progress(label: str, done: int, total: int) -> None:
                bar.update(task, completed=done, total=total, description=f"validate {loaded.name}: {label}")

            validated = validate(request, progress)
    except KeyboardInterrupt:
        return options.interrupted(f"what is finished is kept beside {folder}")
    write_validation(validated, force=force, figures=figures)
    show(validated, as_json)
    return 0
