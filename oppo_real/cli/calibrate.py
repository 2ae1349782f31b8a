"""``oppo calibrate``: measure the engines of a scenario's real run, and write a cost profile."""

import json
import re
import shlex
from pathlib import Path

import click

from oppo_real.placement.engines import ENGINES, EngineKind
from oppo_sim.cli import options
from oppo_sim.cli.progress import progress_bar, say_notes


@click.command(
    epilog=(
        "Example: oppo calibrate my-run.yaml -o h200-7b.json; then, in it, costs: {kind: profile, path:"
        " h200-7b.json}"
    )
)
@click.argument("scenario")
@click.option(
    "--engine", type=click.Choice(list(ENGINES)), help="Engine of the actor instead of the scenario's."
)
@options.overrides
@options.output("Profile to write. Default: SCENARIO.profile.json.")
@click.option("--budget-s", type=options.Number(1), default=900.0, help="Seconds in all, at most (about).")
@click.option("--repeats", type=click.IntRange(1), default=5, help="Visits to every point, in passes.")
@click.option(
    "--contention/--no-contention",
    default=True,
    help="Measure activities together, in two processes.",
)
@click.option(
    "--cache",
    type=options.PATH,
    help="Folder of finished points. Default: .oppo-calibrate beside the profile.",
)
@click.option(
    "--share",
    type=options.PATH,
    help="Also write profile and samples below this folder without your names, paths and scenario, to be"
    " given away.",
)
@options.SEED
@click.option("--force", is_flag=True, help="Replace a profile that is there.")
@options.FIGURES
@options.JSON
def command(
    scenario: str,
    engine: EngineKind | None,
    overrides: tuple[str, ...],
    output: Path | None,
    budget_s: float,
    repeats: int,
    contention: bool,
    cache: Path | None,
    share: Path | None,
    seed: int | None,
    force: bool,
    figures: bool,
    as_json: bool,
) -> int:
    """Measure decode, prefill, scoring, training and weight sync of SCENARIO's real section, and write a cost
    profile.

    Finished points are kept: interrupt it, run it again, and it goes on. Beside the profile lie its raw
    samples, the fit and a figure.
    """
    from oppo_real.calibrate.contention import disagreement
    from oppo_real.calibrate.profile import samples_text
    from oppo_real.calibrate.report import calibration_figure, fit_tables, remarks, save_figure
    from oppo_real.calibrate.session import Effort, calibrate_to
    from oppo_real.calibrate.share import with_parameters, write_shared
    from oppo_real.calibrate.sizes import sizes_of
    from oppo_real.calibrate.subject import subject_of
    from oppo_sim.errors import OppoError
    from oppo_sim.files import check_can_write
    from oppo_sim.plain_json import plain
    from oppo_sim.report.terminal import table_console
    from oppo_sim.scenario.load import load_scenario
    from oppo_sim.text_lines import say

    loaded = load_scenario(scenario, overrides)
    subject = subject_of(loaded, engine)
    path = output or Path(f"{options.safe_name(loaded.name)}.profile.json")
    if path.exists() and not force:
        raise OppoError(
            f"{path} exists: choose another file with -o, or replace it with --force (finished points are"
            " kept either way)"
        )
    effort = Effort(
        repeats=repeats, budget_s=budget_s, contention=contention, seed=loaded.seed if seed is None else seed
    )
    kept = cache or path.parent / ".oppo-calibrate"
    for each in (path, kept / "points"):  # before minutes of measuring
        check_can_write(each)
    with progress_bar(f"calibrate {loaded.name}", 1, as_json, budget_s) as (bar, task):

        def progress(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=f"calibrate {loaded.name}: {label}")

        try:
            session, calibration, written = calibrate_to(
                path, loaded.name, subject, sizes_of(loaded), kept, effort, progress
            )
        except KeyboardInterrupt:
            return options.interrupted(f"what was measured is kept in {kept}")
    figure = path.with_name(f"{path.stem}.fit.png") if figures else None
    if figure is not None:
        save_figure(calibration_figure(session.visits, calibration.fits), figure)
    shared = None
    if share is not None:
        told = with_parameters(calibration.profile, subject.config.models)
        shared = write_shared(told, samples_text(session.visits, session.contention), share)
    notes = [*session.notes, *remarks(calibration)]
    if disagreement(session.contention, effort.seed):
        notes.append(
            f"what was measured together is kept with the rest: delete {kept} before you measure anew"
        )
    if as_json:
        files = {name: str(getattr(written, name)) for name in ("profile", "report", "samples")}
        if figure is not None:
            files["figure"] = str(figure)
        if shared is not None:
            files |= {"shared": str(shared.profile), "shared_samples": str(shared.samples)}
        counts = {"visits": len(session.visits), "planned": session.planned_visits, "fresh": session.fresh}
        record = {"files": files, "visits": counts, **calibration.report(), "notes": notes}
        click.echo(json.dumps(plain(record), indent=1))
        return 0
    console = table_console()
    for table in fit_tables(calibration):
        console.print(table)
    say_notes(notes)
    say(
        f"{len(session.visits)} of {session.planned_visits} visits, {session.fresh} of them new, on"
        f" {session.origin.hardware}"
    )
    say(
        f"wrote {written.profile} (and {written.report.name},"
        f" {written.samples.name}{', ' + figure.name if figure else ''})"
    )
    say(f"to simulate with its seconds: {_simulating(scenario, overrides, path)}")
    if shared is not None:
        say(f"to be given away as {shared.name}: {shared.profile} and {shared.samples.name}")
    return 0


def _simulating(scenario: str, overrides: tuple[str, ...], profile: Path) -> str:
    """The command that compares policies on ``profile``, of the scenario as it was given."""
    # A path in a scenario begins at the scenario's folder.
    alike = (Path(scenario).parent / profile).absolute() == profile.absolute()
    where = str(profile if alike else profile.absolute())
    if re.fullmatch(r"[\w./-]+", where) is None:
        where = json.dumps(where, ensure_ascii=False)
    words = [*overrides, f"costs={{kind: profile, path: {where}}}"]
    return shlex.join(["oppo", "compare", scenario, *(part for each in words for part in ("--set", each))])
