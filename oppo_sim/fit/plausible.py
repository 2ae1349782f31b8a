"""Logs that are read well and yet cannot be what they are taken for: given twice, in another unit, of another
run, of stages that overlap."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from oppo_sim.columns import STEP, TIMING_STEP, timing
from oppo_sim.errors import OppoError
from oppo_sim.fit.features import Features
from oppo_sim.fit.model import OTHER, Measurement, seconds_beyond
from oppo_sim.fit.reading import StepLog

_LONGEST: Final = 300.0
_SHORTEST: Final = 1 / 30
"""Measured over what the cost model says, beyond which seconds are in another unit or of another run."""
_OVERLAP: Final = 0.02
"""Of a step, by which its stages may be longer: rounding, and clocks that stop apart."""


def refuse_twice(logs: Sequence[StepLog], judged: Sequence[StepLog]) -> None:
    """A step that counts twice makes a fit surer than it is; one that was fitted judges nothing. Raises
    OppoError."""
    for place, log in enumerate(logs):
        if other := next((each for each in logs[:place] if _share_steps(log, each)), None):
            raise OppoError(f"{log.name} and {other.name} are the same log: give it once")
    for log in judged:
        if any(_share_steps(log, each) for each in logs):
            raise OppoError(
                f"{log.name} is fitted and judged: leave it out of --judge (the last steps of a fitted log"
                " are held back and judged)"
            )


def _share_steps(one: StepLog, other: StepLog) -> bool:
    both = [sorted(str(file.get("sha256")) for file in log.files) for log in (one, other)]
    return bool(both[0]) and both[0] == both[1] and bool(one.frame[STEP].isin(other.frame[STEP]).any())


def refuse_units(log: StepLog, members: Sequence[Measurement], features: Features) -> None:
    """Seconds of generation that are hundreds of times what the cost model says, or a fraction of it, are
    none. Raises OppoError."""
    gen = features.decode[0, features.decode.shape[1] // 2] + features.prefill[0]
    for member in members:
        if "gen" not in member.stages:
            continue
        base = gen + sum(features.stages[each] for each in member.stages if each in features.stages)
        ratio = float(np.nanmedian(member.seconds / base))
        whole = member.column == timing(OTHER)
        if ratio > _LONGEST:
            raise OppoError(
                f"{log.name}: {TIMING_STEP if whole else member.column} is {ratio:,.0f} times what the"
                " scenario's costs say: is it in milliseconds (--unit ms)?"
            )
        if ratio < _SHORTEST and not whole:
            raise OppoError(
                f"{log.name}: {member.column} is a {1 / max(ratio, 1e-9):,.0f}th of what the scenario's costs"
                " say: is it in minutes, or of another model, batch or devices than the scenario's?"
            )


def overlaps(log: StepLog) -> tuple[str, ...]:
    """A sentence if the stages of a log take longer than its steps."""
    if TIMING_STEP not in log.frame or not log.covers or log.not_fitted:
        return ()
    whole, left = seconds_beyond(log)
    known = np.isfinite(left) & np.isfinite(whole) & (whole > 0)
    if not known.any() or (over := -float(np.median(left[known] / whole[known]))) < _OVERLAP:
        return ()
    return (
        f"the stages that it names take {over:.0%} longer than its steps: they overlap, as in an asynchronous"
        " run, and a step is predicted as their sum; fit a sequential run to know seconds of whole steps",
    )
