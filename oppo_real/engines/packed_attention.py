"""A packed batch as the layers of a model see it; its attention is registered with transformers as
``oppo_packed``. Which path it takes is found by trying (``attention_check.py``)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from oppo_real.engines import attention_check, packed_kernels
from oppo_real.engines.packed_kernels import FlashIndex
from oppo_real.engines.packed_plan import PackedPlan, Span, make_plan
from oppo_real.engines.packed_store import KVStore
from oppo_sim.errors import OppoError

IMPLEMENTATION = "oppo_packed"
"""Name under which the attention is registered with transformers."""


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
            kernel = packed_kernels.varlen_attention if self.store is None else packed_kernels.flash_attention
            return kernel(query, key, value, self.index, scale)
        assert self.plan is not None
        return packed_kernels.plain_attention(query, key, value, self.plan, scale)

    def _choose(self, query: torch.Tensor, key: torch.Tensor) -> None:
        fastest = attention_check.training_path if self.store is None else attention_check.cached_path
        shape = (query.device, query.dtype, query.shape[1], key.shape[1], query.shape[2])
        if self.fast and fastest(*shape) != "plain":
            self.index = packed_kernels.flash_index(self.spans, query.device)
        else:
            bytes_per_key = 2 * key[0].numel() * key.element_size()
            self.plan = make_plan(self.spans, bytes_per_key, query.dtype, query.device)


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
