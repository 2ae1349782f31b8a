"""Pictures of a validation."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oppo_real.validate.accuracy import PredictionAccuracy
from oppo_real.validate.views import STAGES
from oppo_sim.report.style import FAINT, INK, TRAINED, legend_below, new_figure, stage_colour

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEAST = 0.002  # of the longest step; thinner stages are not drawn


def stages_figure(found: PredictionAccuracy, unit: str, title: str = "") -> "Figure":
    """Two bars a policy, predicted over measured, stacked by stage; the line at the measured one is the
    spread of its repeats."""
    from matplotlib.patches import Patch

    policies = list(found.stages)
    figure, (axis,) = new_figure([0.62 * len(policies) + 1.1], below=0.5)
    longest = max(max(cells["step"].highest, cells["step"].predicted) for cells in found.stages.values())
    drawn: dict[str, str] = {}
    for row, policy in enumerate(policies):
        cells = found.stages[policy]
        for offset, side in ((-0.19, "predicted"), (0.19, "measured")):
            left = 0.0
            for stage in STAGES[:-1]:
                seconds = getattr(cells[stage], side)
                if seconds < _LEAST * longest:
                    continue
                drawn[stage] = stage_colour(stage)
                axis.barh(
                    row + offset,
                    seconds,
                    left=left,
                    height=0.34,
                    color=drawn[stage],
                    alpha=1.0 if side == "measured" else 0.6,
                )
                left += seconds
            end = (
                max(left, cells["step"].highest) if side == "measured" else left
            )  # beyond the line of the spread
            axis.text(end + 0.01 * longest, row + offset, side, va="center", fontsize=8, color=INK)
        step = cells["step"]
        axis.plot([step.lowest, step.highest], [row + 0.19] * 2, color=INK, linewidth=1.4)
    axis.set_yticks(range(len(policies)), policies)
    axis.invert_yaxis()
    axis.set_xlim(0, longest * 1.2)
    axis.set_xlabel(f"step after the warm-up ({unit})")
    axis.set_title(title, fontsize=10, loc="left")
    legend_below(figure, [Patch(facecolor=colour) for colour in drawn.values()], list(drawn))
    return figure


def speedups_figure(found: PredictionAccuracy, baseline: str, title: str = "") -> "Figure":
    """Predicted against measured speed-up with 95 % intervals, where one is predicted; the band is ±10 %.
    Points are numbered in the order of their measured speed-ups."""
    from matplotlib.lines import Line2D

    figure, (axis,) = new_figure([4.2], below=0.3)
    settled = sorted((one for one in found.speedups if one.settled), key=lambda one: one.measured)
    ends = [
        number
        for one in settled
        for middle, low, high in (
            (one.predicted, one.predicted_low, one.predicted_high),
            (one.measured, one.measured_low, one.measured_high),
        )
        for number in (middle, low, high)
        if np.isfinite(number)
    ]
    values = np.array([1.0, *ends])
    low, high = float(values.min()) * 0.88, float(values.max()) * 1.12
    line = np.array([low, high])
    axis.fill_between(line, line * 0.9, line * 1.1, color=FAINT, alpha=0.18, linewidth=0)
    axis.plot(line, line, color=FAINT, linewidth=1.0)
    for number, one in enumerate(settled, start=1):
        axis.errorbar(
            one.measured,
            one.predicted,
            xerr=_reach(one.measured, one.measured_low, one.measured_high),
            yerr=_reach(one.predicted, one.predicted_low, one.predicted_high),
            fmt="none",
            ecolor=INK,
            elinewidth=1.0,
            capsize=2.5,
        )
        axis.text(
            one.measured,
            one.predicted,
            str(number),
            ha="center",
            va="center",
            fontsize=8,
            color="white",
            bbox={"boxstyle": "circle,pad=0.2", "facecolor": TRAINED, "edgecolor": "white", "linewidth": 0.6},
        )
    legend_below(
        figure,
        [
            Line2D([], [], marker=f"${number}$", color=TRAINED, linestyle="", markersize=6)
            for number, _ in enumerate(settled, start=1)
        ],
        [one.policy for one in settled],
        columns=4,
    )
    axis.set_xlim(low, high)
    axis.set_ylim(low, high)
    measured, predicted = (
        " (95 % interval)" if np.isfinite(lows).any() else ""
        for lows in ([one.measured_low for one in settled], [one.predicted_low for one in settled])
    )
    axis.set_xlabel(f"measured speed-up against {baseline}{measured}")
    axis.set_ylabel(f"predicted{predicted}")
    axis.set_title(f"{title} (band: within 10 %)".strip(), fontsize=10, loc="left")
    return figure


def steps_figure(found: PredictionAccuracy, unit: str, title: str = "") -> "Figure":
    """Each policy's steps: measured with the spread of the repeats, and predicted."""
    policies = list(found.steps)
    columns = 2
    figure, axes = new_figure([2.1] * -(-len(policies) // columns), columns=columns, below=0.4)
    for axis, policy in zip(axes, policies, strict=False):
        cells = [row["step"] for row in found.steps[policy]]
        at = np.arange(len(cells))
        axis.fill_between(
            at,
            [cell.lowest for cell in cells],
            [cell.highest for cell in cells],
            color=TRAINED,
            alpha=0.2,
            linewidth=0,
        )
        measured = axis.plot(at, [cell.measured for cell in cells], color=TRAINED, marker="o", markersize=3)[
            0
        ]
        predicted = axis.plot(
            at, [cell.predicted for cell in cells], color=INK, linestyle=(0, (4, 2)), marker="x", markersize=4
        )[0]
        if found.warmup_steps:
            axis.axvspan(-0.5, found.warmup_steps - 0.5, color=FAINT, alpha=0.15, linewidth=0)
        axis.set_title(policy, fontsize=9, loc="left")
        axis.set_ylim(0)
        axis.set_xticks(at)
        axis.set_xlabel("step", fontsize=8)
        axis.set_ylabel(unit, fontsize=8)
    for axis in axes[len(policies) :]:
        axis.set_axis_off()
    legend_below(figure, [measured, predicted], ["measured (band: all repeats; grey: warm-up)", "predicted"])
    figure.suptitle(title, fontsize=10, y=0.995)
    return figure


def _reach(middle: float, low: float, high: float) -> "NDArray[np.float64] | None":
    """Distances of an interval's ends, shape (2, 1); None where there is no interval."""
    if not (np.isfinite(low) and np.isfinite(high)):
        return None
    return np.array([[max(0.0, middle - low)], [max(0.0, high - middle)]])
