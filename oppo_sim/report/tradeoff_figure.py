"""Speed-up of a sweep's points against what it costs, with the Pareto front."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.report.labels import measure_of, measured_label, settings_label
from oppo_sim.report.point_marks import dots_by, scale_and_label
from oppo_sim.report.points import Points
from oppo_sim.report.style import INK, cut, legend_below, new_figure, set_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LABELLED: Final = 12
_LISTED: Final = 96
"""Letters of a line below the figure."""


def tradeoff_figure(
    points: Points, cost: str = c.COMPARED_STALENESS_MEAN, *, by: str | None = None, title: str = ""
) -> "Figure":
    """Speed-up against a price (staleness, or length bias by its size): every point, and the front of those
    that none beats on both.

    Points of the front are numbered, their settings stand below. Raises OppoError when no point has both
    measures.
    """
    paid, won = points.measured(cost), points.measured(c.SPEEDUP)
    measure = measure_of(cost)
    signed = measure.better == "zero"
    front = pareto_front(np.abs(paid) if signed else paid, points.achievable(won))
    if not front:
        raise OppoError(f"no point has both '{cost}' and '{c.SPEEDUP}': there is no trade-off to draw")
    scale, label = scale_and_label(measure, paid)
    labelled = _spread(front, _MOST_LABELLED)
    listed = []
    for number, row in enumerate(labelled, 1):
        reached = (
            f"{measured_label(float(won[row]), 'ratio')}, {measure.label}"
            f" {measured_label(float(paid[row]), measure.kind)}"
        )
        line = f"{number}  {reached}: {settings_label(points.label_of(row))}"
        listed += textwrap.wrap(
            cut(line, 2 * _LISTED), _LISTED, subsequent_indent="     ", break_on_hyphens=False
        )
    figure, (axis,) = new_figure([4.4], below=0.24 * len(listed) + 0.35)
    handles = dots_by(axis, points, by, paid / scale, won)
    along = sorted(front, key=lambda row: paid[row])
    handles += axis.plot(
        paid[along] / scale,
        won[along],
        color=INK,
        linewidth=1.2,
        marker="o",
        markersize=7,
        markerfacecolor="none",
        drawstyle="default" if signed else "steps-post",
        zorder=3,
        label=f"none is both faster and {'less biased' if signed else 'fresher'} (Pareto front)",
    )
    axis.set_ylabel("speed-up")
    axis.margins(0.07)
    _number_labels(axis, [(float(paid[row] / scale), float(won[row])) for row in labelled])
    set_title(axis, title)
    legend_below(figure, handles, columns=4)
    lines = [f"{label} (weight updates)" if "staleness" in cost else label, "", *listed]
    axis.set_xlabel("\n".join(lines), fontsize=9, loc="left", linespacing=1.45)
    return figure


def pareto_front(paid: NDArray[np.float64], won: NDArray[np.float64]) -> list[int]:
    """Rows that no other row beats: less paid and no less won, or more won and no more paid; ordered by what
    is paid, equal ones once."""
    order = sorted(
        np.flatnonzero(np.isfinite(paid) & np.isfinite(won)), key=lambda row: (paid[row], -won[row], row)
    )
    front: list[int] = []
    for row in order:
        if not front or won[row] > won[front[-1]]:
            front.append(int(row))
    return front


def _number_labels(axis: "Axes", at: Sequence[tuple[float, float]]) -> None:
    low, high = axis.get_ylim()
    left, right = axis.get_xlim()
    spots = [((x - left) / (right - left), (y - low) / (high - low)) for x, y in at]
    for number, (place, (x, y)) in enumerate(zip(at, spots, strict=True), 1):
        # Beside its point where another one lies just above.
        close = any(abs(x - other_x) < 0.03 and 0 < other_y - y < 0.1 for other_x, other_y in spots)
        axis.annotate(
            str(number),
            place,
            (-9, 0) if close else (0, 9),
            textcoords="offset points",
            ha="right" if close else "center",
            va="center",
            fontsize=9,
            color=INK,
            fontweight="bold",
            zorder=4,
        )


def _spread(rows: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of the rows, first and last among them."""
    return [rows[round(at)] for at in np.linspace(0, len(rows) - 1, min(most, len(rows)))]
