"""Cost models made of linear coefficients: exact, transparent, and what every test compares against."""

from dataclasses import dataclass
from typing import ClassVar

from oppo_sim.costs.interface import (
    NO_DEMAND,
    BatchShape,
    DecodeLines,
    Demand,
    Line,
    Peak,
    StageTimes,
    Work,
)
from oppo_sim.costs.lowering import Lowering

_UNBOUNDED = float("inf")
MEMORY_BOUND = Demand(1.0, 0.0)
COMPUTE_BOUND = Demand(0.0, 1.0)


@dataclass(frozen=True)
class LinearPrefill:
    """Seconds = fixed + per_token·Σn + per_pair·Σ(n·p + n²/2)."""

    fixed: float = 0.0
    per_token: float = 0.0
    per_pair: float = 0.0
    demand_shares: Demand = COMPUTE_BOUND
    work: Work | None = None
    """Of every forward; None: unknown."""

    peak: ClassVar[Peak | None] = None

    def prefill_time(self, tokens: float, pairs: float) -> float:
        return self.fixed + self.per_token * tokens + self.per_pair * pairs

    def prefill_demand(self, tokens: float, pairs: float) -> Demand:
        return self.demand_shares

    def prefill_work(self, tokens: float, pairs: float) -> Work | None:
        return self.work

    def lower_prefill(self, to: Lowering) -> None:
        to.linear(self.prefill_demand(1.0, 0.5), self.fixed, self.per_token, self.per_pair)


def verifier(fixed_s: float, per_token_s: float) -> LinearPrefill:
    """Rules on a host: seconds, and no work for the device."""
    return LinearPrefill(fixed_s, per_token_s, 0.0, NO_DEMAND, Work(0.0, 0.0))


@dataclass(frozen=True)
class LinearEngine:
    """decode = fixed + per_rollout·n + per_kv_token·kv; prefill = fixed + per_token·Σn + per_pair·Σ(n·p +
    n²/2). Seconds."""

    decode_fixed: float
    decode_per_rollout: float = 0.0
    decode_per_kv_token: float = 0.0
    prefill_fixed: float = 0.0
    prefill_per_token: float = 0.0
    prefill_per_pair: float = 0.0
    decode_demand_shares: Demand = MEMORY_BOUND
    prefill_demand_shares: Demand = COMPUTE_BOUND

    peak: ClassVar[Peak | None] = None

    def decode_time(self, n_running: int, kv_tokens: float) -> float:
        return self.decode_fixed + self.decode_per_rollout * n_running + self.decode_per_kv_token * kv_tokens

    def decode_line(self, n_running: int, kv_tokens: float) -> Line:
        fixed = self.decode_fixed + self.decode_per_rollout * n_running
        return Line(fixed, self.decode_per_kv_token, _UNBOUNDED)

    def prefill_time(self, tokens: float, pairs: float) -> float:
        return self.prefill_fixed + self.prefill_per_token * tokens + self.prefill_per_pair * pairs

    def decode_demand(self, n_running: int, kv_tokens: float) -> Demand:
        return self.decode_demand_shares

    def prefill_demand(self, tokens: float, pairs: float) -> Demand:
        return self.prefill_demand_shares

    def decode_work(self, n_running: int, kv_tokens: float) -> Work | None:
        return None

    def prefill_work(self, tokens: float, pairs: float) -> Work | None:
        return None

    def without_padding(self) -> "LinearEngine":
        return self

    def with_host(self, factor: float) -> "LinearEngine":
        return self

    def decode_lines(self, n_running: int) -> DecodeLines:
        return DecodeLines((self.decode_line(n_running, 0.0),))

    def lower_prefill(self, to: Lowering) -> None:
        coefficients = self.prefill_fixed, self.prefill_per_token, self.prefill_per_pair
        to.linear(self.prefill_demand_shares, *coefficients)


@dataclass(frozen=True)
class LinearStage:
    """Seconds = fixed + per_token·tokens + per_pair·Σ n²/2 of the trained batch."""

    fixed: float = 0.0
    per_token: float = 0.0
    per_pair: float = 0.0

    def seconds(self, tokens: float, pairs: float) -> float:
        return self.fixed + self.per_token * tokens + self.per_pair * pairs


@dataclass(frozen=True)
class LinearTraining:
    """One linear stage each; ``update_weights`` is a constant."""

    old_log_prob: LinearStage = LinearStage()
    ref: LinearStage = LinearStage()
    values: LinearStage = LinearStage()
    adv: LinearStage = LinearStage()
    update_critic: LinearStage = LinearStage()
    update_actor: LinearStage = LinearStage()
    update_weights: float = 0.0
    parallel_inference: bool = False
    demand_shares: Demand = COMPUTE_BOUND
    sync_demand_shares: Demand = MEMORY_BOUND

    peak: ClassVar[Peak | None] = None

    @property
    def _stages(self) -> tuple[LinearStage, ...]:
        """In the order of ``StageTimes``."""
        return self.old_log_prob, self.ref, self.values, self.adv, self.update_critic, self.update_actor

    def stage_times(self, batch: BatchShape) -> StageTimes:
        tokens, pairs = batch.tokens, batch.pairs
        seconds = [stage.seconds(tokens, pairs) for stage in self._stages]
        return StageTimes._make([*seconds, self.update_weights])

    def demand(self) -> Demand:
        return self.demand_shares

    def sync_demand(self) -> Demand:
        return self.sync_demand_shares

    def work(self, batch: BatchShape) -> Work | None:
        return None

    def lower_stages(self, to: Lowering) -> None:
        for stage in self._stages:
            to.linear_stage(stage.fixed, stage.per_token, stage.per_pair)
        to.training_group(self.update_weights)
