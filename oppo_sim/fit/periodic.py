"""Seconds that no metric names and that come back every so many steps: checkpoints and validation that a log
does not time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from oppo_sim.columns import timing
from oppo_sim.fit.model import OTHER, Measurement

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_SPIKE: Final = 5.0
"""Times the usual seconds from which on a step stands out."""
_LEAST_SHARE: Final = 0.02
"""Of a step; less is not looked at."""
_FEWEST: Final = 2
_KEPT: Final = 0.8
"""Share of the steps of a period that must stand out, and of those that stand out that must be of it."""


class Periodic(NamedTuple):
    """What comes back: ``seconds`` more at every step with step % ``period`` == ``phase``."""

    period: int
    phase: int
    seconds: float
    steps: tuple[int, ...]
    """Where it was seen."""

    def at(self, steps: Ints) -> Floats:
        """Seconds more, one entry a step."""
        return np.where(steps % self.period == self.phase, self.seconds, 0.0)


def found_in(steps: Ints, seconds: Floats, whole: Floats) -> Periodic | None:
    """The longest period that explains the steps that stand out; None where they have none.

    ``seconds``: what no metric names; ``whole``: of the step. Both one entry a step, NaN where unknown.
    """
    known = np.isfinite(seconds) & np.isfinite(whole)
    if known.sum() < _FEWEST + 2:
        return None
    steps, seconds, whole = steps[known], seconds[known], whole[known]
    usual = float(np.median(seconds))
    out = (seconds > _SPIKE * usual) & (seconds - usual > _LEAST_SHARE * np.median(whole))
    if out.sum() < _FEWEST:
        return None
    where = steps[out]
    for period in sorted({int(apart) for apart in np.diff(where)}, reverse=True):
        phases, counts = np.unique(where % period, return_counts=True)
        phase = int(phases[np.argmax(counts)])
        due = steps % period == phase
        hit = int((due & out).sum())
        if period > 1 and hit >= _FEWEST and hit >= _KEPT * due.sum() and hit >= _KEPT * out.sum():
            more = float(np.median(seconds[due & out]) - usual)
            return Periodic(period, phase, more, tuple(int(step) for step in steps[due & out]))
    return None


def with_periodic(
    members: Sequence[Measurement], steps: Ints, known: slice
) -> tuple[list[Measurement], Periodic | None]:
    """Measurements of a log whose part outside all stages holds what comes back, as seen in the steps
    ``known``."""
    found = None
    whole = np.sum([member.seconds for member in members], axis=0)
    result = []
    for member in members:
        if member.column == timing(OTHER):
            found = found_in(steps[known], member.seconds[known], whole[known])
        added = found.at(steps) if member.column == timing(OTHER) and found is not None else None
        result.append(replace(member, added=added))
    return result, found


def in_words(periodic: Periodic) -> str:
    """One sentence for the user."""
    first = ", ".join(map(str, periodic.steps[:3]))
    return (
        f"one step in {periodic.period} ({first}, …) takes {periodic.seconds:.3g} s that no metric names,"
        " as a checkpoint or a validation does: predicted where it comes back, and left out of the written"
        " scenario; log timing_s/save_checkpoint and timing_s/testing"
    )
