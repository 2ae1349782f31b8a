"""``oppo tune``: the best policy and its knobs under constraints."""

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oppo_sim.cli import options
from oppo_sim.cli.progress import told_progress

if TYPE_CHECKING:
    from rich.table import Table

    from oppo_sim.tune.request import TuneRequest
    from oppo_sim.tune.trials import PairedResult, Tuned

MOST_SHOWN = 14
"""Settings in the table."""
EXIT_INFEASIBLE = 3
"""The search ended, and nothing kept all bounds."""

_EPILOG = """\b
Examples:
  oppo tune h200x8-vllm --max-staleness 2 --max-length-bias 0.01
  oppo tune h200x8-vllm --policies inter,oppo \\
    --space policy.overcommit=0..64 --space rollout.num_replicas=4,8
  oppo tune h200x8-vllm --framework verl
  oppo tune h200x8-vllm --drift 0.6 --drift 1.6 --cost-worlds 8 --robust worst
"""


class _Capacity(click.ParamType[int | str]):
    name = "auto|TOKENS"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        text = str(value)
        if text == "auto" or (text.isdigit() and int(text) > 0):
            return text if text == "auto" else int(text)
        self.fail(f"'{text}' is no capacity: give a number of tokens from 1 on, or auto", param, ctx)


@click.command(epilog=_EPILOG)
@click.argument("scenario")
@click.option(
    "--policies",
    help="Comma-separated (oppo scenario policies). Default: the synchronous ones that the scenario can run,"
    " and its own.",
)
@click.option(
    "--framework",
    metavar="NAME",
    help="Search only what it can do: TRL, verl, OpenRLHF, slime, NeMo RL, AReaL, ROLL, prime-rl.",
)
@click.option("--space", "space", multiple=True, metavar="FIELD=LOW..HIGH[:log]|A,B,C",
help="Range of a knob instead of its default, or a "
              "further field of the scenario; may be repeated. One value pins it.")  # fmt: skip
@click.option("--objective", type=click.Choice(["rollouts", "tokens", "time_to_reward"]), default="rollouts",
              help="Least seconds per trained rollout, per trained response "
              "token, or to the target reward.")  # fmt: skip
@click.option(
    "--max-staleness", type=options.Number(0), help="Bound on the stalest trained rollout, updates."
)
@click.option("--max-mean-staleness", type=options.Number(0), help="Bound on the mean staleness, updates.")
@click.option("--max-length-bias", type=options.Number(0, 1, max_open=True), metavar="SHARE",
help="Bound on how much longer or shorter trained "
              "responses are than sequential's on the same seeds (0.01: 1 %).")  # fmt: skip
@click.option(
    "--kv-capacity",
    type=_Capacity(),
    help="Bound on the KV peak of a replica; auto: what device memory leaves.",
)
@click.option("--max-deferrals", type=click.IntRange(0), help="Bound on how often a rollout is deferred.")
@click.option(
    "--other-trace",
    "traces",
    multiple=True,
    metavar="NAME|FILE",
    help="A further trace that the choice must be good for; may be repeated.",
)
@click.option(
    "--drift",
    "drifts",
    multiple=True,
    type=options.Number(0.01, 100),
    metavar="FACTOR",
    help="Lengths may become so many times as long; may be repeated.",
)
@click.option(
    "--cost-worlds",
    type=click.IntRange(0, 1000),
    default=0,
    help="Draws of the machine, each a world that the choice must be good for.",
)
@click.option("--cost-profile", "cost_profiles", multiple=True, type=options.PATH,
help="A further measured profile that may "
              "be the true one; may be repeated.")  # fmt: skip
@click.option("--robust", type=click.Choice(["mean", "worst", "quantile"]), default="mean",
              help="With several worlds: mean, worst or 90 % quantile of the regret.")  # fmt: skip
@click.option(
    "--trials",
    type=click.IntRange(1, 100_000),
    default=200,
    help="Settings to try; more later go on.",
)
@click.option(
    "--seeds", type=click.IntRange(1, 1000), help="Seeds of every trial, the same for all.  [default: 5]"
)
@click.option(
    "--fresh-seeds", type=click.IntRange(1, 1000), help="Further seeds for what is reported.  [default: 10]"
)
@click.option("--sampler-seed", type=click.IntRange(0), default=0, help="Seed of the search itself.")
@click.option("--timeout-s", type=options.Number(0, min_open=True), help="Seconds that the search may take.")
@options.draws(
    options.DEFAULT_DRAWS,
    "Draws of what is unknown about the machine's seconds, for what is reported. 0: the costs are exact.",
)
@options.practical()
@options.EXECUTOR
@options.JOBS
@options.RAY_ADDRESS
@options.STEPS
@options.overrides
@options.OUTPUT
@click.option("--force", is_flag=True, help="Begin anew where the folder holds another search.")
@options.FIGURES
@click.option(
    "--dry-run",
    is_flag=True,
    help="Say what would be searched, how many runs that is and how long it may take; write nothing.",
)
@options.JSON
def command(
    scenario: str,
    policies: str | None,
    space: tuple[str, ...],
    traces: tuple[str, ...],
    drifts: tuple[float, ...],
    cost_profiles: tuple[Path, ...],
    cost_worlds: int,
    overrides: tuple[str, ...],
    output: Path | None,
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Find the policy and knobs of SCENARIO with the least seconds per trained rollout that keep all bounds.

    The choice is measured again on seeds that the search did not see, every knob is swept around it, and it
    is said in the words of other frameworks. The folder holds tune.json, trials, sensitivity, advice.md and
    best.yaml; an interrupted search goes on when the same command is run again, with more --trials or
    --timeout-s if wanted. Exit code 3: nothing keeps all bounds.
    """
    from oppo_sim.scenario.load import load_scenario
    from oppo_sim.tune.trials import require_optuna

    require_optuna()
    from oppo_sim.tune.request import Constraints, TuneRequest
    from oppo_sim.tune.session import run_tuning
    from oppo_sim.tune.space import parse_knob
    from oppo_sim.tune.worlds import WorldSpec

    loaded = load_scenario(scenario, overrides)
    folder = output or Path("runs") / f"{options.safe_name(loaded.name)}-tune"
    request = TuneRequest(
        scenario,
        folder,
        overrides,
        policies=None if policies is None else options.policies(policies),
        space=tuple(parse_knob(text) for text in space),
        constraints=Constraints(**{field.name: given.pop(field.name) for field in fields(Constraints)}),
        worlds=WorldSpec(traces, drifts, cost_worlds, cost_profiles),
        **given,
    )
    if dry_run:
        return _show_plan(request, as_json)
    try:
        with told_progress(loaded.name, "search", as_json) as on_progress:
            tuned = run_tuning(request, on_progress)
    except KeyboardInterrupt:
        return options.interrupted(f"finished runs are kept in {folder}")
    _show(tuned, folder, as_json)
    return EXIT_INFEASIBLE if tuned.infeasible is not None else 0


def _show_plan(request: "TuneRequest", as_json: bool) -> int:
    from oppo_sim.text_lines import say
    from oppo_sim.tune.plan import planned

    plan = planned(request)
    if as_json:
        click.echo(json.dumps(plan.record(), indent=1, ensure_ascii=False))
        return 0
    for sentence in plan.sentences():
        say(sentence)
    return 0


def _show(tuned: "Tuned", folder: Path, as_json: bool) -> None:
    from oppo_sim.tune.advice_page import advice_text

    if as_json:
        from oppo_sim.plain_json import plain

        click.echo(json.dumps(plain({"folder": str(folder), **tuned.record}), indent=1, ensure_ascii=False))
        return
    from oppo_sim.report.terminal import table_console
    from oppo_sim.sweep.edges import into_another
    from oppo_sim.text_lines import say

    if tuned.chosen is not None:
        from oppo_sim.report.terminal import left_out

        console = table_console()
        shown, gone = _checked_table(tuned, console.width)
        console.print(shown)
        if sentence := left_out(gone, console.width, "--json has them"):
            say(sentence)
    text = advice_text(tuned.advised).rstrip("\n")
    for command in {edge["command"] for edge in tuned.record.get("edges", ())} - {""}:
        # This folder holds another search.
        text = text.replace(command, into_another(command, folder))
    say(text)
    say(f"wrote {folder}")


def _checked_table(tuned: "Tuned", width: int) -> "tuple[Table, tuple[str, ...]]":
    """The choice on top, then the others by cost; all on fresh seeds, in the scenario as given. Also the
    heads of columns that ``width`` characters do not hold."""
    from math import isfinite

    from oppo_sim import columns as c
    from oppo_sim.report.labels import (
        GPU_HEADS,
        NOTHING,
        counted,
        format_seconds,
        format_signed,
        gpu_cells,
        policy_names,
        signed_ends,
    )
    from oppo_sim.report.ranges import ends_text
    from oppo_sim.report.terminal import Column, fitted
    from oppo_sim.tune.advice import expected

    assert tuned.chosen is not None
    record = tuned.record
    seeds = len(record["fresh_seeds"]) or len(record["seeds"])
    title = f"{tuned.scenario.name}: {counted(seeds, 'fresh seed')} × {record['steps']} steps (simulated)"
    columns = [
        Column("setting", left=True, folds_at=max(14, width // 4)),
        Column("step"),
        Column("speed-up\n[95 %]"),
        Column("from choice\n[95 %]", 1),
        Column("staleness\nmean ≤ max", 3),
        Column("bias", 4),
        *(Column(head, 5 + i) for i, head in enumerate(GPU_HEADS)),
        Column("KV peak", 8),
        Column("", folds_at=6, stays=True),
    ]
    rows = []
    looked_at = [tuned.chosen, *_each_once(tuned.chosen, tuned.others)[: MOST_SHOWN - 1]]
    names = policy_names(one.checked.setting.policy for one in looked_at)
    for one in looked_at:
        row, gain = one.checked.rows[0], expected(one, tuned.record["objective"])
        mean, low, high = one.difference
        least, most = gain["speedup_low"], gain["speedup_high"]
        ratio = f" [{least:.2f}, {most:.2f}]" if isfinite(least) else ""
        if one.ranges:
            ratio = f" {ends_text(gain[c.SPEEDUP_BOTH_LOW], gain[c.SPEEDUP_BOTH_HIGH], gain['speedup'])}"
        why = "" if one.checked.number is not None else f" ({one.checked.why})"
        rows.append(
            [
                one.checked.setting.named(names) + why,
                format_seconds(row[c.STEP_S]),
                f"{gain['speedup']:.2f}×{ratio}",
                NOTHING if one is tuned.chosen else format_signed(mean) + signed_ends(low, high),
                f"{row[c.COMPARED_STALENESS_MEAN]:.2f} ≤ {row[c.COMPARED_STALENESS_MAX]:.0f}",
                format_signed(row[c.LENGTH_BIAS_PAIRED], 2),
                *gpu_cells(row),
                f"{row[c.COMPARED_KV_PEAK_TOKENS]:,.0f}",
                _mark(one, tuned),
            ]
        )
    return fitted(title, columns, rows, width, bold=(0,))


def _each_once(chosen: "PairedResult", others: "Sequence[PairedResult]") -> "list[PairedResult]":
    """The others without what is shown already: a trial that is also the baseline, or the scenario's own, is
    one row, and says so."""

    def setting(one: "PairedResult") -> tuple[str, Any]:
        return one.checked.setting.policy, dict(one.checked.setting.values)

    named = [setting(one) for one in others if one.checked.number is None]
    return [
        one
        for one in others
        if setting(one) != setting(chosen) and (one.checked.number is None or setting(one) not in named)
    ]


def _mark(one: "PairedResult", tuned: "Tuned") -> str:
    if one is tuned.chosen:
        return "choice"
    if not one.keeps_bounds:
        return "breaks a bound"
    return "≈" if one.alike else ""
