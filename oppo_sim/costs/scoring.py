"""Scoring workers that run several models over each batch."""

from dataclasses import dataclass

from oppo_sim.costs.interface import Demand, Peak, PrefillCost, Work
from oppo_sim.costs.lowering import Lowering, lower_prefill


@dataclass(frozen=True)
class SummedPrefill:
    """Models that run one after the other over the same pieces on the same devices: their prefill times add
    up."""

    parts: tuple[PrefillCost, ...]

    @property
    def peak(self) -> Peak | None:
        """Of the first part that knows it; the parts share their devices."""
        return next((part.peak for part in self.parts if part.peak is not None), None)

    def prefill_time(self, tokens: float, pairs: float) -> float:
        return sum(part.prefill_time(tokens, pairs) for part in self.parts)

    def prefill_demand(self, tokens: float, pairs: float) -> Demand:
        """Mean of the parts' demands, weighted by their time."""
        memory = arithmetic = total = 0.0
        for part in self.parts:
            seconds = part.prefill_time(tokens, pairs)
            demand = part.prefill_demand(tokens, pairs)
            memory += seconds * demand.memory
            arithmetic += seconds * demand.arithmetic
            total += seconds
        return Demand(memory / total, arithmetic / total) if total > 0 else Demand(0.0, 0.0)

    def prefill_work(self, tokens: float, pairs: float) -> Work | None:
        """Sum over the parts; None if one of them does not know its work."""
        flops = traffic = 0.0
        for part in self.parts:
            work = part.prefill_work(tokens, pairs)
            if work is None:
                return None
            flops += work.flops
            traffic += work.bytes
        return Work(flops, traffic)

    def lower_prefill(self, to: Lowering) -> None:
        for part in self.parts:
            lower_prefill(part, to)
