"""How much faster than the policy that the scenario itself has: what a user runs today need not be the
baseline."""

from typing import TYPE_CHECKING, Any

import numpy as np

from oppo_sim import columns as c
from oppo_sim.policies.registry import BASELINE
from oppo_sim.runs.ranges import Gain, speedups
from oppo_sim.runs.request import ACTUAL
from oppo_sim.runs.statistics import TO_REWARD, ratio_interval
from oppo_sim.scenario.build import policy_settings_of

if TYPE_CHECKING:
    from oppo_sim.comparison.plan import ComparisonPlan
    from oppo_sim.comparison.result import Comparison


def own_record(comparison: "Comparison") -> dict[str, Any]:
    """For JSON and manifests: the speed-up of every compared policy, and of a baseline that is the best,
    against the scenario's own, by trained rollouts on the same seeds and draws, with its intervals. Empty
    where the own policy is the baseline, or was not compared, or the best is by time to the target reward."""
    plan = comparison.plan
    if plan is None or plan.objective == TO_REWARD:
        return {}
    own, labels = _own_label(plan), [one.label for one in plan.policies]
    if own is None:
        return {}
    cells = comparison.cells[comparison.cells[c.VARIANT] == ACTUAL]
    given = cells.pivot(index=c.RUN_POLICY, columns=c.RUN_SEED, values=c.S_PER_ROLLOUT)
    drawn = None if comparison.ranges is None else comparison.ranges.runs.pivot(
        index=[c.RUN_POLICY, c.DRAW], columns=c.RUN_SEED, values=c.S_PER_ROLLOUT
    ).sort_index()  # fmt: skip
    gains = {}
    for label in dict.fromkeys((*labels, comparison.best)):
        if label == own:
            continue
        ratio, low, high = ratio_interval(
            (np.asarray(given.loc[own]) / np.asarray(given.loc[label])).tolist()
        )
        gains[label] = {c.SPEEDUP: ratio, c.SPEEDUP_LOW: low, c.SPEEDUP_HIGH: high}
        if drawn is not None:
            by_draw = speedups(*(np.asarray(drawn.loc[each]).tolist() for each in (own, label)))
            together = Gain(ratio, (low, high), by_draw).ends[2:]
            gains[label] |= dict(zip((c.SPEEDUP_BOTH_LOW, c.SPEEDUP_BOTH_HIGH), together, strict=True))
    return {"policy": own, "best": comparison.best, "speedups": gains}


def _own_label(plan: "ComparisonPlan") -> str | None:
    """As it was compared: by its name alone, or with settings that are the scenario's
    (``oppo:chunk_size=64``). None: it was not, or is the baseline."""
    name = plan.scenario.policy.name
    if name == BASELINE:
        return None
    settings = policy_settings_of(plan.scenario, name)
    alike = [one.label for one in plan.policies if one.policy == name and one.settings == settings]
    return name if name in alike else next(iter(alike), None)
