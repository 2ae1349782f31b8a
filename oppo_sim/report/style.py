"""How every figure looks: blank axes; one colour and one name a stage, told apart with colour-blind eyes.

Colours: Okabe and Ito, "Color Universal Design" (2008), with two of Paul Tol's muted set for the stages
beyond eight.
"""

from collections.abc import Mapping, Sequence
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


_COLOURS: Final[Mapping[str, str]] = {
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
}
_OTHERS: Final = ("#44AA99", "#332288", "#DDCC77", "#AA4499")

INK: Final = "#222222"
FAINT: Final = "#8A8A8A"
IDLE: Final = "#EFEFEF"
TRACE: Final = "#8A8A8A"
TRAINED: Final = "#0072B2"
GAINS: Final = ("#0072B2", "#56B4E9")
LOSSES: Final = ("#D55E00", "#E69F00", "#CC79A7")


def stage_colour(stage: str) -> str:
    """Colour of a stage: joint ones (``old_log_prob+ref``) have that of their first, unknown ones one that
    follows from their name."""
    return _COLOURS.get(_first(stage)) or _OTHERS[sum(stage.encode()) % len(_OTHERS)]


def in_stage_order(stages: set[str]) -> Sequence[str]:
    """Stages in the order of a step, unknown ones last by name."""
    known = list(_COLOURS)
    return sorted(
        stages,
        key=lambda stage: (known.index(_first(stage)) if _first(stage) in known else len(known), stage),
    )


def _first(stage: str) -> str:
    return stage.partition("+")[0]
