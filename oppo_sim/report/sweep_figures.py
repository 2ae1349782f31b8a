"""Every figure that a sweep or search admits; written as files on request."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from oppo_sim import columns as c
from oppo_sim.files import file_errors, refuse_existing, whole_file
from oppo_sim.png import write_png
from oppo_sim.report.curve_figure import curve_figure
from oppo_sim.report.heat_figure import heat_figure
from oppo_sim.report.html_parts import svg_text
from oppo_sim.report.labels import OVERCOMMIT, field_label, measure_of
from oppo_sim.report.points import CHUNK_FIELD, Points, category, heat_axes, is_grid
from oppo_sim.report.ranked_figure import ranked_figure
from oppo_sim.report.scatter_figure import scatter_figure
from oppo_sim.report.tradeoff_figure import tradeoff_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAT: Final = "step_time"
_LEAST_DIFFERENCE: Final = {c.COMPARED_STALENESS_MEAN: 0.05, c.LENGTH_BIAS_PAIRED: 0.003}
"""Updates, share: where all points are closer, there is nothing to trade."""


@dataclass(frozen=True)
class NamedFigure:
    """A figure with its caption."""

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
