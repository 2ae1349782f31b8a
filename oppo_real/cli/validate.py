"""``oppo validate``: real runs of several policies beside their predictions."""

from math import inf
from pathlib import Path

import click

from oppo_sim.cli import options
from oppo_sim.cli.progress import progress_bar, say_notes, told_progress
from oppo_sim.run_kinds import VALIDATION

DEFAULT = "sequential,intra,inter,oppo"


@click.command(
    epilog=(
        "Example: oppo validate my.yaml --policies sequential,intra,inter,oppo --repeats 5 -o runs/validated"
    )
)
@click.argument("scenario")
@click.option(
    "--policies",
    help="Comma-separated; speed-ups are against the first. intra:chunk_size=48 has a setting of its own."
    " Default: sequential,intra,inter,oppo.",
)
@click.option(
    "--from-tune",
    type=options.PATH,
    help="Folder of 'oppo tune': sequential, the three settings it ranks first, and two others. Where it"
    " holds no finished search, one is made there first, on the seconds of --profile or of the scenario's.",
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
    type=options.Number(1),
    help="Seconds of the calibration, at most (about). Default: as many as it takes to visit every point"
    " three times or more.",
)
@click.option("--contention/--no-contention", default=True, help="Calibrate decoding beside scoring, too.")
@click.option(
    "--measure/--no-measure",
    default=True,
    help="With --no-measure conclude from the complete rounds that an interrupted run of this command kept;"
    " predictions take no GPU, so on any machine.",
)
@options.STEPS
@options.overrides
@options.OUTPUT
@options.FORCE
@options.FIGURES
@options.JSON
def command(
    scenario: str,
    policies: str | None,
    from_tune: Path | None,
    profile: Path | None,
    repeats: int,
    budget_s: float | None,
    contention: bool,
    measure: bool,
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
    from oppo_sim.scenario.policy_label import labelled_policy

    require_engine("torch")
    from oppo_real.calibrate.session import Effort
    from oppo_real.validate.before import check_before, check_kept
    from oppo_real.validate.present import show
    from oppo_real.validate.request import ValidateRequest
    from oppo_real.validate.session import validate
    from oppo_real.validate.variants import variants_of_search
    from oppo_real.validate.write import was_being_written, write_validation
    from oppo_sim.errors import OppoError
    from oppo_sim.taken_folder import refuse_taken

    loaded = load_scenario(scenario, overrides)
    if from_tune is not None and policies is not None:
        raise OppoError("--policies and --from-tune both say what to validate: give one of them")
    folder = output or Path("runs") / f"{options.safe_name(loaded.name)}-validate"
    force = force or was_being_written(folder)
    refuse_taken(folder, VALIDATION, force)
    if not measure:
        check_kept(loaded, folder, from_tune, profile)
    if from_tune is not None:
        from oppo_real.validate.search import have_search

        if measure:
            check_before(loaded, profile)
            try:
                with told_progress(loaded.name, "search", as_json) as tell:
                    have_search(loaded, from_tune, profile, steps, tell)
            except KeyboardInterrupt:
                kept = f"finished runs of the search are kept in {from_tune}"
                return options.interrupted(
                    kept if from_tune.is_dir() else "nothing of the search was finished"
                )
        chosen = variants_of_search(loaded, from_tune)
    else:
        labels = options.policies(DEFAULT if policies is None else policies)
        chosen = tuple(labelled_policy(loaded, label) for label in labels)
    effort = Effort(
        repeats=3 if budget_s is None else 5,
        budget_s=inf if budget_s is None else budget_s,
        contention=contention,
        seed=loaded.seed,
    )
    request = ValidateRequest(
        loaded, chosen, repeats, steps or loaded.steps, profile, folder, effort, measure
    )
    try:
        with progress_bar(f"validate {loaded.name}", 1, as_json) as (bar, task):

            def progress(label: str, done: int, total: int) -> None:
                bar.update(task, completed=done, total=total, description=f"validate {loaded.name}: {label}")

            validated = validate(request, progress)
    except KeyboardInterrupt:
        return options.interrupted(f"what is finished is kept beside {folder}")
    try:
        left = write_validation(validated, force=force, figures=figures)
    except OppoError as error:
        raise OppoError(
            f"{error}; the runs are kept in {request.beside('.runs.jsonl')}, and the same command goes on"
            " from them"
        ) from None
    show(validated, as_json)
    say_notes(left)
    return 0
