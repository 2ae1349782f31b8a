"""Logs whose generation holds rewards, computed as rollouts finish: what of it is scoring is not told."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from oppo_sim.columns import timing
from oppo_sim.fit.inference.posterior import Posterior
from oppo_sim.fit.log.names import FRAMEWORKS
from oppo_sim.fit.log_part import LogPart
from oppo_sim.fit.terms.stages import stage_seconds

_TOGETHER: Final = ("gen", "reward")
_FRAMEWORKS: Final = {
    names.name for names in FRAMEWORKS if any(timed.covers == _TOGETHER for timed in names.stages)
}
_MATTERS: Final = 0.01
"""Share of the metric."""


def rewards_along(parts: Sequence[LogPart], posterior: Posterior) -> list[str]:
    """A sentence for each log whose metric of generation holds scoring, where the fit has some."""
    said = []
    for part in parts:
        if part.log.framework not in _FRAMEWORKS:
            continue
        for member in part.members:
            if member.column != timing("+".join(_TOGETHER)) or not set(_TOGETHER) <= set(member.stages):
                continue
            scoring = float(np.median(stage_seconds("reward", part.features, posterior.terms)))
            if scoring < _MATTERS * float(np.nanmedian(member.seconds)):
                continue
            said.append(
                f"{part.log.name}: {part.log.framework} computes rewards as rollouts finish, within its"
                f" seconds of generation. They were fitted as generation and {scoring:.2g} s of scoring after"
                " it, by the scenario's costs: the log cannot tell these apart. The run takes what sequential"
                " does, so what rollout-overlap gains by it the run has already"
            )
    return said
