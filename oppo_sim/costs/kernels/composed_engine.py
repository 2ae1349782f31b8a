"""An inference engine of measured kernels: decode and prefill of one model on its tensor-parallel devices.

Kernels come from a ``KernelTable``, the host from its preset, sampling, work and shares of the device from
the roofline of the same engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from oppo_sim.costs.interface import DecodeLines, Demand, Line, Peak, Work, demand_of_seconds
from oppo_sim.costs.interpolate import bilinear, linear, merged
from oppo_sim.costs.kernels.table import KernelTable
from oppo_sim.costs.lowering import Lowering
from oppo_sim.costs.operators import head_groups
from oppo_sim.costs.profile import DecodeRow, DecodeTable, PrefillTable, RangeCounter
from oppo_sim.costs.roofline_engine import RooflineEngine
from oppo_sim.costs.tabulated import Knots, decode_lines_of, forward_seconds

_INFINITE = float("inf")


@dataclass(frozen=True)
class ComposedPrefill:
    """Forwards over new tokens; ``roofline.logits`` says for which of them the output head runs.

    ``counted_as``: prefill, score or score_ref, in counts of answers outside the table.
    """

    roofline: RooflineEngine
    table: KernelTable
    ranges: RangeCounter
    layer_gap_s: float = 0.0
    counted_as: str = "prefill"

    @property
    def peak(self) -> Peak | None:
        return self.roofline.peak

    def prefill_time(self, tokens: float, pairs: float) -> float:
        """Bilinear in tokens and pairs per token. Raises OppoError for a time <= 0."""
        return self._seconds(tokens, pairs, self.ranges)

    def _seconds(self, tokens: float, pairs: float, ranges: RangeCounter | None = None) -> float:
        device = forward_seconds(self._forward, tokens, pairs, self.counted_as, ranges)
        return max(device, self.roofline.launches()) + self.roofline.host.per_iteration_s

    def prefill_demand(self, tokens: float, pairs: float) -> Demand:
        seconds, parts = self._seconds(tokens, pairs), self.roofline.prefill_parts(tokens, pairs)
        return Demand(min(1.0, parts.memory_s / seconds), min(1.0, parts.arithmetic_s / seconds))

    def prefill_work(self, tokens: float, pairs: float) -> Work | None:
        return self.roofline.prefill_work(tokens, pairs)

    def lower_prefill(self, to: Lowering) -> None:
        grid = self._forward
        to.table(
            None,
            self.counted_as,
            grid.tokens,
            grid.mean_context,
            grid.seconds,
            self.roofline.host.per_iteration_s,
            self.ranges,
            self.roofline.forward,
        )

    @cached_property
    def _forward(self) -> PrefillTable:
        """Seconds of whole forwards on the device, without the host: on the knots of all its parts, so that
        nothing is lost between them."""
        rows, attention = self.table.rows, self.table.prefill_attention
        grid = merged(rows.tokens, attention.tokens)
        gaps = self.layer_gap_s * self.roofline.shape.block_pairs

        def fixed(tokens: float) -> float:
            head = {"last": 1.0, "all": tokens, "none": 0.0}[self.roofline.logits]
            return (
                gaps
                + linear(rows.tokens, rows.seconds, tokens)
                + linear(rows.tokens, rows.collectives, tokens)
                + (linear(rows.tokens, rows.head, head) if head else 0.0)
                + (self._softmax_s(tokens) if self.roofline.logits == "all" else 0.0)
            )

        def row(tokens: float) -> tuple[float, ...]:
            own, at = fixed(tokens), attention.tokens
            return tuple(
                own + bilinear(at, attention.mean_context, attention.seconds, tokens, context)
                for context in attention.mean_context
            )

        ranks = self.roofline.attention_data_parallel
        return PrefillTable(
            tokens=tuple(ranks * tokens for tokens in grid),
            mean_context=attention.mean_context,
            seconds=tuple(row(tokens) for tokens in grid),
        )

    def _softmax_s(self, rows: float) -> float:
        """Of the vocabulary for ``rows`` tokens: a draw or log-probabilities. By the roofline."""
        return head_groups(self.roofline.split, rows, normalised=True)[1].seconds


class _Device(NamedTuple):
    """Decode of one batch size on the device alone."""

    lines: tuple[Line, ...]
    within: tuple[float, float] | None
    """KV tokens at the ends of the table."""
    demand_seconds: tuple[float, float, float, float]


@dataclass(frozen=True)
class ComposedEngine(ComposedPrefill):
    """Decode, too."""

    _devices: dict[int, _Device] = field(default_factory=dict, repr=False, compare=False)
    """By batch size; shared with the same engine under another host."""
    _lines: dict[int, Knots] = field(default_factory=dict, init=False, repr=False, compare=False)

    def decode_time(self, n_running: int, kv_tokens: float) -> float:
        return self.decode_line(n_running, kv_tokens).seconds(kv_tokens)

    def decode_line(self, n_running: int, kv_tokens: float) -> Line:
        """Piecewise linear in KV; between batch sizes of the table interpolated at equal KV per rollout.

        Raises OppoError for a time <= 0.
        """
        return self._decode(n_running).answer(n_running, kv_tokens, self.ranges)

    def decode_demand(self, n_running: int, kv_tokens: float) -> Demand:
        line = self._decode(n_running).line(kv_tokens)  # nothing is counted: this is no iteration
        seconds = line.seconds(kv_tokens)
        return demand_of_seconds(self.roofline.decode_parts(n_running), kv_tokens, seconds)

    def decode_work(self, n_running: int, kv_tokens: float) -> Work | None:
        return self.roofline.decode_work(n_running, kv_tokens)

    def without_padding(self) -> "ComposedEngine":
        return replace(self, roofline=self.roofline.without_padding(), _devices={})

    def with_host(self, factor: float) -> "ComposedEngine":
        return replace(self, roofline=self.roofline.with_host(factor))

    def decode_lines(self, n_running: int) -> DecodeLines:
        return self._decode(n_running).found

    def _decode(self, n_running: int) -> Knots:
        found = self._lines.get(n_running)
        if found is None:
            found = self._lines[n_running] = self._decode_anew(n_running)
        return found

    def _decode_anew(self, n_running: int) -> Knots:
        """Where lines end, and the lines: the device, no less than the launches, and the rest of the host."""
        device = self._devices.get(n_running)
        if device is None:
            device = self._devices[n_running] = self._device(n_running)
        host = self.roofline.host
        added = host.per_iteration_s + host.per_rollout_s * n_running
        bounded = _at_least(self.roofline.launches(), device.lines)
        lines = tuple(Line(fixed + added, per_kv_token, until) for fixed, per_kv_token, until in bounded)
        found = DecodeLines(lines, device.within, device.demand_seconds)
        return Knots(tuple(line.kv_until for line in lines[:-1]), found)

    def _device(self, n_running: int) -> _Device:
        """Rows and collectives of the padded batch; head, sampling and attention of the rollouts that there
        are; of the rank that has most of them."""
        own = self.roofline.rollouts_of_a_rank(n_running)
        held = own / n_running if n_running else 1.0
        rows, padded = self.table.rows, self.roofline.padded(own)
        fixed_s = (
            self.layer_gap_s * self.roofline.shape.block_pairs
            + linear(rows.tokens, rows.seconds, padded)
            + linear(rows.tokens, rows.collectives, padded)
            + linear(rows.tokens, rows.head, own)
            + self._softmax_s(own)
        )
        attention, within, *_ = decode_lines_of(self._attention, own, 0.0).found
        factor = self.roofline.host.kv_traffic_factor
        lines = tuple(
            Line(fixed_s + factor * fixed, factor * per_kv_token * held, until / held)
            for fixed, per_kv_token, until in attention
        )
        within = within and (within[0] / held, within[1] / held)
        return _Device(lines, within, self.roofline.decode_parts(n_running))

    @cached_property
    def _attention(self) -> DecodeTable:
        found = self.table.decode_attention
        return DecodeTable(
            rows=tuple(
                DecodeRow(
                    n_running=int(n),
                    kv_tokens=tuple(n * kv for kv in found.kv_per_rollout),
                    seconds=seconds,
                )
                for n, seconds in zip(found.n_running, found.seconds, strict=True)
            )
        )


def _at_least(least: float, lines: Sequence[Line]) -> list[Line]:
    """The longer of ``least`` and the lines, split where they cross."""
    if not least:
        return list(lines)
    starts = [0.0, *(line.kv_until for line in lines)]
    found: list[Line] = []
    for start, line in zip(starts, lines, strict=False):
        end, level = line.kv_until, Line(least, 0.0, line.kv_until)
        crossing = (least - line.fixed) / line.per_kv_token if line.per_kv_token else _INFINITE
        rises = line.per_kv_token > 0
        if start < crossing < end:
            parts = [level, line] if rises else [line, level]
            found += [parts[0]._replace(kv_until=crossing), parts[1]]
        else:
            middle = start + 1.0 if end == _INFINITE else (start + end) / 2.0
            found.append(line if line.seconds(middle) >= least else level)
    # Neighbours on the level are one line.
    return [line for line, after in pairwise([*found, Line(-1.0, 0.0, _INFINITE)]) if line[:2] != after[:2]]
