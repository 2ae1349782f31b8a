"""Roofline seconds of a transformer's operator groups (Williams, Waterman and Patterson, "Roofline", CACM
2009).

A group takes the longer of its arithmetic and its memory traffic at the achievable rates; groups follow one
another. All numbers are for one of the tensor-parallel devices, for a whole forward (all layers), in seconds,
floating-point operations and bytes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import comb
from typing import NamedTuple

from oppo_sim.costs.achieved import Achievable, Collective, achieved, all_reduce
from oppo_sim.costs.device import Device, Dtype, value_bytes, weight_value_bytes
from oppo_sim.costs.formulas import roofline_forward
from oppo_sim.costs.model_shape import ModelShape

_SOFTMAX_BYTES_PER_LOGIT = 24.0
"""Logits in bf16 read, then fp32 copies: cast, softmax and draw (or pick), each read and written."""
_ENTROPY_BYTES_PER_LOGIT = 30.0
"""Likewise of an entropy: its softmax, a product with the logits, two sums. Counted 34 where each operator
runs alone in fp32 on logits in bf16; logs of verl show 32 (docs/costs.md)."""
_ADAPTER_VALUES = 4.0
"""Of an input or output: half of 1 + 6 forward and 5 + 4 backward, as wide as each other."""
_QUERY_BLOCK = 128.0
"""Queries that share one pass over the keys in a FlashAttention kernel (Dao, "FlashAttention-2", 2023)."""


class Rates(NamedTuple):
    """What one device achieves, per second."""

    gemm: float
    head: float
    attention: float
    memory: float
    all_reduce: Collective
    all_to_all: Collective
    """Between sequence-parallel devices; bytes that one device sends."""


class Group(NamedTuple):
    """One operator group."""

    arithmetic_s: float
    memory_s: float
    flops: float
    bytes: float

    @property
    def seconds(self) -> float:
        return max(self.arithmetic_s, self.memory_s)


_NOTHING = Group(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Split:
    """A model on ``tensor_parallel`` devices; ``kv_bytes`` of an element of the KV cache."""

    shape: ModelShape
    tensor_parallel: int
    dtype: Dtype
    kv_bytes: float
    rates: Rates
    sequence_parallel: int = 1
    """Devices among which the tokens of a sequence lie; each runs its own."""
    pipeline_parallel: int = 1
    """Stages that the layers are divided among."""
    expert_parallel: int = 1
    """Devices that the experts of a layer are divided among."""
    expert_tensor_parallel: int | None = None
    """Devices that share an expert; None: ``tensor_parallel``."""
    expert_link: Collective | None = None
    """Between the devices of the experts; bytes that one device sends. None: as ``rates.all_to_all``."""
    sequence_link: Collective | None = None
    """Likewise between sequence-parallel devices."""
    gather: Collective | None = None
    """An all-reduce between all devices of an inference engine, which gathers all tokens before its experts
    and sums what they give (vLLM's, SGLang's and TensorRT-LLM's default). None: all-to-alls."""

    @property
    def experts_apart(self) -> bool:
        """Whether experts lie on other devices than what tensor parallelism divides."""
        return self.expert_parallel > 1 or self.devices_of_an_expert != self.tensor_parallel

    @property
    def devices_of_an_expert(self) -> int:
        """That share its matrices."""
        return self.expert_tensor_parallel or self.tensor_parallel

    @property
    def expert_ranks(self) -> float:
        """Ranks whose tokens a layer's experts run together."""
        return self.expert_parallel * self.devices_of_an_expert / self.tensor_parallel

    @property
    def weight_bytes_per_param(self) -> float:
        return weight_value_bytes(self.dtype)

    @property
    def activation_bytes(self) -> float:
        """Of a value of activations, embeddings and the output head: 16 bits, also with fp8 weights."""
        return value_bytes(self.dtype)

    @property
    def kv_bytes_per_token(self) -> float:
        """On one device."""
        return self.shape.kv_bytes_per_token(self.kv_bytes, self.tensor_parallel)


def achievable_rates(
    device: Device, dtype: Dtype, shares: Achievable, degree: int = 1, link_bytes_per_s: float | None = None
) -> Rates:
    """The datasheet's rates times the achievable shares, between ``degree`` tensor-parallel devices. Raises
    OppoError for a dtype the device lacks."""
    activations = device.bf16_flops if dtype == "fp8" else device.flops(dtype)
    found = achieved(device, shares)
    link = device.link_bytes_per_s if link_bytes_per_s is None else link_bytes_per_s
    return Rates(
        gemm=device.flops(dtype) * found.gemm,
        head=activations * found.gemm,
        attention=activations * found.attention,
        memory=device.hbm_bytes_per_s * found.memory,
        all_reduce=all_reduce(device, shares, degree, link_bytes_per_s),
        all_to_all=Collective(found.collective_latency_s, link * found.link),
    )


def touched_experts(num_experts: int, per_token: int, tokens: float) -> float:
    """Expected distinct experts that ``tokens`` tokens use at uniform routing: E·(1 − (1 − k/E)^n)."""
    missed: float = (1.0 - per_token / num_experts) ** tokens
    return num_experts * (1.0 - missed)


def touched_of_slowest(num_experts: int, per_token: int, tokens: float, ranks: int) -> float:
    """Likewise, where all of the ``ranks`` that a layer's experts are divided among read as many as the one
    that reads most: the expected most of so many independent binomial numbers."""
    own, share = num_experts // ranks, touched_experts(num_experts, per_token, tokens) / num_experts
    if ranks == 1 or not 0.0 < share < 1.0:
        return num_experts * share
    below = most = 0.0
    for number in range(own):
        below += comb(own, number) * share**number * (1.0 - share) ** (own - number)
        most += 1.0 - min(below, 1.0) ** ranks
    return ranks * most


def layer_groups(
    split: Split, rows: float, touched: float | None = None, *, fused: bool = True
) -> tuple[Group, ...]:
    """Matrix products and element-wise kernels of all layers for ``rows`` tokens, without attention itself.

    ``touched`` experts of a layer are read, by all devices that hold them together; None: as many as their
    ``rows`` tokens each are expected to use. ``fused``: a norm, the rotary positions and the gate are one
    kernel each, as in a serving engine.
    """
    shape, hidden, tp = split.shape, split.shape.hidden_size, split.tensor_parallel
    # What every device holds whole counts as many times as it is computed.
    full, linear = shape.attention_layers, shape.num_linear_layers
    projections = full * (shape.attention_matrix_params + (tp - 1) * shape.replicated_attention_params)
    projections += linear * shape.linear.matrix_params
    attended = shape.attended_width + (shape.query_width if shape.attn_output_gate else 0)
    in_out = full * (2 * hidden + attended + (1 + tp) * shape.latent_width)
    in_out += linear * (2 * hidden + shape.linear.convolved_width + 2 * shape.linear.value_width)
    groups = [_gemm(split, rows, projections, projections, in_out)]
    width = 0.0
    if shape.dense_layers:
        params = shape.dense_layers * shape.dense_mlp_params
        in_out = shape.dense_layers * (2 * hidden + shape.mlp_matrices * shape.intermediate_size)
        groups.append(_gemm(split, rows, params, params, in_out))
        width += shape.dense_layers * shape.intermediate_size
    if shape.moe_layers:
        used = shape.moe_layers * (shape.num_experts_per_tok * shape.expert_params + shape.shared_mlp_params)
        if touched is None:
            touched = touched_experts(shape.num_experts, shape.num_experts_per_tok, rows * split.expert_ranks)
        own = touched * shape.expert_params / split.expert_ranks
        read = shape.moe_layers * (own + shape.shared_mlp_params)
        in_out = shape.moe_layers * shape.num_experts_per_tok
        in_out *= 2 * shape.expert_input_size + shape.mlp_matrices * shape.expert_width
        groups.append(_gemm(split, rows, used, read, in_out))
        width += shape.moe_layers * (
            shape.num_experts_per_tok * shape.expert_width + shape.shared_expert_intermediate_size
        )
    if not fused:
        return (*groups, _traffic(split, rows * _unfused_bytes(split, width)))
    # A norm of each block with its residual (read and write both), rotary positions and the gate; norms are
    # not split between devices.
    per_row = (
        4.0 * shape.num_blocks * hidden
        + 2.0 * full * shape.latent_width
        + (2.0 * full * shape.turned_width + shape.mlp_matrices * width) / tp
        + _gates(shape) / tp
    )
    groups.append(_traffic(split, rows * per_row * split.activation_bytes))
    return tuple(groups)


def permuted_group(split: Split, rows: float) -> Group:
    """Tokens are put in the order of their experts, and back: each copy is read and written twice."""
    shape = split.shape
    copies = 4.0 * rows * shape.moe_layers * shape.num_experts_per_tok / split.tensor_parallel
    return _traffic(split, copies * shape.hidden_size * split.activation_bytes)


def adapter_group(split: Split, rows: float, widths: int) -> Group:
    """Element-wise traffic of a pass with LoRA, beside linear projections of a token with so many inputs and
    outputs in all. As PEFT writes it: forward an input is read, and an output is written, scaled and added
    (six values); backward five values of an input and four of an output are moved."""
    values = _ADAPTER_VALUES * widths / split.tensor_parallel
    return _traffic(split, rows * values * split.activation_bytes)


def _gates(shape: ModelShape) -> float:
    """Values that a token's gates and convolutions read and write beside attention: an output gate, and in
    linear attention the convolution of queries, keys and values, and the output's norm with its gate."""
    gate = 3.0 * shape.output_width if shape.attn_output_gate else 0.0
    linear = 2.0 * shape.linear.convolved_width + 3.0 * shape.linear.value_width
    return shape.attention_layers * gate + shape.num_linear_layers * linear


def bounded_groups(split: Split, rows: float, decode: bool) -> tuple[Group, ...]:
    """Attention that takes as long however long a rollout is: in a decode step of ``rows`` rollouts, or of
    ``rows`` tokens of a prefill or of training. Nothing where a model has no such layers."""
    shape, groups = split.shape, []
    if shape.num_linear_layers:
        groups.append(_recurrence(split, rows, decode))
    if shape.window_layers:
        groups.append(_windows(split, rows, decode))
    return tuple(groups)


def _recurrence(split: Split, rows: float, decode: bool) -> Group:
    """The states of linear-attention layers: a decode step reads and writes that of each rollout; tokens of a
    prefill take it a chunk further at a time."""
    layer = split.shape.linear
    moved, flops = 2.0 * layer.state_bytes, layer.step_flops
    if not decode:
        own = float(layer.convolved_width + layer.value_width)
        moved, flops = moved / layer.chunk + own * split.activation_bytes, layer.chunked_flops
    of_all = rows * split.shape.num_linear_layers / split.tensor_parallel
    flops, moved = of_all * flops, of_all * moved
    return Group(flops / split.rates.attention, moved / split.rates.memory, flops, moved)


def _windows(split: Split, rows: float, decode: bool) -> Group:
    """Layers whose tokens attend to a number of others, which is taken to be reached."""
    shape, layers, tp = split.shape, split.shape.window_layers, split.tensor_parallel
    pairs = rows * layers * shape.window
    moved = pairs * shape.kv_width_on(tp) * split.kv_bytes
    # Tokens that an indexer chose are others for each token: a prefill works on latents, too.
    flops = shape.decode_attention_flops if decode or shape.index_topk else shape.pair_attention_flops
    if not decode:
        own = rows * layers * shape.attended_width * split.activation_bytes / tp
        moved = (moved if shape.index_topk else moved / _QUERY_BLOCK) + own
    flops *= pairs / tp
    return Group(flops / split.rates.attention, moved / split.rates.memory, flops, moved)


def _unfused_bytes(split: Split, width: float) -> float:
    """Of a token through all layers' element-wise operators run one by one, as the transformers library
    writes its Llama and Qwen layers: each reads its operands and writes its result. ``width``: of all layers'
    MLPs."""
    shape, value = split.shape, split.activation_bytes
    # A norm: to 32 bits, square, mean, times the root's inverse, back (no casts where values have 32 bits),
    # times the weight.
    casts = 2.0 * (value + 4.0) if value < 4.0 else 0.0
    norm = casts + 20.0 + 2.0 * value
    residual = 3.0 * value
    # Rotary positions: times cosine, half of the columns negated, both halves joined, times sine, the sum.
    rotary = 10.0 * value
    copied = 2.0 * value  # For the attention kernel, which takes heads in another order.
    gate = (5.0 if shape.gated_mlp else 2.0) * value
    heads = (rotary + (norm if shape.qk_norm else 0.0)) * shape.turned_width
    heads += copied * (shape.query_width + shape.kv_width + shape.value_width)
    of_layers = shape.num_blocks * (norm + residual) * shape.hidden_size
    of_layers += shape.attention_layers * (norm * shape.latent_width + heads / split.tensor_parallel)
    return of_layers + (gate * width + value * _gates(shape)) / split.tensor_parallel


def head_groups(split: Split, rows: float, normalised: bool) -> tuple[Group, ...]:
    """The output head for ``rows`` tokens and, where tokens are drawn or log-probabilities taken, the softmax
    over the vocabulary."""
    shape, tp = split.shape, split.tensor_parallel
    flops = 2.0 * rows * shape.lm_head_params / tp
    traffic = (shape.lm_head_params + rows * shape.vocab_size) * split.activation_bytes / tp
    head = Group(flops / split.rates.head, traffic / split.rates.memory, flops, traffic)
    softmax = _traffic(split, rows * shape.vocab_size * _SOFTMAX_BYTES_PER_LOGIT / tp)
    return (head, softmax) if normalised else (head,)


def entropy_group(split: Split, rows: float) -> Group:
    """The entropy over the vocabulary, for ``rows`` tokens."""
    logits = rows * split.shape.vocab_size / split.tensor_parallel
    return _traffic(split, logits * _ENTROPY_BYTES_PER_LOGIT)


def decode_attention(split: Split, context: float, traffic_factor: float) -> Group:
    """Attention of one new token of each rollout over ``context`` tokens in all (proportional to it)."""
    shape = split.shape
    flops = shape.decode_attention_flops * shape.full_layers * context / split.tensor_parallel
    traffic = split.kv_bytes_per_token * traffic_factor * context
    if shape.index_topk:  # attention itself is one of bounded_groups
        flops = shape.index_flops * shape.full_layers * context
        traffic = shape.index_bytes * shape.full_layers * context
    return Group(flops / split.rates.attention, traffic / split.rates.memory, flops, traffic)


def prefill_attention(split: Split, tokens: float, pairs: float) -> Group:
    """Attention of ``tokens`` new tokens over ``pairs`` query-key pairs, as one FlashAttention kernel a
    layer. Latent attention reads keys and values that were made of the latents; those of the past are made
    again, which is not counted."""
    shape, layers = split.shape, split.shape.full_layers
    if shape.index_topk:
        flops = shape.index_flops * layers * pairs
        traffic = shape.index_bytes * layers * (tokens + pairs / _QUERY_BLOCK)
        return Group(flops / split.rates.attention, traffic / split.rates.memory, flops, traffic)
    flops = shape.pair_attention_flops * layers * pairs / split.tensor_parallel
    own = tokens * layers * shape.attended_width
    own = own * split.activation_bytes / split.tensor_parallel
    read = split.kv_bytes_per_token
    if shape.latent:
        read = layers * (shape.kv_width + shape.value_width) * split.activation_bytes / split.tensor_parallel
    traffic = own + read * pairs / _QUERY_BLOCK
    return Group(flops / split.rates.attention, traffic / split.rates.memory, flops, traffic)


def collectives_seconds(split: Split, rows: float) -> float:
    """Between the devices of one replica or rank: an all-reduce of ``rows`` hidden vectors a block with
    tensor parallelism, four all-to-alls with sequence parallelism (queries, keys, values, attention output:
    Jacobs et al., "DeepSpeed Ulysses", 2023; KV heads are repeated where there are too few), hidden vectors
    to their experts and back, and from each stage of a pipeline to the next."""
    shape, seconds = split.shape, tensor_parallel_seconds(split, rows)
    if split.experts_apart and shape.moe_layers:
        seconds += shape.moe_layers * _expert_exchange_seconds(split, rows)
    if split.sequence_parallel > 1:
        latency_s, bytes_per_s = split.sequence_link or split.rates.all_to_all
        degree = split.sequence_parallel
        repeated = max(shape.kv_heads, degree) / shape.kv_heads
        size = shape.query_width + shape.output_width + repeated * (shape.kv_width + shape.value_width)
        size *= rows * split.activation_bytes
        sent = size / split.tensor_parallel * (degree - 1) / degree
        seconds += shape.mixing_layers * (4 * latency_s + sent / bytes_per_s)
    if split.pipeline_parallel > 1:
        latency_s, bytes_per_s = split.rates.all_to_all
        sent = rows * shape.hidden_size * split.activation_bytes / split.tensor_parallel
        seconds += (split.pipeline_parallel - 1) * (latency_s + sent / bytes_per_s)
    return seconds


def tensor_parallel_seconds(split: Split, rows: float) -> float:
    """Of ``collectives_seconds``, the all-reduces of tensor parallelism."""
    shape = split.shape
    if split.tensor_parallel == 1:
        return 0.0
    latency_s, bytes_per_s = split.rates.all_reduce
    size = rows * shape.hidden_size * split.activation_bytes
    reduced = shape.num_blocks
    moved = split.experts_apart and (split.gather is None or split.expert_ranks > 1)
    if moved and not shape.shared_expert_intermediate_size:
        reduced -= shape.moe_layers
    return reduced * (latency_s + size / bytes_per_s)


def _expert_exchange_seconds(split: Split, rows: float) -> float:
    """Of one layer: each device sends a copy of its tokens' hidden vectors to each expert that they use, and
    gets as many back (Lepikhin et al., "GShard", 2020, §3.2); devices that share an expert gather what each
    of them got, and scatter their sums. Tokens of a rank lie on its tensor-parallel devices (Megatron's
    sequence parallelism), and are routed uniformly."""
    if split.gather is not None:
        # Where every rank has all tokens already, the sum is tensor parallelism's all-reduce.
        latency_s, bytes_per_s = split.gather
        size = rows * split.expert_ranks * split.shape.hidden_size * split.activation_bytes
        return 2 * latency_s + size / bytes_per_s if split.expert_ranks > 1 else 0.0
    latency_s, bytes_per_s = split.expert_link or split.rates.all_to_all
    degree, shared = split.expert_parallel, split.devices_of_an_expert
    used = split.shape.num_experts_per_tok * split.shape.expert_input_size * split.activation_bytes
    size = rows / split.tensor_parallel * used
    exchanges = 2 * (degree > 1) + 2 * (shared > 1)
    sent = 2.0 * size * (degree - 1) / degree + 2.0 * size * (shared - 1)
    return exchanges * latency_s + sent / bytes_per_s


class Terms(NamedTuple):
    """An operator group whose parts are affine in tokens and touched experts: at none of both, and what one
    of each adds."""

    fixed: Group
    per_token: Group
    per_expert: Group


def affine_terms(groups_at: Callable[[float, float], tuple[Group, ...]]) -> tuple[Terms, ...]:
    """The groups of ``groups_at(tokens, touched experts)`` as terms."""

    def added(more: Group, none: Group) -> Group:
        return Group(*(b - a for a, b in zip(none, more, strict=True)))

    ends = zip(groups_at(0.0, 0.0), groups_at(1.0, 0.0), groups_at(0.0, 1.0), strict=True)
    return tuple(Terms(none, added(token, none), added(expert, none)) for none, token, expert in ends)


class ForwardTerms(NamedTuple):
    """A forward over new tokens in numbers; seconds, operations and bytes of one device.

    seconds = max(Σ longer(group) + latency_s + collective_s_per_token · tokens, least_s) + host_s, where a
    group is longer by its arithmetic or its traffic.
    """

    groups: tuple[tuple[float, ...], ...]
    """Attention (of a token, of a query-key pair), then each other group (``Terms``), the numbers of its
    three ``Group`` one after the other."""
    latency_s: float
    collective_s_per_token: float
    least_s: float
    host_s: float
    experts: int
    """Of a layer; 0: none."""
    missed: float
    """Share of the experts that a token, and one of each other rank whose experts lie with its own, does not
    use."""
    devices: int

    def at(self, tokens: float, pairs: float) -> tuple[float, Group]:
        """Seconds, and the parts of one device."""
        seconds, *parts = roofline_forward(
            self.groups,
            0,
            len(self.groups),
            self.experts,
            self.missed,
            self.latency_s,
            self.collective_s_per_token,
            self.least_s,
            self.host_s,
            tokens,
            pairs,
        )
        return seconds, Group(*parts)

    def over(self, ranks: int) -> "ForwardTerms":
        """Of tokens and pairs that so many ranks share evenly, each on its own ``devices``."""

        def shared(group: tuple[float, ...], first: int, last: int) -> tuple[float, ...]:
            return (*group[:first], *(number / ranks for number in group[first:last]), *group[last:])

        attention, *others = self.groups
        return self._replace(
            groups=(shared(attention, 0, 8), *(shared(group, 4, 8) for group in others)),
            collective_s_per_token=self.collective_s_per_token / ranks,
            missed=self.missed ** (1.0 / ranks),
            devices=self.devices * ranks,
        )


def forward_terms(
    split: Split,
    groups_at: Callable[[float, float], tuple[Group, ...]],
    layer_latency_s: float,
    least_s: float = 0.0,
    host_s: float = 0.0,
    collectives: float = 1.0,
    attention: float = 1.0,
    tp_comm_overlap: bool = False,
) -> ForwardTerms:
    """The forward of a model: attention, the groups of ``groups_at(tokens, touched experts)``, collectives,
    and ``layer_latency_s`` of all layers. ``collectives`` and ``attention`` are factors on the seconds of
    both. ``tp_comm_overlap``: all-reduces run beside the matrix products."""
    shape = split.shape

    def attended(tokens: float, pairs: float) -> Group:
        group = prefill_attention(split, tokens, pairs)
        return group._replace(
            arithmetic_s=attention * group.arithmetic_s, memory_s=attention * group.memory_s
        )

    of_attention = Terms(attended(1.0, 0.0), attended(0.0, 1.0), _NOTHING)
    terms = (of_attention, *affine_terms(groups_at))
    none, one = (collectives * collectives_seconds(split, rows) for rows in (0.0, 1.0))
    if tp_comm_overlap:
        hidden, reduced = (collectives * tensor_parallel_seconds(split, rows) for rows in (0.0, 1.0))
        none -= hidden
        one -= hidden + min(reduced - hidden, sum(per_token.arithmetic_s for _, per_token, _ in terms[1:]))
    return ForwardTerms(
        tuple((*fixed, *per_token, *per_expert) for fixed, per_token, per_expert in terms),
        layer_latency_s + none,
        one - none,
        least_s,
        host_s,
        shape.num_experts,
        (1.0 - shape.num_experts_per_tok / shape.num_experts) ** split.expert_ranks
        if shape.num_experts
        else 0.0,
        split.tensor_parallel,
    )


def total(groups: Iterable[Group]) -> tuple[float, Group]:
    """Seconds of groups one after the other, and the sums of their parts."""
    seconds = arithmetic = memory = flops = traffic = 0.0
    for group in groups:
        seconds += group.seconds
        arithmetic += group.arithmetic_s
        memory += group.memory_s
        flops += group.flops
        traffic += group.bytes
    return seconds, Group(arithmetic, memory, flops, traffic)


def _gemm(split: Split, rows: float, used: float, read: float, in_out: float) -> Group:
    """Matrix products: ``used`` parameters a row, ``read`` ones from memory, ``in_out`` elements a row."""
    flops = 2.0 * rows * used / split.tensor_parallel
    traffic = read * split.weight_bytes_per_param + rows * in_out * split.activation_bytes
    traffic /= split.tensor_parallel
    return Group(flops / split.rates.gemm, traffic / split.rates.memory, flops, traffic)


def _traffic(split: Split, size: float) -> Group:
    return Group(0.0, size / split.rates.memory, 0.0, size)
