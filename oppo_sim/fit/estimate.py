"""From logs and their scenarios to draws of the costs, judged on steps that were not fitted."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from oppo_sim.costs.priors import IDENTIFIED, Prior
from oppo_sim.costs.section import EXACT
from oppo_sim.costs.terms import NO_TERMS, CostTerms
from oppo_sim.errors import OppoError
from oppo_sim.fit.checks.identify import (
    TermEstimate,
    estimates_table,
    posterior_estimates,
    unidentified_cuts,
)
from oppo_sim.fit.checks.judging import Judgement, judge, predict
from oppo_sim.fit.checks.odd_steps import OddStep, odd_steps
from oppo_sim.fit.checks.periodic import in_words, with_periodic
from oppo_sim.fit.checks.plausible import overlaps, refuse_twice, refuse_units
from oppo_sim.fit.checks.rewards_along import rewards_along, with_hidden_rewards
from oppo_sim.fit.checks.scoring import constants_not_told_apart
from oppo_sim.fit.checks.surprising import surprises
from oppo_sim.fit.checks.trends import Trend, trends_of
from oppo_sim.fit.checks.unrun import as_run
from oppo_sim.fit.checks.untimed import believed_of_untimed, untimed_stages
from oppo_sim.fit.checks.untimed import in_words as untimed_in_words
from oppo_sim.fit.drawn_costs import cost_draws, mean_terms
from oppo_sim.fit.grouped import with_samples
from oppo_sim.fit.inference.posterior import DRAWS, Posterior, draw_posterior
from oppo_sim.fit.inference.sampling import on_one_blas_thread
from oppo_sim.fit.inference.typical_seconds import at_typical_seconds, with_stage_constants
from oppo_sim.fit.log.batches import as_sampled
from oppo_sim.fit.log.carried import carried, with_mixed
from oppo_sim.fit.log.leaving_out import without_metrics
from oppo_sim.fit.log.own_names import with_own_names
from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.fit.log.trained_again import of_generations
from oppo_sim.fit.log_lengths import LogLengths, lengths_of_logs, other_lengths
from oppo_sim.fit.log_part import LogPart
from oppo_sim.fit.own_policy import moved_to_steps
from oppo_sim.fit.terms.features import Features, Floats, build_features, check_rollouts
from oppo_sim.fit.terms.offload import at_full_rate
from oppo_sim.fit.terms.priors import TOOL_TOKENS, priors_for
from oppo_sim.fit.terms.stages import Measurement, measurements_of, tool_share
from oppo_sim.fit.tool_waits import lengthened_by_tools, waits_itself, where_waits
from oppo_sim.progress import OnProgress, Progress, unheard
from oppo_sim.scenario.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 3
"""Steps below which nothing is held back."""
_STAGES = 3


@dataclass(frozen=True)
class Fitted:
    """A scenario and what is believed of its costs."""

    scenario: Scenario
    draws: tuple[CostTerms, ...]
    believed: tuple[str, ...] = ()
    """Terms whose draws are those of the priors: of stages that no log has seconds of."""
    lengths: LogLengths | None = None
    """What is simulated in place of the scenario's trace."""
    waits: str = ""
    """Where the seconds are by which waits for tools lengthen its steps."""
    own_policy: str = ""
    """What whole steps told of generation (``own_policy``)."""

    @property
    def point(self) -> CostTerms:
        """Mean of the draws."""
        return mean_terms(self.draws)


@dataclass(frozen=True)
class HeldOut:
    """Errors of a log on steps that were not fitted."""

    log: str
    fitted_steps: int
    held_steps: int
    judgements: tuple[Judgement, ...]


@dataclass(frozen=True, repr=False)
class FitResult:
    """What ``oppo fit`` found."""

    parts: tuple[LogPart, ...]
    held_out: tuple[HeldOut, ...]
    """The last steps of each fitted log, from the first ones of all."""
    judged: tuple[HeldOut, ...]
    """Other runs, from all steps of the fitted ones."""
    estimates: tuple[TermEstimate, ...]
    odd: tuple[OddStep, ...]
    posterior: Posterior
    """Given all steps."""
    fitted: tuple[Fitted, ...]
    """Each scenario once, in the order of the logs. Draw i of all of them is of one cluster."""
    wait_s: float
    """Mean seconds by which a step is longer because its last rollout waited for tools."""
    notes: tuple[str, ...] = ()
    trends: tuple[Trend, ...] = ()
    """Drift of the fitted runs."""
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)
    """By log, what was left out and how often."""

    def __repr__(self) -> str:
        steps = sum(len(part.features) for part in self.parts)
        identified = sum(one.verdict == IDENTIFIED for one in self.estimates)
        logs = ", ".join(part.log.name for part in self.parts)
        return f"FitResult({logs}: {steps} steps, {identified} of {len(self.estimates)} terms identified)"

    def _repr_html_(self) -> str:
        return self.terms.to_html(float_format=lambda value: f"{value:.4g}")

    @property
    def terms(self) -> "pd.DataFrame":
        """One row a term of the costs: its unit, 95 % intervals before and after the logs, the verdict."""
        return estimates_table(self.estimates)

    @property
    def point(self) -> CostTerms:
        """Of the first scenario."""
        return self.fitted[0].point

    @property
    def draws(self) -> tuple[CostTerms, ...]:
        """Of the first scenario."""
        return self.fitted[0].draws

    @property
    def fitted_terms(self) -> int:
        """Unknowns of the costs."""
        return len(self.posterior.terms)


@on_one_blas_thread
def fit_logs(
    logs: Sequence[tuple[StepLog, Scenario]],
    judged: Sequence[tuple[StepLog, Scenario]] = (),
    *,
    fit_steps: int | None = None,
    leave_out: Sequence[str] = (),
    draws: int = DRAWS,
    seed: int = 0,
    log_lengths: bool = False,
    progress: OnProgress = unheard,
) -> FitResult:
    """Fit the logs together.

    Args:
        fit_steps: steps of each log to fit before its rest is judged; None: two thirds.
        judged: runs that are not fitted, judged by what was.
        leave_out: metrics of all logs that are not fitted (``leaving_out``).
        draws: of the written costs.
        log_lengths: what is written simulates the lengths of its logs in place of the scenario's trace.

    Raises OppoError for a log and a scenario that cannot be of one run, and for logs without a step to fit.
    """
    if not logs:
        raise OppoError("there is no log to fit: give at least one")
    refuse_twice([log for log, _ in logs], [log for log, _ in judged])
    named = with_own_names([log for log, _ in (*logs, *judged)])
    if leave_out:
        named = without_metrics(named, leave_out)
    of_scenario = [(log, scenario) for log, (_, scenario) in zip(named, (*logs, *judged), strict=True)]
    logs, judged = of_scenario[: len(logs)], of_scenario[len(logs) :]
    progress(Progress("lengths and the cost model's seconds of every step", 0, _STAGES))
    sampled = {scenario.content_hash: with_samples(scenario, log_lengths) for _, scenario in (*logs, *judged)}
    logs, judged = (
        [(log, sampled[scenario.content_hash][0]) for log, scenario in pairs] for pairs in (logs, judged)
    )
    parts = [_part(log, scenario, number, seed) for number, (log, scenario) in enumerate(logs)]
    others = [
        _part(log, scenario, len(parts) + number, seed) for number, (log, scenario) in enumerate(judged)
    ]
    scenarios = _by_scenario(parts, seed, log_lengths)
    given = _priors(parts)
    believed = with_stage_constants(given, _fitted_steps(parts))
    priors = at_typical_seconds(believed, _fitted_steps(parts))
    notes = [f"{part.log.name}: {note}" for part in (*parts, *others) for note in part.log.notes]
    notes += [said for _, said in sampled.values() if said]
    held = _held_out(parts, given, fit_steps, draws, seed, progress, notes)
    progress(Progress("all steps", 2, _STAGES))
    parts = [_with_periodic(part, notes) for part in parts]
    posterior = draw_posterior(_fitted_steps(parts), priors, draws=draws, seed=seed)
    trends = _trends(parts, posterior)
    notes += [f"{trend.log}: {trend}" for trend in trends]
    # Beside what was believed before the log moved it.
    estimates = posterior_estimates(posterior, believed)
    notes += surprises(estimates, [member for part in parts for member in part.members])
    notes += unidentified_cuts(posterior.terms)
    notes += constants_not_told_apart(estimates, _fitted_steps(parts))
    notes += rewards_along(parts)
    ahead = [_judged(part, parts, posterior, seed) for part in others]
    scenarios = [one.with_tools(posterior) for one in scenarios]
    notes += [note for one in scenarios for note in one.notes()]
    # Where generation is not fitted, its terms are what they were.
    generated = [part.features for part in parts] if "gen_phase_s" in posterior.terms else []
    wait = lengthened_by_tools(generated, posterior)
    fitted = [_fitted(one, parts, posterior, wait, seed, progress) for one in scenarios]
    notes += _said_of_waits(fitted)
    notes += [each.own_policy for each in fitted if each.own_policy]
    progress(Progress("all steps", _STAGES, _STAGES))
    return FitResult(
        parts=tuple(parts),
        held_out=tuple(held),
        judged=tuple(ahead),
        estimates=tuple(estimates),
        odd=tuple(
            odd for part in parts for odd in odd_steps(part.log, part.features, part.members, posterior)
        ),
        posterior=posterior,
        fitted=tuple(fitted),
        wait_s=float(wait.mean()),
        notes=tuple(notes),
        trends=tuple(trends),
        left_out={part.log.name: part.log.left_out for part in (*parts, *others)},
    )


@dataclass(frozen=True)
class _RunsOfScenario:
    """The fitted runs of one scenario, and what is written of it."""

    parts: tuple[LogPart, ...]
    scenario: Scenario
    lengths: LogLengths | None
    sampled: str | None
    """That the scenario generates in batches as the runs did; None: it is as it was."""

    def with_tools(self, posterior: Posterior) -> "_RunsOfScenario":
        """Lengths less the share of tokens that tools wrote, where it is an unknown of the fit."""
        if self.lengths is None:
            return self
        if TOOL_TOKENS not in posterior.terms:
            if not any(part.features.tools for part in self.parts):
                return self
            said = (
                f"{self.lengths.said}, all of them decoded: how many are answers of tools, no fit of gen says"
            )
            return replace(self, lengths=replace(self.lengths, said=said))
        return replace(self, lengths=self.lengths.with_tools(float(np.mean(tool_share(posterior.terms)))))

    def notes(self) -> list[str]:
        """Each with the name of the first log."""
        first = self.parts[0]
        if self.lengths is None:
            simulated = other_lengths(first.log, first.scenario)
        else:
            simulated = f"the written scenario simulates {self.lengths.said}"
        return [f"{first.log.name}: {each}" for each in (self.sampled, simulated) if each]


def _by_scenario(parts: Sequence[LogPart], seed: int, log_lengths: bool) -> list[_RunsOfScenario]:
    """Each scenario once, in the order of the logs."""
    distinct: dict[str, list[LogPart]] = {}
    for part in parts:
        distinct.setdefault(part.scenario.content_hash, []).append(part)
    found = []
    for alike in distinct.values():
        logs = [part.log for part in alike]
        scenario, said = as_sampled(alike[0].scenario, logs)
        lengths = lengths_of_logs(logs, scenario, seed) if log_lengths else None
        found.append(_RunsOfScenario(tuple(alike), scenario, lengths, said))
    return found


def _fitted_steps(parts: Sequence[LogPart]) -> list[tuple[Features, tuple[Measurement, ...]]]:
    return [(part.features, part.members) for part in parts]


def _trends(parts: Sequence[LogPart], posterior: Posterior) -> list[Trend]:
    return [
        trend
        for part in parts
        for trend in trends_of(
            part.log.name, part.members, predict(part.features, part.members, posterior, seen=True)
        )
    ]


def _judged(part: LogPart, fitted: Sequence[LogPart], posterior: Posterior, seed: int) -> HeldOut:
    """A run that was not fitted, from those that were."""
    found = judge(_fitted_steps(fitted), part.features, part.members, posterior, seed=seed)
    steps = sum(len(each.features) for each in fitted)
    return HeldOut(part.log.name, steps, len(part.features), tuple(found))


def _fitted(
    runs: _RunsOfScenario,
    parts: Sequence[LogPart],
    posterior: Posterior,
    wait_s: Floats,
    seed: int,
    progress: OnProgress,
) -> Fitted:
    last = runs.parts[-1]
    own = bool(wait_s.any()) and waits_itself(runs.scenario)
    drawn = cost_draws(posterior, parts, last, np.zeros_like(wait_s) if own else wait_s, seed)
    untimed = untimed_stages(last.log, last.features, last.members)
    believed = believed_of_untimed(untimed, last.features, last.scenario, posterior.terms)
    waits = where_waits(float(wait_s.mean()), own) if wait_s.any() else ""
    moved = moved_to_steps(drawn, believed, last, runs.scenario, seed, progress)
    if moved is None:
        return Fitted(runs.scenario, tuple(drawn), believed, runs.lengths, waits)
    believed = tuple(name for name in believed if name not in moved.terms)
    said = f"{last.log.name}: {moved.said}"
    return Fitted(runs.scenario, moved.draws, believed, runs.lengths, waits, said)


def _said_of_waits(fitted: Sequence[Fitted]) -> list[str]:
    """Once where all scenarios are alike, else of each."""
    distinct = sorted({each.waits for each in fitted if each.waits})
    return distinct if len(distinct) < 2 else [f"{each.scenario.name}: {each.waits}" for each in fitted]


@on_one_blas_thread
def judge_rest(
    log: StepLog, scenario: Scenario, *, fit_steps: int, draws: int = DRAWS, seed: int = 0
) -> HeldOut:
    """Only what ``fit_logs`` holds back of a log: its first ``fit_steps`` steps fitted, the rest judged.
    Raises OppoError as it does, and where the log has no rest."""
    part = _part(log, scenario, 0, seed)
    notes: list[str] = []
    held = _held_out([part], _priors([part]), fit_steps, draws, seed, unheard, notes)
    if not held:
        raise OppoError(f"{log.name}: {notes[0]}")
    return held[0]


def _priors(parts: Sequence[LogPart]) -> dict[str, Prior]:
    in_place = any({"gen", "update_weights"} <= set(m.stages) for part in parts for m in part.members)
    return priors_for([part.scenario for part in parts], logged=True, in_place=in_place)


def _part(log: StepLog, scenario: Scenario, number: int, seed: int) -> LogPart:
    log = of_generations(log, scenario)
    scenario, offload = at_full_rate(scenario)
    # Terms that the scenario has already would be fitted twice: these replace them.
    costs = scenario.costs.model_copy(update={"terms": NO_TERMS, "draws": EXACT})

    def features_of(scenario: Scenario) -> tuple[Features, StepLog]:
        features, kept = build_features(log, scenario.model_copy(update={"costs": costs}), seed=seed)
        runs = {stage: seconds for stage, seconds in offload.items() if features.stages[stage].max() > 0}
        return replace(features, offload=runs), kept

    features, kept = features_of(scenario)
    check_rollouts(kept, scenario)
    run, said = as_run(kept, scenario, features)
    if run is not scenario:
        scenario = run
        features, kept = features_of(scenario)
    kept = with_hidden_rewards(with_mixed(replace(kept, notes=(*kept.notes, *said)), scenario), features)
    members = tuple(measurements_of(kept, number, features))
    if not members:
        raise OppoError(f"{log.name} has no step with both lengths and seconds: nothing can be fitted")
    refuse_units(log, members, features)
    untimed = untimed_stages(kept, features, members)
    said = untimed_in_words(kept, members, untimed)
    over_updates = carried(kept, scenario)
    carries = (over_updates,) if over_updates else ()
    kept = replace(kept, notes=(*kept.notes, *overlaps(kept), *carries, *said))
    return LogPart(kept, scenario, features, members)


def _held_out(
    parts: Sequence[LogPart],
    given: dict[str, Prior],
    fit_steps: int | None,
    draws: int,
    seed: int,
    progress: OnProgress,
    notes: list[str],
) -> list[HeldOut]:
    """``given``: priors before any seconds are seen; those held back do not move them."""
    counts = [fit_steps if fit_steps is not None else (2 * len(part.features) + 2) // 3 for part in parts]
    kept = [
        (part, count)
        for part, count in zip(parts, counts, strict=True)
        if FEWEST <= count < len(part.features)
    ]
    if not kept:
        notes.append("no steps were held back: too few are left of every log")
        return []
    notes += [
        f"{part.log.name}: none of its {len(part.features)} steps are held back and judged, too few are left"
        for part in parts
        if all(part is not each for each, _ in kept)
    ]
    progress(Progress("the first steps, to judge the rest", 1, _STAGES))
    fitted, members = [], []
    for part, count in kept:
        known, _ = with_periodic(part.members, part.features, part.events, slice(0, count))
        members.append(known)
        head = slice(0, count)
        fitted.append((part.features.taken(head), [member.taken(head) for member in known]))
    heads = [
        (part.features.taken(slice(0, count)), [member.taken(slice(0, count)) for member in part.members])
        for part, count in kept
    ]
    priors = at_typical_seconds(with_stage_constants(given, heads), heads)
    posterior = draw_posterior(fitted, priors, draws=draws, seed=seed)
    found = []
    for (part, count), known in zip(kept, members, strict=True):
        tail = slice(count, None)
        rest = part.features.taken(tail)
        last = int(part.features.steps[count - 1])
        judgements = judge(
            fitted, rest, [member.taken(tail) for member in known], posterior, last_step=last, seed=seed
        )
        found.append(HeldOut(part.log.name, count, len(rest), tuple(judgements)))
    return found


def _with_periodic(part: LogPart, notes: list[str]) -> LogPart:
    members, found = with_periodic(part.members, part.features, part.events, slice(None))
    if found is not None:
        notes.append(f"{part.log.name}: {in_words(found)}")
    return replace(part, members=tuple(members))
