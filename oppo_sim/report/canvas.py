"""Blank figures: no global state, 1200 pixels wide."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI: Final = 150
WIDTH_IN: Final = 8.0


def new_figure(
    heights: Sequence[float], *, columns: int = 1, share_x: bool = False, below: float = 0.0
) -> "tuple[Figure, list[Axes]]":
    """A figure with one row of axes per height (inches), ``columns`` in each; axes row by row.

    ``below`` (inches) is left for a legend under them.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, sum(heights) + below), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(
        len(heights), columns, squeeze=False, sharex=share_x, gridspec_kw={"height_ratios": list(heights)}
    )
    axes = [axis for row in grid for axis in row]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9)
    return figure, axes


def legend_below(
    figure: "Figure", handles: "Sequence[Artist]", labels: Sequence[str], *, columns: int = 6
) -> None:
    """One legend for the whole figure, under its axes."""
    if handles:
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=min(columns, len(labels)),
            fontsize=8.5,
            frameon=False,
            handlelength=1.4,
            columnspacing=1.4,
        )
