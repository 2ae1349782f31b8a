"""Figures of a sweep or search: heat map, curves by placement, trade-offs with their Pareto
front; written as files on request.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.files import file_errors, refuse_existing, whole_file
from oppo_sim.report.html_parts import svg_text
from oppo_sim.report.labels import (
    OVERCOMMIT,
    Measure,
    field_label,
    measure_of,
    measured_label,
    settings_label,
    time_unit,
    value_label,
    value_text,
)
from oppo_sim.report.points import (
    CHUNK_FIELD,
    Points,
    best_of,
    category,
    heat_axes,
    is_grid,
)
from oppo_sim.report.ranked_figure import ranked_figure
from oppo_sim.report.style import (
    FAINT,
    IDLE,
    INK,
    LOSSES,
    TRAINED,
    cut,
    legend_below,
    new_figure,
    set_title,
)
from oppo_sim.run_folder import write_png

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES: Final = (TRAINED, LOSSES[0], "#009E73", LOSSES[2], LOSSES[1], "#332288", "#88CCEE", "#117733")
# On coloured cells, whatever the page's theme: a page swaps INK and white for its own.
_BLACK: Final = "#212121"
_WHITE: Final = "#fefefe"
# Lines that coincide show through each other.
_DASHES: Final = ((0, ()), (0, (5, 2.5)), (0, (2, 2)), (0, (7, 2, 1.5, 2)))
_MARKS: Final = "osD^vP*X"
_MOST_ANNOTATED: Final = 150
_MOST_LABELLED: Final = 12
_LISTED: Final = 96
"""Letters of a line below the trade-off."""
_MOST_PANELS: Final = 6
_MOST_TICKED: Final = 40
_REGION: Final = "not told apart from the best (95 %)"
_STAR: Final[dict[str, Any]] = {
    "marker": "*",
    "color": _WHITE,
    "markeredgecolor": _BLACK,
    "linestyle": "none",
}

HEAT: Final = "step_time"
_LEAST_DIFFERENCE: Final = {c.COMPARED_STALENESS_MEAN: 0.05, c.LENGTH_BIAS_PAIRED: 0.003}
"""Updates, share: where all points are closer, there is nothing to trade."""
_BAND: Final = {c.HOURS_TO_REWARD: "of rollouts, machine and staleness effect"}
"""What a measure's interval holds, where not the rollouts alone."""


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
    from matplotlib.patches import Patch, Rectangle

    varying = [name for name in points.axes if len(points.values(name)) > 1]
    if len(varying) < 2:
        only = f"only {varying[0]} does" if varying else "none does"
        raise OppoError(
            f"a heat map needs two fields that vary, and here {only}: sweep over several values of another"
            " field, too"
        )
    for axis_field in (x, y):
        if axis_field not in varying:
            raise OppoError(
                f"a heat map needs two fields that vary, and '{axis_field}' does not: choose among"
                f" {', '.join(varying)}"
            )
    measure, values = measure_of(metric), points.measured(metric)
    anchor = points.best_row()
    anchor = anchor if anchor is not None and np.isfinite(values[anchor]) else points.best_row(metric)
    if anchor is None:
        raise OppoError(f"no point has the measure '{metric}': there is nothing to draw")
    across, upwards = points.values(x), points.values(y)
    places = [{value_text(value): at for at, value in enumerate(values)} for values in (upwards, across)]
    grid = np.full((len(upwards), len(across)), -1, dtype=np.int64)
    for row in points.like(anchor, free=(x, y)):
        grid[places[0][points.texts(y)[row]], places[1][points.texts(x)[row]]] = row
    shown = np.where(grid >= 0, values[grid], np.nan)
    best = anchor
    if metric != points.objective:
        # Of equal values the best point's cell has the star.
        inside = np.isin(np.arange(len(values)), grid)
        top = best_of(points.achievable(np.where(inside, values, np.nan)), metric)
        best = anchor if top is None or values[anchor] == values[top] else top
    scale, label = _scale_and_label(measure, shown)
    figure, (axis,) = new_figure([min(7.5, 1.9 + 0.34 * len(upwards))], below=0.35)
    # Bright is better, whatever the measure.
    mesh = axis.pcolormesh(
        np.arange(len(across) + 1) - 0.5,
        np.arange(len(upwards) + 1) - 0.5,
        shown / scale,
        cmap="viridis_r" if measure.better == "low" else "viridis",
    )
    axis.set_xticks(range(len(across)), [value_label(value) for value in across])
    axis.set_yticks(range(len(upwards)), [value_label(value) for value in upwards])
    axis.tick_params(length=0)
    # Labels across that would touch are left out.
    room = max(4, int(78 / (1 + max(len(value_label(value)) for value in across))))
    for at, text in enumerate(axis.get_xticklabels()):
        text.set_visible(at % -(-len(across) // room) == 0)
    axis.set_xlabel(field_label(x, points.values(x)))
    axis.set_ylabel(field_label(y, points.values(y)))
    bar = figure.colorbar(mesh, ax=axis, pad=0.015, fraction=0.04)
    bar.set_label(label, fontsize=9.5)
    bar.ax.tick_params(labelsize=9)
    handles: list[Artist] = []
    failed = np.argwhere((grid >= 0) & ~np.isfinite(shown))
    if len(failed):
        hatched: dict[str, Any] = {"facecolor": IDLE, "edgecolor": FAINT, "hatch": "////"}
        for row, column in failed:
            axis.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, linewidth=0, **hatched))
        handles.append(Patch(**hatched, label="failed"))
    if metric == points.objective and len(points.region) > 1:
        _outline(axis, np.isin(grid, sorted(points.region)))
        handles.append(Line2D([], [], color=LOSSES[0], linewidth=2.2, label=_REGION))
    at_y, at_x = np.argwhere(grid == best)[0]
    crowded = shown.size <= _MOST_ANNOTATED
    if crowded:
        _annotate(axis, shown / scale, reverse=measure.better == "low")
    axis.plot(at_x, at_y + (0.3 if crowded else 0), markersize=9 if crowded else 13, **_STAR)
    handles.append(_best_handle(values[best], measure))
    held = settings_label(*_split(points.label_of(best, without=(x, y))))
    set_title(axis, title, f"at {held}" if held else "")
    legend_below(figure, handles, columns=3)
    return figure


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
    from matplotlib.transforms import ScaledTranslation

    measure, values = measure_of(metric), points.measured(metric)
    if not np.isfinite(values).any():
        raise OppoError(f"no point has the measure '{metric}': there is nothing to draw")
    scale, label = _scale_and_label(measure, values)
    band, whiskers = (
        ends if ends and all(map(points.has, ends)) else None for ends in (measure.interval, measure.machine)
    )
    figure, (axis,) = new_figure([4.0], below=0.3)
    handles: list[Artist] = []
    number = points.numbers(x)
    lines = _lines(points, values, x, by)
    for nth, ((value, rows, best), colour, mark, dashes) in enumerate(
        zip(lines, cycle(LINES), cycle(_MARKS), cycle(_DASHES))
    ):
        at, heights = number[rows], values[rows] / scale
        if band:
            low, high = (points.measured(column)[rows] / scale for column in band)
            axis.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
        if whiskers:
            low, high = (points.measured(column)[rows] / scale for column in whiskers)
            drawn = np.isfinite(low)
            # Side by side, those of one place.
            aside = ScaledTranslation((nth - (len(lines) - 1) / 2) * 3 / 72, 0, figure.dpi_scale_trans)
            dashed = axis.vlines(
                at[drawn], low[drawn], high[drawn], color=colour, linewidth=0.9, linestyle=(0, (3, 2))
            )
            dashed.set_transform(axis.transData + aside)
        held = settings_label(*_split(points.label_of(best, without=(x, *([by] if by else [])))))
        named = _named(by, value) if by else measure.label
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
            axis.plot(at[top], heights[top], **_ring(colour, "D", 8.5))
    if measure.kind in ("signed_share", "ratio"):
        neutral = 1.0 if measure.kind == "ratio" else 0.0
        axis.axhline(neutral, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
    _number_axis(axis, points, x)
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


def scatter_figure(
    points: Points, metric: str = c.STEP_S, *, by: str | None = None, title: str = ""
) -> "Figure":
    """A measure against each numeric field that varies, one panel a field: for random samples, which fill no
    grid.

    Rows of ``points.region`` are ringed, the best has a star. Raises OppoError when no point has the measure
    or no field is numeric.
    """
    from matplotlib.lines import Line2D

    fields = [axis for axis in points.axes if points.numeric(axis)][:_MOST_PANELS]
    measure, values, best = measure_of(metric), points.measured(metric), points.best_row(metric)
    if not fields or best is None:
        raise OppoError(
            f"no numeric field varies, or no point has the measure '{metric}': there is nothing to draw"
        )
    scale, label = _scale_and_label(measure, values)
    columns = min(2, len(fields))
    figure, panels = new_figure([3.0] * -(-len(fields) // columns), columns=columns, below=0.3)
    region = sorted(points.region - {best}) if metric == points.objective else []
    handles: list[Artist] = []
    for panel, (axis, field) in enumerate(zip(panels, fields, strict=False)):
        at = points.numbers(field)
        dots = _dots_by(axis, points, by, at, values / scale)
        handles = handles or dots
        axis.plot(at[region], values[region] / scale, **_ring(LOSSES[0], "o", 8))
        axis.plot(at[best], values[best] / scale, markersize=13, **_STAR)
        _number_axis(axis, points, field, room=7 if columns > 1 else 16)
        axis.set_xlabel(field_label(field, points.values(field)), fontsize=9.5)
        axis.margins(y=0.1)
        if panel % columns == 0:
            axis.set_ylabel(label, fontsize=9.5)
    for axis in panels[len(fields) :]:
        axis.set_visible(False)
    if region:
        handles.append(Line2D([], [], **_ring(LOSSES[0], "o", 8), label=_REGION))
    handles.append(_best_handle(values[best], measure))
    set_title(panels[0], title)
    legend_below(figure, handles, columns=4)
    return figure


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
    scale, label = _scale_and_label(measure, paid)
    labelled = _spread(front, _MOST_LABELLED)
    listed = []
    for number, row in enumerate(labelled, 1):
        reached = (
            f"{measured_label(float(won[row]), 'ratio')}, {measure.label}"
            f" {measured_label(float(paid[row]), measure.kind)}"
        )
        line = f"{number}  {reached}: {settings_label(*_split(points.label_of(row)))}"
        listed += textwrap.wrap(
            cut(line, 2 * _LISTED), _LISTED, subsequent_indent="     ", break_on_hyphens=False
        )
    figure, (axis,) = new_figure([4.4], below=0.24 * len(listed) + 0.35)
    handles = _dots_by(axis, points, by, paid / scale, won)
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


@dataclass(frozen=True)
class NamedFigure:
    """A figure and its words."""

    name: str
    """File-name stem."""
    figure: "Figure"
    title: str
    alt: str


def figures_of(points: Points, title: str = "") -> list[NamedFigure]:
    """Every figure that the points admit; ``title`` stands in each. Empty where no point has a step time."""
    if not points.has(c.STEP_S):
        return []
    gridded = is_grid(points)
    found = [*(_heats(points, title) if gridded else ()), *(_curves if gridded else _scatter)(points, title)]
    if points.has(c.SPEEDUP):
        found += _tradeoffs(points, title)
    return found


def write_figures(points: Points, folder: str | Path, title: str = "", *, force: bool = False) -> list[Path]:
    """Write every figure into a folder, as PNG and SVG; returns the files. Raises OppoError when one exists
    (unless ``force``)."""
    root = Path(folder)
    found = figures_of(points, title)
    paths = [root / f"{one.name}.{kind}" for one in found for kind in ("png", "svg")]
    for path in paths:
        refuse_existing(path, overwrite=force)
    with file_errors(root):
        root.mkdir(parents=True, exist_ok=True)
    for one in found:
        with whole_file(root / f"{one.name}.png") as file:
            write_png(one.figure, file)
        with whole_file(root / f"{one.name}.svg") as file:
            file.write(svg_text(one.figure).encode())
    return paths


# ---- inside ------------------------------------------------------------------------------------------------


def _heats(points: Points, title: str) -> Iterator[NamedFigure]:
    axes = heat_axes(points)
    if axes is None:
        return
    x, y = axes
    alt = (
        f"Heat map: {field_label(x)} across, {field_label(y)} upwards; the best cell has a star; the table"
        " has the numbers."
    )
    for name, metric in ((HEAT, c.STEP_S), ("speedup", c.SPEEDUP)):
        if points.has(metric):
            label = f"{measure_of(metric).label.capitalize()} by {field_label(x)} and {field_label(y)}"
            yield NamedFigure(name, heat_figure(points, metric, x=x, y=y, title=title), label, alt)


def _curves(points: Points, title: str) -> Iterator[NamedFigure]:
    numeric = [axis for axis in points.axes if points.numeric(axis)]
    known = {CHUNK_FIELD: "chunk_curve", OVERCOMMIT: "overcommit_curve"}
    for axis in [axis for axis in known if axis in numeric] or numeric[:2]:
        by = category(points)
        by = None if by == axis else by
        alt = (
            f"A line{f' for each {field_label(by)}' if by else ''} with its 95 % band; a diamond marks the"
            " best of each."
        )
        name = known.get(axis, f"curve_{axis.replace('.', '_')}")
        for metric in dict.fromkeys((points.objective, c.STEP_S)):  # what was asked for first
            if metric not in (c.STEP_S, c.HOURS_TO_REWARD) or not points.has(metric):
                continue
            stem = name if metric == c.STEP_S else f"{name}_to_reward"
            label = f"{measure_of(metric).label.capitalize()} by {field_label(axis)}"
            yield NamedFigure(stem, curve_figure(points, metric, x=axis, by=by, title=title), label, alt)


def _scatter(points: Points, title: str) -> Iterator[NamedFigure]:
    if any(points.numeric(axis) for axis in points.axes):
        figure = scatter_figure(points, by=_colour_by(points), title=title)
        alt = "One panel a numeric field, a dot a configuration; the best has a star."
        yield NamedFigure("scatter", figure, "Step time by field", alt)
        return
    alt = "A row a configuration with its 95 % interval, best first; the table has the numbers."
    for metric in dict.fromkeys((points.objective, c.STEP_S)):
        if points.has(metric):
            label = f"{measure_of(metric).label.capitalize()}, best first"
            stem = "ranked" if metric == c.STEP_S else f"ranked_{metric}"
            yield NamedFigure(stem, ranked_figure(points, metric, title=title), label, alt)


def _tradeoffs(points: Points, title: str) -> Iterator[NamedFigure]:
    alt = "A dot a configuration; those that none beats on both are numbered and listed with their settings."
    for cost, name, label in (
        (c.COMPARED_STALENESS_MEAN, "staleness", "Speed-up against staleness"),
        (c.LENGTH_BIAS_PAIRED, "length_bias", "Speed-up against length bias"),
    ):
        if points.has(cost) and _differs(points.measured(cost), _LEAST_DIFFERENCE[cost]):
            figure = tradeoff_figure(points, cost, by=_colour_by(points), title=title)
            yield NamedFigure(name, figure, label, alt)


def _differs(paid: NDArray[np.float64], least: float) -> bool:
    known = paid[np.isfinite(paid)]
    return len(known) > 0 and float(known.max() - known.min()) > least


def _colour_by(points: Points) -> str | None:
    by = category(points)
    return None if by is None or points.numeric(by) else by


def _named(by: str, value: Any) -> str:
    """A value in a legend: a word says by itself what it is, a number or a switch does not."""
    given = "" if isinstance(value, str) else settings_label([by], [value])
    return given or value_label(value)


def _dots_by(
    axis: "Axes", points: Points, by: str | None, x: NDArray[np.float64], y: NDArray[np.float64]
) -> "list[Artist]":
    """A dot a point, a colour and mark for each value of ``by``; returns what the legend needs."""
    from matplotlib.lines import Line2D

    handles: list[Artist] = []
    for value, colour, mark in zip(points.values(by) if by else [None], cycle(LINES), cycle(_MARKS)):
        chosen = np.isfinite(x) & np.isfinite(y)
        if by:
            chosen &= np.array(points.texts(by)) == value_text(value)
        dots: dict[str, Any] = {"linestyle": "none", "marker": mark, "color": colour}
        axis.plot(x[chosen], y[chosen], **dots, markersize=4, alpha=0.6, markeredgewidth=0)
        label = _named(by, value) if by else "a configuration"
        handles.append(Line2D([], [], **dots, markersize=5, label=label))
    return handles


def _best_handle(value: float, measure: Measure) -> "Artist":
    from matplotlib.lines import Line2D

    return Line2D([], [], markersize=11, **_STAR, label=f"best: {measured_label(float(value), measure.kind)}")


def _ring(colour: str, mark: str, size: float) -> dict[str, Any]:
    hollow = {"markerfacecolor": "none", "markeredgecolor": colour}
    return {"linestyle": "none", "marker": mark, "markersize": size, **hollow}


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


def _split(pairs: Sequence[tuple[str, Any]]) -> tuple[list[str], list[Any]]:
    return [field for field, _ in pairs], [value for _, value in pairs]


def _annotate(axis: "Axes", shown: NDArray[np.float64], *, reverse: bool) -> None:
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    largest = float(np.nanmax(np.abs(shown)))
    digits = 0 if largest >= 1000 else 1 if largest >= 100 else 2
    for y, x in np.argwhere(np.isfinite(shown)):
        bright = (shown[y, x] - low) / (high - low) if high > low else 0.5
        colour = _BLACK if (1.0 - bright if reverse else bright) > 0.55 else _WHITE
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


def _number_axis(axis: "Axes", points: Points, x: str, room: int = 16) -> None:
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


def _scale_and_label(measure: Measure, values: NDArray[np.float64]) -> tuple[float, str]:
    """What one of an axis is in the column's own unit, and what stands beside the axis."""
    if measure.kind == "seconds":
        unit = time_unit(float(np.nanmin(values)))
        return unit.seconds, f"{measure.label} ({unit.name})"
    percent = measure.kind in ("share", "signed_share")
    return (0.01, f"{measure.label} (%)") if percent else (1.0, measure.label)
