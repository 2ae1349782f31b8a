"""What the terminal shows of a finished run or comparison."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np

from oppo_sim import columns as c
from oppo_sim.cli.main import EXIT_INTERRUPTED
from oppo_sim.cli.progress import say_notes
from oppo_sim.costs.evidence import evidence_text
from oppo_sim.plain_json import plain
from oppo_sim.policies.registry import BASELINE
from oppo_sim.report.labels import (
    ATTRIBUTION,
    GPU_HEADS,
    NOTHING,
    Unit,
    format_seconds,
    format_signed,
    gpu_cells,
    one_unit,
    other_lengths,
    policy_names,
    significant,
    stage_rows,
    time_unit,
)
from oppo_sim.report.ranges import (
    around,
    drawn_words,
    ends_text,
    few_seeds_in,
    has_intervals,
    has_ranges,
    machine_sentence,
    over_words,
    published_sentence,
    replayed_sentence,
    widest_sentence,
)
from oppo_sim.report.run_text import run_lines
from oppo_sim.report.terminal import (
    LEAST_TEXT,
    Column,
    fitted,
    in_lines,
    left_out,
    say,
    table_console,
    text_width,
)
from oppo_sim.rewards import learning_of
from oppo_sim.runs.distributions import compared_shares
from oppo_sim.runs.statistics import TO_REWARD
from oppo_sim.tables import numbers

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from oppo_sim.comparison.result import Comparison
    from oppo_sim.simulation_folder import StoredRun


def show_run(run: "StoredRun", as_json: bool, *, resumes: bool = False) -> int:
    """The summary of a run, simulated or real, on standard output; the exit code."""
    from oppo_sim.report.labels import clock_unit
    from oppo_sim.simulation_folder import run_record

    simulated, unit = str(run.manifest["kind"]).startswith("simulated"), clock_unit(run.manifest)
    if as_json:
        click.echo(run_record(run))
        if simulated:
            show_warnings(run.manifest)
    else:
        kept = run.steps.iloc[run.warmup_steps :]
        seconds = "decode iterations" if unit else f"{'simulated' if simulated else 'measured'} seconds"
        steps = f"{len(kept)} step{'' if len(kept) == 1 else 's'}"
        title = (
            f"{run.manifest['scenario']}, policy {run.policy}, {steps} after {run.warmup_steps} of"
            f" warm-up ({seconds})"
        )
        ends = run.manifest.get("machine", {}).get("intervals", {})
        table_console().print(run_summary_table(kept, title, unit, ends))
        counted = "num_gpus" in run.manifest and not unit
        for line in run_lines(kept, int(run.manifest["num_gpus"]) if counted else None, ends):
            say(line)
        if simulated:
            if sentence := machine_sentence(run.manifest):
                say(sentence)
            show_provenance(run.manifest)
        done = f" (interrupted after {len(run.steps)} steps)" if run.interrupted else ""
        say(f"wrote {run.folder}{done}")
    if not run.interrupted:
        return 0
    go_on = "; --resume goes on from the last checkpoint, with the same command" if resumes else ""
    told = (
        f"oppo: interrupted after {len(run.steps)} of {run.manifest['steps']} steps: {run.folder} is complete"
        f" up to there{go_on}"
    )
    click.echo(in_lines(told, text_width(errors=True)), err=True)
    return EXIT_INTERRUPTED


def show_comparison(
    comparison: "Comparison", title: str, folder: Path, manifest: Mapping[str, Any], as_json: bool
) -> None:
    """The comparison and its attribution, on standard output."""
    from oppo_sim.comparison.folder import comparison_record

    if as_json:
        click.echo(json.dumps(plain({"folder": str(folder), **comparison_record(comparison)}), indent=1))
        show_warnings(manifest)
        return

    console = table_console()
    kept = _baselines_once(comparison.table)
    names = policy_names(kept.index)
    table = kept.rename(index=names)
    if has_ranges(table):
        console.print(ranges_table(table, title))
        say("95 % of rollouts and machine, and of the rollouts alone; best: in so many draws and seeds\n")
    else:
        console.print(comparison_table(table, title))
        if has_intervals(table):
            say("95 % of the rollouts alone: without draws the machine is taken as given\n")
    console.print(
        price_table(table, "staleness: mean / max; length bias: against sequential; GPU-h/1k: 1,000 steps")
    )
    interval = " [95 %]" if has_intervals(table) else ""
    console.print(to_reward_table(table, f"to the target reward{interval}"))
    for name, shares in compared_shares(comparison.cells).items():
        if shares.shape[1] > 1:
            # The others train on policy, or defer nothing.
            spread = shares[shares.iloc[:, 0] < 1 - 1e-9].rename(index=names)
            console.print(shares_table(spread, name, "all others: 0" if len(spread) < len(shares) else ""))
    if comparison.attribution.notna().any(axis=None):
        console.print(attribution_table(comparison.attribution.rename(index=names), "where the time went"))
    for sentence in _own_baselines(comparison, names):
        say(sentence)
    say(_best_sentence(comparison, names))
    if other := other_lengths(float(comparison.table[c.LENGTH_BIAS_PAIRED][comparison.best])):
        say(f"{names.get(comparison.best, comparison.best)}: {other}")
    say(manifest["to_reward"]["sentence"])
    show_machine(manifest, table)
    if sentence := published_sentence(manifest):
        say(sentence)
    show_provenance(manifest)
    say(f"wrote {folder}")


def _baselines_once(table: "pd.DataFrame") -> "pd.DataFrame":
    """Without baselines that equal a shorter-named one, such as plain ``sequential``, in every number."""
    baselines = sorted((name for name in table.index if name.partition(" (")[0] == BASELINE), key=len)
    values = table.select_dtypes("number")
    again = [
        name
        for at, name in enumerate(baselines)
        if any(values.loc[name].equals(values.loc[other]) for other in baselines[:at])
    ]
    return table.drop(index=again)


def _own_baselines(comparison: "Comparison", names: Mapping[str, str]) -> list[str]:
    """Which policies are compared with a sequential of their own, where its row is shown."""
    with_it: dict[str, list[str]] = {}
    for policy, base in (comparison.plan.baselines if comparison.plan is not None else {}).items():
        if base != BASELINE and base in names and policy != base:
            with_it.setdefault(names[base], []).append(names[policy])
    return [
        f"{base}: stops as {' and '.join(policies)} do{'es' if len(policies) == 1 else ''}, whose speed-up is"
        " against it"
        for base, policies in with_it.items()
    ]


def _best_sentence(comparison: "Comparison", names: Mapping[str, str]) -> str:
    """Which policy is the best, and which (≈) cannot be told apart from it. ``names``: of those that are
    shown."""
    best, plan = names.get(comparison.best, comparison.best), comparison.plan
    alike = [names[policy] for policy in comparison.alike if policy in names]
    effects = 0 if plan is None else len(learning_of(plan.scenario.rewards, plan.steps).effect.draws)
    over = over_words("the seeds", drawn_words(comparison.ranges is not None, comparison.objective, effects))
    slower = "slower"
    if comparison.objective == TO_REWARD:
        best, slower = f"{best}, to the target reward", "later there"
    elif comparison.best != BASELINE:
        best = f"{best}, {_gain(comparison.table, comparison.best)}"
    if len(names) == 1:
        return f"best: {best}; no other policy was compared with it (--policies)"
    if plan is not None and len(plan.seeds) < 2 and comparison.ranges is None and not alike:
        return f"best: {best}; with one seed nothing can be said about which differences are real"
    if not alike:
        return f"best: {best}; every other policy is significantly {slower} over {over}"
    near = "" if plan is None or not plan.practical else f", or within {100 * plan.practical:g} % of it"
    found = f"best: {best}; ≈ {', '.join(alike)}: not told apart from it over {over}{near}"
    if plan is None:
        return found
    few = few_seeds_in(comparison.table, comparison.best, comparison.alike, len(plan.seeds), plan.practical)
    return f"{found}; {few}" if few else found


def _gain(table: "pd.DataFrame", policy: str) -> str:
    """Its speed-up, again: the table may have left the screen."""
    names = (
        (c.SPEEDUP_BOTH_LOW, c.SPEEDUP_BOTH_HIGH) if has_ranges(table) else (c.SPEEDUP_LOW, c.SPEEDUP_HIGH)
    )
    gain = float(table[c.SPEEDUP][policy])
    low, high = (float(table[name][policy]) if has_intervals(table) else np.nan for name in names)
    return f"{gain:.2f}× {ends_text(low, high, gain)}".rstrip()


def show_machine(manifest: Mapping[str, Any], table: "pd.DataFrame") -> None:
    """What the intervals of the machine rest on, and which unknown widens them most."""
    widest = widest_sentence(table) if has_ranges(table) else ""
    replayed = replayed_sentence(manifest["trace"].get("sampling"), len(manifest["seeds"]))
    for sentence in filter(None, (replayed, machine_sentence(manifest), widest)):
        say(sentence)


def show_provenance(manifest: Mapping[str, Any]) -> None:
    """One line that says how well the seconds of each stage are known, and the warnings."""
    costs = manifest["costs"]
    known = evidence_text(costs.get("evidence", {})) or "costs of unknown origin"
    trace = manifest["trace"]
    named = trace.get("name") or trace.get("path") or f"synthetic, {trace['synth']['distribution']}"
    say(f"costs: {costs.get('kind')} ({known}); trace: {named}")
    show_warnings(manifest)


def show_warnings(manifest: Mapping[str, Any]) -> None:
    """What is likely not meant, on standard error."""
    say_notes(manifest["warnings"])


_LEAST_NAME: Final = 8
"""Characters of a name, in a table that is too wide."""


def table(
    title: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Sequence[int] = (0,),
    stay: int | None = None,
    bold: Sequence[int] = (),
    names: Sequence[int] = (0,),
) -> "Table":
    """A table of texts as they are, no markup, for the terminal as wide as it is. ``left``: columns that are
    flush left; ``names``: those that may fold; ``stay``: how many columns stay where it is too wide, of the
    others the last leave first, and are named below; None: all, as long as a line holds them; ``bold``: rows
    to stress, by number."""
    from rich.text import Text

    columns = [
        Column(
            head,
            leaves=0 if stay is None or number < stay else number,
            left=number in left,
            # Names fold where the table is too wide; numbers are not cut.
            folds_at=min(len(head), _LEAST_NAME) if number in names else None,
        )
        for number, head in enumerate(heads)
    ]
    width = table_console().width
    shown, gone = fitted(title, columns, rows, width, bold)
    if gone:
        shown.caption = Text(left_out(gone, width, "--json has them"), justify="left", style="")
        shown.min_width = max(shown.min_width or 0, min(width, LEAST_TEXT))
    return shown


def run_summary_table(
    steps: "pd.DataFrame",
    title: str = "",
    unit: Unit | None = None,
    ends: Mapping[str, Sequence[float]] | None = None,
) -> "Table":
    """Mean, median, 95th percentile and share of the step for every stage that took time, and for the step.

    ``ends``: 95 % intervals of means over draws of the machine, by column. Leave warm-up steps out of
    ``steps`` beforehand. Raises OppoError without the timing columns.
    """
    heads: tuple[str, ...] = ("stage", "mean", "p50", "p95", "share\nof step")
    rows: list[tuple[str, ...]] = list(stage_rows(steps, unit))
    if ends:
        heads = (*heads, "mean on draws\n[95 %]")
        rows = [(*row, _seconds_ends(ends.get(c.timing(row[0])))) for row in rows]
    shown = table(title, heads, rows, stay=2, bold=(len(rows) - 1,))
    if len(rows) > 1:
        shown.rows[-2].end_section = True
    return shown


def comparison_table(comparison: "pd.DataFrame", title: str = "") -> "Table":
    """One row a policy: step time, speed-up with its 95 % interval. Raises OppoError for missing columns."""
    names = (c.STEP_S, c.SPEEDUP, c.SPEEDUP_LOW, c.SPEEDUP_HIGH)
    values = np.array([numbers(comparison, name, "comparison") for name in names]).T
    # One unit for all: the column is there to be compared.
    steps = values[:, 0]
    unit = time_unit(float(np.nanmin(steps))) if np.isfinite(steps).any() else None
    rows = []
    for policy, (step, speedup, low, high) in zip(comparison.index, values.tolist(), strict=True):
        interval = f" [{low:.2f}, {high:.2f}]" if np.isfinite((low, high)).all() else ""
        ratio = f"{speedup:.2f}×{interval}" if np.isfinite(speedup) else NOTHING
        rows.append((str(policy), format_seconds(step, unit), ratio))
    ratio = "speed-up [95 % interval]" if has_intervals(comparison) else "speed-up"
    return table(title, ("policy", "step time", ratio), rows)


def _filters(comparison: "pd.DataFrame") -> bool:
    """Groups were dropped for equal rewards."""
    return c.FILTERED in comparison.columns and bool((comparison[c.FILTERED] > 0).any())


def ranges_table(comparison: "pd.DataFrame", title: str = "") -> "Table":
    """One row a policy: step time, speed-up with the interval of rollouts and machine and that of the
    rollouts alone, share of draws × seeds in which it is the best. 80 columns wide."""
    seconds = numbers(comparison, c.STEP_S, "comparison")
    unit = time_unit(float(np.nanmin(seconds))) if np.isfinite(seconds).any() else None
    rows = []
    for policy, row in comparison.to_dict(orient="index").items():
        alone = row[c.SPEEDUP_LOW], row[c.SPEEDUP_HIGH]
        share = row[c.P_BEST]
        rows.append(
            (
                str(policy),
                format_seconds(row[c.STEP_S], unit),
                f"{row[c.SPEEDUP]:.2f}×"
                f" {ends_text(row[c.SPEEDUP_BOTH_LOW], row[c.SPEEDUP_BOTH_HIGH], row[c.SPEEDUP])}",
                f"[{alone[0]:.2f}, {alone[1]:.2f}]" if np.isfinite(alone).all() else NOTHING,
                f"{share:.0%}".replace("%", " %") if np.isfinite(share) else NOTHING,
            )
        )
    return table(title, ("policy", "step time", "speed-up [95 %]", "of rollouts", "best"), rows, stay=3)


def price_table(comparison: "pd.DataFrame", title: str = "") -> "Table":
    """One row a policy: staleness, length bias (paired with sequential), deferred rollouts a step,
    and filtered ones where there are any."""
    filters = _filters(comparison)
    rows = [
        (
            str(policy),
            f"{_decimals(row[c.COMPARED_STALENESS_MEAN], 2)} / {row[c.COMPARED_STALENESS_MAX]:.0f}",
            format_signed(row[c.LENGTH_BIAS_PAIRED]),
            _decimals(row[c.DEFERRED], 1),
            *((_decimals(row[c.FILTERED], 1),) if filters else ()),
            *gpu_cells(row),
        )
        for policy, row in comparison.to_dict(orient="index").items()
    ]
    filtered = ("filtered",) if filters else ()
    heads = ("policy", "staleness", "length bias", "deferred", *filtered, *GPU_HEADS)
    return table(title, heads, rows, stay=3)


def to_reward_table(comparison: "pd.DataFrame", title: str = "") -> "Table":
    """One row a policy: what a step is worth, time, GPU-hours and speed-up to the target reward, with
    intervals where there are several seeds or draws. 80 columns wide."""
    hours = numbers(comparison, c.HOURS_TO_REWARD, "comparison")
    unit = time_unit(3600.0 * float(np.nanmin(hours)) if np.isfinite(hours).any() else 3600.0)
    scale = 3600.0 / unit.seconds
    known = has_intervals(comparison)

    def time(row: Mapping[Any, Any]) -> str:
        names = (c.HOURS_TO_REWARD, c.HOURS_TO_REWARD_LOW, c.HOURS_TO_REWARD_HIGH)
        middle, low, high = (scale * row[name] for name in names)
        between = around(middle, low, high, partial(significant, digits=2), significant) if known else ""
        return f"{significant(middle)} {between}".rstrip()

    def ratio(row: Mapping[Any, Any]) -> str:
        middle, low, high = (
            row[name] for name in (c.REWARD_SPEEDUP, c.REWARD_SPEEDUP_LOW, c.REWARD_SPEEDUP_HIGH)
        )
        if not np.isfinite(middle):
            return NOTHING
        return f"{middle:.2f}× {ends_text(low, high, middle) if known else ''}".rstrip()

    rows = [
        (
            str(policy),
            _decimals(row[c.PROGRESS], 2),
            time(row),
            significant(row[c.GPU_HOURS_TO_REWARD]),
            ratio(row),
        )
        for policy, row in comparison.to_dict(orient="index").items()
    ]
    return table(title, ("policy", "step worth", f"time, {unit.name}", "GPU-h", "speed-up"), rows, stay=3)


def shares_table(shares: "pd.DataFrame", name: str, note: str = "") -> "Table":
    """One row a policy: share of trained rollouts with so many updates of staleness, or deferrals."""
    heads = ["policy", *map(str, shares.columns)]
    rows = [
        (str(policy), *(f"{share:.1%}".replace("%", " %") if share else NOTHING for share in row))
        for policy, row in zip(shares.index, shares.to_numpy().tolist(), strict=True)
    ]
    return table("; ".join(filter(None, (f"{name}: share of trained rollouts", note))), heads, rows, stay=2)


def attribution_table(attribution: "pd.DataFrame", title: str = "") -> "Table":
    """One row a policy: time a step that overlap hid, that the shorter tail saved, and that was lost, in the
    unit that the title then names; empty where not applicable."""
    heads = (
        "policy", "overlap\nhid", "tail\nsaved",
        *(f"{word}\nlost" for word in ("recompute", "contention", "padding", "cuts")),
    )  # fmt: skip
    cells, unit = one_unit(np.array([numbers(attribution, name, "attribution") for name in ATTRIBUTION]).T)
    rows = [(str(policy), *row) for policy, row in zip(attribution.index, cells, strict=True)]
    return table(f"{title}, {unit} a step" if title else "", heads, rows, stay=3)


# ---- inside ------------------------------------------------------------------------------------------------


def _seconds_ends(ends: Sequence[float] | None) -> str:
    if ends is None:
        return NOTHING
    low, high = ends
    return f"{format_seconds(low)} to {format_seconds(high)}"


def _decimals(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if np.isfinite(value) else NOTHING
