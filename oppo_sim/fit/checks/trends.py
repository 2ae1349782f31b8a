"""Drift of a run in words: stages that became slower or faster than their lengths explain, where, and whether
they stayed so."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from oppo_sim.columns import TIMING_STEP
from oppo_sim.fit.checks.judging import Prediction
from oppo_sim.fit.terms.stages import Measurement, told_as

Floats = npt.NDArray[np.float64]

_WINDOW: Final = 5
_PART: Final = 10
"""A stretch is a tenth of the run, at least ``_WINDOW`` steps."""
_LEAST: Final = 0.05
_NOISES: Final = 4.0
"""Stretches differ by at least so much, and so many standard errors."""
_LEAST_STEP: Final = 0.02
"""Of a step's seconds that the drift must come to."""
_EXPLAINED: Final = 0.5
"""Of the residuals' absolute deviations that one lasting change must leave at most."""


class Trend(NamedTuple):
    """The slowest against the fastest stretch of a run, for the same lengths."""

    log: str
    column: str
    change: float
    """Relative seconds of ``slow`` over ``fast``, less 1."""
    fast: tuple[int, int]
    """First and last step."""
    slow: tuple[int, int]
    since: int | None = None
    """The step from which on seconds stayed at another level; None: there is no such step."""
    lasting: float = 0.0
    """Relative seconds from there on over those before, less 1."""

    def __str__(self) -> str:
        if self.since is not None:
            other = "more" if self.lasting > 0 else "less"
            return (
                f"from step {self.since} on {self.column} takes {abs(self.lasting):.0%} {other} than before"
                " at the same lengths, so something of the machine changed: fit again on the log from there"
                f" (--from-step {self.since})"
            )
        return (
            f"{self.column} drifts: steps {self.slow[0]} to {self.slow[1]} take {self.change:.0%} more than"
            f" {self.fast[0]} to {self.fast[1]} beyond what lengths explain (other jobs on the machine,"
            " clocks, memory); first steps do not show it, and intervals hold it in part"
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
        told = told_as(member, members)
        trend = (
            None if prediction is None or member.trained_unknown else _trend(log, told, member, prediction)
        )
        share = np.nanmedian(member.seconds / whole) if np.any(np.isfinite(whole)) else 1.0
        if trend is not None and trend.change * share >= _LEAST_STEP:
            found.append(trend)
    return sorted(found, key=lambda each: -each.change)


def _trend(log: str, column: str, member: Measurement, prediction: Prediction) -> Trend | None:
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
    since, lasting = lasting_change(off, error * np.sqrt(size))
    return Trend(
        log,
        column,
        float(np.expm1(apart)),
        fast=(int(steps[fast]), int(steps[fast + size - 1])),
        slow=(int(steps[slow]), int(steps[slow + size - 1])),
        since=None if since is None else int(steps[since]),
        lasting=lasting,
    )


def lasting_change(off: Floats, error: float) -> tuple[int | None, float]:
    """Where one change of level explains most of ``off``, and the change; the level holds to the end.

    ``error``: standard error of a single step's median.
    """
    best, place, change = np.inf, None, 0.0
    for at in range(_WINDOW, len(off) - _WINDOW + 1):
        before, after = float(np.median(off[:at])), float(np.median(off[at:]))
        left = float(np.abs(off[:at] - before).sum() + np.abs(off[at:] - after).sum())
        if left < best:
            best, place, change = left, at, after - before
    assert place is not None
    left_by_none = float(np.abs(off - np.median(off)).sum())
    noise = _NOISES * error * np.sqrt(1.0 / place + 1.0 / (len(off) - place))
    stays = abs(float(np.median(off[-_WINDOW:]) - np.median(off[:place]))) >= abs(change) / 2.0
    if best > _EXPLAINED * left_by_none or abs(change) < max(np.log1p(_LEAST), noise) or not stays:
        return None, 0.0
    return place, float(np.expm1(change))
