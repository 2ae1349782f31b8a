"""CUDA graphs for decode: a step of n rollouts, one token each, is captured once and replayed.

A decode step launches thousands of small kernels; replaying them in one go pays wherever launching takes
longer than computing. A step is captured for a row count and a bound on the context that its rollouts may
grow to (both rounded up, missing rows write to the arena's scratch token), and compared with the same step
run eagerly before it is used; a graph that differs, or cannot be captured, turns graphs off and says why. The
order of streams and memory is tested on a fake device (tests/real/test_fake_cuda_order.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from oppo_real.engines.device import to_device
from oppo_real.engines.packed_attention import PackedBatch
from oppo_real.engines.packed_kernels import FlashIndex
from oppo_real.engines.packed_plan import Span
from oppo_real.engines.packed_store import KVStore

Step = Callable[[torch.Tensor, torch.Tensor, PackedBatch], torch.Tensor]
"""(ids [n], positions [n], batch) → logits [n, vocabulary]."""

Capture = Callable[[Callable[[], torch.Tensor]], tuple[Callable[[], None], torch.Tensor]]
"""Captures a computation over static buffers: (what replays it, the tensor its result will be in)."""

_LARGEST = 512
"""Rows beyond which a step is computed long enough to launch its kernels behind it."""


@dataclass
class _Captured:
    replay: Callable[[], None]
    table: torch.Tensor
    index: FlashIndex
    logits: torch.Tensor


def rows_bucket(rows: int) -> int:
    """Rows that a step is captured for: 1, 2, 4, then multiples of 8 to 64, of 16 to 256, of 32."""
    if rows <= 4:
        return 1 << (rows - 1).bit_length()
    unit = 8 if rows <= 64 else 16 if rows <= 256 else 32
    return -(-rows // unit) * unit


class DecodeGraphs:
    """Captured decode steps of one model and one arena."""

    def __init__(self, step: Step, device: torch.device, capture: Capture) -> None:
        """``step`` computes the logits of a decode step; all it reads must stay at its address."""
        self._step = step
        self._device = device
        self._record = capture
        self._captured: dict[tuple[int, int], _Captured] = {}
        self._generation = -1
        self._off: str | None = None

    def state(self) -> str:
        """For the resolved configuration: "on", or why not."""
        return "on" if self._off is None else f"off: {self._off}"

    def run(
        self, table: torch.Tensor, spans: Sequence[Span], store: KVStore, longest: int = 0
    ) -> torch.Tensor | None:
        """Logits [n, vocabulary] of a step (``table`` [3, n]: ids, positions, places), or None where graphs
        are off or not worth it. ``longest``: tokens that any of the rollouts may grow to, where that is
        known: with the context alone as its bound a step would be captured anew each time it doubles.

        Writes keys and values as the eager step does; running that afterwards writes the same again.
        """
        rows = len(spans)
        if self._off is not None or rows > _LARGEST or store.bytes_per_token() is None:
            return None
        if store.generation != self._generation:
            self._captured.clear()
            self._generation = store.generation
        bound = 1 << (max(longest, *(span.keys for span in spans)) - 1).bit_length()
        key = (rows_bucket(rows), bound)
        captured = self._captured.get(key)
        try:
            if captured is None:
                captured = self._capture(key, table, spans, store)
                if captured is None:
                    return None
                self._captured[key] = captured
            self._fill(captured.table, captured.index, table, spans)
            captured.replay()
        except RuntimeError as error:
            self._off = str(error).splitlines()[0]
            self._captured.clear()
            return None
        return captured.logits[:rows].clone()

    def _fill(
        self, static: torch.Tensor, index: FlashIndex, table: torch.Tensor, spans: Sequence[Span]
    ) -> None:
        rows = len(spans)
        static.zero_()
        static[:, :rows].copy_(table, non_blocking=True)
        place = (
            torch.tensor([(span.key_start, span.keys) for span in spans], dtype=torch.int32).t().contiguous()
        )
        index.key_starts.zero_()
        index.key_lengths.fill_(1)
        index.key_starts[:rows].copy_(place[0], non_blocking=True)
        index.key_lengths[:rows].copy_(place[1], non_blocking=True)

    def _capture(
        self, key: tuple[int, int], table: torch.Tensor, spans: Sequence[Span], store: KVStore
    ) -> _Captured | None:
        rows, bound = key
        static = torch.zeros(3, rows, dtype=torch.long, device=self._device)
        integers = torch.arange(rows + 1, dtype=torch.int32, device=self._device)
        index = FlashIndex(integers, torch.zeros_like(integers), torch.ones_like(integers[:rows]), 1, bound)
        self._fill(static, index, table, spans)
        # The eager step, on the path that eager steps take: decides whether there is a flash path at all, and
        # is the truth to compare with.
        ids, positions, places = to_device(table, self._device)
        eager_batch = PackedBatch(spans, store, places)
        expected = self._step(ids, positions, eager_batch)
        if eager_batch.index is None:
            self._off = "the attention path is plain"
            return None
        batch = PackedBatch(spans, store, static[2], index)
        replay, logits = self._record(lambda: self._step(static[0], static[1], batch))
        replay()
        difference = float((logits[: len(spans)].float() - expected.float()).abs().max())
        allowed = 0.05 * max(1.0, float(expected.float().abs().max()))
        if not difference <= allowed:
            self._off = f"a captured step differed by {difference:.3g} from the same step run eagerly"
            return None
        return _Captured(replay, static, index, logits)
