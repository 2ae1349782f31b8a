"""A measure of a sweep against each of its numeric fields, a dot a configuration."""

from typing import TYPE_CHECKING, Final

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.report.labels import field_label, measure_of
from oppo_sim.report.point_marks import REGION, STAR, best_handle, dots_by, number_axis, ring, scale_and_label
from oppo_sim.report.points import Points
from oppo_sim.report.style import LOSSES, legend_below, new_figure, set_title

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

_MOST_PANELS: Final = 6


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
    scale, label = scale_and_label(measure, values)
    columns = min(2, len(fields))
    figure, panels = new_figure([3.0] * -(-len(fields) // columns), columns=columns, below=0.3)
    region = sorted(points.region - {best}) if metric == points.objective else []
    handles: list[Artist] = []
    for panel, (axis, field) in enumerate(zip(panels, fields, strict=False)):
        at = points.numbers(field)
        dots = dots_by(axis, points, by, at, values / scale)
        handles = handles or dots
        axis.plot(at[region], values[region] / scale, **ring(LOSSES[0], "o", 8))
        axis.plot(at[best], values[best] / scale, markersize=13, **STAR)
        number_axis(axis, points, field, room=7 if columns > 1 else 16)
        axis.set_xlabel(field_label(field, points.values(field)), fontsize=9.5)
        axis.margins(y=0.1)
        if panel % columns == 0:
            axis.set_ylabel(label, fontsize=9.5)
    for axis in panels[len(fields) :]:
        axis.set_visible(False)
    if region:
        handles.append(Line2D([], [], **ring(LOSSES[0], "o", 8), label=REGION))
    handles.append(best_handle(values[best], measure))
    set_title(panels[0], title)
    legend_below(figure, handles, columns=4)
    return figure
