"""A finished sweep on the terminal: the best points, and what can be said of them."""

from collections.abc import Collection
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from oppo_sim import columns as c
from oppo_sim.report.labels import (
    GPU_HEADS,
    NOTHING,
    SHORT_DIGITS,
    counted,
    field_label,
    format_percent,
    format_seconds,
    format_signed,
    gpu_cells,
    other_lengths,
    policy_names,
    settings_label,
    significant,
    value_label,
)
from oppo_sim.report.ranges import (
    around,
    drawn_words,
    ends_text,
    few_seeds_sentence,
    has_intervals,
    has_ranges,
    over_words,
    widest_sentence,
)
from oppo_sim.report.terminal import Column, fitted
from oppo_sim.rewards import learning_of
from oppo_sim.runs.statistics import OBJECTIVE_COLUMN, TO_REWARD
from oppo_sim.sweep.beyond import best_edges
from oppo_sim.sweep.edges import into_another
from oppo_sim.sweep.resolve import POLICY_NAME

if TYPE_CHECKING:
    from rich.table import Table

    from oppo_sim.sweep.run import Sweep

_MOST_REASONS = 5
_SPEEDUP: Final = "speed-up"

_LEAST_FIELD: Final = 6
"""Characters of a field's values, in a table that is too wide."""


def best_table(sweep: "Sweep", top: int, width: int = 140) -> "tuple[Table, tuple[str, ...]]":
    """The best ``top`` points, best first; those that cannot be told apart from the best are marked. Also the
    heads of columns that ``width`` characters do not hold; the setting and what is minimised always stay."""
    columns, rows = _best(sweep, top)
    best = [at for at, number in enumerate(rows) if number == sweep.best]
    return fitted(_title(sweep), columns, list(rows.values()), width, best)


def best_html(sweep: "Sweep", top: int = 20) -> str:
    """The same table for a notebook, with the row of each point, and how many points are not shown."""
    import pandas as pd

    columns, rows = _best(sweep, top)
    heads = ["row", *(column.head.replace("\n", " ") for column in columns)]
    cells = [[str(number), *row] for number, row in rows.items()]
    shown = pd.DataFrame(cells, columns=heads).to_html(index=False)
    others = len(sweep.points) - len(rows)
    more = f"{counted(others, 'other point')} not shown; " if others else ""
    note = f"{more}all {sweep.points.shape[1]} columns: sweep.points, oppo_sim.explain(sweep.points)"
    return f"<p>{escape(_title(sweep))}</p>{shown}<p>{note}</p>"


def _title(sweep: "Sweep") -> str:
    plan = sweep.plan
    steps = plan.spec.steps or plan.scenario.steps
    what = f"{counted(len(plan.points), 'point')}, {counted(len(plan.seeds), 'seed')} × {steps} steps"
    return f"{plan.scenario.name}: {what} (simulated)"


def _best(sweep: "Sweep", top: int) -> tuple[list[Column], dict[int, list[str]]]:
    """Columns, and row number → cells of the best ``top`` points, best first."""
    plan, table = sweep.plan, sweep.points
    to_reward = plan.spec.objective == TO_REWARD
    drawn, known = has_ranges(table), has_intervals(table)
    interval = " [95 %]" if known else ""
    ratio = (
        [Column(f"to reward, h{interval}".replace(" [", "\n[")), Column("progress", 6)]
        if to_reward
        else [Column(f"{_SPEEDUP}{interval}".replace(" [", "\n["))]
    )
    columns = [
        *(
            Column(_head(sweep, name).replace(" (", "\n("), folds_at=_LEAST_FIELD, stays=True)
            for name in plan.fields
        ),
        Column(f"step{interval}", 1 if to_reward else 0),
        *ratio,
        Column("from\nbest", 5),
        Column("staleness\nmean ≤ max", 3),
        Column("length\nbias", 4),
        Column("deferred", 9),
        *(Column(head, 7 + i) for i, head in enumerate(GPU_HEADS)),
        Column("KV peak", 10),
        *([Column("best in\ndraws", 2)] if drawn else []),
        Column("", stays=True),
    ]
    column = OBJECTIVE_COLUMN[plan.spec.objective]
    keyed = table[column].where(table[c.STATUS] == "ok")
    order = keyed.sort_values(ascending=plan.spec.objective != "speedup", kind="stable").dropna().index[:top]
    policies = policy_names(table[POLICY_NAME]) if POLICY_NAME in plan.fields else {}
    rows = {}
    for number in order:
        row = table.loc[number]
        rows[int(number)] = [
            *(policies.get(str(row[name])) or _value(row[name]) for name in plan.fields),
            _seconds(row),
            *([_hours(row, known), f"{row[c.PROGRESS]:.2f}"] if to_reward else [_ratio(row)]),
            NOTHING if number == sweep.best else format_signed(row[c.DIFFERENCE]),
            f"{row[c.COMPARED_STALENESS_MEAN]:.2f} ≤ {row[c.COMPARED_STALENESS_MAX]:.0f}",
            format_signed(row[c.LENGTH_BIAS_PAIRED]),
            f"{row[c.DEFERRED]:.1f}",
            *gpu_cells(row.to_dict()),
            f"{row[c.COMPARED_KV_PEAK_TOKENS]:,.0f}",
            *([_share(row[c.P_BEST])] if drawn else []),
            "best" if number == sweep.best else "≈" if number in sweep.alike else "",
        ]
    return columns, rows


def notes(sweep: "Sweep", gone: Collection[str] = (), output: Path | None = None) -> list[str]:
    """Sentences below the table: the region, stopped and failed points, the engines. ``gone``: heads that
    left it; ``output``: the folder that was asked for."""
    found = [sweep.plan.splits] if sweep.plan.splits else []
    others = len(sweep.alike) - 1
    drawn = has_ranges(sweep.points)
    learning = learning_of(sweep.plan.scenario.rewards, sweep.plan.scenario.steps)
    objective = sweep.plan.spec.objective
    over = over_words("the seeds", drawn_words(drawn, objective, len(learning.effect.draws)))
    if sweep.best is not None and len(sweep.plan.seeds) < 2 and not drawn:
        found.append(
            "with one seed nothing can be said about which differences are real: give --seeds 2 or more"
        )
    elif sweep.best is not None and others:
        spans = _spans(sweep)
        within = f" ({spans})" if spans else ""
        found.append(
            f"{others:,} other point{'s' if others > 1 else ''} (≈) cannot be told apart from the best over"
            f" {over}{_or_near(sweep)}{within}"
        )
        share = float(sweep.points[c.P_BEST].loc[sweep.best]) if drawn else float("nan")
        few = few_seeds_sentence(share, len(sweep.plan.seeds), sweep.plan.spec.practical)
        found += [few] if few else []
    elif sweep.best is not None and len(sweep.points) > 1:
        found.append(f"every other point is significantly worse than the best over {over}{_by_more(sweep)}")
    if sweep.best is not None:
        other = other_lengths(float(sweep.points[c.LENGTH_BIAS_PAIRED].loc[sweep.best]))
        found += [f"best: {other}"] if other else []
    told: set[str] = set()
    for edge, command in best_edges(sweep):  # parts of a split are widened by one command
        again = "; the same command searches beyond it" if command and command in told else ""
        found.append(edge.sentence("" if again else into_another(command, output)) + again)
        told.add(command)
    if sweep.machine.sentence:
        found.append(sweep.machine.sentence)
    if objective == TO_REWARD:
        found.append(learning.sentence)
    if drawn and sweep.best is not None:
        found += [sentence] if (sentence := widest_sentence(sweep.points.loc[[sweep.best]], "best")) else []
        count = int(sweep.points[c.P_BEST].notna().sum())
        found.append(f"{counted(count, 'point')} that could be the best ran on the draws")
        if objective != TO_REWARD and not any(head.startswith(_SPEEDUP) for head in gone):
            found[-1] += f": {_SPEEDUP} [95 %] of seeds and machine"
            found[-1] += "; of the others, of the seeds alone" if count < len(sweep.points) else ""
    statuses = sweep.statuses
    if statuses["stopped"]:
        found.append(
            f"{statuses['stopped']:,} points were stopped early, significantly worse than the best so far"
        )
    if statuses["failed"]:
        found.append(f"{statuses['failed']:,} of {len(sweep.points):,} points failed:")
        for failure in sweep.failures[:_MOST_REASONS]:
            first = settings_label(list(failure.first), list(failure.first.values()))
            found.append(f"  {failure.points:,} ×: {failure.sentence} (first: {first})")
        if len(sweep.failures) > _MOST_REASONS:
            found.append(f"  and {len(sweep.failures) - _MOST_REASONS} other reasons, see points.csv")
    engines = ", ".join(f"{name} {count:,}" for name, count in sweep.engines.items())
    found.append(f"runs with baselines, by engine: {engines}")
    return found


def _or_near(sweep: "Sweep") -> str:
    near = sweep.plan.spec.practical
    return f", or {'are' if len(sweep.alike) > 2 else 'is'} within {100 * near:g} % of it" if near else ""


def _by_more(sweep: "Sweep") -> str:
    """That what is significant also matters: by how much the next one is worse, at least."""
    column = sweep.points[c.DIFFERENCE]
    others = column[(column.index != sweep.best) & (sweep.points[c.STATUS] == "ok")]
    return f", by {format_percent(float(others.min()))} or more" if others.notna().any() else ""


def _spans(sweep: "Sweep") -> str:
    """From where to where the fields go in the region."""
    rows = sweep.points.iloc[list(sweep.alike)]
    parts = []
    for name in sweep.plan.fields:
        values = list(
            dict.fromkeys(rows[name].sort_values() if rows[name].dtype.kind in "if" else rows[name])
        )
        if len(values) > 1:
            ends, numeric = (
                f"{_value(values[0])} to {_value(values[-1])}",
                rows[name].dtype.kind in "if",
            )
            parts.append(f"{_head(sweep, name)}: {ends if numeric else ', '.join(map(str, values[:6]))}")
    return "; ".join(parts)


def _head(sweep: "Sweep", field: str) -> str:
    return field_label(field, (values.get(field) for values in sweep.plan.points))


def _value(value: Any) -> str:
    return value_label(value, SHORT_DIGITS)


def _seconds(row: Any) -> str:
    text = format_seconds(float(row[c.STEP_S]))
    low, high = row[c.STEP_S_LOW], row[c.STEP_S_HIGH]
    return (
        f"{text} ± {format_percent((high - low) / 2 / row[c.STEP_S])}"
        if np.isfinite(low) and np.isfinite(high)
        else text
    )


def _hours(row: Any, known: bool) -> str:
    value, low, high = (
        row[name] for name in (c.HOURS_TO_REWARD, c.HOURS_TO_REWARD_LOW, c.HOURS_TO_REWARD_HIGH)
    )
    return f"{significant(value)} {around(value, low, high, significant) if known else ''}".rstrip()


def _ratio(row: Any) -> str:
    value, low, high = row[c.SPEEDUP], row[c.SPEEDUP_LOW], row[c.SPEEDUP_HIGH]
    if not np.isfinite(value):
        return NOTHING
    both = row.get(c.SPEEDUP_BOTH_LOW, np.nan), row.get(c.SPEEDUP_BOTH_HIGH, np.nan)
    if together := ends_text(*both, value):
        return f"{value:.2f}× {together}"
    return f"{value:.3f}×" + (f" [{low:.3f}, {high:.3f}]" if np.isfinite(low) and np.isfinite(high) else "")


def _share(value: float) -> str:
    return f"{value:.0%}".replace("%", " %") if np.isfinite(value) else NOTHING
