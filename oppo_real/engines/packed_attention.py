"""Variable-length attention of a packed batch, registered with transformers as ``oppo_packed``.

Paths, chosen by probing and never by version:

- ``plain``: scaled-dot-product attention over groups of similar shape and single long sequences
  (``packed_plan.py``). Any device and dtype.
- ``flash``: one call of PyTorch's own FlashAttention for the whole batch, reading the arena in place through
  each sequence's start and used length. CUDA, 16-bit. Used only after ``verify_attention`` found it equal to
  the plain path on that device.
- ``varlen`` (training, where nothing is cached): ``torch.nn.attention.varlen.varlen_attn``, CUDA, 16-bit,
  checked likewise, with gradients.

The CUDA paths ran on an H100 with PyTorch 2.11, where all checks passed (experiments/gpu); elsewhere they are
trusted only as far as these checks go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
import torch.nn.functional as F

from oppo_real.engines.device import to_device
from oppo_real.engines.packed_plan import Group, PackedPlan, Span, make_plan
from oppo_real.engines.packed_store import KVStore
from oppo_sim.errors import OppoError

IMPLEMENTATION = "oppo_packed"
"""Name under which the attention is registered with transformers."""

AttentionPath = Literal["plain", "flash", "varlen"]


# ---- the plain path ----------------------------------------------------------------------------------------


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


# ---- the CUDA paths ----------------------------------------------------------------------------------------


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


# ---- a batch, as the layers see it -------------------------------------------------------------------------


@dataclass
class PackedBatch:
    """One forward: over whole sequences (differentiable), or with a ``store`` behind what is cached there."""

    spans: Sequence[Span]
    store: KVStore | None = None
    write_index: torch.Tensor | None = None
    """Places of the new tokens in the store."""
    index: FlashIndex | None = None
    plan: PackedPlan | None = None
    fast: bool = True
    """False: the plain path even where a fast one was verified."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """[T, heads, d] of one layer."""
        if self.store is not None:
            assert self.write_index is not None
            self.store.write(layer, self.write_index, key, value)
            key, value = self.store.keys(layer), self.store.values(layer)
        if self.index is None and self.plan is None:
            self._choose(query, key)
        if self.index is not None:
            kernel = varlen_attention if self.store is None else flash_attention
            return kernel(query, key, value, self.index, scale)
        assert self.plan is not None
        return plain_attention(query, key, value, self.plan, scale)

    def _choose(self, query: torch.Tensor, key: torch.Tensor) -> None:
        fastest = training_path if self.store is None else cached_path
        shape = (query.device, query.dtype, query.shape[1], key.shape[1], query.shape[2])
        if self.fast and fastest(*shape) != "plain":
            self.index = flash_index(self.spans, query.device)
        else:
            bytes_per_key = 2 * key[0].numel() * key.element_size()
            self.plan = make_plan(self.spans, bytes_per_key, query.dtype, query.device)


def whole_spans(lengths: Sequence[int]) -> list[Span]:
    """Spans of whole sequences laid end to end."""
    spans: list[Span] = []
    start = 0
    for length in lengths:
        spans.append(Span(start, length, start, length))
        start += length
    return spans


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packed: PackedBatch | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The function transformers calls: ``query`` [1, heads, T, d], ``key``, ``value`` [1, kv_heads, T, d] →
    [1, T, heads, d].

    Raises OppoError for what a packed batch cannot express exactly.
    """
    if packed is None:
        raise OppoError("This model attends to packed batches only; use the torch engine, or load it anew.")
    window = options.get("sliding_window")
    if window is not None and max(span.keys for span in packed.spans) > window:
        raise OppoError(
            f"The torch engine has no sliding-window attention, and a sequence is longer than {window}"
            " tokens; use vllm."
        )
    unsupported = [name for name in ("softcap", "s_aux", "position_bias") if options.get(name) is not None]
    if unsupported or dropout:
        what = ", ".join(unsupported) or "dropout"
        raise OppoError(f"The torch engine has no attention with {what}; use another model or engine.")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = module.layer_idx
    assert isinstance(layer, int)
    queries, keys, values = (one[0].transpose(0, 1) for one in (query, key, value))
    out = packed.attend(layer, queries, keys, values, scale)
    return out.unsqueeze(0), None


def register() -> None:
    """Make the attention known to transformers; calling it again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, packed_attention)


# ---- verification ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionReport:
    """What was compared with a textbook softmax in float32, on the same inputs."""

    device: str
    dtype: str
    path: AttentionPath
    """Fastest path found equal."""
    max_abs_error: dict[str, float]
    """Path → largest absolute difference of any output (of order 1); failed paths are missing."""
    tolerance: float
    failures: dict[str, str]
    """Path → why it is not used."""


_TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-10, torch.float16: 4e-3, torch.bfloat16: 3e-2}
_BATCHES: tuple[tuple[tuple[int, int], ...], ...] = (
    # (new tokens, cached ones before) a sequence: decode; prefill; both; long pieces behind long contexts.
    tuple((1, past) for past in (0, 1, 2, 7, 15, 16, 17, 63, 128, 300, 701)),
    tuple((new, 0) for new in (1, 2, 3, 17, 64, 130, 257)),
    ((1, 40), (33, 0), (1, 0), (5, 77), (1, 513), (64, 64), (129, 3)),
    ((600, 150), (1, 900), (530, 0), (2, 1100)),
)


def verify_attention(
    device: torch.device | str,
    dtype: torch.dtype,
    heads: int = 8,
    kv_heads: int = 2,
    head_dim: int = 64,
    seed: int = 0,
) -> AttentionReport:
    """Compare every cached path that may serve ``device`` and ``dtype`` with a textbook softmax on random
    ragged batches.

    Extents lie in the arena in shuffled order with gaps, as they do in use. Raises OppoError if even the
    plain path is off.
    """
    device = torch.device(device)
    tolerance = _TOLERANCE.get(dtype)
    if tolerance is None:
        raise OppoError(f"Attention in {dtype} is not supported; use float32, bfloat16 or float16.")
    generator = torch.Generator().manual_seed(seed)
    candidates: list[AttentionPath] = ["plain"]
    if device.type == "cuda" and dtype in (torch.float16, torch.bfloat16):
        candidates.append("flash")
    errors: dict[str, float] = {}
    failures: dict[str, str] = {}
    for shape in _BATCHES:
        spans, size = _shuffled_spans(shape, generator)
        tensors = [
            torch.randn(count, lanes, head_dim, generator=generator).to(device=device, dtype=dtype)
            for count, lanes in ((sum(new for new, _ in shape), heads), (size, kv_heads), (size, kv_heads))
        ]
        query, key, value = tensors
        expected = _textbook(query, key, value, spans)
        for path in candidates:
            if path in failures:
                continue
            try:
                if path == "plain":
                    plan = make_plan(spans, 2 * key[0].numel() * key.element_size(), dtype, device)
                    found = plain_attention(query, key, value, plan, head_dim**-0.5)
                else:
                    found = flash_attention(query, key, value, flash_index(spans, device), head_dim**-0.5)
            except (RuntimeError, TypeError, AttributeError) as error:
                failures[path] = f"does not run: {str(error).splitlines()[0]}"
                errors.pop(path, None)
                continue
            difference = float((found.double() - expected.double()).abs().max())
            # NaN fails the comparison, as it must.
            errors[path] = max(errors.get(path, 0.0), difference)
            if not difference <= tolerance:
                failures[path] = f"differs by {difference:.3g}, allowed is {tolerance:.3g}"
    if "plain" in failures:
        raise OppoError(
            f"The plain attention on {device} in {dtype} {failures['plain']}; this build of PyTorch cannot be"
            " used there."
        )
    best = next(path for path in reversed(candidates) if path not in failures)
    return AttentionReport(str(device), str(dtype).removeprefix("torch."), best, errors, tolerance, failures)


def _shuffled_spans(shape: Sequence[tuple[int, int]], generator: torch.Generator) -> tuple[list[Span], int]:
    starts = [0] * len(shape)
    size = 3
    for number in torch.randperm(len(shape), generator=generator).tolist():
        starts[number] = size
        size += sum(shape[number]) + 5
    spans: list[Span] = []
    query_start = 0
    for (new, past), start in zip(shape, starts, strict=True):
        spans.append(Span(query_start, new, start, past + new))
        query_start += new
    return spans, size


def _textbook(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spans: Sequence[Span]
) -> torch.Tensor:
    """softmax(q·kᵀ/√d)·v by the definition, one sequence at a time, float32 (float64 for float64)."""
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    shared = query.shape[1] // key.shape[1]
    outputs = []
    for span in spans:
        q = query[span.query_start : span.query_start + span.queries].to(wide).transpose(0, 1)
        extent = slice(span.key_start, span.key_start + span.keys)
        k, v = (one[extent].to(wide).repeat_interleave(shared, dim=1).transpose(0, 1) for one in (key, value))
        scores = q @ k.transpose(1, 2) * query.shape[2] ** -0.5
        hidden = torch.ones(span.queries, span.keys, dtype=torch.bool, device=query.device).triu(
            span.keys - span.queries + 1
        )
        outputs.append((scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(0, 1))
    return torch.cat(outputs)


@lru_cache(maxsize=64)
def cached_path(
    device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int
) -> AttentionPath:
    """Path for forwards over a ``KVStore``: verified on first use on a CUDA device, plain elsewhere."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return "plain"
    return verify_attention(device, dtype, heads, kv_heads, head_dim).path


@lru_cache(maxsize=64)
def training_path(
    device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int
) -> AttentionPath:
    """Path for differentiable forwards: ``varlen`` where it equals the plain path, gradients too."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return "plain"
    generator = torch.Generator().manual_seed(0)
    lengths = (1, 2, 17, 64, 130, 257)
    spans = whole_spans(lengths)
    lanes = (heads, kv_heads, kv_heads, heads)
    *inputs, toward = [
        torch.randn(sum(lengths), lane, head_dim, generator=generator).to(device=device, dtype=dtype)
        for lane in lanes
    ]
    plan = make_plan(spans, 2 * kv_heads * head_dim * 2, dtype, device)
    index = flash_index(spans, device)
    found: list[list[torch.Tensor]] = []
    try:
        with torch.enable_grad():
            for path in ("plain", "varlen"):
                query, key, value = [tensor.clone().requires_grad_() for tensor in inputs]
                scale = head_dim**-0.5
                if path == "plain":
                    out = plain_attention(query, key, value, plan, scale)
                else:
                    out = varlen_attention(query, key, value, index, scale)
                found.append([out.detach(), *torch.autograd.grad(out, (query, key, value), toward)])
    except (RuntimeError, TypeError, AttributeError, ImportError):
        return "plain"
    tolerance = 4 * _TOLERANCE[dtype]
    pairs = [(plain.float(), fast.float()) for plain, fast in zip(*found, strict=True)]
    close = all(
        float((plain - fast).abs().max()) <= tolerance * max(1.0, float(plain.abs().max()))
        for plain, fast in pairs
    )
    return "varlen" if close else "plain"
