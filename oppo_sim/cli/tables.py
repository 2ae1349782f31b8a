"""Tables for the terminal: of any texts, of a run, of a comparison."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from oppo_sim import columns as c
from oppo_sim.report.labels import (
    ATTRIBUTION,
    GPU_HEADS,
    NOTHING,
    Unit,
    format_seconds,
    format_signed,
    gpu_cells,
    one_unit,
    significant,
    stage_rows,
    time_unit,
)
from oppo_sim.report.ranges import around, ends_text, has_intervals
from oppo_sim.report.terminal import LEAST_TEXT, Column, fitted, left_out, table_console
from oppo_sim.tables import numbers

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

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


def _seconds_ends(ends: Sequence[float] | None) -> str:
    if ends is None:
        return NOTHING
    low, high = ends
    return f"{format_seconds(low)} to {format_seconds(high)}"


def _decimals(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if np.isfinite(value) else NOTHING
