"""The fast decode path's bookkeeping, on any machine: an attention that reads exactly what the kernel is
told, and captures that run again.

What is not exercised here is CUDA itself: the kernel and the recording. Both are compared with the plain path
at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from oppo_real.engines import attention_check, packed_kernels
from oppo_real.engines.interface import Request, Sampling
from oppo_real.engines.packed_graphs import DecodeGraphs
from oppo_real.engines.packed_kernels import FlashIndex
from oppo_real.engines.packed_store import KVStore
from oppo_real.engines.torch_actor import ActorLimits, TorchActor
from tests.real.tiny import generate, random_tokens, single_thread, tiny_actor

single_thread()


def _by_the_index(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, index: FlashIndex, scale: float
) -> torch.Tensor:
    shared = query.shape[1] // key.shape[1]
    out = []
    for i in range(len(index.key_lengths)):
        rows = slice(int(index.query_offsets[i]), int(index.query_offsets[i + 1]))
        start, count = int(index.key_starts[i]), int(index.key_lengths[i])
        assert rows.stop - rows.start <= index.max_queries and count <= index.max_keys
        keys, values = (
            tensor[start : start + count].repeat_interleave(shared, dim=1) for tensor in (key, value)
        )
        scores = torch.einsum("qhd,khd->hqk", query[rows], keys) * scale
        seen = torch.ones(scores.shape[1:], dtype=torch.bool).tril(count - scores.shape[1])
        out.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), values))
    return torch.cat(out)


class _Rerun:
    """Captures by running again over the same buffers, as a graph does."""

    def __init__(self, error: float = 0.0) -> None:
        self.captured = self.replayed = 0
        self._error = error

    def __call__(self, compute: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        self.captured += 1
        out = compute()

        def replay() -> None:
            self.replayed += 1
            out.copy_(compute() + self._error)

        return replay, out


@pytest.fixture(autouse=True)
def _flash_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_kernels, "flash_attention", _by_the_index)
    monkeypatch.setattr(attention_check, "cached_path", lambda *shape: "flash")


def _engine(capture: _Rerun | None, **limits: Any) -> TorchActor:
    engine = TorchActor(tiny_actor(), Sampling(temperature=0.0), ActorLimits(**limits))
    if capture is not None:
        packed = engine._packed
        packed._graphs = DecodeGraphs(packed._captured_step, packed.device, capture)
    return engine


def _run(engine: TorchActor, asked: list[Request]) -> dict[int, list[int]]:
    made: dict[int, list[int]] = {request.rollout_id: [] for request in asked}
    engine.submit(asked)
    while step := engine.step():
        for new in step:
            made[new.rollout_id].extend(new.tokens)
    return made


@pytest.mark.parametrize(
    "limits",
    [{}, {"kv_capacity_tokens": 96, "kv_block_tokens": 4}, {"max_num_seqs": 3}],
)
@pytest.mark.parametrize("captured", [False, True])
def test_the_kernel_path_and_captured_steps_decode_as_generate_does(
    captured: bool, limits: dict[str, Any]
) -> None:
    generator = torch.Generator().manual_seed(0)
    asked = [Request(i, random_tokens(generator, 3 + 2 * i), 30 - 3 * i) for i in range(7)]
    capture = _Rerun() if captured else None
    engine = _engine(capture, **limits)
    made = _run(engine, asked)
    reference: Any = tiny_actor()
    for request in asked:
        assert made[request.rollout_id] == generate(reference, request.prompt, request.max_response_length)
    if capture is not None:
        # Steps are replayed far more often than captured, though the arena grew and shrank in between.
        assert capture.replayed > 2 * capture.captured > 0
        assert engine.resolved_config()["cuda_graphs"] == "on"


def test_a_step_is_captured_once_for_as_long_as_its_rollouts_may_grow() -> None:
    capture = _Rerun()
    engine = _engine(capture)
    engine._packed.store = KVStore(2, shrink=False, room=400)  # as on a GPU
    request = Request(0, (1, 2, 3), 70)  # contexts of 4 to 72 tokens
    assert _run(engine, [request])[0] == generate(tiny_actor(), request.prompt, 70)
    assert capture.captured == 1


def test_a_captured_step_that_differs_turns_graphs_off_and_changes_nothing() -> None:
    capture = _Rerun(error=10.0)
    engine = _engine(capture)
    request = Request(0, (1, 2, 3), 12)
    assert _run(engine, [request])[0] == generate(tiny_actor(), request.prompt, 12)
    assert capture.captured == 1
    assert "differed" in engine.resolved_config()["cuda_graphs"]
