"""What a calibration shows: tables and remarks for a terminal, and a figure of measured against fitted."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oppo_real.calibrate.contention import Contention
from oppo_real.calibrate.fit import Fit, Measured, measured_points
from oppo_real.calibrate.measure import Visit
from oppo_real.calibrate.profile import Calibration
from oppo_sim.files import write_errors
from oppo_sim.report.style import FAINT, INK, new_figure, stage_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

_SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"), (1e-12, "ps"))


def fit_tables(calibration: Calibration) -> "list[Table]":
    """Coefficients with intervals; errors by regime; what slowed what down."""
    from oppo_sim.cli.tables import table

    heads = ("what", "term", "value", "low", "high")
    title = "fitted costs, with 95 % intervals"
    found = [table(title, heads, _coefficients(calibration.fits), (0, 1), stay=3)]
    heads = ("what", "regime held out", "median", "largest", "points")
    title = "errors; a regime held out is predicted from the others"
    found.append(table(title, heads, _errors(calibration.fits), (0, 1), stay=4, names=(0, 1)))
    if calibration.contention:
        columns = ("first", "second", "first slower", "second slower", "interference", "shared demand")
        rows = _contention(calibration.contention)
        title = "two that run together: times as long as alone"
        found.append(table(title, columns, rows, (0, 1), names=(0, 1)))
    return found


def remarks(calibration: Calibration) -> list[str]:
    """One sentence for each thing that a user of the profile should know."""
    found = [
        f"{one.table}: {one.measured} cells measured, {one.fitted} filled by the fit (no batch of that shape"
        " exists, or none was run)"
        for one in calibration.filled
        if one.fitted
    ]
    tail = calibration.tail_factor
    if tail is not None and tail > 1.05:
        found.append(
            f"decode with a long tail took up to {tail:.2f} times as long as even batches of the same total"
            " KV; the simulator counts the total only"
        )
    noisy = [fit.name for fit in calibration.fits if (fit.repeat_spread or 0.0) > 0.1]
    if noisy:
        names = ", ".join(noisy)
        found.append(
            f"repeats of {names} differ by more than 10 %: something else ran on the machine, or more"
            " --repeats are needed"
        )
    profile = calibration.profile
    factor, apart, slices = profile.contention_factor, profile.slowdowns, profile.time_slices
    if factor is not None and apart is not None and slices is not None:
        found.append(
            f"decoding and scoring together take {factor:.2f} times as long as shared demand explains (on"
            f" cores of their own decoding {apart.decode:.2f} times, scoring {apart.score:.2f} times); where"
            f" they take turns, {slices.interference:.2f} times as long as the turns, and an iteration of"
            f" decoding {_seconds(slices.turn_s)} more: scenarios with this profile are slowed so, unless"
            " placement.interference and placement.turn_s say otherwise"
        )
    return found


def _coefficients(fits: Sequence[Fit]) -> Iterator[tuple[str, ...]]:
    for fit in fits:
        for place, one in enumerate(fit.coefficients):
            values = map(_seconds, (one.value, one.low, one.high))
            yield "" if place else fit.name, one.name.replace("_", " "), *values


def _errors(fits: Sequence[Fit]) -> Iterator[tuple[str, ...]]:
    for fit in fits:
        errors = _percent(fit.median_error), _percent(fit.worst[0].error)
        yield fit.name, "none (in sample)", *errors, str(fit.points)
        spread = "one visit each" if fit.repeat_spread is None else _percent(fit.repeat_spread)
        yield "", "spread of repeats", spread, "", ""
        for one in fit.held_out:
            name = f"{one.regime}{' (beyond the rest)' if one.extrapolated else ''}"
            yield "", name, _percent(one.median_error), _percent(one.largest_error), str(one.points)


def _contention(found: Sequence[Contention]) -> Iterator[tuple[str, ...]]:
    for one in found:
        slower = (
            f"{slow:.2f} ({low:.2f}-{high:.2f})"
            for slow, low, high in zip(one.slowdown, one.lowest, one.highest, strict=True)
        )
        yield *one.meeting.sides, *slower, f"{one.factor:.2f}", f"{one.expected:.2f}"


def _seconds(value: float) -> str:
    if value <= 0:
        return "0"
    scale, unit = next(((scale, unit) for scale, unit in _SCALES if value >= scale), _SCALES[-1])
    return f"{value / scale:.3g} {unit}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def calibration_figure(visits: Sequence[Visit], fits: Sequence[Fit]) -> "Figure":
    """Left: decode by KV tokens and batch size, tails as triangles. Right: forwards. Crosses: the fit."""
    by_name = {fit.name: fit for fit in fits}
    figure, axes = new_figure([4.2], columns=2)
    _decode(axes[0], _points_of(visits, "decode"), by_name["decode"])
    _forwards(axes[1], visits, by_name)
    return figure


def save_figure(figure: "Figure", path: Path) -> None:
    """As PNG, the same bytes for the same figure. Raises OppoError if it cannot be written."""
    with write_errors(path):
        figure.savefig(path, format="png", dpi=figure.dpi, metadata={"Software": None})


def _decode(axes: "Axes", data: Sequence[Measured], fit: Fit) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex
    from matplotlib.lines import Line2D

    sizes = sorted({one.point.n for one in data})
    for place, n in enumerate(sizes):
        # As many colours as sizes, in their order: from dark to light, short of the palest.
        colour = to_hex(colormaps["viridis"](0.9 * place / max(1, len(sizes) - 1)))
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
    handles, labels = axes.get_legend_handles_labels()
    if any(not one.point.cell for one in data):
        handles.append(Line2D([], [], marker="^", linestyle="none", color=INK, markersize=4))
        labels.append("long tail (× fitted)")
    axes.legend(
        handles,
        labels,
        title="rollouts",
        loc="upper center",
        bbox_to_anchor=(0.5, -0.14),
        ncols=6,
        columnspacing=1.0,
        handletextpad=0.2,
        fontsize=8,
        title_fontsize=8,
        frameon=False,
    )


def _forwards(axes: "Axes", visits: Sequence[Visit], fits: dict[str, Fit]) -> None:
    for kind, marker in (("prefill", "o"), ("score", "s"), ("score_ref", "D")):
        data = [one for one in _points_of(visits, kind) if one.seconds > 0]
        if not data or kind not in fits:
            continue
        _bars(axes, data, marker, stage_colour(kind), kind)
        tokens = [one.point.tokens for one in data]
        fitted = [1e3 * fits[kind].predict(one.point) for one in data]
        axes.plot(tokens, fitted, "x", color=INK, markersize=5)
    axes.set(xscale="log", yscale="log", xlabel="new tokens of the batch", ylabel="ms")
    axes.set_title("forwards: measured (points), fitted (crosses)", fontsize=10)
    axes.legend(fontsize=8, frameon=False)


def _points_of(visits: Sequence[Visit], kind: str) -> list[Measured]:
    return measured_points([visit for visit in visits if visit.point.kind == kind])


def _bars(axes: "Axes", data: Sequence[Measured], marker: str, colour: str, label: str | None) -> None:
    """Middles, with the range of the repeats."""
    if not data:
        return
    middles = [1e3 * one.seconds for one in data]
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
