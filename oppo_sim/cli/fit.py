"""``oppo fit``: costs from training logs, or from a few known numbers."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oppo_sim.cli import options
from oppo_sim.cli.progress import told_progress
from oppo_sim.errors import OppoError
from oppo_sim.given_command import flag_given
from oppo_sim.run_kinds import FIT

if TYPE_CHECKING:
    from oppo_sim.fit.log.step_log import StepLog
    from oppo_sim.scenario.schema import Scenario


@click.command(
    epilog=(
        "Example: oppo fit train.log --scenario mine.yaml -o fit/, then oppo compare fit/scenario.yaml."
        " Without a log: oppo fit --scenario mine.yaml --observe timing_s/step=171 --observe"
        " utilization/inference=0.45..0.55"
    )
)
@click.argument("logs", nargs=-1, type=options.PATH)
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    required=True,
    help="Scenario of the run: a YAML file or a shipped name. One for all logs, or one a log in their order.",
)
@click.option(
    "--set", "overrides", multiple=True, metavar="FIELD=VALUE", help="Override a field of every scenario."
)
@click.option(
    "--from", "framework", default="auto", help="Framework of the logs: verl, trl, openrlhf, slime, …"
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="COLUMN=NAME",
    help="What the log calls a figure, such as timing_s/gen=my_gen_time; may be repeated.",
)
@click.option("--unit", type=click.Choice(["auto", "s", "ms"]), default="auto", help="Of the logged seconds.")
@click.option(
    "--lengths",
    "--trace",
    "lengths",
    multiple=True,
    metavar="TRACE",
    help="Trace with a step column that has the rollouts' lengths (oppo trace import), one a log.",
)
@click.option(
    "--log-lengths",
    is_flag=True,
    help="Let the written scenario simulate the log's response lengths in place of its own trace.",
)
@click.option(
    "--fit-steps",
    type=click.IntRange(3),
    help="Steps of each log that are fitted before its rest is judged. Default: the first two thirds.",
)
@click.option(
    "--from-step", type=click.INT, help="First step of the logs to use, where something changed at it."
)
@click.option(
    "--leave-out",
    "leave_out",
    multiple=True,
    metavar="METRIC",
    help=(
        "Metric whose seconds are not fitted, such as timing_s/gen of a run with partial rollouts: its terms"
        " stay as the scenario states them, else at their priors. May be repeated."
    ),
)
@click.option(
    "--judge", "judged", multiple=True, type=options.PATH, help="Log of another run, to be predicted only."
)
@click.option(
    "--judge-scenario",
    "judge_scenarios",
    multiple=True,
    help="Its scenario. One for all, or one a --judge. Default: that of the fitted logs.",
)
@click.option(
    "--observe",
    "observed",
    multiple=True,
    metavar="NAME=VALUE",
    help=(
        "Without a log: a number that is known, VALUE also as 160..180 or 171±5. NAME: timing_s/STAGE or"
        " timing_s/step (seconds), share/STAGE (of the step), utilization/inference, utilization/kernels,"
        " tokens_per_s,"
        " rollouts_per_s."
    ),
)
@click.option("--draws", type=click.IntRange(20, 10_000), default=400, help="Draws of the costs to write.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the draws.")
@options.NUMBERED
@options.FORCE
@options.FIGURES
@options.JSON
def command(
    logs: tuple[Path, ...],
    scenarios: tuple[str, ...],
    overrides: tuple[str, ...],
    framework: str,
    fields: tuple[str, ...],
    unit: str,
    lengths: tuple[str, ...],
    log_lengths: bool,
    fit_steps: int | None,
    from_step: int | None,
    leave_out: tuple[str, ...],
    judged: tuple[Path, ...],
    judge_scenarios: tuple[str, ...],
    observed: tuple[str, ...],
    draws: int,
    seed: int,
    output: Path | None,
    force: bool,
    figures: bool,
    as_json: bool,
) -> int:
    """Fit the costs of a scenario to the training LOGS of runs of one cluster, and say how far they can be
    trusted.

    Writes a folder with scenario.yaml (simulate, compare, sweep and tune take it as it is), draws.csv (what
    stays unknown), fit.json, report.html and figures.
    """
    from oppo_sim.cli.present_fit import show_fit
    from oppo_sim.fit.call import fit_to_folder, observe
    from oppo_sim.fit.observe import observe_record
    from oppo_sim.scenario.load import load_scenario
    from oppo_sim.taken_folder import refuse_taken

    if bool(logs) == bool(observed):
        raise click.UsageError("give training logs, or --observe without any log")
    if lengths and log_lengths:
        raise click.UsageError(
            "--lengths has the rollouts of the log: give it to compare, sweep and tune as --trace, and leave"
            " --log-lengths out"
        )
    if judge_scenarios and not judged:
        raise click.UsageError("--judge-scenario is of a log that is predicted only: give it with --judge")
    loaded = [load_scenario(each, overrides) for each in scenarios]
    folder = options.folder_to_write(output, f"{options.safe_name(loaded[0].name)}-fit", force)
    refuse_taken(folder, FIT, force)
    if observed:
        of_logs = (judged, fit_steps, from_step is not None, leave_out, lengths, log_lengths, fields)
        if any((*of_logs, framework != "auto", unit != "auto")):
            raise click.UsageError(
                "--judge, --fit-steps, --from-step, --leave-out, --lengths, --log-lengths, --from, --field"
                " and --unit are for logs, not for --observe"
            )
        if len(loaded) > 1:
            raise click.UsageError("--observe takes one --scenario")
        with told_progress(loaded[0].name, "simulated draws", as_json, 2 * draws) as progress:
            record = observe_record(
                observe(
                    loaded[0], observed, draws=draws, seed=seed, folder=folder, force=force, figures=figures,
                    progress=progress,
                )
            )  # fmt: skip
    else:
        pairs = _pairs(logs, loaded, framework, fields, unit, lengths, "--scenario", from_step)
        others = [load_scenario(each, overrides) for each in judge_scenarios] or loaded[:1]
        ahead = _pairs(judged, others, framework, fields, unit, (), "--judge-scenario") if judged else []
        with told_progress(loaded[0].name, "fit", as_json) as progress:
            record = fit_to_folder(
                pairs, ahead, folder, fit_steps=fit_steps, leave_out=leave_out, draws=draws, seed=seed,
                log_lengths=log_lengths, force=force, figures=figures, progress=progress,
            )  # fmt: skip
    if as_json:
        click.echo(json.dumps(record, indent=1))
    else:
        show_fit(record, folder)
    return 0


def _pairs(
    logs: tuple[Path, ...],
    scenarios: "list[Scenario]",
    framework: str,
    fields: tuple[str, ...],
    unit: str,
    lengths: tuple[str, ...],
    option: str,
    from_step: int | None = None,
) -> "list[tuple[StepLog, Scenario]]":
    from oppo_sim.fit.sources import open_log

    if len(scenarios) not in (1, len(logs)):
        raise OppoError(
            f"there are {len(logs)} logs and {len(scenarios)} scenarios: give {option} once, or once a log"
        )
    if lengths and len(lengths) != len(logs):
        flag = flag_given("--lengths", "--trace")
        raise OppoError(f"there are {len(logs)} logs and {len(lengths)} {flag}: give one a log")
    named = dict(_field(each) for each in fields)
    each = scenarios * len(logs) if len(scenarios) == 1 else scenarios
    traces = lengths or (None,) * len(logs)
    return [
        (open_log(log, framework, fields=named, unit=unit, lengths=trace, from_step=from_step), scenario)
        for log, scenario, trace in zip(logs, each, traces, strict=True)
    ]


def _field(text: str) -> tuple[str, str]:
    column, equals, name = text.partition("=")
    if not (equals and column.strip() and name.strip()):
        raise OppoError(f"--field {text} is not of the form COLUMN=NAME, such as timing_s/gen=my_gen_time")
    return column.strip(), name.strip()
