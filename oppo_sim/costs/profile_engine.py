"""Cost models that read a measured profile."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, NamedTuple

from oppo_sim.costs.context import StagesRun
from oppo_sim.costs.formulas import inside
from oppo_sim.costs.interface import BatchShape, DecodeLines, Demand, Line, Peak, StageTimes, Work
from oppo_sim.costs.interpolate import bilinear, line_at, linear, merged
from oppo_sim.costs.linear import COMPUTE_BOUND, MEMORY_BOUND
from oppo_sim.costs.lowering import Lowering
from oppo_sim.costs.profile import DecodeRow, DecodeTable, PrefillTable, RangeCounter, TrainingTable
from oppo_sim.errors import OppoError

_INFINITE = float("inf")


class _Knots(NamedTuple):
    """Decode of one batch size: line i answers KV up to knot i, the last one beyond."""

    knots: tuple[float, ...]
    found: DecodeLines


@dataclass(frozen=True)
class ProfilePrefill:
    """Forwards from a table, named ``table`` in counts. Its padding and interference are in its numbers."""

    prefill: PrefillTable
    ranges: RangeCounter
    table: str = "prefill"
    host_prefill: float = 0.0
    prefill_shares: Demand = COMPUTE_BOUND

    peak: ClassVar[Peak | None] = None

    def prefill_time(self, tokens: float, pairs: float) -> float:
        """Bilinear in tokens and pairs per token. Raises OppoError for a time <= 0."""
        table, context = self.prefill, pairs / tokens
        if not (
            inside(table.tokens[0], table.tokens[-1], tokens)
            and inside(table.mean_context[0], table.mean_context[-1], context)
        ):
            self.ranges.note(self.table, f"{tokens:g} tokens, mean context {context:g}")
        seconds = bilinear(table.tokens, table.mean_context, table.seconds, tokens, context)
        if seconds <= 0:
            asked = f"{tokens:g} tokens, mean context {context:g}"
            raise OppoError(
                f"cost profile: {self.table} extrapolates to no time at all at {asked}; measure nearer to it"
            )
        return seconds + self.host_prefill

    def prefill_demand(self, tokens: float, pairs: float) -> Demand:
        return self.prefill_shares

    def prefill_work(self, tokens: float, pairs: float) -> Work | None:
        return None

    def lower_prefill(self, to: Lowering) -> None:
        grid = self.prefill
        seconds = grid.tokens, grid.mean_context, grid.seconds
        to.table(self.prefill_shares, self.table, *seconds, self.host_prefill, self.ranges)


@dataclass(frozen=True, kw_only=True)
class ProfileEngine(ProfilePrefill):
    """Decode, too."""

    decode: DecodeTable
    host_per_iteration: float = 0.0
    host_per_rollout: float = 0.0
    decode_shares: Demand = MEMORY_BOUND
    _lines: dict[int, _Knots] = field(default_factory=dict, init=False, repr=False, compare=False)

    def decode_time(self, n_running: int, kv_tokens: float) -> float:
        line = self.decode_line(n_running, kv_tokens)
        return line.fixed + line.per_kv_token * kv_tokens

    def decode_line(self, n_running: int, kv_tokens: float) -> Line:
        """Piecewise linear in KV; between measured batch sizes interpolated at equal KV per rollout. Raises
        OppoError for a time <= 0."""
        knots, (lines, measured, *_) = self._knots(n_running)
        line = lines[bisect_left(knots, kv_tokens)]
        if measured is None or not inside(*measured, kv_tokens):
            self.ranges.note("decode", f"n_running {n_running}, kv_tokens {kv_tokens:g}")
        furthest = line.kv_until if line.per_kv_token < 0 else kv_tokens
        if line.fixed + line.per_kv_token * furthest <= 0:
            asked = f"n_running {n_running}, kv_tokens {kv_tokens:g}"
            raise OppoError(
                f"cost profile: decode extrapolates to no time at all at {asked}; measure nearer to it"
            )
        return line

    def decode_demand(self, n_running: int, kv_tokens: float) -> Demand:
        return self.decode_shares

    def decode_work(self, n_running: int, kv_tokens: float) -> Work | None:
        return None

    def without_padding(self) -> "ProfileEngine":
        return self

    def with_host(self, factor: float) -> "ProfileEngine":
        iteration, rollout = self.host_per_iteration * factor, self.host_per_rollout * factor
        return replace(self, host_per_iteration=iteration, host_per_rollout=rollout)

    def decode_lines(self, n_running: int) -> DecodeLines:
        return self._knots(n_running).found

    def _knots(self, n_running: int) -> _Knots:
        found = self._lines.get(n_running)
        if found is None:
            host = self.host_per_iteration + self.host_per_rollout * n_running
            found = self._lines[n_running] = decode_lines_of(self.decode, n_running, host)
        return found


def decode_lines_of(table: DecodeTable, n_running: int, host: float) -> _Knots:
    """Lines of one batch size from the rows on both sides of it (the two nearest outside)."""
    weighted = _rows_of(table, n_running)
    scaled = [[kv * n_running / row.n_running for kv in row.kv_tokens] for row, _ in weighted]
    knots = merged(*scaled)
    low, high = max(grid[0] for grid in scaled), min(grid[-1] for grid in scaled)
    if not table.rows[0].n_running <= n_running <= table.rows[-1].n_running:
        low, high = 1.0, 0.0  # nothing is inside
    middles = [knots[0] - 1.0, *((a + b) / 2.0 for a, b in pairwise(knots)), knots[-1] + 1.0]
    lines = []
    for middle, until in zip(middles, [*knots, _INFINITE], strict=True):
        fixed, slope = host, 0.0
        for row, weight in weighted:
            share = row.n_running / n_running
            at_zero, rise = line_at(row.kv_tokens, row.seconds, middle * share)
            fixed += weight * at_zero
            slope += weight * rise * share
        lines.append(Line(fixed, slope, until))
    last = lines[-1]
    if last.per_kv_token < 0:  # noise at the end of a row must not lead to negative times far beyond it
        lines[-1] = Line(last.fixed + last.per_kv_token * knots[-1], 0.0, _INFINITE)
    return _Knots(tuple(knots), DecodeLines(tuple(lines), (low, high)))


def _rows_of(table: DecodeTable, n_running: int) -> list[tuple[DecodeRow, float]]:
    rows = table.rows
    for row in rows:
        if row.n_running == n_running:
            return [(row, 1.0)]
    place = bisect_left([row.n_running for row in rows], n_running)
    i = min(max(place - 1, 0), len(rows) - 2)
    weight = (n_running - rows[i].n_running) / (rows[i + 1].n_running - rows[i].n_running)
    return [(rows[i], 1.0 - weight), (rows[i + 1], weight)]


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
            seconds = linear(table.tokens, measured, tokens)
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
