"""Logs that are read well and yet cannot be what they are taken for: given twice, in another unit, of another
run, of stages that overlap."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from oppo_sim.columns import STEP, TIMING_STEP, timing
from oppo_sim.errors import OppoError
from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.fit.terms.decoding import AS_IT_IS
from oppo_sim.fit.terms.features import Features
from oppo_sim.fit.terms.stages import OTHER, Measurement, seconds_beyond

_LONGEST: Final = 300.0
_SHORTEST: Final = 1 / 30
"""Measured over what the cost model says, beyond which seconds are in another unit or of another run."""
_COMPUTES: Final = frozenset({"old_log_prob", "ref", "values", "update_critic", "update_actor"})
"""Stages of training that are arithmetic, of which costs are known best."""
_SEVERAL: Final = 2
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
    none; nor are those of training where its stages together are such a fraction. Raises OppoError."""
    gen = features.decode[0, AS_IT_IS] + features.prefill[0]
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
            raise _too_short(log, member.column, ratio)
    trained = [
        member
        for member in members
        if set(member.stages) <= _COMPUTES
        and not member.trained_unknown
        and all(features.stages[stage].min() > 0 for stage in member.stages)
    ]
    if len(trained) >= _SEVERAL:
        took = sum(float(np.nanmedian(member.seconds)) for member in trained)
        ratio = took / sum(_training_s(member, features) for member in trained)
        if ratio < _SHORTEST:
            raise _too_short(log, " + ".join(member.column for member in trained), ratio)


def _training_s(member: Measurement, features: Features) -> float:
    """What the cost model says of a metric of training stages, median."""
    offloaded = sum(features.offload.get(stage, 0.0) for stage in member.stages)
    return float(np.median(np.sum([features.stages[stage] for stage in member.stages], axis=0))) + offloaded


def _too_short(log: StepLog, what: str, ratio: float) -> OppoError:
    return OppoError(
        f"{log.name}: {what} is a {1 / max(ratio, 1e-9):,.0f}th of what the scenario's costs say: is it in"
        " minutes, or of another model, batch or devices than the scenario's?"
    )


def overlaps(log: StepLog) -> tuple[str, ...]:
    """A sentence if the stages of a log take longer than its steps, without those that are left out."""
    if TIMING_STEP not in log.frame or not log.covers:
        return ()
    whole, left = seconds_beyond(log, log.not_fitted)
    known = np.isfinite(left) & np.isfinite(whole) & (whole > 0)
    if not known.any() or (over := -float(np.median(left[known] / whole[known]))) < _OVERLAP:
        return ()
    return (
        f"the stages that it names take {over:.0%} longer than its steps: they overlap, as in an asynchronous"
        " run, and a step is predicted as their sum; fit a sequential run to know seconds of whole steps",
    )
