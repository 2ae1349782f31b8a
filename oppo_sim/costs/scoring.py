"""Scoring workers that run several models over each batch, or none."""

from dataclasses import dataclass

from oppo_sim.costs.interface import Demand, EngineCost, Line, Peak, Work
from oppo_sim.errors import OppoError

_NO_DECODE = "a scoring worker prefills and never decodes; ask the actor's cost for decode"


@dataclass(frozen=True)
class SummedPrefill:
    """Models that run one after the other over the same pieces on the same devices: their prefill times add
    up."""

    parts: tuple[EngineCost, ...]

    @property
    def peak(self) -> Peak | None:
        """Of the first part that knows it; the parts share their devices."""
        return next((part.peak for part in self.parts if part.peak is not None), None)

    def decode_time(self, n_running: int, kv_tokens: float) -> float:
        raise OppoError(_NO_DECODE)

    def decode_line(self, n_running: int, kv_tokens: float) -> Line:
        raise OppoError(_NO_DECODE)

    def decode_demand(self, n_running: int, kv_tokens: float) -> Demand:
        raise OppoError(_NO_DECODE)

    def decode_work(self, n_running: int, kv_tokens: float) -> Work | None:
        raise OppoError(_NO_DECODE)

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

    def without_padding(self) -> "SummedPrefill":
        return SummedPrefill(tuple(part.without_padding() for part in self.parts))


@dataclass(frozen=True)
class VerifierScorer:
    """Rules on a host: fixed + per_token·tokens seconds, no work for the device."""

    fixed_s: float
    per_token_s: float

    @property
    def peak(self) -> Peak | None:
        return None

    def decode_time(self, n_running: int, kv_tokens: float) -> float:
        raise OppoError(_NO_DECODE)

    def decode_line(self, n_running: int, kv_tokens: float) -> Line:
        raise OppoError(_NO_DECODE)

    def decode_demand(self, n_running: int, kv_tokens: float) -> Demand:
        raise OppoError(_NO_DECODE)

    def decode_work(self, n_running: int, kv_tokens: float) -> Work | None:
        raise OppoError(_NO_DECODE)

    def prefill_time(self, tokens: float, pairs: float) -> float:
        return self.fixed_s + self.per_token_s * tokens

    def prefill_demand(self, tokens: float, pairs: float) -> Demand:
        return Demand(0.0, 0.0)

    def prefill_work(self, tokens: float, pairs: float) -> Work | None:
        return Work(0.0, 0.0)

    def without_padding(self) -> "VerifierScorer":
        return self
