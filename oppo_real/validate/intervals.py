"""Behind the interval of a predicted speed-up: predictions from calibrations drawn anew, and how much runs
differ."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Final

from oppo_real.calibrate.session import CalibrationSession
from oppo_real.validate.measure import MeasuredRun, Progress
from oppo_real.validate.off_table import NOTHING_OFF, off_table
from oppo_real.validate.resample import resampled_profiles, spread_of_moments, spread_of_runs
from oppo_real.validate.views import Views
from oppo_sim.costs.profile import Profile
from oppo_sim.errors import OppoError

_PROFILES: Final = 200
"""Resampled calibrations."""


def alternative_predictions(
    profile: Profile,
    session: CalibrationSession | None,
    seed: int,
    simulated: Callable[[str, Profile, MeasuredRun], Views],
    runs: Mapping[str, MeasuredRun],
    progress: Progress,
    notes: list[str],
) -> list[dict[str, Views]]:
    """Predictions of ``runs`` (by policy) from profiles drawn anew; ``notes`` gets what limits them."""
    if profile.out_of_range:
        queries = ", ".join(f"{count} of {table}" for table, count in sorted(profile.out_of_range.items()))
        notes.append(f"questions outside the profile's tables, answered by extrapolation: {queries}")
    visits = () if session is None else session.visits
    met = () if session is None else session.decode_beside_score
    off = NOTHING_OFF if session is None else off_table(profile, visits, session.contention)
    if off.told:
        notes.append(off.told)
    found, failed = [], 0
    for number, other in enumerate(resampled_profiles(profile, visits, met, _PROFILES, seed, off)):
        progress("simulating", number, _PROFILES)
        try:
            found.append({policy: simulated(policy, other, run) for policy, run in runs.items()})
        except OppoError:  # below its tables a noisy draw can extrapolate to no time at all
            failed += 1
    if failed:
        notes.append(
            f"{failed} of {_PROFILES} resampled profiles extrapolate to no time at all somewhere, and"
            " are left out"
        )
    if not found:
        notes.append(f"predicted speed-ups have no interval: {_no_interval(session, failed)}")
    return found


def run_spread(
    session: CalibrationSession,
    predicted: Mapping[str, Sequence[Views]],
    measured: Mapping[str, Sequence[MeasuredRun]],
    warmup: int,
) -> float:
    """Standard deviation of the logarithm of a run's seconds, from one run to the next."""
    seconds = [sum(step.seconds["step"] for step in runs[0]) for runs in predicted.values()]
    real = [
        [sum(step.seconds["step"] for step in run.views[warmup:]) for run in own] for own in measured.values()
    ]
    return max(spread_of_moments(session.visits, fmean(seconds)), spread_of_runs(real))


def _no_interval(session: CalibrationSession | None, failed: int) -> str:
    """Why, and what would give one."""
    if session is None:
        return "this needs a calibration of the same command, so leave out --profile"
    if failed:
        return "the calibration is too noisy; measure on a quieter machine, or with more --budget-s"
    return "every point of the calibration was visited once, and this needs two visits; give more --budget-s"
