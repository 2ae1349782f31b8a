"""Piecewise linear and bilinear tables with linear extrapolation."""

from bisect import bisect_left
from collections.abc import Sequence

from oppo_sim.costs.formulas import interpolated

_SLACK = 1e-9
"""Relative: grids that are scaled differ by rounding."""


def segment(grid: Sequence[float], x: float) -> int:
    """Index i of the segment grid[i]..grid[i+1] that answers x: the left one on a knot."""
    return min(max(bisect_left(grid, x) - 1, 0), len(grid) - 2)


def line_at(grid: Sequence[float], values: Sequence[float], x: float) -> tuple[float, float]:
    """(value at 0, slope) of the segment that answers x."""
    i = segment(grid, x)
    slope = (values[i + 1] - values[i]) / (grid[i + 1] - grid[i])
    return values[i] - slope * grid[i], slope


def linear(grid: Sequence[float], values: Sequence[float], x: float) -> float:
    """The table at x; knots give the table's value to the last digit."""
    i = segment(grid, x)
    return interpolated(x, grid[i], grid[i + 1], values[i], values[i + 1])


def bilinear(
    grid: Sequence[float], inner: Sequence[float], values: Sequence[Sequence[float]], x: float, y: float
) -> float:
    """values[x][y] between the four surrounding points."""
    i = segment(grid, x)
    return interpolated(x, grid[i], grid[i + 1], linear(inner, values[i], y), linear(inner, values[i + 1], y))


def merged(*grids: Sequence[float]) -> list[float]:
    """All knots, rising, those that differ by rounding only once."""
    knots: list[float] = []
    for knot in sorted(x for grid in grids for x in grid):
        if not knots or knot - knots[-1] > _SLACK * abs(knot):
            knots.append(knot)
    return knots
