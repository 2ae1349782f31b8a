"""The settings that were looked at again, as a table for the terminal."""

from typing import TYPE_CHECKING

from oppo_sim import columns as c
from oppo_sim.report.labels import NOTHING, format_seconds
from oppo_sim.tune.result import Against, Tuned

if TYPE_CHECKING:
    from rich.table import Table

MOST = 14


def checked_table(tuned: Tuned) -> "Table":
    """The choice on top, then the others by cost; all on fresh seeds, in the scenario as given."""
    from math import isfinite

    from rich import box
    from rich.table import Table
    from rich.text import Text

    assert tuned.chosen is not None
    record = tuned.record
    seeds = len(record["fresh_seeds"]) or len(record["seeds"])
    title = f"{tuned.scenario.name}: {seeds} fresh seed(s) × {record['steps']} steps (simulated)"
    shown = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left")
    shown.add_column("setting", overflow="fold")
    for head in ("step", "speed-up [95 %]", "from choice [95 %]", "staleness", "bias", "KV peak", ""):
        shown.add_column(Text(head), justify="right", no_wrap=True)
    for one in [tuned.chosen, *tuned.others[: MOST - 1]]:
        row = one.checked.rows[0]
        mean, low, high = one.relative
        between = f" [{100 * low:+.1f}, {100 * high:+.1f}]" if isfinite(low) and isfinite(high) else ""
        ratio = (
            f" [{row[c.SPEEDUP_LOW]:.2f}, {row[c.SPEEDUP_HIGH]:.2f}]" if isfinite(row[c.SPEEDUP_LOW]) else ""
        )
        cells = (
            one.checked.setting.said() + ("" if one.checked.number is not None else f" ({one.checked.why})"),
            format_seconds(row[c.STEP_S]),
            f"{row[c.SPEEDUP]:.2f}×{ratio}",
            NOTHING if one is tuned.chosen else f"{100 * mean:+.1f} %{between}",
            f"{row[c.COMPARED_STALENESS_MEAN]:.2f} ≤ {row[c.COMPARED_STALENESS_MAX]:.0f}",
            f"{100 * row[c.LENGTH_BIAS_PAIRED]:+.2f} %",
            f"{row[c.COMPARED_KV_PEAK_TOKENS]:,.0f}",
            _mark(one, tuned),
        )
        shown.add_row(*(Text(cell) for cell in cells), style="bold" if one is tuned.chosen else None)
    return shown


def _mark(one: Against, tuned: Tuned) -> str:
    if one is tuned.chosen:
        return "choice"
    if not one.keeps_bounds:
        return "breaks a bound"
    return "≈" if one.alike else ""
