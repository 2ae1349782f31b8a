"""Roofline seconds of a transformer's operator groups (Williams, Waterman and Patterson, "Roofline", CACM
2009).

A group takes the longer of its arithmetic and its memory traffic at the achievable rates; groups follow one
another. All numbers are for one of the tensor-parallel devices, for a whole forward (all layers), in seconds,
floating-point operations and bytes.
"""

from collections.abc import Iterable
from math import comb
from typing import NamedTuple

from oppo_sim.costs.model_shape import ModelShape
from oppo_sim.costs.split import Split

_SOFTMAX_BYTES_PER_LOGIT = 24.0
"""Logits in bf16 read, then fp32 copies: cast, softmax and draw (or pick), each read and written."""
_ENTROPY_BYTES_PER_LOGIT = 30.0
"""Likewise of an entropy: its softmax, a product with the logits, two sums. Counted 34 where each operator
runs alone in fp32 on logits in bf16; logs of verl show 32 (docs/costs.md)."""
_ADAPTER_VALUES = 4.0
"""Of an input or output: half of 1 + 6 forward and 5 + 4 backward, as wide as each other."""
_QUERY_BLOCK = 128.0
"""Queries that share one pass over the keys in a FlashAttention kernel (Dao, "FlashAttention-2", 2023)."""


class Group(NamedTuple):
    """One operator group."""

    arithmetic_s: float
    memory_s: float
    flops: float
    bytes: float

    @property
    def seconds(self) -> float:
        return max(self.arithmetic_s, self.memory_s)


NO_WORK = Group(0.0, 0.0, 0.0, 0.0)


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
