"""Stages that a log has no seconds of: its scenario keeps them as unknown as they were."""

from collections.abc import Collection, Sequence

import numpy as np

from oppo_sim.columns import TIMING_STEP
from oppo_sim.costs.terms import CostTerms
from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.fit.terms.features import Features, Floats
from oppo_sim.fit.terms.stages import OTHER, Measurement, terms_of
from oppo_sim.scenario.build import cost_context
from oppo_sim.scenario.schema import Scenario


def untimed_stages(log: StepLog, features: Features, members: Sequence[Measurement]) -> tuple[str, ...]:
    """Stages that the scenario runs, and what is beyond them, of which no metric of the log holds seconds, or
    only one that is left out of the fit, or scoring that is hidden behind generation. None of the others
    where whole steps are logged."""
    running = ["gen", *(["reward"] if features.score.max(initial=0.0) > 0 else [])]
    running += [stage for stage, seconds in features.stages.items() if seconds.max(initial=0.0) > 0]
    timed = {stage for member in members for stage in member.stages}
    left = {stage for column in log.not_fitted for stage in log.covers.get(column, ())} - timed
    left |= {"reward"} - timed if log.rewards_along else set()
    if TIMING_STEP in log.frame:
        return tuple(stage for stage in running if stage in left)
    return tuple(stage for stage in (*running, OTHER) if stage not in timed)


def terms_of_untimed(
    stages: Sequence[str], features: Features, scenario: Scenario, size: int, generator: np.random.Generator
) -> dict[str, Floats]:
    """``size`` draws of each term of ``stages``: what the scenario states of it, else its prior."""
    stated = scenario.costs.terms.stated()
    priors = {prior.term: prior for prior in scenario.costs.priors(cost_context(scenario))}
    found: dict[str, Floats] = {}
    for name in terms_of(stages, [features]):
        if name in stated:
            found[name] = np.full(size, stated[name])
        elif name in priors and name in CostTerms.model_fields:
            spread = priors[name].sigma * generator.standard_normal(size)
            found[name] = priors[name].median * np.exp(spread)
    return found


def believed_of_untimed(
    stages: Sequence[str], features: Features, scenario: Scenario, known: Collection[str]
) -> tuple[str, ...]:
    """Terms whose draws are those of the prior: not stated, and not ``known`` from other logs."""
    known = {*known, *scenario.costs.terms.stated()}
    believed = {prior.term for prior in scenario.costs.priors(cost_context(scenario))} - known
    return tuple(name for name in terms_of(stages, [features]) if name in believed)


def in_words(log: StepLog, members: Sequence[Measurement], untimed: Sequence[str]) -> tuple[str, ...]:
    """A sentence on ``untimed``, if there are any. Of scoring that is hidden behind a fitted generation
    ``rewards_along`` tells."""
    hidden = log.rewards_along and any("gen" in member.stages for member in members)
    stages = ", ".join(stage for stage in untimed if not (hidden and stage == "reward"))
    if not stages:
        return ()
    if log.not_fitted:
        return (
            f"left out of the fit (--leave-out): {', '.join(log.not_fitted)}; terms of {stages} stay as the"
            " scenario states them, else at their priors, and steps are judged without these",
        )
    return (
        f"it has no seconds of whole steps, nor of {stages}: the written scenario has these as it states"
        " them, else from the priors, and errors are of what the log times",
    )
