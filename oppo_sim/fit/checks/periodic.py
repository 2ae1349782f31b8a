"""Seconds that no metric names and that come back: checkpoints and validation that a log does not time, or
times in part."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from oppo_sim.columns import timing
from oppo_sim.fit.terms.stages import OTHER, Measurement

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

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


class Around(NamedTuple):
    """Steps that validate or save, of which the log times a part: ``seconds`` more in each."""

    seconds: float
    steps: tuple[int, ...]
    """Where it was seen."""


def around_events(steps: Ints, seconds: Floats, whole: Floats, events: Bools) -> Around | None:
    """What ``events``, steps that validate or save, take more than others beyond what is timed; None where
    that is little, or there are none. The other arguments as for ``found_in``."""
    known = np.isfinite(seconds) & np.isfinite(whole)
    if not (known & events).any() or not (known & ~events).any():
        return None
    usual = float(np.median(seconds[known & ~events]))
    more = float(np.median(seconds[known & events])) - usual
    if more <= _LEAST_SHARE * np.median(whole[known]):
        return None
    return Around(more, tuple(int(step) for step in steps[known & events]))


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
    members: Sequence[Measurement], steps: Ints, events: Bools, known: slice
) -> tuple[list[Measurement], Periodic | Around | None]:
    """Measurements of a log whose part outside all stages holds what comes back, as seen in the steps
    ``known``. ``events``: steps that validate or save, as the log says."""
    found: Periodic | Around | None = None
    whole = np.sum([member.seconds for member in members], axis=0)
    result = []
    for member in members:
        added = None
        if member.column == timing(OTHER):
            seen = steps[known], member.seconds[known], whole[known]
            found = around_events(*seen, events[known]) or found_in(*seen)
            if isinstance(found, Around):
                added = np.where(events, found.seconds, 0.0)
            elif found is not None:
                added = found.at(steps)
        result.append(replace(member, added=added))
    return result, found


def in_words(periodic: Periodic | Around) -> str:
    """One sentence for the user."""
    if isinstance(periodic, Around):
        named = ", ".join(map(str, periodic.steps[:3])) + (", …" if len(periodic.steps) > 3 else "")
        return (
            f"steps that validate or save ({named}) take {periodic.seconds:.3g} s more that no metric names:"
            " predicted in such steps, and left out of the written scenario"
        )
    first = ", ".join(map(str, periodic.steps[:3]))
    return (
        f"one step in {periodic.period} ({first}, …) takes {periodic.seconds:.3g} s that no metric names,"
        " as a checkpoint or a validation does: predicted where it comes back, and left out of the written"
        " scenario; log timing_s/save_checkpoint and timing_s/testing"
    )
