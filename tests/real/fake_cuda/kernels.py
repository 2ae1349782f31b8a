"""What PyTorch's CUDA-only kernels compute, by their definition, and what they demand of their arguments."""

from __future__ import annotations

from typing import Any

import torch

from tests.real.fake_cuda.order import CudaMisuse


def flash_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cum_seq_q: torch.Tensor,
    cum_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    seqused_k: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    """``aten._flash_attention_forward`` of packed sequences: a causal mask aligned at the end. Beside the first
    result nothing is computed."""
    count = len(cum_seq_q) - 1
    _demand(query.dtype in (torch.float16, torch.bfloat16), f"16-bit numbers, not {query.dtype}")
    _demand(query.dtype == key.dtype == value.dtype, "one dtype")
    _demand(cum_seq_q.dtype == cum_seq_k.dtype == torch.int32, "int32 offsets")
    _demand(len(cum_seq_k) == count + 1, "as many key offsets as query offsets")
    _demand(
        seqused_k is None or (len(seqused_k) == count and seqused_k.dtype == torch.int32), "int32 key lengths"
    )
    _demand(query.shape[2] <= 256 and query.shape[2] % 8 == 0, "heads of at most 256, a multiple of 8")
    _demand(query.stride(2) == key.stride(2) == value.stride(2) == 1, "contiguous heads")
    _demand(query.shape[1] % key.shape[1] == 0, "query heads shared evenly")
    shared = query.shape[1] // key.shape[1]
    out = torch.zeros_like(query)
    for number in range(count):
        begin, end = int(cum_seq_q[number]), int(cum_seq_q[number + 1])
        first = int(cum_seq_k[number])
        keys = int(cum_seq_k[number + 1]) - first if seqused_k is None else int(seqused_k[number])
        _demand(end - begin <= max_q and keys <= max_k, "max_q and max_k that bound every sequence")
        _demand(first >= 0 and first + keys <= len(key), "keys inside the arena")
        out[begin:end] = attend(
            query[begin:end], key[first : first + keys], value[first : first + keys], shared, scale, is_causal
        )
    state = query.new_zeros(2, dtype=torch.uint64)
    return (
        out,
        query.new_zeros(query.shape[1::-1], dtype=torch.float32),
        state,
        state[0].clone(),
        query.new_zeros(0),
    )


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    shared: int,
    scale: float | None,
    causal: bool,
) -> torch.Tensor:
    """One sequence: [q, heads, d] over [k, kv_heads, d]."""
    keys, values = (one.float().repeat_interleave(shared, dim=1) for one in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys) * (scale or query.shape[2] ** -0.5)
    if causal:
        seen = torch.ones(scores.shape[1:], dtype=torch.bool).tril(scores.shape[2] - scores.shape[1])
        scores = scores.masked_fill(~seen, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(query.dtype)


def dense_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """``scaled_dot_product_attention`` in operations that check devices; differentiable."""
    if enable_gqa:
        shared = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    scores = query.float() @ key.float().transpose(-1, -2) * (scale or query.shape[-1] ** -0.5)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    if attn_mask is not None:
        _demand(attn_mask.dtype in (torch.bool, query.dtype), "a mask of bool or of the queries' dtype")
        bool_mask = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, float("-inf")) if bool_mask else scores + attn_mask
    return (scores.softmax(-1) @ value.float()).to(query.dtype)


def varlen_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    *options: Any,
) -> tuple[torch.Tensor, ...]:
    """``torch_attn._varlen_attn``."""
    return flash_forward(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, 0.0, is_causal, False, scale=scale
    )[:3]


def varlen_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool,
    rng_state: torch.Tensor,
    scale: float | None = None,
    *options: Any,
) -> tuple[torch.Tensor, ...]:
    """``torch_attn._varlen_attn_backward``: gradients of query, key and value, of as many heads each. By the
    chain rule: autograd does not record below the dispatcher."""
    _demand(query.shape[1] == key.shape[1], "as many heads of keys as of queries here")
    factor = scale or query.shape[2] ** -0.5
    grads = [torch.zeros_like(one) for one in (query, key, value)]
    for number in range(len(cu_seq_q) - 1):
        part = slice(int(cu_seq_q[number]), int(cu_seq_q[number + 1]))
        q, k, v, toward = (one[part].float().transpose(0, 1) for one in (query, key, value, gradient))
        scores = q @ k.transpose(1, 2) * factor
        if is_causal:
            hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        weights = scores.softmax(-1)
        rise = toward @ v.transpose(1, 2)
        turn = weights * (rise - (rise * weights).sum(-1, keepdim=True)) * factor
        for grad, found in zip(
            grads, (turn @ k, turn.transpose(1, 2) @ q, weights.transpose(1, 2) @ toward), strict=True
        ):
            grad[part] = found.transpose(0, 1).to(grad.dtype)
    return tuple(grads)


def _demand(held: bool, what: str) -> None:
    if not held:
        raise CudaMisuse(f"the attention kernel wants {what}")
