"""Figures of a comparison: step time, speed-up and attribution by policy; tables are indexed by policy."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.report.labels import ATTRIBUTION, format_seconds, policy_names, significant, time_unit
from oppo_sim.report.ranges import has_ranges
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
_ALONE: Mapping[str, Any] = {"fmt": "o", "elinewidth": 1.2, "capsize": 3, "label": "step, 95 % interval"}
_ROLLOUTS: Mapping[str, Any] = {"fmt": "o", "elinewidth": 1.8, "capsize": 3, "label": "95 %, rollouts"}
_MACHINE: Mapping[str, Any] = {"fmt": "none", "elinewidth": 0.9, "capsize": 4.5, "label": "95 %, machine"}
"""Whiskers: of the rollouts where there are no others, and beside those of the machine; those are dashed."""


def step_time_figure(comparison: "pd.DataFrame", title: str = "") -> "Figure":
    """Mean step time by policy, stacked by stage, with its 95 % intervals: of the rollouts, and dashed of the
    machine where that is known. Raises OppoError for missing columns.

    Where stages overlap the stack is longer than the step: the dot with the interval is the step time.
    """
    steps, low, high = (numbers(comparison, name, _WHAT) for name in (c.STEP_S, c.STEP_S_LOW, c.STEP_S_HIGH))
    unit = time_unit(largest(steps))
    figure, axis = bar_figure(_names(comparison))
    handles: list[Any] = []
    left = np.zeros(len(steps))
    for stage, name in (("gen", c.GEN_S), ("reward", c.REWARD_S), ("training", c.TRAINING_S)):
        seconds = np.nan_to_num(numbers(comparison, name, _WHAT)) / unit.seconds
        handles.append(_bars(axis, seconds, left, stage_colour(stage), stage))
        left = left + seconds
    machine = _machine_ends(comparison, c.STEP_S_MACHINE_LOW, c.STEP_S_MACHINE_HIGH)
    if machine is not None:
        low_end, high_end = (each / unit.seconds for each in machine)
        handles.append(_intervals(axis, steps / unit.seconds, low_end, high_end, _MACHINE))
    style = _ALONE if machine is None else _ROLLOUTS
    value, low_end, high_end = (each / unit.seconds for each in (steps, low, high))
    handles.append(_intervals(axis, value, low_end, high_end, style))
    if machine is not None:
        high = np.fmax(high, machine[1])
    reach = np.fmax(left, np.fmax(high, steps) / unit.seconds)
    _labels(axis, reach, [format_seconds(seconds, unit) for seconds in steps])
    axis.set_xlim(0, (largest(reach) or 1.0) * 1.16)
    axis.set_xlabel(f"step time ({unit.name})")
    beyond = bool(np.any(left > 1.01 * value))
    set_title(axis, title, "● is the step: stages that run at the same time add up to more" if beyond else "")
    legend_below(figure, handles)
    return figure


def speedup_figure(comparison: "pd.DataFrame", baseline: str, title: str = "") -> "Figure":
    """Speed-up by policy against ``baseline``, with 95 % intervals: of the rollouts, and dashed of the
    machine where that is known. Raises OppoError when the baseline is not in the table."""
    policies = [str(policy) for policy in comparison.index]
    speedup = numbers(comparison, c.SPEEDUP, _WHAT)
    if baseline not in policies:
        raise OppoError(f"baseline '{baseline}' is not in the comparison: it has {', '.join(policies)}")
    low, high = numbers(comparison, c.SPEEDUP_LOW, _WHAT), numbers(comparison, c.SPEEDUP_HIGH, _WHAT)
    figure, axis = bar_figure(_names(comparison))
    # A baseline of rounds, "sequential (rounds of 256)", is one too.
    colours = [FAINT if policy.partition(" (")[0] == baseline else TRAINED for policy in policies]
    axis.barh(np.arange(len(speedup)), speedup, height=0.62, color=colours)
    machine = _machine_ends(comparison, c.SPEEDUP_MACHINE_LOW, c.SPEEDUP_MACHINE_HIGH)
    handles = [] if machine is None else [_intervals(axis, speedup, *machine, _MACHINE)]
    handles.append(_intervals(axis, speedup, low, high, _ALONE if machine is None else _ROLLOUTS))
    if machine is not None:
        high = np.fmax(high, machine[1])
    axis.axvline(1.0, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
    reach = np.fmax(speedup, high)
    _labels(axis, reach, [f"{significant(value)}×" if np.isfinite(value) else "n/a" for value in speedup])
    axis.set_xlim(0, max(1.1, largest(reach) * 1.12))
    axis.set_xlabel(f"speed-up against {baseline} (95 % interval)")
    set_title(axis, title)
    if machine is not None:
        legend_below(figure, handles)
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
    figure, axis = bar_figure(_names(attribution))
    handles = []
    for label, values, colour in zip(ATTRIBUTION.values(), table, (*GAINS, *LOSSES), strict=True):
        if not np.nan_to_num(values).any():  # nothing to be seen
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


def _names(table: "pd.DataFrame") -> list[str]:
    return list(policy_names(map(str, table.index)).values())


def _bars(
    axis: "Axes", lengths: NDArray[np.float64], left: NDArray[np.float64], colour: str, label: str
) -> Any:
    return axis.barh(np.arange(len(lengths)), lengths, left=left, height=0.62, color=colour, label=label)


def _machine_ends(
    comparison: "pd.DataFrame", low: str, high: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Ends of the machine's intervals; None: the table has none."""
    if not has_ranges(comparison):
        return None
    return numbers(comparison, low, _WHAT), numbers(comparison, high, _WHAT)


def _intervals(
    axis: "Axes",
    value: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    style: Mapping[str, Any],
) -> Any:
    """A dot at the value, unless the machine's, with whiskers."""
    below, above = np.nan_to_num(np.maximum(value - low, 0)), np.nan_to_num(np.maximum(high - value, 0))
    drawn = axis.errorbar(
        value,
        np.arange(len(value)),
        xerr=np.vstack([below, above]),
        markersize=3,
        color=INK,
        ecolor=INK,
        **style,
    )
    if style is _MACHINE:
        for line in drawn.lines[2]:
            line.set_linestyle((0, (3, 2)))
    return drawn


def _labels(axis: "Axes", at: NDArray[np.float64], texts: list[str]) -> None:
    for row, (x, text) in enumerate(zip(at, texts, strict=True)):
        if text:
            beside(axis, x if np.isfinite(x) else 0.0, row, text)
