"""How much faster than the policy that the scenario itself has: what a user runs today need not be the
baseline."""

from typing import TYPE_CHECKING, Any

from oppo_sim import columns as c
from oppo_sim.policies.registry import BASELINE
from oppo_sim.runs.ranges import Gain, speedups
from oppo_sim.runs.request import ACTUAL
from oppo_sim.runs.statistics import TO_REWARD, ratio_interval

if TYPE_CHECKING:
    from oppo_sim.comparison.result import Comparison


def own_record(comparison: "Comparison") -> dict[str, Any]:
    """For JSON and manifests: the speed-up of every compared policy, and of a baseline that is the best,
    against the scenario's own, by trained rollouts on the same seeds and draws, with its intervals. Empty
    where the own policy is the baseline, or was not compared, or the best is by time to the target reward."""
    plan = comparison.plan
    if plan is None or plan.objective == TO_REWARD:
        return {}
    own, labels = plan.scenario.policy.name, [one.label for one in plan.policies]
    if own == BASELINE or own not in labels:
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
        ratio, low, high = ratio_interval((given.loc[own].to_numpy() / given.loc[label].to_numpy()).tolist())
        gains[label] = {c.SPEEDUP: ratio, c.SPEEDUP_LOW: low, c.SPEEDUP_HIGH: high}
        if drawn is not None:
            by_draw = speedups(drawn.loc[own].to_numpy().tolist(), drawn.loc[label].to_numpy().tolist())
            together = Gain(ratio, (low, high), by_draw).ends[2:]
            gains[label] |= dict(zip((c.SPEEDUP_BOTH_LOW, c.SPEEDUP_BOTH_HIGH), together, strict=True))
    return {"policy": own, "best": comparison.best, "speedups": gains}
