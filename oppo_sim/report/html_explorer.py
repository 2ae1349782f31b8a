"""The points of a report as data for its script: columns of numbers and of positions in value lists, small
enough for thousands of rows."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oppo_sim import columns as c
from oppo_sim.report.measures import (
    MEASURES,
    Measure,
    field_label,
    is_missing,
    measure_of,
    value_label,
    value_text,
)
from oppo_sim.report.points import Points, heat_axes, is_grid

_DIGITS = 6


def measures_in(points: Points) -> list[Measure]:
    """The objective, other known measures, then other numeric columns; intervals and what has no value at all
    are left out."""
    intervals = {name for measure in MEASURES.values() for name in measure.interval or ()}
    order = sorted(MEASURES, key=lambda column: column != points.objective)
    known = [MEASURES[column] for column in order if points.has(column)]
    others = [
        str(column)
        for column, kind in points.table.dtypes.items()
        if kind.kind in "fiu"
        and column not in MEASURES
        and column not in intervals
        and column not in points.axes
    ]
    return known + [measure_of(column) for column in others if points.has(column)]


def explorer_data(points: Points, label: str, fixed: str = "") -> dict[str, Any]:
    """What ``report.js`` reads. ``label`` names the points in sentences (``configuration``, ``policy``),
    ``fixed`` are the ``--set`` options that all points share.

    ``axes[].at`` holds each row's position in ``axes[].values``; ``measures[].values``, ``low`` and ``high``
    hold null where there is no number.
    """
    axes = []
    for axis in points.axes:
        values = points.values(axis)
        place = {value_text(value): at for at, value in enumerate(values)}
        axes.append(
            {
                "field": axis,
                "label": field_label(axis),
                "values": [value_label(value) for value in values],
                "texts": [value_text(value) for value in values],
                "missing": [is_missing(value) for value in values],
                "numeric": points.numeric(axis),
                "at": [place[value_text(value)] for value in points.table[axis]],
            }
        )
    measures = []
    for measure in measures_in(points):
        low, high = (
            [_rounded(points.measured(name)) if points.has(name) else None for name in measure.interval]
            if measure.interval
            else [None, None]
        )
        measures.append(
            {
                "column": measure.column,
                "label": measure.label,
                "kind": measure.kind,
                "better": measure.better,
                "values": _rounded(points.measured(measure.column)),
                "low": low,
                "high": high,
            }
        )
    heat = heat_axes(points) if is_grid(points) else None
    return {
        "label": label,
        "fixed": fixed,
        "axes": axes,
        "measures": measures,
        "best": points.best_row(),
        "region": sorted(points.region),
        "objective": points.objective,
        "status": (
            [str(value) for value in points.table[c.STATUS]] if c.STATUS in points.table.columns else None
        ),
        "errors": (
            [None if is_missing(value) else str(value) for value in points.table[c.ERROR]]
            if c.ERROR in points.table.columns
            else None
        ),
        "heat": list(heat) if heat else None,
    }


def _rounded(values: NDArray[np.float64]) -> list[float | int | None]:
    return [_short(float(value)) for value in values]


def _short(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
