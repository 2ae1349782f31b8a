"""Points side by side, best first: what is drawn where no field is a number (splits of GPUs, policies)."""

from typing import TYPE_CHECKING, Final

import numpy as np

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.report.labels import (
    format_seconds,
    measure_of,
    measured_label,
    settings_label,
    time_unit,
    value_label,
)
from oppo_sim.report.points import Points
from oppo_sim.report.style import FAINT, LONGEST_NAME, TRAINED, bar_figure, beside, legend_below, set_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST: Final = 16


def ranked_figure(points: Points, metric: str = c.STEP_S, *, title: str = "") -> "Figure":
    """The best points by a measure, a row each with its 95 % interval (of the rollouts), best first; those
    that cannot be told apart from the best are coloured. Raises OppoError when no point has the measure."""
    measure, values = measure_of(metric), points.measured(metric)
    keyed = -values if measure.better == "high" else values
    rows = [int(row) for row in np.argsort(keyed, kind="stable") if np.isfinite(values[row])]
    if not rows:
        raise OppoError(f"no point has the measure '{metric}': there is nothing to draw")
    shown = rows[:_MOST]
    unit = time_unit(float(values[shown[0]])) if measure.kind == "seconds" else None
    scale = 1.0 if unit is None else unit.seconds
    figure, axis = bar_figure([_name(points, row) for row in shown])
    ends = measure.interval if measure.interval and all(map(points.has, measure.interval)) else None
    reach = []
    handles = {}
    for place, row in enumerate(shown):
        alike = row in points.region or row == points.best
        label = "not told apart from the best" if alike else "worse on the same rollouts"
        colour, value = TRAINED if alike else FAINT, values[row] / scale
        low, high = (points.measured(end)[row] / scale for end in ends) if ends else (value, value)
        low, high = np.nan_to_num(low, nan=value), np.nan_to_num(high, nan=value)
        handles[label] = axis.hlines(place, low, high, color=colour, linewidth=2.2, label=label)
        axis.plot(value, place, marker="o", markersize=6, color=colour)
        reach += [low, high]
        told = float(values[row])
        text = measured_label(told, measure.kind) if unit is None else format_seconds(told, unit)
        beside(axis, high, place, text)
    room = 0.16 * (max(reach) - min(reach)) or 0.1 * max(reach)
    axis.set_xlim(min(reach) - 0.3 * room, max(reach) + room)
    axis.set_xlabel(measure.label if unit is None else f"{measure.label} ({unit.name})")
    left_out = f"best {len(shown)} of {len(rows)}" if len(shown) < len(rows) else ""
    set_title(axis, title, left_out, "bars: 95 % of the rollouts" if ends else "")
    legend_below(figure, list(handles.values()))
    return figure


def _name(points: Points, row: int) -> str:
    """Its setting; a line a field where one line would be too long. Texts, such as splits, say by themselves
    what they are."""
    given = points.label_of(row)
    parts = [
        value_label(value) if len(given) == 1 or isinstance(value, str) else settings_label([(field, value)])
        for field, value in given
    ]
    joined = ", ".join(filter(None, parts))
    return joined if len(joined) <= LONGEST_NAME else "\n".join(filter(None, parts))
