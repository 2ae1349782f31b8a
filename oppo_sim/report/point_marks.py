"""How figures of a sweep draw a point: colours, marks, the star of the best one, and axes of numbers."""

from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from oppo_sim.report.labels import (
    Measure,
    measured_label,
    settings_label,
    time_unit,
    value_label,
    value_text,
)
from oppo_sim.report.points import Points
from oppo_sim.report.style import LOSSES, TRAINED

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

LINES: Final = (TRAINED, LOSSES[0], "#009E73", LOSSES[2], LOSSES[1], "#332288", "#88CCEE", "#117733")
# On coloured cells, whatever the page's theme: a page swaps INK and white for its own.
BLACK: Final = "#212121"
WHITE: Final = "#fefefe"
# Lines that coincide show through each other.
DASHES: Final = ((0, ()), (0, (5, 2.5)), (0, (2, 2)), (0, (7, 2, 1.5, 2)))
MARKS: Final = "osD^vP*X"
REGION: Final = "not told apart from the best (95 %)"
STAR: Final[dict[str, Any]] = {
    "marker": "*",
    "color": WHITE,
    "markeredgecolor": BLACK,
    "linestyle": "none",
}
_MOST_TICKED: Final = 40


def ring(colour: str, mark: str, size: float) -> dict[str, Any]:
    """Style of a hollow mark of ``size`` points."""
    hollow = {"markerfacecolor": "none", "markeredgecolor": colour}
    return {"linestyle": "none", "marker": mark, "markersize": size, **hollow}


def best_handle(value: float, measure: Measure) -> "Artist":
    """Legend entry of the star, with the best value."""
    from matplotlib.lines import Line2D

    return Line2D([], [], markersize=11, **STAR, label=f"best: {measured_label(float(value), measure.kind)}")


def value_in_legend(by: str, value: Any) -> str:
    """A value in a legend: a word says by itself what it is, a number or a switch does not."""
    given = "" if isinstance(value, str) else settings_label([(by, value)])
    return given or value_label(value)


def dots_by(
    axis: "Axes", points: Points, by: str | None, x: NDArray[np.float64], y: NDArray[np.float64]
) -> "list[Artist]":
    """A dot a point, a colour and mark for each value of ``by``; returns what the legend needs."""
    from matplotlib.lines import Line2D

    handles: list[Artist] = []
    for value, colour, mark in zip(points.values(by) if by else [None], cycle(LINES), cycle(MARKS)):
        chosen = np.isfinite(x) & np.isfinite(y)
        if by:
            chosen &= np.array(points.texts(by)) == value_text(value)
        dots: dict[str, Any] = {"linestyle": "none", "marker": mark, "color": colour}
        axis.plot(x[chosen], y[chosen], **dots, markersize=4, alpha=0.6, markeredgewidth=0)
        label = value_in_legend(by, value) if by else "a configuration"
        handles.append(Line2D([], [], **dots, markersize=5, label=label))
    return handles


def number_axis(axis: "Axes", points: Points, x: str, room: int = 16) -> None:
    """Logarithmic where values double rather than add; a tick at each value as far as they have room."""
    from matplotlib.ticker import FormatStrFormatter, NullLocator

    values = np.unique(points.numbers(x))
    values = values[np.isfinite(values)]
    doubling = (
        values.min() > 0
        and values.max() / values.min() >= 16
        and float(np.median(values)) < 0.35 * values.max()
    )
    if doubling:
        axis.set_xscale("log", base=2)
    if len(values) > _MOST_TICKED:  # random samples: their values are no landmarks
        if doubling:
            axis.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        return
    places = np.log2(values) if doubling else values
    span = float(places.max() - places.min())
    kept: list[int] = []
    for at in range(len(values)):
        if not kept or places[at] - places[kept[-1]] >= span / room:
            kept.append(at)
    axis.set_xticks(
        values[kept], [f"{values[at]:g}" if abs(values[at]) < 1e6 else f"{values[at]:.0f}" for at in kept]
    )
    axis.xaxis.set_minor_locator(NullLocator())


def scale_and_label(measure: Measure, values: NDArray[np.float64]) -> tuple[float, str]:
    """What one of an axis is in the column's own unit, and what stands beside the axis."""
    if measure.kind == "seconds":
        unit = time_unit(float(np.nanmin(values)))
        return unit.seconds, f"{measure.label} ({unit.name})"
    percent = measure.kind in ("share", "signed_share")
    return (0.01, f"{measure.label} (%)") if percent else (1.0, measure.label)
