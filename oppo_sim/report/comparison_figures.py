"""Pictures of a comparison of policies (frame columns: ``report/frames.py``)."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.report.labels import format_seconds, significant, time_unit
from oppo_sim.report.style import (
    FAINT,
    GAINS,
    INK,
    LOSSES,
    TRAINED,
    beside,
    legend_below,
    new_figure,
    set_title,
    stage_colour,
)
from oppo_sim.tables import largest, numbers

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WHAT = "comparison"

_GAINS = (
    (c.HIDDEN_BY_OVERLAP_S, "hidden by overlap"),
    (c.SAVED_BY_SHORTER_TAIL_S, "saved by the shorter tail"),
)
_LOSSES = (
    (c.LOST_TO_RECOMPUTATION_S, "lost to recomputation"),
    (c.LOST_TO_CONTENTION_S, "lost to contention"),
    (c.LOST_TO_PADDING_S, "lost to padding"),
)


def step_time_figure(comparison: "pd.DataFrame", title: str = "") -> "Figure":
    """Mean step time by policy, stacked by stage, with its 95 % confidence interval. Raises OppoError for
    missing columns.

    Where stages overlap the stack is longer than the step: the dot with the interval is the step time.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    steps = numbers(comparison, c.STEP_S, _WHAT)
    low, high = numbers(comparison, c.STEP_S_LOW, _WHAT), numbers(comparison, c.STEP_S_HIGH, _WHAT)
    unit = time_unit(largest(steps))
    figure, axis = _rows(comparison)
    handles: list[Artist] = []
    labels = []
    left = np.zeros(len(steps))
    for stage, name in (("gen", c.GEN_S), ("reward", c.REWARD_S), ("training", c.TRAINING_S)):
        seconds = np.nan_to_num(numbers(comparison, name, _WHAT)) / unit.seconds
        axis.barh(np.arange(len(steps)), seconds, left=left, height=0.62, color=stage_colour(stage))
        handles.append(Patch(facecolor=stage_colour(stage)))
        labels.append(stage)
        left = left + seconds
    _intervals(axis, steps / unit.seconds, low / unit.seconds, high / unit.seconds)
    handles.append(Line2D([], [], color=INK, marker="o", markersize=3, linewidth=1.2))
    labels.append("step, 95 % interval")
    reach = np.fmax(left, np.fmax(high, steps) / unit.seconds)
    _labels(axis, reach, [format_seconds(seconds, unit) for seconds in steps])
    axis.set_xlim(0, (largest(reach) or 1.0) * 1.16)
    axis.set_xlabel(f"step time ({unit.name})")
    set_title(axis, title)
    legend_below(figure, handles, labels)
    return figure


def speedup_figure(comparison: "pd.DataFrame", baseline: str, title: str = "") -> "Figure":
    """Speed-up by policy against ``baseline``, with 95 % confidence intervals. Raises OppoError when the
    baseline is not in the table."""
    policies = [str(policy) for policy in comparison.index]
    speedup = numbers(comparison, c.SPEEDUP, _WHAT)
    if baseline not in policies:
        raise OppoError(f"baseline '{baseline}' is not in the comparison: it has {', '.join(policies)}")
    low, high = numbers(comparison, c.SPEEDUP_LOW, _WHAT), numbers(comparison, c.SPEEDUP_HIGH, _WHAT)
    figure, axis = _rows(comparison)
    colours = [FAINT if policy == baseline else TRAINED for policy in policies]
    axis.barh(np.arange(len(speedup)), speedup, height=0.62, color=colours)
    _intervals(axis, speedup, low, high)
    axis.axvline(1.0, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
    reach = np.fmax(speedup, high)
    _labels(axis, reach, [f"{significant(value)}×" if np.isfinite(value) else "n/a" for value in speedup])
    axis.set_xlim(0, max(1.1, largest(reach) * 1.12))
    axis.set_xlabel(f"speed-up against {baseline} (95 % interval)")
    set_title(axis, title)
    return figure


def attribution_figure(attribution: "pd.DataFrame", title: str = "") -> "Figure":
    """Where each policy's seconds went, by counterfactual replay: won to the right, lost to the left, NaN for
    what does not apply.

    Parts are measured one at a time, so they need not add up to the difference in step time. Raises OppoError
    for missing columns.
    """
    from matplotlib.patches import Patch

    count = len(attribution)
    parts = [
        (label, numbers(attribution, name, "attribution"), sign, colour)
        for kinds, sign, colours in ((_GAINS, 1.0, GAINS), (_LOSSES, -1.0, LOSSES))
        for (name, label), colour in zip(kinds, colours, strict=True)
    ]
    right, left = np.zeros(count), np.zeros(count)
    unit = time_unit(max(largest(np.abs(values)) for _, values, _, _ in parts))
    figure, axis = _rows(attribution)
    handles: list[Artist] = []
    labels = []
    for label, values, sign, colour in parts:
        seconds = sign * np.nan_to_num(values) / unit.seconds
        if not np.isfinite(values).any():
            continue
        # A "gain" may be negative: streaming small pieces can cost more than it hides.
        start = np.where(seconds >= 0, right, left)
        axis.barh(np.arange(count), seconds, left=start, height=0.62, color=colour)
        handles.append(Patch(facecolor=colour))
        labels.append(label)
        right, left = right + np.maximum(seconds, 0), left + np.minimum(seconds, 0)
    table = np.array([values for _, values, _, _ in parts])
    applies, none = np.isfinite(table).any(axis=0), ~np.nan_to_num(table).any(axis=0)
    _labels(
        axis,
        right,
        [
            ("none" if known else "not applicable") if empty else ""
            for known, empty in zip(applies, none, strict=True)
        ],
    )
    axis.axvline(0.0, color=INK, linewidth=1.0)
    margin = 0.06 * (float(right.max() - left.min()) or 1.0)
    axis.set_xlim(float(left.min()) - margin, float(right.max()) + margin)
    axis.set_xlabel(f"lost  ←  {unit.name} a step  →  won")
    set_title(axis, title)
    legend_below(figure, handles, labels, columns=3)
    return figure


# ---- inside ------------------------------------------------------------------------------------------------


def _rows(frame: "pd.DataFrame") -> "tuple[Figure, Axes]":
    """Axes with one row per policy, the first on top."""
    figure, (axis,) = new_figure([1.3 + 0.38 * max(2, len(frame))])
    axis.set_yticks(np.arange(len(frame)), [str(policy) for policy in frame.index])
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(len(frame) - 0.45, -0.55)
    return figure, axis


def _intervals(
    axis: "Axes", value: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> None:
    below, above = np.nan_to_num(np.maximum(value - low, 0)), np.nan_to_num(np.maximum(high - value, 0))
    axis.errorbar(
        value,
        np.arange(len(value)),
        xerr=np.vstack([below, above]),
        fmt="o",
        markersize=3,
        color=INK,
        elinewidth=1.2,
        capsize=3,
    )


def _labels(axis: "Axes", at: NDArray[np.float64], texts: list[str]) -> None:
    for row, (x, text) in enumerate(zip(at, texts, strict=True)):
        if text:
            beside(axis, x if np.isfinite(x) else 0.0, row, text)
