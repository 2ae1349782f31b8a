"""A measure of a sweep over two fields, as a heat map."""

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.report.labels import (
    OVERCOMMIT,
    field_label,
    measure_of,
    settings_label,
    value_label,
    value_text,
)
from oppo_sim.report.point_marks import BLACK, REGION, STAR, WHITE, best_handle, scale_and_label
from oppo_sim.report.points import CHUNK_FIELD, Points, best_of
from oppo_sim.report.style import FAINT, IDLE, LOSSES, legend_below, new_figure, set_title

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_ANNOTATED: Final = 150


def heat_figure(
    points: Points,
    metric: str = c.STEP_S,
    *,
    x: str = OVERCOMMIT,
    y: str = CHUNK_FIELD,
    title: str = "",
) -> "Figure":
    """One measure over two fields, evenly spaced by value; other fields are held at the best point's values,
    which the title says.

    The best cell (of the measure) has a star; cells of ``points.region`` (not told apart from the best by
    paired differences) are outlined; failed ones are hatched. Raises OppoError when no point has the measure,
    or one of the fields does not vary.
    """
    from matplotlib.lines import Line2D

    _check_fields(points, x, y)
    measure, values = measure_of(metric), points.measured(metric)
    anchor = points.best_row()
    anchor = anchor if anchor is not None and np.isfinite(values[anchor]) else points.best_row(metric)
    if anchor is None:
        raise OppoError(f"no point has the measure '{metric}': there is nothing to draw")
    grid = _grid(points, anchor, x, y)
    shown = np.where(grid >= 0, values[grid], np.nan)
    best = anchor if metric == points.objective else _best_in(grid, points, metric, anchor)
    scale, label = scale_and_label(measure, shown)
    figure, (axis,) = new_figure([min(7.5, 1.9 + 0.34 * len(grid))], below=0.35)
    # Bright is better, whatever the measure.
    mesh = axis.pcolormesh(
        np.arange(grid.shape[1] + 1) - 0.5,
        np.arange(grid.shape[0] + 1) - 0.5,
        shown / scale,
        cmap="viridis_r" if measure.better == "low" else "viridis",
    )
    _label_axes(axis, points, x, y)
    bar = figure.colorbar(mesh, ax=axis, pad=0.015, fraction=0.04)
    bar.set_label(label, fontsize=9.5)
    bar.ax.tick_params(labelsize=9)
    handles = _hatch(axis, np.argwhere((grid >= 0) & ~np.isfinite(shown)))
    if metric == points.objective and len(points.region) > 1:
        _outline(axis, np.isin(grid, sorted(points.region)))
        handles.append(Line2D([], [], color=LOSSES[0], linewidth=2.2, label=REGION))
    at_y, at_x = np.argwhere(grid == best)[0]
    annotated = shown.size <= _MOST_ANNOTATED
    if annotated:
        _annotate(axis, shown / scale, reverse=measure.better == "low")
    axis.plot(at_x, at_y + (0.3 if annotated else 0), markersize=9 if annotated else 13, **STAR)
    handles.append(best_handle(values[best], measure))
    held = settings_label(points.label_of(best, without=(x, y)))
    set_title(axis, title, f"at {held}" if held else "")
    legend_below(figure, handles, columns=3)
    return figure


def _check_fields(points: Points, x: str, y: str) -> None:
    varying = [name for name in points.axes if len(points.values(name)) > 1]
    if len(varying) < 2:
        only = f"only {varying[0]} does" if varying else "none does"
        raise OppoError(
            f"a heat map needs two fields that vary, and here {only}: sweep over several values of another"
            " field, too"
        )
    for field in (x, y):
        if field not in varying:
            raise OppoError(
                f"a heat map needs two fields that vary, and '{field}' does not: choose among"
                f" {', '.join(varying)}"
            )


def _grid(points: Points, anchor: int, x: str, y: str) -> NDArray[np.int64]:
    """Row of the table in each cell, −1 where there is none; shape (values of ``y``, values of ``x``). Other
    fields are those of row ``anchor``."""
    places = [{value_text(value): at for at, value in enumerate(points.values(field))} for field in (y, x)]
    grid = np.full((len(places[0]), len(places[1])), -1, dtype=np.int64)
    for row in points.like(anchor, free=(x, y)):
        grid[places[0][points.texts(y)[row]], places[1][points.texts(x)[row]]] = row
    return grid


def _best_in(grid: NDArray[np.int64], points: Points, metric: str, anchor: int) -> int:
    """Row of the cell with the best measure; of equal ones ``anchor``."""
    values = points.measured(metric)
    inside = np.isin(np.arange(len(values)), grid)
    best = best_of(points.achievable(np.where(inside, values, np.nan)), metric)
    return anchor if best is None or values[anchor] == values[best] else best


def _label_axes(axis: "Axes", points: Points, x: str, y: str) -> None:
    across, upwards = points.values(x), points.values(y)
    axis.set_xticks(range(len(across)), [value_label(value) for value in across])
    axis.set_yticks(range(len(upwards)), [value_label(value) for value in upwards])
    axis.tick_params(length=0)
    # Labels across that would touch are left out.
    room = max(4, int(78 / (1 + max(len(value_label(value)) for value in across))))
    for at, text in enumerate(axis.get_xticklabels()):
        text.set_visible(at % -(-len(across) // room) == 0)
    axis.set_xlabel(field_label(x, across))
    axis.set_ylabel(field_label(y, upwards))


def _hatch(axis: "Axes", cells: NDArray[np.int64]) -> "list[Artist]":
    """Failed ``cells``, shape (cells, 2) as (row, column); returns their legend entry."""
    from matplotlib.patches import Patch, Rectangle

    hatched: dict[str, Any] = {"facecolor": IDLE, "edgecolor": FAINT, "hatch": "////"}
    for row, column in cells:
        axis.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, linewidth=0, **hatched))
    return [Patch(**hatched, label="failed")] if len(cells) else []


def _annotate(axis: "Axes", shown: NDArray[np.float64], *, reverse: bool) -> None:
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    largest = float(np.nanmax(np.abs(shown)))
    digits = 0 if largest >= 1000 else 1 if largest >= 100 else 2
    for y, x in np.argwhere(np.isfinite(shown)):
        bright = (shown[y, x] - low) / (high - low) if high > low else 0.5
        colour = BLACK if (1.0 - bright if reverse else bright) > 0.55 else WHITE
        text = f"{shown[y, x]:.{digits}f}"
        axis.text(x, y - 0.08, text, ha="center", va="center", fontsize=7.5, color=colour)


def _outline(axis: "Axes", inside: NDArray[np.bool_]) -> None:
    """The border between cells inside and outside."""
    from matplotlib.collections import LineCollection

    padded = np.pad(inside, 1)
    sides = []
    for y, x in np.argwhere(inside):
        for dy, dx, start, end in (
            (-1, 0, (-0.5, -0.5), (0.5, -0.5)),
            (1, 0, (-0.5, 0.5), (0.5, 0.5)),
            (0, -1, (-0.5, -0.5), (-0.5, 0.5)),
            (0, 1, (0.5, -0.5), (0.5, 0.5)),
        ):
            if not padded[y + 1 + dy, x + 1 + dx]:
                sides.append([(x + start[0], y + start[1]), (x + end[0], y + end[1])])
    axis.add_collection(
        LineCollection(sides, colors="white", linewidths=3.6, capstyle="round", clip_on=False, zorder=3),
        autolim=False,
    )
    axis.add_collection(
        LineCollection(sides, colors=LOSSES[0], linewidths=2.2, capstyle="round", clip_on=False, zorder=3.1),
        autolim=False,
    )
