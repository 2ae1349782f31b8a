"""Steps of a log that lie far from the model, with what the log says of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from oppo_sim.columns import STEP_SAVE_S, STEP_TESTING_S, TIMING_STEP
from oppo_sim.fit.checks.judging import predict
from oppo_sim.fit.inference.posterior import Posterior
from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.fit.terms.features import Features
from oppo_sim.fit.terms.stages import Measurement, told_as

_FAR: Final = 4.0
"""Scales from the model at which a step does not fit, if it is off by ``_OFF`` too."""
_OFF: Final = 0.1
_OF_STEP: Final = 0.01
_WHOLE: Final = 2.0
"""Times its prediction from which on a step does not fit, where all of its stages do."""


@dataclass(frozen=True)
class OddStep:
    """A step whose seconds are not the model's."""

    log: str
    step: int
    column: str
    measured: float
    predicted: float
    reason: str


def odd_steps(
    log: StepLog, features: Features, members: Sequence[Measurement], posterior: Posterior
) -> list[OddStep]:
    """Steps that lie far from the model, with what the log says of them; first steps among them."""
    found = []
    predictions = predict(features, members, posterior, seen=True)
    whole = predictions.get(TIMING_STEP)
    for member in members:
        kind = posterior.noise_of(member)
        if kind is None or member.column not in predictions or member.share < _OF_STEP:
            continue
        prediction = predictions[member.column]
        scale = np.median(posterior.noise[kind])
        first = posterior.first.get(member.column)
        usual = prediction.predicted - (np.median(first) * features.cold if first is not None else 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            off = np.log(member.seconds / usual)
        far = np.isfinite(off) & (np.abs(off) > np.maximum(_FAR * scale, _OFF))
        if whole is not None:
            far &= np.abs(member.seconds - usual) > _OF_STEP * np.nan_to_num(whole.measured, nan=0.0)
        found += [
            OddStep(
                log.name,
                int(features.steps[place]),
                told_as(member, members),
                float(member.seconds[place]),
                float(usual[place]),
                _reason(log, int(place), features, member),
            )
            for place in np.flatnonzero(far)
        ]
    if whole is not None:
        named = {each.step for each in found}
        found += [
            OddStep(
                log.name,
                int(features.steps[place]),
                TIMING_STEP,
                float(whole.measured[place]),
                float(whole.predicted[place]),
                "seconds that are of none of its stages",
            )
            for place in np.flatnonzero(np.nan_to_num(whole.measured, nan=0.0) > _WHOLE * whole.predicted)
            if int(features.steps[place]) not in named and not features.cold[place]
        ]
    return sorted(found, key=lambda each: (each.log, each.step, each.column))


def _reason(log: StepLog, place: int, features: Features, member: Measurement) -> str:
    row = log.frame.iloc[place]
    if features.cold[place]:
        return "first step of the run, or after a restart"
    if "gen" in member.stages and features.wait[place] > 0.1 * member.seconds[place]:
        return f"its last rollout waited {features.wait[place]:.0f} s for tools"
    for column, what in ((STEP_TESTING_S, "validation"), (STEP_SAVE_S, "a checkpoint")):
        if column in log.frame and row[column] > 0:
            return f"{what} ran in this step"
    return "nothing in the log explains it"
