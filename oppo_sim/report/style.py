"""How every figure looks: blank axes; one colour and one name a stage, told apart with colour-blind eyes.

Colours: Okabe and Ito, "Color Universal Design" (2008), with two of Paul Tol's muted set for the stages
beyond eight.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import LayoutEngine
    from matplotlib.legend import Legend
    from matplotlib.patches import StepPatch

DPI: Final = 150
WIDTH_IN: Final = 8.0
_LEGEND_SIZE: Final = 8.5  # points
LONGEST_NAME: Final = 48
"""Letters of a line beside a bar."""


def new_figure(
    heights: Sequence[float],
    *,
    columns: int = 1,
    share_x: bool = False,
    below: float = 0.0,
    measured: bool = True,
) -> "tuple[Figure, list[Axes]]":
    """A figure with one row of axes per height (inches), ``columns`` in each; axes row by row.

    ``below`` (inches) is left for a legend under them. ``measured``: texts are measured when the figure is
    drawn, and axes make room for them; otherwise the caller places the axes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from oppo_sim.notebook_figure import Figure

    figure = Figure(figsize=(WIDTH_IN, sum(heights) + below), dpi=DPI, layout=_layout() if measured else None)
    FigureCanvasAgg(figure)
    # Near where the layout will put the axes, so that it measures the ticks that will be drawn.
    figure.subplots_adjust(left=0.1, right=0.98, bottom=0.15, top=0.95)
    grid = figure.subplots(len(heights), columns, squeeze=False, sharex=share_x, height_ratios=heights)
    axes = [axis for row in grid for axis in row]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9)
        axis.ticklabel_format(useOffset=False)  # 0.9994, and not −0.0006 with a +1 beside the axis
    return figure, axes


def _layout() -> "LayoutEngine":
    """Makes room for texts when a figure is first drawn. Measures each once; constrained layout does so
    twice, half of the time that a figure takes."""
    from matplotlib.layout_engine import TightLayoutEngine

    class LayoutOnce(TightLayoutEngine):
        def execute(self, fig: Any) -> None:
            super().execute(fig)
            fig.set_layout_engine("none")

    return LayoutOnce(pad=0.5, h_pad=0.9, w_pad=0.9)


def bar_figure(names: Sequence[str], *, gap_in: float = 0.19) -> "tuple[Figure, Axes]":
    """Axes with a row for each name, which may have some lines, the first on top; ``gap_in``: inches between
    two rows."""
    lines = max((name.count("\n") + 1 for name in names), default=1)
    figure, (axis,) = new_figure([1.3 + (gap_in + 0.19 * lines) * max(2, len(names))])
    told = ["\n".join(cut(line, LONGEST_NAME) for line in name.split("\n")) for name in names]
    axis.set_yticks(range(len(names)), told)
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(len(names) - 0.45, -0.55)
    return figure, axis


def set_title(axis: "Axes", *parts: str, pad: float = 6.0) -> None:
    """What axes show, flush left, as one line; nothing where every part is empty. ``pad`` in points."""
    text = "; ".join(part for part in parts if part)
    if text:
        axis.set_title(cut(text, 110), loc="left", fontsize=10.5, y=1.0, pad=pad)


def cut(text: str, most: int) -> str:
    """At most that many letters, the last an ellipsis if some were left out."""
    return text if len(text) <= most else text[: most - 1] + "…"


def beside(axis: "Axes", x: float, y: float, text: str, *, size: float = 9.0, at_edge: bool = False) -> None:
    """A text six points to the right of a place; ``at_edge``: ``x`` is a share of the axes' width."""
    place = ("axes fraction", "data") if at_edge else "data"
    axis.annotate(
        text, (x, y), (6, 0), place, "offset points", va="center", fontsize=size, color=INK, in_layout=False
    )


def whole_numbers(axis: "Axis") -> None:
    """Ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 5, 10]))


def legend_below(
    figure: "Figure", handles: "Sequence[Artist]", labels: Sequence[str] = (), *, columns: int = 6
) -> None:
    """One legend for the whole figure, under its axes, of ``columns`` at most, fewer where labels are long;
    ``labels``: by default those of the handles."""
    if not handles:
        return
    labels = labels or [str(handle.get_label()) for handle in handles]

    def legend(columns: int) -> "Legend":
        return figure.legend(
            handles,
            labels,
            loc="lower center",
            ncols=columns,
            fontsize=_LEGEND_SIZE,
            frameon=False,
            handlelength=1.4,
            columnspacing=1.4,
        )

    columns = min(columns, len(labels))
    drawn = legend(columns)
    while columns > 1 and drawn.get_window_extent().width > figure.bbox.width:
        drawn.remove()
        columns -= 1
        drawn = legend(columns)
    rows = -(-len(labels) // columns)
    room = (1.5 * rows + 1.0) * _LEGEND_SIZE / 72
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.set(rect=(0, room / figure.get_figheight(), 1, 1))  # type: ignore[call-arg]


_COLOURS: Final[Mapping[str, str]] = {
    "wake": "#C9B37E",
    "barrier": "#7A8594",
    "decode": "#0072B2",
    "gen": "#0072B2",
    "prefill": "#56B4E9",
    "score": "#E69F00",
    "reward": "#E69F00",
    "old_log_prob": "#F0E442",
    "ref": "#009E73",
    "values": "#CC79A7",
    "adv": "#999999",
    "update_critic": "#882255",
    "update_actor": "#D55E00",
    "training": "#D55E00",
    "update_weights": "#222222",
    "other": "#C4C4C4",
}
_HATCHES: Final[Mapping[str, str]] = {"wake": "....", "barrier": "xxxx", "other": "||||"}
"""Of stages in which a device does no work: where shades alone are hard to tell apart."""
_OTHERS: Final = ("#44AA99", "#332288", "#DDCC77", "#AA4499")

INK: Final = "#222222"
FAINT: Final = "#8A8A8A"
IDLE: Final = "#EFEFEF"
TRACE: Final = "#8A8A8A"
TRAINED: Final = "#0072B2"
GAINS: Final = ("#0072B2", "#56B4E9")
LOSSES: Final = ("#D55E00", "#E69F00", "#CC79A7", "#882255")


def stage_colour(stage: str) -> str:
    """Colour of a stage: joint ones (``old_log_prob+ref``) have that of their first, unknown ones one that
    follows from their name."""
    return _COLOURS.get(_first(stage)) or _OTHERS[sum(stage.encode()) % len(_OTHERS)]


def stage_hatch(stage: str) -> str | None:
    """Of a stage whose colour alone is not enough; None: it has none."""
    return _HATCHES.get(_first(stage))


def line_colour(stage: str) -> str:
    """The same for lines and points, which need more of it to be seen on white than an area."""
    return {"#F0E442": "#999933"}.get(colour := stage_colour(stage), colour)


def plain_numbers(axis: "Axis") -> None:
    """Ticks as they are said, 0.01 and 100, where the scale would write powers."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))


def stairs(
    axis: "Axes",
    values: "NDArray[np.float64]",
    edges: "NDArray[np.float64]",
    baseline: "NDArray[np.float64] | None",
    *,
    color: str,
    fill: bool = False,
    **style: Any,
) -> "StepPatch":
    """What ``axis.stairs`` draws: that one finds the limits of the axes by a loop over all corners, which
    takes minutes where there are a million steps."""
    from matplotlib.patches import StepPatch

    # The library's types leave out that a baseline may be an array or nothing.
    drawn: dict[str, Any] = {"baseline": baseline, "fill": fill}
    drawn |= {"facecolor": color, "linewidth": 0} if fill else {"edgecolor": color}
    patch = StepPatch(values, edges, **(drawn | style))
    axis.add_artist(patch)
    lowest = np.nanmin(values) if baseline is None else np.nanmin(baseline)
    axis.update_datalim([(edges[0], lowest), (edges[-1], np.nanmax(values))])
    axis.autoscale_view()
    return patch


def in_stage_order(stages: set[str]) -> Sequence[str]:
    """Stages in the order of a step, unknown ones last by name."""
    known = list(_COLOURS)
    return sorted(
        stages,
        key=lambda stage: (known.index(_first(stage)) if _first(stage) in known else len(known), stage),
    )


def _first(stage: str) -> str:
    return stage.partition("+")[0]
