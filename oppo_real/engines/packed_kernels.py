"""Variable-length attention of packed sequences.

- ``plain``: scaled-dot-product attention over groups of similar shape and single long sequences
  (``packed_plan.py``). Any device and dtype.
- ``flash``: one call of PyTorch's own FlashAttention for the whole batch, reading the arena in place through
  each sequence's start and used length. CUDA, 16-bit.
- ``varlen`` (training, where nothing is cached): ``torch.nn.attention.varlen.varlen_attn``. CUDA, 16-bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from oppo_real.engines.device import to_device
from oppo_real.engines.packed_plan import Group, PackedPlan, Span


def plain_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: PackedPlan, scale: float
) -> torch.Tensor:
    """Causal attention of every span of the plan.

    ``query`` [T, heads, d]; ``key``, ``value`` [S, kv_heads, d]: the arena, or the packed batch itself.
    Differentiable; [T, heads, d].
    """
    parts = [_group_attention(query, key, value, group, scale) for group in plan.groups]
    parts += [_single_attention(query, key, value, span, scale) for span in plan.singles]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).index_select(0, plan.order)


def _group_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: Group, scale: float
) -> torch.Tensor:
    def gathered(packed: torch.Tensor, index: torch.Tensor, count: int) -> torch.Tensor:
        return packed.index_select(0, index).view(group.rows, count, *packed.shape[1:])

    keys, values = (gathered(one, group.key_index, group.keys).transpose(1, 2) for one in (key, value))
    queries = gathered(query, group.query_index, group.queries)
    return _shared_heads(queries, keys, values, group.mask, scale).flatten(0, 1)


def _single_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, span: Span, scale: float
) -> torch.Tensor:
    queries = query[span.query_start : span.query_start + span.queries].unsqueeze(0)
    keys, values = (
        one[span.key_start : span.key_start + span.keys].transpose(0, 1).unsqueeze(0) for one in (key, value)
    )
    if span.queries > 1 and span.queries == span.keys:
        # A whole sequence: no mask tensor is needed, which lets the kernel skip what is hidden.
        shared = query.shape[1] // key.shape[1]
        keys, values = keys.repeat_interleave(shared, dim=1), values.repeat_interleave(shared, dim=1)
        out = F.scaled_dot_product_attention(
            queries.transpose(1, 2), keys, values, is_causal=True, scale=scale
        )
        return out.squeeze(0).transpose(0, 1)
    mask = None
    if span.queries > 1:
        last_seen = torch.arange(span.keys - span.queries, span.keys, device=query.device).view(-1, 1)
        hidden = torch.arange(span.keys, device=query.device).view(1, -1) > last_seen
        mask = query.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf")).view(1, 1, *hidden.shape)
    return _shared_heads(queries, keys, values, mask, scale).flatten(0, 1)


def _shared_heads(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Attention of [g, q, heads, d] to [g, kv_heads, k, d]: [g, q, heads, d]. Query heads that share a key
    head are taken as further queries, so that no key is repeated."""
    rows, count, heads, width = queries.shape
    kv_heads = keys.shape[1]
    shared = heads // kv_heads
    grouped = queries.view(rows, count, kv_heads, shared, width).permute(0, 2, 3, 1, 4)
    folded = grouped.reshape(rows, kv_heads, shared * count, width)
    if mask is not None and shared > 1 and count > 1:
        mask = mask.repeat(1, 1, shared, 1)
    out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
    unfolded = out.view(rows, kv_heads, shared, count, values.shape[3]).permute(0, 3, 1, 2, 4)
    return unfolded.reshape(rows, count, heads, values.shape[3])


@dataclass(frozen=True)
class FlashIndex:
    """What the kernel is told: int32 on the device. The last of ``key_starts`` is never read."""

    query_offsets: torch.Tensor
    key_starts: torch.Tensor
    key_lengths: torch.Tensor
    max_queries: int
    max_keys: int


def flash_index(spans: Sequence[Span], device: torch.device) -> FlashIndex:
    """Index tensors of ``spans`` in packed order."""
    count = len(spans)
    table = torch.tensor(spans, dtype=torch.int32)
    offsets = torch.zeros(count + 1, dtype=torch.int32)
    offsets[1:] = table[:, 1].cumsum(0)
    starts = torch.cat((table[:, 2], table[-1:, 2] + table[-1:, 3]))
    joined = to_device(torch.cat((offsets, starts, table[:, 3])), device)
    return FlashIndex(
        joined[: count + 1],
        joined[count + 1 : -count],
        joined[-count:],
        int(table[:, 1].max()),
        int(table[:, 3].max()),
    )


def flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, index: FlashIndex, scale: float
) -> torch.Tensor:
    """As ``plain_attention``, by one kernel; not differentiable.

    With ``seqused_k`` the kernel takes a sequence's first key from ``cum_seq_k[i]`` and its length from
    ``seqused_k[i]``, and aligns the causal mask at the end, so extents may lie anywhere (FlashAttention 2,
    block_info.h).
    """
    out = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        index.query_offsets,
        index.key_starts,
        index.max_queries,
        index.max_keys,
        0.0,
        True,
        False,
        scale=scale,
        seqused_k=index.key_lengths,
    )[0]
    assert isinstance(out, torch.Tensor)
    return out


def varlen_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, index: FlashIndex, scale: float
) -> torch.Tensor:
    """Block-causal attention of whole packed sequences, differentiable, by PyTorch's ``varlen_attn``."""
    from torch.nn.attention.varlen import varlen_attn

    shared = query.shape[1] // key.shape[1]
    out = varlen_attn(
        query,
        key.repeat_interleave(shared, dim=1),
        value.repeat_interleave(shared, dim=1),
        index.query_offsets,
        index.query_offsets,
        index.max_queries,
        index.max_queries,
        scale=scale,
        window_size=(-1, 0),
    )
    assert isinstance(out, torch.Tensor)
    return out
