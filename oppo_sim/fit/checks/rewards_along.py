"""Logs of runs that compute rewards as rollouts finish: scoring is hidden behind their generation."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from oppo_sim.columns import timing
from oppo_sim.fit.log_part import LogPart

_MATTERS: Final = 0.01
"""Share of the metric."""


def rewards_along(parts: Sequence[LogPart]) -> list[str]:
    """A sentence for each log whose metric of generation holds scoring, where its scenario has some."""
    said = []
    for part in parts:
        metric = next((each for each in part.members if each.column == timing("gen+reward")), None)
        if metric is None or not part.log.rewards_along:
            continue
        scoring = float(np.median(part.features.score.max(axis=0)))
        seconds = float(np.nanmedian(metric.seconds))
        if scoring < _MATTERS * seconds:
            continue
        said.append(
            f"{part.log.name}: {part.log.framework} computes rewards as rollouts finish, within its seconds"
            f" of generation. These were fitted as generation alone; scoring, {scoring:.2g} s a step by the"
            " scenario's costs, stays as the scenario has it. So this run is rollout-overlap: hold other"
            " policies against its row of oppo compare, not against sequential"
            + (
                ". Scoring would take longer than generation: correct the scenario's reward_model or"
                " scoring.num_workers"
                if scoring > seconds
                else ""
            )
        )
    return said
