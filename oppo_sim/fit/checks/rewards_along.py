"""Runs that compute rewards as rollouts finish: scoring is hidden behind their generation."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from oppo_sim.columns import timing
from oppo_sim.fit.checks.plausible import overlaps
from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.fit.log_part import LogPart
from oppo_sim.fit.terms.features import Features

_MATTERS: Final = 0.01
"""Share of generation."""
_HARDLY: Final = 0.01
"""Share of the scenario's scoring."""
_REWARD: Final = timing("reward")


def with_hidden_rewards(log: StepLog, features: Features) -> StepLog:
    """verl times rewards by themselves (until 0.3 in ``adv``), but where its reward loop has them beside
    generation (a rule, or a reward model with GPUs of its own; ``agent_reward_loop`` of 2026; its
    asynchronous trainers), the metric holds hardly any seconds. They are not those of the scenario's reward
    model."""
    held = {column: stages for column, stages in log.covers.items() if "reward" in stages}
    if log.framework != "verl" or set(held.values()) not in ({("reward",)}, {("adv", "reward")}):
        return log
    scoring, logged = _scoring_s(features), sum(float(log.frame[column].median()) for column in held)
    if ("adv", "reward") in held.values():
        logged -= float(np.median(features.stages["adv"]))
    generation = float(log.frame[timing("gen")].median()) if timing("gen") in log.covers else 0.0
    if logged >= _HARDLY * scoring or scoring < _MATTERS * generation:
        return log
    covers = {
        column: tuple(stage for stage in stages if stage != "reward") for column, stages in log.covers.items()
    }
    kept = {column: stages for column, stages in covers.items() if stages}
    return replace(log, covers=kept, rewards_hidden=True)


def rewards_along(parts: Sequence[LogPart]) -> list[str]:
    """A sentence for each log whose generation hides scoring, where its scenario has some."""
    said = []
    for part in parts:
        log = part.log
        metric = next((each for each in part.members if "gen" in each.stages), None)
        if metric is None or not log.rewards_along:
            continue
        scoring, seconds = _scoring_s(part.features), float(np.nanmedian(metric.seconds))
        if scoring < _MATTERS * seconds:
            continue
        seen = (
            f"{_shown(log)}, so they were computed as rollouts finished. Generation was"
            if log.rewards_hidden
            else f"{log.framework} computes rewards as rollouts finish, within its seconds of generation."
            " These were"
        )
        too_long = (
            ". Scoring would take longer than generation: correct the scenario's reward_model or"
            " scoring.num_workers"
            if scoring > seconds
            else ""
        )
        said.append(
            f"{log.name}: {seen} fitted without them; scoring, {scoring:.2g} s a step by the scenario's"
            f" costs, stays as the scenario has it{_policy(log)}{too_long}"
        )
    return said


def _policy(log: StepLog) -> str:
    """What the run is, where it generates first and trains then."""
    if overlaps(log):
        return ""
    return (
        ". So this run is rollout-overlap: --set policy.name=rollout-overlap has oppo compare hold the best"
        " policy against it, not against sequential alone"
    )


def _shown(log: StepLog) -> str:
    """Why rewards are taken as hidden."""
    if _REWARD not in log.frame:
        return f"it times no rewards, as {log.framework} does where they hold a step up"
    return f"its rewards take {log.frame[_REWARD].median():.2g} s a step"


def _scoring_s(features: Features) -> float:
    """Of the median step, by the scenario's costs."""
    return float(np.median(features.score.max(axis=0)))
