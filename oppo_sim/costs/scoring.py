"""Scoring workers that run several models over each batch."""

from dataclasses import dataclass, field

from oppo_sim.costs.formulas import added
from oppo_sim.costs.interface import Demand, Peak, PrefillCost, Work
from oppo_sim.costs.lowering import Lowering, lower_prefill


@dataclass(frozen=True)
class SummedPrefill:
    """Models that run one after the other over the same pieces on the same devices: times add up."""

    parts: tuple[PrefillCost, ...]
    _last: dict[tuple[float, float], tuple[float, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def peak(self) -> Peak | None:
        """Of the first part that knows it; the parts share their devices."""
        return next((part.peak for part in self.parts if part.peak is not None), None)

    def prefill_time(self, tokens: float, pairs: float) -> float:
        times = tuple([part.prefill_time(tokens, pairs) for part in self.parts])
        self._last.clear()
        self._last[tokens, pairs] = times
        return added(times)

    def prefill_demand(self, tokens: float, pairs: float) -> Demand:
        """Mean of the parts' demands, weighted by their time."""
        if (tokens, pairs) not in self._last:  # time and demand of a batch are queried in turn
            self.prefill_time(tokens, pairs)
        memory = arithmetic = total = 0.0
        for part, seconds in zip(self.parts, self._last[tokens, pairs], strict=True):
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
