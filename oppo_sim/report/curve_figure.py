"""A measure of a sweep along one numeric field, as curves."""

from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.report.labels import field_label, measure_of, settings_label, value_text
from oppo_sim.report.point_marks import (
    DASHES,
    LINES,
    MARKS,
    number_axis,
    ring,
    scale_and_label,
    value_in_legend,
)
from oppo_sim.report.points import CHUNK_FIELD, Points, best_of
from oppo_sim.report.style import INK, legend_below, new_figure, set_title

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAND: Final = {c.HOURS_TO_REWARD: "of rollouts, machine and staleness effect"}
"""What a measure's interval holds, where not the rollouts alone."""


def curve_figure(
    points: Points, metric: str = c.STEP_S, *, x: str = CHUNK_FIELD, by: str | None = None, title: str = ""
) -> "Figure":
    """A measure along one numeric field, a line for each value of ``by`` (a placement, say): the 95 % of the
    rollouts as a band, that of the machine as dashes at the points that were drawn.

    Each line holds the other varied fields at the values of its own best point (by the objective), which the
    legend says; a diamond marks the line's best by the measure.
    Raises OppoError when ``x`` is not numeric or no point has the measure.
    """
    if x not in points.axes or not points.numeric(x):
        raise OppoError(
            f"a curve needs a numeric field that varies, and '{x}' is none: choose among"
            f" {', '.join(points.axes)}"
        )
    measure, values = measure_of(metric), points.measured(metric)
    if not np.isfinite(values).any():
        raise OppoError(f"no point has the measure '{metric}': there is nothing to draw")
    scale, label = scale_and_label(measure, values)
    band, whiskers = (
        ends if ends and all(map(points.has, ends)) else None for ends in (measure.interval, measure.machine)
    )
    figure, (axis,) = new_figure([4.0], below=0.3)
    handles: list[Artist] = []
    number = points.numbers(x)
    lines = _lines(points, values, x, by)
    for nth, ((value, rows, best), colour, mark, dashes) in enumerate(
        zip(lines, cycle(LINES), cycle(MARKS), cycle(DASHES))
    ):
        at, heights = number[rows], values[rows] / scale
        if band:
            low, high = (points.measured(column)[rows] / scale for column in band)
            axis.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
        if whiskers:
            low, high = (points.measured(column)[rows] / scale for column in whiskers)
            _draw_whiskers(axis, at, low, high, colour, 3 * (nth - (len(lines) - 1) / 2))
        held = settings_label(points.label_of(best, without=(x, *([by] if by else []))))
        named = value_in_legend(by, value) if by else measure.label
        handles += axis.plot(
            at,
            heights,
            color=colour,
            linewidth=1.8,
            linestyle=dashes,
            marker=mark,
            markersize=4,
            label=f"{named} ({held})" if held else named,
        )
        if measure.better in ("low", "high"):
            top = int(np.argmin(heights) if measure.better == "low" else np.argmax(heights))
            axis.plot(at[top], heights[top], **ring(colour, "D", 8.5))
    if measure.kind in ("signed_share", "ratio"):
        neutral = 1.0 if measure.kind == "ratio" else 0.0
        axis.axhline(neutral, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
    number_axis(axis, points, x)
    axis.set_xlabel(field_label(x, points.values(x)))
    axis.set_ylabel(label)
    axis.margins(y=0.12)
    diamond = "◇ marks each line's best" if measure.better in ("low", "high") else ""
    shown = (
        f"band: 95 % {_BAND.get(metric, 'of the rollouts')}" if band else "",
        "dashed: 95 % of the machine" if whiskers else "",
    )
    set_title(axis, title, ", ".join(note for note in (diamond, *shown) if note))
    names = [str(handle.get_label()) for handle in handles]
    if names != [measure.label]:  # which stands beside the axis
        legend_below(figure, handles, columns=1 if max(map(len, names)) > 45 else 3)
    return figure


def _draw_whiskers(
    axis: "Axes",
    at: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    colour: str,
    aside: float,
) -> None:
    """``aside``: points to the right, so that those of several lines at one place are side by side."""
    from matplotlib.transforms import ScaledTranslation

    drawn = np.isfinite(low)
    dashed = axis.vlines(
        at[drawn], low[drawn], high[drawn], color=colour, linewidth=0.9, linestyle=(0, (3, 2))
    )
    dashed.set_transform(axis.transData + ScaledTranslation(aside / 72, 0, axis.figure.dpi_scale_trans))


def _lines(
    points: Points, values: NDArray[np.float64], x: str, by: str | None
) -> "list[tuple[Any, list[int], int]]":
    """(value of ``by``, rows by ascending x, best row) of every line that has a point."""
    found = []
    seconds = points.measured(points.objective) if points.has(points.objective) else values
    number = points.numbers(x)
    usable = np.isfinite(number) & np.isfinite(values)
    for value in points.values(by) if by else [None]:
        inside = usable & (np.array(points.texts(by)) == value_text(value)) if by else usable
        best = best_of(np.where(inside, seconds, np.nan), points.objective)
        if best is not None:
            rows = [row for row in points.like(best, free=(x,)) if usable[row]]
            found.append((value, sorted(rows, key=lambda row: number[row]), best))
    return found
