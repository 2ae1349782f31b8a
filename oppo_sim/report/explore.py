"""A sweep looked at with controls: which measure, over which fields, at which values of the others."""

from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.report.curve_figure import curve_figure
from oppo_sim.report.heat_figure import heat_figure
from oppo_sim.report.labels import (
    MEASURES,
    OVERCOMMIT,
    field_label,
    measure_of,
    short_label,
    value_label,
    value_text,
)
from oppo_sim.report.points import CHUNK_FIELD, Points

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH_PX = 800


def map_fields(points: Points) -> list[str]:
    """Fields that vary, those of the usual map (Δ across, chunk size upwards) first if both do."""
    varying = [axis for axis in points.axes if len(points.values(axis)) > 1]
    usual = [OVERCOMMIT, CHUNK_FIELD]
    first = usual if set(usual) <= set(varying) else []
    return [*first, *(axis for axis in varying if axis not in first)]


def at_values(points: Points, held: Mapping[str, Any]) -> Points:
    """The points at these values of some fields. Raises OppoError where there is none."""
    texts = {axis: points.texts(axis) for axis in held}
    wanted = {axis: value_text(value) for axis, value in held.items()}
    rows = [row for row in range(len(points.table)) if all(texts[axis][row] == wanted[axis] for axis in held)]
    if not rows:
        at = ", ".join(f"{axis} = {text}" for axis, text in wanted.items())
        raise OppoError(f"no point of the sweep has {at}: choose other values")
    places = {row: place for place, row in enumerate(rows)}
    table = points.table.iloc[rows].reset_index(drop=True)
    region = frozenset(places[row] for row in points.region if row in places)
    best = places.get(points.best) if points.best is not None else None
    return Points(table, points.axes, best, region, points.objective)


def explored_figure(points: Points, measure: str, x: str, y: str, held: Mapping[str, Any]) -> "Figure":
    """What the controls say: a heat map over two fields, or, without ``y``, a curve. Raises OppoError where
    there is nothing to draw."""
    chosen = at_values(points, held)
    if not y:
        return curve_figure(chosen, measure, x=x)
    if x == y:
        raise OppoError(
            "a map has two fields, and both axes have the same one: choose another for one of them"
        )
    return heat_figure(chosen, measure, x=x, y=y)


def explorer(points: Points) -> Any:
    """A widget, controls above a figure. Raises OppoError without ipywidgets, and where nothing varies."""
    try:
        import ipywidgets
    except ImportError:
        raise OppoError(
            "explore() needs ipywidgets, which is not installed: pip install 'oppo-toolkit[notebooks]'"
        ) from None
    fields = map_fields(points)
    if not fields:
        raise OppoError("no field of this sweep varies: there is nothing to explore")
    if len(fields) == 1 and not points.numeric(fields[0]):
        raise OppoError(f"only {fields[0]} varies, which is no number: look at the points themselves")
    names = [(field_label(field), field) for field in fields]
    measures = [(measure_of(name).label, name) for name in MEASURES if points.has(name)]
    best = points.best_row()
    measure = ipywidgets.Dropdown(options=measures, value=c.STEP_S, description="measure")
    x = ipywidgets.Dropdown(options=names, value=fields[0], description="across")
    y = ipywidgets.Dropdown(
        options=[*names, ("(curve)", "")],
        value=fields[1] if len(fields) > 1 else "",
        description="upwards",
    )
    sliders = {
        field: ipywidgets.SelectionSlider(
            options=[(value_label(value), value) for value in points.values(field)],
            value=points.values(field)[0] if best is None else points.table[field].iloc[best],
            description=short_label(field),
            continuous_update=False,
        )
        for field in fields
        if len(fields) > 1
    }
    picture, sentence = ipywidgets.Image(width=WIDTH_PX), ipywidgets.Label()

    def redraw(_change: object = None) -> None:
        free = {x.value, y.value}
        for field, slider in sliders.items():
            slider.disabled = field in free
        held = {field: slider.value for field, slider in sliders.items() if field not in free}
        try:
            figure = explored_figure(points, measure.value, x.value, y.value, held)
        except OppoError as error:
            picture.value, sentence.value = b"", str(error)
            return
        drawn = BytesIO()
        figure.savefig(drawn, format="png")
        picture.value, sentence.value = drawn.getvalue(), ""

    for control in (measure, x, y, *sliders.values()):
        control.observe(redraw, "value")
    redraw()
    chosen = [ipywidgets.HBox([measure, x, y]), *sliders.values()]
    return ipywidgets.VBox([*chosen, sentence, picture])
