"""Demands on devices as a scenario or a profile gives them."""

from typing import Annotated

from pydantic import Field

from oppo_sim.costs.interface import Demand
from oppo_sim.costs.strict import Strict


class DemandShares(Strict):
    """Shares of the achievable memory traffic and arithmetic that an activity takes when alone."""

    memory: Annotated[float, Field(ge=0, le=1)] = 0.0
    arithmetic: Annotated[float, Field(ge=0, le=1)] = 0.0


_MEMORY_BOUND = DemandShares(memory=1.0)
_COMPUTE_BOUND = DemandShares(arithmetic=1.0)


class Demands(Strict):
    """Demand of each kind of activity, for contention on shared devices."""

    decode: DemandShares = _MEMORY_BOUND
    prefill: DemandShares = _COMPUTE_BOUND
    score: DemandShares = _COMPUTE_BOUND
    training: DemandShares = _COMPUTE_BOUND
    update_weights: DemandShares = _MEMORY_BOUND


def demand_of(shares: DemandShares) -> Demand:
    """As the simulator queries it."""
    return Demand(shares.memory, shares.arithmetic)


def explained_slowdown(demands: Demands, in_turns: bool) -> float:
    """Of decoding and scoring on one device, by their demands alone; ``in_turns``: kernels of one at a
    time."""
    both = (demands.decode, demands.score)
    if in_turns:
        return max(1.0, sum(max(one.memory, one.arithmetic) for one in both))
    return max(1.0, sum(one.memory for one in both), sum(one.arithmetic for one in both))
