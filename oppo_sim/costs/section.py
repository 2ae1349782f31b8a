"""What the ``costs:`` section of every kind has: a base class, factors on its seconds, demands."""

from abc import ABC, abstractmethod
from math import exp
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from oppo_sim.costs.context import CostContext
from oppo_sim.costs.interface import Costs, Demand
from oppo_sim.costs.strict import Positive, Strict
from oppo_sim.draws import draw_normal, stream_key


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
    """As the simulator asks for it."""
    return Demand(shares.memory, shares.arithmetic)


class CostFactors(Strict):
    """What the seconds of an activity are multiplied by."""

    decode: Positive = 1.0
    prefill: Positive = 1.0
    """Of the actor."""
    score: Positive = 1.0
    training: Positive = 1.0
    """All training stages and the weight sync."""

    def __str__(self) -> str:
        return ", ".join(f"{name} × {value:.2f}" for name, value in self)


def drawn_factors(seed: int, number: int, sigma: float) -> CostFactors:
    """The ``number``-th draw: each factor exp(sigma · N(0, 1)), independent of the others."""
    return CostFactors(
        **{
            name: exp(sigma * draw_normal(stream_key(seed, f"tune/cost/{name}"), number))
            for name in CostFactors.model_fields
        }
    )


class CostSection(Strict, ABC):
    """What every kind answers. A new kind: a class here and in ``CostConfig``, with its models beside it."""

    evidence: ClassVar[str]
    """Where its seconds come from, for advice: "seconds come from …"."""
    pads_batches: ClassVar[bool] = False
    """It knows what padded rows cost."""

    @abstractmethod
    def build(self, context: CostContext, base_dir: Path | None = None) -> Costs:
        """The cost models; paths are relative to ``base_dir``.

        Raises OppoError for an unknown model or device, for a model that does not fit its devices (saying
        what and by how much), for a profile that cannot be read or lacks a table that the scenario needs.
        """

    @abstractmethod
    def scaled(self, factors: CostFactors) -> "CostSection":
        """The same with every second of an activity times its factor."""

    @property
    def streamable(self) -> bool:
        """The reward model can score a growing prefix."""
        return True
