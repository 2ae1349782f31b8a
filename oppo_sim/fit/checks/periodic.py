"""Seconds that no metric names and that come back: checkpoints and validation that a log does not time, or
times in part."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from oppo_sim.columns import timing
from oppo_sim.fit.terms.features import Features
from oppo_sim.fit.terms.stages import OTHER, Measurement, stage_seconds

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
_NOISES: Final = 5.0
"""From the usual seconds for its lengths at which a step stands out."""
_SEVERAL: Final = 3
_MOST_OF: Final = 0.75
"""The same where only that shows them: some of the steps that stand out are stalls."""
_AROUND: Final = 4
"""Steps before and after one that say what is usual there."""


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
    more = seconds - float(np.median(seconds))
    out = (seconds > _SPIKE * np.median(seconds)) & (more > _LEAST_SHARE * np.median(whole))
    return _period(steps, out, more, _FEWEST, _KEPT)


def found_beside(steps: Ints, seconds: Floats, whole: Floats, expected: Floats) -> Periodic | None:
    """As ``found_in``, where stages that no metric names are so long that nothing is many times as long.

    ``expected``: what the cost model says of these stages, by step.
    """
    known = np.isfinite(seconds) & np.isfinite(whole)
    if known.sum() < 2 * _AROUND + 1:
        return None
    steps, seconds, whole = steps[known], seconds[known], whole[known]
    more = seconds - _usual(seconds, expected[known])
    least = max(_NOISES * float(np.median(np.abs(more))) / 0.6745, _LEAST_SHARE * float(np.median(whole)))
    found = _period(steps, more > least, more, _SEVERAL, _MOST_OF)
    # Steps that stall at random may lie evenly, but hardly where a trainer saves: at multiples of a number,
    # or a step beside them where its seconds begin or end elsewhere.
    return found if found is not None and found.phase in (0, 1, found.period - 1) else None


def _period(steps: Ints, out: Bools, more: Floats, fewest: int, of_out: float) -> Periodic | None:
    """Of the steps that stand ``out``, by ``more`` seconds; ``of_out``: of these at least are of it."""
    where = steps[out]
    for period in sorted({int(apart) for apart in np.diff(where)}, reverse=True):
        phases, counts = np.unique(where % period, return_counts=True)
        phase = int(phases[np.argmax(counts)])
        due = steps % period == phase
        hit = int((due & out).sum())
        if period > 1 and hit >= fewest and hit >= _KEPT * due.sum() and hit >= of_out * out.sum():
            by = float(np.median(more[due & out]))
            return Periodic(period, phase, by, tuple(int(step) for step in steps[due & out]))
    return None


def _usual(seconds: Floats, expected: Floats) -> Floats:
    """Seconds of steps of such lengths among their neighbours."""
    apart = [(expected[lag:] - expected[:-lag], seconds[lag:] - seconds[:-lag]) for lag in range(1, _AROUND)]
    by, more = (np.concatenate(each) for each in zip(*apart, strict=True))
    far = (np.abs(by) >= np.median(np.abs(by))) & (by != 0.0)
    slope = max(0.0, float(np.median(more[far] / by[far]))) if far.any() else 0.0
    level = np.pad(seconds - slope * expected, _AROUND, mode="reflect")
    around = np.lib.stride_tricks.sliding_window_view(level, 2 * _AROUND + 1)
    found: Floats = slope * expected + np.median(around, axis=1)
    return found


def with_periodic(
    members: Sequence[Measurement], features: Features, events: Bools, known: slice
) -> tuple[list[Measurement], Periodic | Around | None]:
    """Measurements of a log whose part outside all stages holds what comes back, as seen in the steps
    ``known``. ``events``: steps that validate or save, as the log says."""
    steps = features.steps
    found: Periodic | Around | None = None
    whole = np.sum([member.seconds for member in members], axis=0)
    result = []
    for member in members:
        added = None
        if member.column == timing(OTHER):
            seen = steps[known], member.seconds[known], whole[known]
            found = around_events(*seen, events[known]) or found_in(*seen)
            if found is None:
                # First steps take longer anyway.
                steady = np.where(features.cold, np.nan, member.seconds)[known]
                found = found_beside(steps[known], steady, whole[known], _expected(member, features)[known])
            if isinstance(found, Around):
                added = np.where(events, found.seconds, 0.0)
            elif found is not None:
                added = found.at(steps)
        result.append(replace(member, added=added))
    return result, found


def _expected(member: Measurement, features: Features) -> Floats:
    """What the cost model says of the stages of a metric, by step."""
    found: Floats = np.sum([stage_seconds(stage, features, {})[0] for stage in member.stages], axis=0)
    return found


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
        f"one step in {periodic.period} ({first}, …) takes {periodic.seconds:.3g} s more that no metric"
        " names, as a checkpoint or a validation does: predicted where it comes back, and left out of the"
        " written scenario; log timing_s/save_checkpoint and timing_s/testing"
    )
