"""A warning where a run keeps more keys and values than device memory has room for."""

from oppo_sim.costs.roofline_config import ShapedCosts
from oppo_sim.scenario.build import cost_context
from oppo_sim.scenario.schema import Scenario


def kv_warnings(scenario: Scenario, peak: float) -> list[str]:
    """None or one sentence. ``peak``: most tokens that a replica kept. A capacity of ``auto`` is never
    exceeded, padded batches are not counted in blocks, and other costs do not know device memory."""
    given = scenario.rollout.kv_capacity_tokens
    if (
        given == "auto"
        or scenario.rollout.batching == "static"
        or not isinstance(scenario.costs, ShapedCosts)
    ):
        return []
    room = scenario.costs.costs(cost_context(scenario), scenario.base_dir).actor_kv_capacity_tokens
    if room is None or not peak > room:
        return []
    bound = "bounds nothing" if given is None else f"is {given:,}"
    return [
        f"KV reaches {peak:,.0f} tokens a replica, device memory leaves {room:,}, and"
        f" rollout.kv_capacity_tokens {bound}: with auto rollouts wait or are preempted, as in an engine"
    ]
