"""A finished sweep on the terminal: the best points, and what can be said of them."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from oppo_sim import columns as c
from oppo_sim.report.labels import counted, field_label, format_percent, other_lengths, settings_label
from oppo_sim.report.ranges import (
    drawn_words,
    few_seeds_sentence,
    has_ranges,
    over_words,
    placement_sentence,
    replayed_sentence,
    split_sentence,
    widest_sentence,
)
from oppo_sim.report.terminal import fitted
from oppo_sim.rewards import learning_of
from oppo_sim.runs.statistics import ROLLOUTS, TO_REWARD
from oppo_sim.sweep.best_points import SPEEDUP, shown_value
from oppo_sim.sweep.beyond import best_edges
from oppo_sim.sweep.edges import edge_sentences, into_another
from oppo_sim.sweep.result import Sweep

if TYPE_CHECKING:
    from rich.table import Table

_MOST_REASONS = 5
_UNEQUAL = 1.05


def best_table(sweep: Sweep, top: int, width: int) -> "tuple[Table, tuple[str, ...]]":
    """The best ``top`` points, best first; those that cannot be told apart from the best are marked. Also the
    heads of columns that ``width`` characters do not hold; the setting and what is minimised always stay."""
    shown = sweep.best_points(top)
    best = [at for at, number in enumerate(shown.rows) if number == sweep.best]
    ran = int((sweep.points[c.STATUS] == "ok").sum())
    title = sweep.title if len(shown.rows) >= ran else f"{sweep.title}: the {len(shown.rows)} best"
    return fitted(title, shown.columns, list(shown.rows.values()), width, best)


def notes(sweep: Sweep, gone: Collection[str] = (), output: Path | None = None) -> list[str]:
    """Sentences below the table: the region, stopped and failed points. ``gone``: heads that
    left it; ``output``: the requested folder."""
    found = [sweep.plan.splits] if sweep.plan.splits else []
    if sweep.plan.spec.objective == ROLLOUTS and _trains_others(sweep):
        found.append("the best has the fewest seconds a trained rollout: steps here train unequal numbers")
    drawn = has_ranges(sweep.points)
    learning = learning_of(sweep.plan.scenario.rewards, sweep.plan.scenario.steps)
    objective = sweep.plan.spec.objective
    over = over_words("the seeds", drawn_words(drawn, objective, len(learning.effect.draws)))
    found += _region_notes(sweep, drawn, over)
    if sweep.best is not None:
        other = other_lengths(float(sweep.points[c.LENGTH_BIAS_PAIRED].loc[sweep.best]))
        found += [f"best: {other}"] if other else []
    at_edge, command = best_edges(sweep)
    found += edge_sentences(at_edge, into_another(command, output))
    replayed = replayed_sentence(sweep.plan.scenario.trace.sampling, len(sweep.plan.seeds))
    found += [replayed] if replayed else []
    if sweep.machine.sentence:
        found.append(sweep.machine.sentence)
    if drawn and any(point.machine.placement for point in sweep.plan.runnable):
        found.append(split_sentence())
    if objective == TO_REWARD:
        found.append(learning.sentence)
    if drawn and sweep.best is not None:
        found += _draw_notes(
            sweep, sweep.best, with_speedups=not any(head.startswith(SPEEDUP) for head in gone)
        )
    return found + _failure_notes(sweep)


def _region_notes(sweep: Sweep, drawn: bool, over: str) -> list[str]:
    """Which points cannot be told apart from the best; ``over``: what its intervals are over."""
    if sweep.best is None:
        return []
    if len(sweep.plan.seeds) < 2 and not drawn:
        return ["with one seed nothing can be said about which differences are real: give --seeds 2 or more"]
    if others := len(sweep.alike) - 1:
        spans = _spans(sweep)
        within = f" (with the best, {spans})" if spans else ""
        share = float(sweep.points[c.P_BEST].loc[sweep.best]) if drawn else float("nan")
        few = few_seeds_sentence(share, len(sweep.plan.seeds), sweep.plan.spec.practical)
        return [
            f"{others:,} other point{'s' if others > 1 else ''} (≈) cannot be told apart from the best over"
            f" {over}{_or_near(sweep)}{within}",
            *([few] if few else []),
        ]
    if len(sweep.points) > sweep.statuses["failed"] + 1:
        return [f"every other point is significantly worse than the best over {over}{_by_more(sweep)}"]
    return []


def _draw_notes(sweep: Sweep, best: int, with_speedups: bool) -> list[str]:
    """What draws of the machine say of the best, and which points ran on them."""
    others = sweep.points.drop(best)[[c.DIFFERENCE_WIDEST, c.DIFFERENCE_WIDEST_SHARE]]
    found = [
        widest_sentence(sweep.points.loc[[best]], "best"),
        placement_sentence(others.itertuples(index=False, name=None)),
    ]
    count = int(sweep.points[c.P_BEST].notna().sum())
    ran = f"{counted(count, 'point')} that could be the best ran on the draws"
    if sweep.plan.spec.objective != TO_REWARD and with_speedups:
        ran += f": {SPEEDUP} [95 %] of seeds and machine"
        if count < len(sweep.points) - sweep.statuses["failed"]:
            ran += "; of the others, of the seeds alone"
    return [*filter(None, found), ran]


def _failure_notes(sweep: Sweep) -> list[str]:
    """Points that were stopped, or failed, and why."""
    found, statuses = [], sweep.statuses
    if statuses["stopped"]:
        found.append(
            f"{statuses['stopped']:,} points were stopped early, significantly worse than the best so far"
        )
    if statuses["failed"]:
        found.append(f"{statuses['failed']:,} of {len(sweep.points):,} points failed:")
        for failure in sweep.failures[:_MOST_REASONS]:
            first = settings_label(failure.first.items())
            found.append(f"  {failure.points:,} ×: {failure.sentence} (first: {first})")
        if len(sweep.failures) > _MOST_REASONS:
            found.append(f"  and {len(sweep.failures) - _MOST_REASONS} other reasons, see points.csv")
    return found


def _trains_others(sweep: Sweep) -> bool:
    """Steps of points train different numbers of rollouts."""
    trained = (sweep.points[c.STEP_S] / sweep.points[c.S_PER_ROLLOUT]).dropna()
    return len(trained) > 1 and float(trained.max()) > _UNEQUAL * float(trained.min())


def _or_near(sweep: Sweep) -> str:
    near = sweep.plan.spec.practical
    return f", or {'are' if len(sweep.alike) > 2 else 'is'} within {100 * near:g} % of it" if near else ""


def _by_more(sweep: Sweep) -> str:
    """That what is significant also matters: by how much the next one is worse, at least."""
    column = sweep.points[c.DIFFERENCE]
    others = column[(column.index != sweep.best) & (sweep.points[c.STATUS] == "ok")]
    return f", by {format_percent(float(others.min()))} or more" if others.notna().any() else ""


def _spans(sweep: Sweep) -> str:
    """From where to where the fields go in the region."""
    rows = sweep.points.iloc[list(sweep.alike)]
    parts = []
    for name in sweep.plan.fields:
        values = list(
            dict.fromkeys(rows[name].sort_values() if rows[name].dtype.kind in "if" else rows[name])
        )
        if len(values) > 1:
            ends, numeric = (
                f"{shown_value(values[0])} to {shown_value(values[-1])}",
                rows[name].dtype.kind in "if",
            )
            head = field_label(name, (each.get(name) for each in sweep.plan.points))
            parts.append(f"{head}: {ends if numeric else ', '.join(map(str, values[:6]))}")
    return "; ".join(parts)
