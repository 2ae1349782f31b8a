"""An inference engine by roofline: decode and prefill of one model on its tensor-parallel devices."""

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

from oppo_sim.costs.achieved import Achievable, Nodes, achieved, all_reduce_over
from oppo_sim.costs.collectives import collectives_seconds
from oppo_sim.costs.device import Device, Dtype
from oppo_sim.costs.forward_terms import ForwardTerms, forward_terms
from oppo_sim.costs.hosts import HOST_SECONDS, HOSTS, HostOverheads
from oppo_sim.costs.interface import DecodeLines, Demand, Line, Peak, Work
from oppo_sim.costs.lowering import Lowering
from oppo_sim.costs.model_shape import ModelShape
from oppo_sim.costs.operators import (
    Group,
    bounded_groups,
    decode_attention,
    head_groups,
    layer_groups,
    total,
    touched_of_slowest,
)
from oppo_sim.costs.split import Rates, Split, achievable_rates

_INFINITE = float("inf")

ASSUMED = Achievable()

Logits = Literal["last", "all", "none"]


class _Decode(NamedTuple):
    """What is known of an iteration of n rollouts; pairs are (fixed, per KV token), per device except
    ``work``.

    A negative knee means that the device always bounds it.
    """

    knee: float
    below: Line
    above: Line
    arithmetic: tuple[float, float]
    memory: tuple[float, float]
    work: tuple[float, float, float, float]


@dataclass(frozen=True)
class RooflineEngine:
    """One replica or scoring worker. ``logits``: which prefilled tokens the output head runs for."""

    shape: ModelShape
    device: Device
    tensor_parallel: int = 1
    """Devices; what the two last fields say of it is divided otherwise."""
    dtype: Dtype = "bf16"
    kv_bytes: float = 2.0
    achievable: Achievable = ASSUMED
    host: HostOverheads = HOSTS["vllm"]
    logits: Logits = "last"
    pad: bool = True
    expert_parallel: int = 1
    """Ranks that the experts of a layer are divided among."""
    attention_data_parallel: int = 1
    """Ranks that each have attention, and all but the experts, and rollouts of their own."""
    nodes: Nodes | None = None
    """Where its devices do not all lie in one."""
    _decodes: dict[int, _Decode] = field(default_factory=dict, init=False, repr=False, compare=False)
    _last_prefill: tuple[tuple[float, float], tuple[float, Group]] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    @cached_property
    def split(self) -> Split:
        """The model as it lies on the devices; of one rank."""
        rates = self._rates(self.tensor_parallel)
        whole = Split(self.shape, self.tensor_parallel, self.dtype, self.kv_bytes, rates)
        if self.expert_parallel == self.attention_data_parallel == 1:
            return whole
        degree = self.tensor_parallel // self.attention_data_parallel
        return replace(
            whole,
            tensor_parallel=degree,
            rates=self._rates(degree),
            expert_parallel=self.expert_parallel,
            expert_tensor_parallel=self.tensor_parallel // self.expert_parallel,
            gather=rates.all_reduce,
        )

    def _rates(self, degree: int) -> Rates:
        """Of so many of its devices that share matrices; those of a rank lie side by side."""
        rates = achievable_rates(self.device, self.dtype, self.achievable, degree)
        return rates._replace(all_reduce=all_reduce_over(self.device, self.achievable, degree, self.nodes))

    def rollouts_of_a_rank(self, n_running: int) -> int:
        """Of the rank that has most, where ranks share them evenly."""
        return -(-n_running // self.attention_data_parallel)

    @property
    def peak(self) -> Peak | None:
        """Datasheet rates of all the engine's devices."""
        flops, degree = self.device.flops(self.dtype), self.tensor_parallel
        return Peak(flops * degree, self.device.hbm_bytes_per_s * degree)

    def padded(self, n_running: int) -> int:
        """Rows that are computed for ``n_running`` rollouts."""
        sizes = self.host.captured_batch_sizes if self.pad else ()
        place = bisect_left(sizes, n_running)
        return sizes[place] if place < len(sizes) else n_running

    def decode_time(self, n_running: int, kv_tokens: float) -> float:
        found = self._decodes.get(n_running) or self._decode(n_running)
        line = found.below if kv_tokens <= found.knee else found.above
        return line.seconds(kv_tokens)

    def decode_line(self, n_running: int, kv_tokens: float) -> Line:
        found = self._decodes.get(n_running) or self._decode(n_running)
        return found.below if kv_tokens <= found.knee else found.above

    def decode_demand(self, n_running: int, kv_tokens: float) -> Demand:
        found = self._decodes.get(n_running) or self._decode(n_running)
        seconds = self.decode_time(n_running, kv_tokens)
        memory = found.memory[0] + found.memory[1] * kv_tokens
        arithmetic = found.arithmetic[0] + found.arithmetic[1] * kv_tokens
        return Demand(min(1.0, memory / seconds), min(1.0, arithmetic / seconds))

    def decode_work(self, n_running: int, kv_tokens: float) -> Work | None:
        """Useful operations (padding rows are none) and traffic of all devices."""
        found = self._decodes.get(n_running) or self._decode(n_running)
        flops, per_kv_flops, traffic, per_kv_traffic = found.work
        return Work(flops + per_kv_flops * kv_tokens, traffic + per_kv_traffic * kv_tokens)

    def prefill_time(self, tokens: float, pairs: float) -> float:
        return self._prefill(tokens, pairs)[0]

    def prefill_demand(self, tokens: float, pairs: float) -> Demand:
        seconds, parts = self._prefill(tokens, pairs)
        return Demand(min(1.0, parts.memory_s / seconds), min(1.0, parts.arithmetic_s / seconds))

    def prefill_work(self, tokens: float, pairs: float) -> Work | None:
        parts = self._prefill(tokens, pairs)[1]
        return Work(parts.flops * self.tensor_parallel, parts.bytes * self.tensor_parallel)

    def decode_parts(self, n_running: int) -> tuple[float, float, float, float]:
        """Seconds of memory traffic (at no KV, a KV token) and of arithmetic (the same) of an iteration."""
        found = self._decodes.get(n_running) or self._decode(n_running)
        return (*found.memory, *found.arithmetic)

    def prefill_parts(self, tokens: float, pairs: float) -> Group:
        """Seconds, operations and bytes of one device."""
        return self._prefill(tokens, pairs)[1]

    def without_padding(self) -> "RooflineEngine":
        return replace(self, pad=False)

    def with_host(self, factor: float) -> "RooflineEngine":
        # A prefill's host is left as it is: this is queried for decode.
        return replace(self, host=self.host.times(factor, *HOST_SECONDS))

    def _prefill(self, tokens: float, pairs: float) -> tuple[float, Group]:
        """Seconds with the host's part, and the device's parts. The last is kept: time, demand and work of a
        batch are queried in turn."""
        if self._last_prefill is not None and self._last_prefill[0] == (tokens, pairs):
            return self._last_prefill[1]
        answer = self.forward.at(tokens, pairs)
        object.__setattr__(self, "_last_prefill", ((tokens, pairs), answer))
        return answer

    @cached_property
    def forward(self) -> ForwardTerms:
        """A prefill in numbers."""
        launches, host_s = self.launches(), self.host.per_iteration_s
        terms = forward_terms(self.split, self._row_groups, self._layer_latency(), launches, host_s)
        ranks = self.attention_data_parallel
        return terms if ranks == 1 else terms.over(ranks)

    def decode_lines(self, n_running: int) -> DecodeLines:
        found = self._decodes.get(n_running) or self._decode(n_running)
        lines = (found.above,) if found.knee < 0 else (found.below, found.above)
        return DecodeLines(lines, None, self.decode_parts(n_running))

    def lower_prefill(self, to: Lowering) -> None:
        to.roofline(self.forward)

    def _row_groups(self, tokens: float, touched: float) -> tuple[Group, ...]:
        """Everything of a prefill that depends on its tokens alone."""
        rows = {"last": 1.0, "all": tokens, "none": 0.0}[self.logits]
        head = head_groups(self.split, rows, normalised=self.logits == "all") if self.logits != "none" else ()
        bounded = bounded_groups(self.split, tokens, decode=False)
        return (*layer_groups(self.split, tokens, touched), *bounded, *head)

    def _layer_latency(self) -> float:
        known, shape = achieved(self.device, self.achievable), self.shape
        more = known.latent_layer_latency_s if shape.latent else 0.0
        of_all = shape.block_pairs * (known.layer_latency_s + more)
        return of_all + shape.moe_layers * known.expert_layer_latency_s

    def launches(self) -> float:
        """Seconds that the host needs to start the kernels of an iteration."""
        return self.shape.block_pairs * self.host.launch_per_layer_s

    def _decode(self, n_running: int) -> _Decode:
        """Both lines of n_running rollouts: the host's launches bound it below the knee, the device above."""
        split, own = self.split, self.rollouts_of_a_rank(n_running)
        rows, held = self.padded(own), own / n_running if n_running else 1.0
        bounded = bounded_groups(split, rows, decode=True)
        head = head_groups(split, own, normalised=True)
        seconds, parts = total((*layer_groups(split, rows, self._touched(rows)), *bounded, *head))
        per_token = decode_attention(split, held, self.host.kv_traffic_factor)
        slope = per_token.seconds
        # Each rollout also attends to its own new token, hence n_running further tokens of context.
        device = seconds + slope * n_running + self._layer_latency() + collectives_seconds(split, rows)
        host = self.host.per_iteration_s + self.host.per_rollout_s * n_running
        knee = (self.launches() - device) / slope
        useful = 2.0 * n_running * (self.shape.active_matrix_params + self.shape.lm_head_params)
        # Work is that of all ranks, of which others hold less than the one that is waited for.
        tp, mean = self.tensor_parallel, 1.0 / (held * self.attention_data_parallel)
        found = _Decode(
            knee=knee,
            below=Line(self.launches() + host, 0.0, knee),
            above=Line(device + host, slope, _INFINITE),
            arithmetic=(parts.arithmetic_s + per_token.arithmetic_s * n_running, per_token.arithmetic_s),
            memory=(parts.memory_s + per_token.memory_s * n_running, per_token.memory_s),
            work=(
                useful + per_token.flops * mean * tp * n_running,
                per_token.flops * mean * tp,
                (parts.bytes + per_token.bytes * mean * n_running) * tp,
                per_token.bytes * mean * tp,
            ),
        )
        self._decodes[n_running] = found
        return found

    def _touched(self, rows: int) -> float | None:
        """Experts of a layer that decoding reads, as if every rank read as many as the one with most; None:
        they are not divided among ranks."""
        if self.expert_parallel == 1:
            return None
        shape, tokens = self.shape, rows * self.split.expert_ranks
        return touched_of_slowest(shape.num_experts, shape.num_experts_per_tok, tokens, self.expert_parallel)
