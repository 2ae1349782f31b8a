"""A warning where the weight sync takes much of a step, with the better choice."""

from typing import Final

from oppo_sim.costs.roofline_config import ShapedCosts
from oppo_sim.costs.training_config import FullExport, OnlineRefit, SharedWeights, WeightSync
from oppo_sim.scenario.build import cost_context
from oppo_sim.scenario.schema import Scenario

MOST: Final = 0.25
"""Share of a step beyond which a weight sync is reported."""
IN_MEMORY: Final = OnlineRefit(fixed_s=0.5, convert_bytes_per_s=2e10)
"""Weights resharded from memory to memory, without a way over the host: what shipped scenarios assume."""


def sync_warnings(scenario: Scenario, step: float) -> list[str]:
    """None or one sentence. ``step``: mean seconds of a step. Costs whose seconds are given (linear, profile)
    have no better choice to name."""
    if not isinstance(scenario.costs, ShapedCosts) or not step > 0:
        return []
    now = scenario.training.weight_sync
    seconds = _seconds(scenario, now)
    if seconds <= MOST * step:
        return []
    better, why = IN_MEMORY, "resharded in memory, as shipped scenarios assume; measure yours"
    if isinstance(now, FullExport):
        better, why = OnlineRefit(), "refitted into the running engine"
    took = _seconds(scenario, better)
    share = f"update_weights takes {100 * seconds / step:.0f} % of a step ({seconds:.3g} of {step:.3g} s)"
    default = " by its defaults (frameworks differ 40-fold)" if now == OnlineRefit() else ""
    if isinstance(now, SharedWeights) or took >= 0.75 * seconds:
        return [f"{share}{default}: train more rollouts a step, or measure the sync and give its seconds"]
    fields = better.model_dump(exclude_defaults=True, exclude={"kind"})
    text = ", ".join(f"{name}: {value:g}" for name, value in fields.items())
    choice = f"{{kind: {better.kind}{f', {text}' if text else ''}}}"
    return [f"{share}{default}: with training.weight_sync {choice} ({why}) it takes {took:.3g} s"]


def _seconds(scenario: Scenario, sync: WeightSync) -> float:
    training = scenario.training.model_copy(update={"weight_sync": sync})
    changed = scenario.model_copy(update={"training": training})
    context = cost_context(changed)
    costs = changed.costs.costs(context, scenario.base_dir)
    return costs.training.stage_times(context.nominal_batch).update_weights
