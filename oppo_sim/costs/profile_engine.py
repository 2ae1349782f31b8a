"""Cost models that read a measured profile."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from oppo_sim.costs.context import StagesRun
from oppo_sim.costs.formulas import above_noise, inside
from oppo_sim.costs.interface import (
    BatchShape,
    DecodeLines,
    Demand,
    Line,
    Peak,
    StageTimes,
    Work,
    demand_of_seconds,
)
from oppo_sim.costs.interpolate import linear
from oppo_sim.costs.linear import COMPUTE_BOUND, MEMORY_BOUND
from oppo_sim.costs.lowering import Lowering
from oppo_sim.costs.profile import (
    DecodeOnDevice,
    DecodeTable,
    ForwardOnDevice,
    PrefillTable,
    RangeCounter,
    TrainingTable,
)
from oppo_sim.costs.tabulated import Knots, decode_lines_of, forward_seconds
from oppo_sim.errors import OppoError


@dataclass(frozen=True)
class ProfilePrefill:
    """Forwards from a table, named ``table`` in counts. Its padding and interference are in its numbers."""

    prefill: PrefillTable
    ranges: RangeCounter
    table: str = "prefill"
    host_prefill: float = 0.0
    prefill_shares: Demand = COMPUTE_BOUND
    prefill_on_device: ForwardOnDevice | None = None

    peak: ClassVar[Peak | None] = None

    def prefill_time(self, tokens: float, pairs: float) -> float:
        """Bilinear in tokens and pairs per token. Raises OppoError for a time <= 0."""
        return self._seconds(tokens, pairs, self.ranges)

    def _seconds(self, tokens: float, pairs: float, ranges: RangeCounter | None) -> float:
        return forward_seconds(self.prefill, tokens, pairs, self.table, ranges) + self.host_prefill

    def prefill_demand(self, tokens: float, pairs: float) -> Demand:
        """Its shares, over the seconds in which the device has a kernel."""
        if self.prefill_on_device is None:
            return self.prefill_shares
        busy, memory, arithmetic = self.prefill_on_device.seconds(tokens, pairs), *self.prefill_shares
        share = min(1.0, busy / self._seconds(tokens, pairs, None))
        return Demand(memory * share, arithmetic * share)

    def prefill_work(self, tokens: float, pairs: float) -> Work | None:
        return None

    def lower_prefill(self, to: Lowering) -> None:
        grid = self.prefill
        seconds = grid.tokens, grid.mean_context, grid.seconds
        to.table(
            self.prefill_shares,
            self.table,
            *seconds,
            self.host_prefill,
            self.ranges,
            on_device=self.prefill_on_device,
        )


@dataclass(frozen=True, kw_only=True)
class ProfileEngine(ProfilePrefill):
    """Decode, too."""

    decode: DecodeTable
    host_per_iteration: float = 0.0
    host_per_rollout: float = 0.0
    decode_shares: Demand = MEMORY_BOUND
    decode_on_device: DecodeOnDevice | None = None
    _lines: dict[int, Knots] = field(default_factory=dict, init=False, repr=False, compare=False)

    def decode_time(self, n_running: int, kv_tokens: float) -> float:
        return self.decode_line(n_running, kv_tokens).seconds(kv_tokens)

    def decode_line(self, n_running: int, kv_tokens: float) -> Line:
        """Piecewise linear in KV; between measured batch sizes interpolated at equal KV per rollout. Raises
        OppoError for a time <= 0."""
        return self._knots(n_running).answer(n_running, kv_tokens, self.ranges)

    def decode_demand(self, n_running: int, kv_tokens: float) -> Demand:
        """Its shares, over the seconds in which the device has a kernel."""
        if self.decode_on_device is None:
            return self.decode_shares
        found = self._knots(n_running)
        assert found.found.demand_seconds is not None
        line = found.line(kv_tokens)  # nothing is counted: this is no iteration
        return demand_of_seconds(found.found.demand_seconds, kv_tokens, line.seconds(kv_tokens))

    def decode_work(self, n_running: int, kv_tokens: float) -> Work | None:
        return None

    def without_padding(self) -> "ProfileEngine":
        return self

    def with_host(self, factor: float) -> "ProfileEngine":
        iteration, rollout = self.host_per_iteration * factor, self.host_per_rollout * factor
        return replace(self, host_per_iteration=iteration, host_per_rollout=rollout)

    def decode_lines(self, n_running: int) -> DecodeLines:
        return self._knots(n_running).found

    def _knots(self, n_running: int) -> Knots:
        found = self._lines.get(n_running)
        if found is None:
            host = self.host_per_iteration + self.host_per_rollout * n_running
            found = decode_lines_of(self.decode, n_running, host)
            if self.decode_on_device is not None:
                at_no_kv, per_kv_token = (
                    self.decode_on_device.at_no_kv(n_running),
                    self.decode_on_device.per_kv_token,
                )
                memory, arithmetic = self.decode_shares
                busy = (
                    memory * at_no_kv,
                    memory * per_kv_token,
                    arithmetic * at_no_kv,
                    arithmetic * per_kv_token,
                )
                found = found._replace(found=found.found._replace(demand_seconds=busy))
            self._lines[n_running] = found
        return found


@dataclass(frozen=True)
class ProfileTraining:
    """Training stages from a table by tokens of the batch."""

    table: TrainingTable
    run: StagesRun
    update_weights: float
    ranges: RangeCounter
    parallel_inference: bool
    demand_shares: Demand
    sync_shares: Demand

    peak: ClassVar[Peak | None] = None

    def stage_times(self, batch: BatchShape) -> StageTimes:
        """Raises OppoError where a stage extrapolates below zero."""
        table, tokens = self.table, batch.tokens
        if not inside(table.tokens[0], table.tokens[-1], tokens):
            self.ranges.note("training", f"{tokens} tokens")

        def stage(name: str, measured: Sequence[float] | None) -> float:
            if measured is None:
                return 0.0
            seconds = above_noise(linear(table.tokens, measured, tokens))
            if seconds < 0:
                raise OppoError(
                    f"cost profile: training.{name} extrapolates to a negative time at {tokens} tokens;"
                    " measure nearer to it"
                )
            return seconds

        passed = {name: stage(name, measured) for name, measured in self.measured().items()}
        return StageTimes(**passed, update_weights=self.update_weights)

    def measured(self) -> dict[str, Sequence[float] | None]:
        """Seconds of each stage but ``update_weights``, in order; None: not run, or not measured."""
        table, run = self.table, self.run
        return {
            "old_log_prob": table.old_log_prob if run.old_log_prob else None,
            "ref": table.ref if run.ref else None,
            "values": table.values if run.values else None,
            "adv": table.adv,
            "update_critic": table.update_critic if run.update_critic else None,
            "update_actor": table.update_actor,
        }

    def demand(self) -> Demand:
        return self.demand_shares

    def sync_demand(self) -> Demand:
        return self.sync_shares

    def work(self, batch: BatchShape) -> Work | None:
        return None

    def lower_stages(self, to: Lowering) -> None:
        for seconds in self.measured().values():
            if seconds is None:
                to.linear_stage()
            else:
                to.table_stage(self.table.tokens, seconds, self.ranges)
        to.training_group(self.update_weights)
