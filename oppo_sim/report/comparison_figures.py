"""Figures of a comparison: step time, speed-up and attribution by policy; tables are indexed by policy."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.report.labels import ATTRIBUTION, format_seconds, significant, time_unit
from oppo_sim.report.style import (
    FAINT,
    GAINS,
    INK,
    LOSSES,
    TRAINED,
    bar_figure,
    beside,
    legend_below,
    set_title,
    stage_colour,
)
from oppo_sim.tables import largest, numbers

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WHAT = "comparison"


def step_time_figure(comparison: "pd.DataFrame", title: str = "") -> "Figure":
    """Mean step time by policy, stacked by stage, with its 95 % confidence interval. Raises OppoError for
    missing columns.

    Where stages overlap the stack is longer than the step: the dot with the interval is the step time.
    """
    steps, low, high = (numbers(comparison, name, _WHAT) for name in (c.STEP_S, c.STEP_S_LOW, c.STEP_S_HIGH))
    unit = time_unit(largest(steps))
    figure, axis = bar_figure(list(map(str, comparison.index)))
    handles: list[Any] = []
    left = np.zeros(len(steps))
    for stage, name in (("gen", c.GEN_S), ("reward", c.REWARD_S), ("training", c.TRAINING_S)):
        seconds = np.nan_to_num(numbers(comparison, name, _WHAT)) / unit.seconds
        handles.append(_bars(axis, seconds, left, stage_colour(stage), stage))
        left = left + seconds
    handles.append(_intervals(axis, *(ends / unit.seconds for ends in (steps, low, high))))
    reach = np.fmax(left, np.fmax(high, steps) / unit.seconds)
    _labels(axis, reach, [format_seconds(seconds, unit) for seconds in steps])
    axis.set_xlim(0, (largest(reach) or 1.0) * 1.16)
    axis.set_xlabel(f"step time ({unit.name})")
    set_title(axis, title)
    legend_below(figure, handles)
    return figure


def speedup_figure(comparison: "pd.DataFrame", baseline: str, title: str = "") -> "Figure":
    """Speed-up by policy against ``baseline``, with 95 % confidence intervals. Raises OppoError when the
    baseline is not in the table."""
    policies = [str(policy) for policy in comparison.index]
    speedup = numbers(comparison, c.SPEEDUP, _WHAT)
    if baseline not in policies:
        raise OppoError(f"baseline '{baseline}' is not in the comparison: it has {', '.join(policies)}")
    low, high = numbers(comparison, c.SPEEDUP_LOW, _WHAT), numbers(comparison, c.SPEEDUP_HIGH, _WHAT)
    figure, axis = bar_figure(policies)
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
    count = len(attribution)
    table = np.array([numbers(attribution, name, "attribution") for name in ATTRIBUTION])
    right, left = np.zeros(count), np.zeros(count)
    unit = time_unit(largest(np.abs(table)))
    figure, axis = bar_figure(list(map(str, attribution.index)))
    handles = []
    for label, values, colour in zip(ATTRIBUTION.values(), table, (*GAINS, *LOSSES), strict=True):
        if not np.isfinite(values).any():
            continue
        seconds = (1.0 if colour in GAINS else -1.0) * np.nan_to_num(values) / unit.seconds
        # A "gain" may be negative: streaming small pieces can cost more than it hides.
        handles.append(_bars(axis, seconds, np.where(seconds >= 0, right, left), colour, label))
        right, left = right + np.maximum(seconds, 0), left + np.minimum(seconds, 0)
    applies, none = np.isfinite(table).any(axis=0), ~np.nan_to_num(table).any(axis=0)
    words = np.where(none, np.where(applies, "none", "not applicable"), "")
    _labels(axis, right, words.tolist())
    axis.axvline(0.0, color=INK, linewidth=1.0)
    margin = 0.06 * (float(right.max() - left.min()) or 1.0)
    axis.set_xlim(float(left.min()) - margin, float(right.max()) + margin)
    axis.set_xlabel(f"lost  ←  {unit.name} a step  →  won")
    set_title(axis, title)
    legend_below(figure, handles, columns=3)
    return figure


# ---- inside ------------------------------------------------------------------------------------------------


def _bars(
    axis: "Axes", lengths: NDArray[np.float64], left: NDArray[np.float64], colour: str, label: str
) -> Any:
    return axis.barh(np.arange(len(lengths)), lengths, left=left, height=0.62, color=colour, label=label)


def _intervals(
    axis: "Axes", value: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> Any:
    below, above = np.nan_to_num(np.maximum(value - low, 0)), np.nan_to_num(np.maximum(high - value, 0))
    return axis.errorbar(
        value,
        np.arange(len(value)),
        xerr=np.vstack([below, above]),
        fmt="o",
        markersize=3,
        color=INK,
        elinewidth=1.2,
        capsize=3,
        label="step, 95 % interval",
    )


def _labels(axis: "Axes", at: NDArray[np.float64], texts: list[str]) -> None:
    for row, (x, text) in enumerate(zip(at, texts, strict=True)):
        if text:
            beside(axis, x if np.isfinite(x) else 0.0, row, text)
