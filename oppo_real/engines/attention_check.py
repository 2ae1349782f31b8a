"""Which attention can be trusted on a device with a dtype: each path (``packed_kernels.py``) is compared with
a textbook softmax, or with the plain path, before it is used. Chosen by trying, never by version.

The CUDA paths ran on an H100 with PyTorch 2.11, where all checks passed (experiments/gpu); elsewhere they are
trusted only as far as these checks go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch

from oppo_real.engines import packed_kernels
from oppo_real.engines.packed_plan import Span, make_plan, whole_spans
from oppo_sim.errors import OppoError

AttentionPath = Literal["plain", "flash", "varlen"]


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
                    found = packed_kernels.plain_attention(query, key, value, plan, head_dim**-0.5)
                else:
                    found = packed_kernels.flash_attention(
                        query, key, value, packed_kernels.flash_index(spans, device), head_dim**-0.5
                    )
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
    index = packed_kernels.flash_index(spans, device)
    found: list[list[torch.Tensor]] = []
    try:
        with torch.enable_grad():
            for path in ("plain", "varlen"):
                query, key, value = [tensor.clone().requires_grad_() for tensor in inputs]
                scale = head_dim**-0.5
                if path == "plain":
                    out = packed_kernels.plain_attention(query, key, value, plan, scale)
                else:
                    out = packed_kernels.varlen_attention(query, key, value, index, scale)
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
