"""Drift of a run in words: stages that became slower or faster than their lengths explain, and where."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from oppo_sim.columns import TIMING_STEP
from oppo_sim.fit.judging import Prediction
from oppo_sim.fit.model import Measurement

_WINDOW: Final = 5
_PART: Final = 10
"""A stretch is a tenth of the run, at least ``_WINDOW`` steps."""
_LEAST: Final = 0.05
_NOISES: Final = 4.0
"""Stretches differ by at least so much, and so many standard errors."""
_LEAST_STEP: Final = 0.02
"""Of a step's seconds that the drift must be worth."""


class Trend(NamedTuple):
    """The slowest against the fastest stretch of a run, for the same lengths."""

    log: str
    column: str
    change: float
    """Relative seconds of ``slow`` over ``fast``, less 1."""
    fast: tuple[int, int]
    """First and last step."""
    slow: tuple[int, int]

    def __str__(self) -> str:
        return (
            f"{self.column} drifts: steps {self.slow[0]} to {self.slow[1]} take {self.change:.0%} more than"
            f" {self.fast[0]} to {self.fast[1]} beyond what lengths explain (other jobs on the machine,"
            " clocks, memory); first steps cannot tell it, and intervals hold it in part"
        )


def trends_of(log: str, members: Sequence[Measurement], predictions: Mapping[str, Prediction]) -> list[Trend]:
    """Of the metrics that matter to a step, the largest first."""
    if not members or TIMING_STEP not in predictions:
        return []
    whole = predictions[TIMING_STEP].measured
    found = []
    for member in members:
        prediction = predictions.get(member.column)
        # An unknown part of the batch changes from step to step: that is no drift.
        trend = None if prediction is None or member.untold else _trend(log, member, prediction)
        share = np.nanmedian(member.seconds / whole) if np.any(np.isfinite(whole)) else 1.0
        if trend is not None and trend.change * share >= _LEAST_STEP:
            found.append(trend)
    return sorted(found, key=lambda each: -each.change)


def _trend(log: str, member: Measurement, prediction: Prediction) -> Trend | None:
    with np.errstate(invalid="ignore", divide="ignore"):
        off = np.log(member.seconds / prediction.predicted)
    known = np.isfinite(off)
    off, steps = off[known], prediction.steps[known]
    size = max(_WINDOW, len(off) // _PART)
    if len(off) < 3 * size:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(off, size)
    middles = np.median(windows, axis=1)
    error = float(np.median(np.abs(np.diff(off)))) / 0.67 / np.sqrt(2.0) * 1.25 / np.sqrt(size)
    slow, fast = int(np.argmax(middles)), int(np.argmin(middles))
    apart = float(middles[slow] - middles[fast])
    if apart < max(np.log1p(_LEAST), _NOISES * np.sqrt(2.0) * error):
        return None
    ends = [(int(steps[at]), int(steps[at + size - 1])) for at in (fast, slow)]
    return Trend(log, member.column, float(np.expm1(apart)), *ends)
