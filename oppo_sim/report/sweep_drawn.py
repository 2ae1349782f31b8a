"""Which pictures a set of points admits, with the words that go with them; written as files on request."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oppo_sim import columns as c
from oppo_sim.files import refuse_existing, said, whole_file
from oppo_sim.report.html_pictures import png_bytes, svg_text
from oppo_sim.report.measures import field_label, measure_of
from oppo_sim.report.points import CHUNK_FIELD, OVERCOMMIT_FIELD, Points, category, heat_axes, is_grid
from oppo_sim.report.sweep_figures import curve_figure, heat_figure, scatter_figure, tradeoff_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAT: Final = "step_time"


@dataclass(frozen=True)
class Drawn:
    """A figure and its words."""

    name: str
    """File-name stem."""
    figure: "Figure"
    title: str
    alt: str


def drawn(points: Points, title: str = "") -> list[Drawn]:
    """Every figure that the points admit; ``title`` stands in each. Empty where no point has a step time."""
    if not points.has(c.STEP_S):
        return []
    gridded = is_grid(points)
    found = [
        *(_heats(points, title) if gridded else ()),
        *(_curves(points, title) if gridded else _scatter(points, title)),
    ]
    if points.has(c.SPEEDUP):
        found += _tradeoffs(points, title)
    return found


def write_figures(points: Points, folder: str | Path, title: str = "", *, force: bool = False) -> list[Path]:
    """Write every figure into a folder, as PNG and SVG; returns the files. Raises OppoError when one exists
    (unless ``force``)."""
    root = Path(folder)
    found = drawn(points, title)
    paths = [root / f"{one.name}.{kind}" for one in found for kind in ("png", "svg")]
    for path in paths:
        refuse_existing(path, overwrite=force)
    with said(root):
        root.mkdir(parents=True, exist_ok=True)
    for one in found:
        for path, data in (
            (root / f"{one.name}.png", png_bytes(one.figure)),
            (root / f"{one.name}.svg", svg_text(one.figure).encode()),
        ):
            with whole_file(path) as file:
                file.write(data)
    return paths


# ---- inside ------------------------------------------------------------------------------------------------


def _heats(points: Points, title: str) -> Iterator[Drawn]:
    axes = heat_axes(points)
    if axes is None:
        return
    x, y = axes
    for name, metric in ((HEAT, c.STEP_S), ("speedup", c.SPEEDUP)):
        if points.has(metric):
            label = measure_of(metric).label
            alt = (
                f"Heat map: {field_label(x)} across, {field_label(y)} upwards; the best cell has a star; the"
                " table has the numbers."
            )
            figure = heat_figure(points, metric, x=x, y=y, title=title)
            yield Drawn(name, figure, f"{label.capitalize()} by {field_label(x)} and {field_label(y)}", alt)


def _curves(points: Points, title: str) -> Iterator[Drawn]:
    numeric = [axis for axis in points.axes if points.numeric(axis)]
    known = [axis for axis in (CHUNK_FIELD, OVERCOMMIT_FIELD) if axis in numeric]
    for axis in known or numeric[:2]:
        name = {CHUNK_FIELD: "chunk_curve", OVERCOMMIT_FIELD: "overcommit_curve"}.get(
            axis, f"curve_{axis.replace('.', '_')}"
        )
        by = category(points)
        by = None if by == axis else by
        alt = (
            f"A line{f' for each {field_label(by)}' if by else ''} with its 95 % band; a diamond marks the"
            " best of each."
        )
        yield Drawn(
            name, curve_figure(points, x=axis, by=by, title=title), f"Step time by {field_label(axis)}", alt
        )


def _scatter(points: Points, title: str) -> Iterator[Drawn]:
    if any(points.numeric(axis) for axis in points.axes):
        figure = scatter_figure(points, by=_colour_by(points), title=title)
        yield Drawn(
            "scatter",
            figure,
            "Step time by field",
            "One panel a numeric field, a dot a configuration; the best has a star.",
        )


def _tradeoffs(points: Points, title: str) -> Iterator[Drawn]:
    for cost, name, label in (
        (c.COMPARED_STALENESS_MEAN, "staleness", "Speed-up against staleness"),
        (c.LENGTH_BIAS, "length_bias", "Speed-up against length bias"),
    ):
        if points.has(cost):
            alt = (
                "A dot a configuration; those that none beats on both are numbered and listed with their"
                " settings."
            )
            yield Drawn(name, tradeoff_figure(points, cost, by=_colour_by(points), title=title), label, alt)


def _colour_by(points: Points) -> str | None:
    by = category(points)
    return None if by is None or points.numeric(by) else by
