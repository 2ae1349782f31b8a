"""The best points of a sweep as texts, for a terminal and a notebook."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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
    policy_names,
    significant,
    value_label,
)
from oppo_sim.report.ranges import around, ends_text, has_intervals, has_ranges
from oppo_sim.report.terminal import Column
from oppo_sim.runs.statistics import OBJECTIVE_COLUMN, TO_REWARD
from oppo_sim.sweep.resolve import POLICY_NAME

if TYPE_CHECKING:
    import pandas as pd

SPEEDUP: Final = "speed-up"
_LEAST_FIELD: Final = 6
"""Characters of a field's values, in a table that is too wide."""


class BestPoints(NamedTuple):
    """Columns, and cells by row number of the sweep, best first."""

    columns: list[Column]
    rows: dict[int, list[str]]

    def html(self, title: str, table: "pd.DataFrame") -> str:
        """For a notebook, with the row of each point, and how many points of ``table`` are not shown."""
        import pandas as pd

        heads = ["row", *(column.head.replace("\n", " ") for column in self.columns)]
        cells = [[str(number), *row] for number, row in self.rows.items()]
        shown = pd.DataFrame(cells, columns=heads).to_html(index=False)
        others = len(table) - len(self.rows)
        more = f"{counted(others, 'other point')} not shown; " if others else ""
        note = f"{more}all {table.shape[1]} columns: sweep.points, oppo_sim.explain(sweep.points)"
        return f"<p>{escape(title)}</p>{shown}<p>{note}</p>"


def best_points(
    table: "pd.DataFrame",
    values: Mapping[str, Sequence[Any]],
    objective: str,
    best: int | None,
    alike: Sequence[int],
    top: int,
) -> BestPoints:
    """The ``top`` best rows of a points table, of which ``best`` and ``alike`` are marked; ``values``: of
    every field in all points."""
    to_reward = objective == TO_REWARD
    drawn, known = has_ranges(table), has_intervals(table)
    interval = "\n[95 %]" if known else ""
    of = (
        [Column(f"to reward, h{interval}"), Column("progress", 6)]
        if to_reward
        else [Column(f"{SPEEDUP}{interval}")]
    )
    columns = [
        *(
            Column(field_label(name, every).replace(" (", "\n("), folds_at=_LEAST_FIELD, stays=True)
            for name, every in values.items()
        ),
        Column(f"step{interval}".replace("\n", " "), 1 if to_reward else 0),
        *of,
        Column("from\nbest", 5),
        Column("staleness\nmean ≤ max", 3),
        Column("length\nbias", 4),
        Column("deferred", 9),
        *(Column(head, 7 + i) for i, head in enumerate(GPU_HEADS)),
        Column("KV peak", 10),
        *([Column("best in\ndraws", 2)] if drawn else []),
        Column("", stays=True),
    ]
    column = OBJECTIVE_COLUMN[objective]
    keyed = table[column].where(table[c.STATUS] == "ok")
    order = keyed.sort_values(ascending=objective != "speedup", kind="stable").dropna().index[:top]
    policies = policy_names(table[POLICY_NAME]) if POLICY_NAME in values else {}
    rows = {}
    for number in order:
        row = table.loc[number]
        rows[int(number)] = [
            *(policies.get(str(row[name])) or shown_value(row[name]) for name in values),
            _seconds(row),
            *([_hours(row, known), f"{row[c.PROGRESS]:.2f}"] if to_reward else [_ratio(row)]),
            NOTHING if number == best else format_signed(row[c.DIFFERENCE]),
            f"{row[c.COMPARED_STALENESS_MEAN]:.2f} ≤ {row[c.COMPARED_STALENESS_MAX]:.0f}",
            format_signed(row[c.LENGTH_BIAS_PAIRED]),
            f"{row[c.DEFERRED]:.1f}",
            *gpu_cells(row.to_dict()),
            f"{row[c.COMPARED_KV_PEAK_TOKENS]:,.0f}",
            *([_share(row[c.P_BEST])] if drawn else []),
            "best" if number == best else "≈" if number in alike else "",
        ]
    return BestPoints(columns, rows)


def shown_value(value: Any) -> str:
    """Of a field, as a table has it."""
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
