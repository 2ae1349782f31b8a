"""Pictures of a calibration: what was measured against what was fitted."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oppo_real.calibrate.fit import Fit, Measured, measured_points
from oppo_real.calibrate.measure import Visit
from oppo_sim.errors import OppoError
from oppo_sim.report.style import FAINT, INK, new_figure, stage_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHADES = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7", "#882255")


def calibration_figure(visits: Sequence[Visit], fits: Sequence[Fit]) -> "Figure":
    """Left: decode by KV tokens, a colour for each batch size, long tails as triangles. Right: forwards by
    tokens. Crosses are the fit."""
    by_name = {fit.name: fit for fit in fits}
    figure, axes = new_figure([4.2], columns=2)
    _decode(
        axes[0],
        measured_points([visit for visit in visits if visit.point.kind == "decode"]),
        by_name["decode"],
    )
    _forwards(axes[1], visits, by_name)
    return figure


def save_figure(figure: "Figure", path: Path) -> None:
    """As PNG, the same bytes for the same figure. Raises OppoError if it cannot be written."""
    try:
        figure.savefig(path, format="png", dpi=figure.dpi, metadata={"Software": None})
    except OSError as error:
        raise OppoError(f"cannot write the figure {path}: {error.strerror or error}") from None


def _decode(axes: "Axes", data: Sequence[Measured], fit: Fit) -> None:
    for place, n in enumerate(sorted({one.point.n for one in data})):
        colour = _SHADES[place % len(_SHADES)]
        even = sorted(
            (one for one in data if one.point.n == n and one.point.cell), key=lambda one: one.point.kv_tokens
        )
        ragged = [one for one in data if one.point.n == n and not one.point.cell]
        _bars(axes, even, "o", colour, f"{n}")
        _bars(axes, ragged, "^", colour, None)
        axes.plot(
            [one.point.kv_tokens for one in even],
            [1e3 * fit.predict(one.point) for one in even],
            "-",
            color=colour,
            linewidth=1,
        )
        tails = [1e3 * fit.predict(one.point) for one in ragged]
        axes.plot([one.point.kv_tokens for one in ragged], tails, "x", color=colour, markersize=5)
    axes.set(xscale="log", xlabel="KV tokens of the batch", ylabel="ms an iteration", ylim=(0, None))
    axes.set_title("decode: measured (points), fitted (lines)", fontsize=10)
    axes.legend(title="rollouts", fontsize=8, title_fontsize=8, frameon=False)


def _forwards(axes: "Axes", visits: Sequence[Visit], fits: dict[str, Fit]) -> None:
    for kind, marker in (("prefill", "o"), ("score", "s"), ("score_ref", "D")):
        data = [
            one
            for one in measured_points([visit for visit in visits if visit.point.kind == kind])
            if one.median > 0
        ]
        if not data or kind not in fits:
            continue
        _bars(axes, data, marker, stage_colour(kind), kind)
        if kind != "score_ref":  # measured together with score, fitted alone
            tokens = [one.point.tokens for one in data]
            axes.plot(
                tokens, [1e3 * fits[kind].predict(one.point) for one in data], "x", color=INK, markersize=5
            )
    axes.set(xscale="log", yscale="log", xlabel="new tokens of the batch", ylabel="ms")
    axes.set_title("forwards: measured (points), fitted (crosses)", fontsize=10)
    axes.legend(fontsize=8, frameon=False)


def _bars(axes: "Axes", data: Sequence[Measured], marker: str, colour: str, label: str | None) -> None:
    """Medians, with the range of the repeats."""
    if not data:
        return
    middles = [1e3 * one.median for one in data]
    below = [middle - 1e3 * min(one.repeats) for middle, one in zip(middles, data, strict=True)]
    above = [1e3 * max(one.repeats) - middle for middle, one in zip(middles, data, strict=True)]
    places = [one.point.kv_tokens if one.point.kind == "decode" else one.point.tokens for one in data]
    axes.errorbar(
        places,
        middles,
        (below, above),
        fmt=marker,
        color=colour,
        markersize=4,
        ecolor=FAINT,
        elinewidth=0.8,
        linestyle="none",
        label=label,
    )
