"""A validation from start to end: calibrate (or take a profile), run for real, predict, compare."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oppo_real.calibrate.session import CalibrationSession
from oppo_real.config import real_config
from oppo_real.run.setup import build_real_setup
from oppo_real.validate.accuracy import PredictionAccuracy
from oppo_real.validate.before import Kept, check_before, read_kept
from oppo_real.validate.calibrating import Calibrating
from oppo_real.validate.compare import compare_predictions
from oppo_real.validate.given_profile import check_predicted, other_versions, since_the_profile
from oppo_real.validate.intervals import alternative_predictions, run_spread
from oppo_real.validate.measure import (
    MeasuredRun,
    Progress,
    RealRuns,
    Turn,
    inputs_content,
    inputs_digest,
    load_now,
    measure_runs,
    plan_turns,
)
from oppo_real.validate.predict import predict
from oppo_real.validate.request import ValidateRequest
from oppo_real.validate.resample import sharing_in_runs
from oppo_real.validate.views import Views
from oppo_sim.costs.profile import Profile
from oppo_sim.errors import OppoError
from oppo_sim.scenario.build import build_parts
from oppo_sim.scenario.policy_label import LabelledPolicy
from oppo_sim.scenario.schema import Scenario


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
    inputs: str
    """As the journal has them with its runs."""
    points: frozenset[Path]
    """Folders of the points that the calibration measured."""


def validate(request: ValidateRequest, progress: Progress = lambda *_: None) -> Validated:
    """Run it. Whatever cannot run is refused before anything is measured; finished runs are kept beside the
    folder.

    Raises OppoError.
    """
    scenario = request.scenario
    kept = None if request.measure else read_kept(request)
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
        check_predicted(request, config, given, parts)
    notes: list[str] = []
    if not scenario.warmup_steps:
        notes.append("warmup_steps is 0, so the first step counts: it pays for what an engine does once")
    load = load_now()
    trace = setups[request.policies[0]].base.replay.content_hash
    depends_on = (scenario, trace, request.steps, machine.hardware, machine.software)
    inputs = inputs_digest(*depends_on)
    calibrating = None
    if kept is None and given is None and not config.lock_step:
        calibrating = Calibrating(request, config, machine.hardware)
    journal = request.beside(".runs.jsonl")
    with RealRuns(journal, inputs, machine, inputs_content(*depends_on)) as finished:
        if kept is not None:
            request = _with_complete_rounds(request, turns, finished, notes)
        elif told := finished.others():
            warnings.warn(told, stacklevel=2)  # now, not after hours of measuring again
            notes.append(told)
        runs = _run_rounds(request, turns, variants, finished, calibrating, progress)
    measured = {policy: [run for run in runs if run.turn.policy == policy] for policy in request.policies}
    profile, session = _seconds(given, kept, calibrating)
    if session is not None:
        notes.extend(session.notes)
    elif profile is None:
        notes.append("lock-step: numbers are decode iterations, and decisions are what is compared")

    def simulated(policy: str, seconds: Profile | None, run: MeasuredRun) -> Views:
        return predict(scenario, config, variants[policy], request.steps, seconds, run, parts)

    comparison = _compared(scenario, simulated, measured, profile, session, progress, notes)
    if given is not None:
        notes.extend(since_the_profile(comparison))
        notes.extend(other_versions(given.measured.software, machine.software, config))
    return Validated(
        request,
        comparison,
        tuple(runs),
        profile,
        machine.hardware,
        machine.software,
        load,
        tuple(notes),
        inputs,
        frozenset() if calibrating is None else calibrating.points,
    )


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


def _complete_rounds(turns: Sequence[Turn], finished: RealRuns, request: ValidateRequest) -> int:
    """Rounds of which every run is there. Raises OppoError where none is."""
    missing = [turn for turn in turns if finished.known(turn) is None]
    rounds = min((turn.repeat for turn in missing), default=request.repeats)
    if not rounds:
        lacking = ", ".join(sorted({turn.policy for turn in missing if turn.repeat == 0}))
        raise OppoError(
            f"{request.beside('.runs.jsonl')} has no complete round of these policies: of the first,"
            f" {lacking} was not run; leave it out of --policies, or give scenario, overrides and --steps of"
            f" the runs{f' ({others})' if (others := finished.others()) else ''}"
        )
    return rounds


def _run_rounds(
    request: ValidateRequest,
    turns: Sequence[Turn],
    variants: Mapping[str, LabelledPolicy],
    finished: RealRuns,
    calibrating: Calibrating | None,
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


def _of_all(progress: Progress, round_index: int, rounds: int) -> Progress:
    """What is told of a round, as part of all."""
    return lambda label, done, total: progress(label, round_index * total + done, rounds * total)


def _seconds(
    given: Profile | None, kept: Kept | None, calibrating: Calibrating | None
) -> tuple[Profile | None, CalibrationSession | None]:
    """The profile that predictions are from (None: in lock-step), and the calibration that it is of, if that
    belongs to this validation."""
    if calibrating is not None:
        profile, session = calibrating.result()
    elif kept is not None and kept.session is not None and kept.profile is not None:
        profile, session = kept.profile, kept.session
    else:
        return given, None
    if session.decode_beside_score:
        # A profile lacks what its rounds disagree about, and other work; here the runs met it, too.
        profile = sharing_in_runs(profile, session.decode_beside_score)
    return profile, session


def _compared(
    scenario: Scenario,
    simulated: Callable[[str, Profile | None, MeasuredRun], Views],
    measured: Mapping[str, Sequence[MeasuredRun]],
    profile: Profile | None,
    session: CalibrationSession | None,
    progress: Progress,
    notes: list[str],
) -> PredictionAccuracy:
    """Runs beside their predictions, with intervals where there is a profile; ``notes`` gets what limits
    these."""
    predicted = {}
    for policy, own in measured.items():
        # Where lengths come from a trace, all repeats have one prediction.
        unlike = own if any(run.lengths for run in own) else own[:1]
        predicted[policy] = [simulated(policy, profile, run) for run in unlike]
    alternatives: list[dict[str, Views]] = []
    if profile is not None:
        firsts = {policy: own[0] for policy, own in measured.items()}
        alternatives = alternative_predictions(
            profile, session, scenario.seed, simulated, firsts, progress, notes
        )
    return compare_predictions(
        predicted,
        {policy: [run.views for run in own] for policy, own in measured.items()},
        scenario.warmup_steps,
        alternatives,
        scenario.seed,
        0.0 if session is None else run_spread(session, predicted, measured, scenario.warmup_steps),
    )
