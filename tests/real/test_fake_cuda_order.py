"""What the CUDA machine without a GPU notices: each mistake, made on purpose, is an error there. The mutations
leave one tensor on the CPU, or one wait out, of the code that runs everywhere."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

import pytest
import torch

from oppo_real.engines import (
    attention_check,
    device,
    models,
    packed_graphs,
    packed_kernels,
    packed_model,
    packed_plan,
    torch_sampling,
    torch_scorer,
)
from oppo_real.engines.interface import Request, Sampling, ScorePiece
from oppo_real.engines.torch_scorer import TorchScorer
from oppo_real.ppo import batching, forward
from tests.real.fake_cuda.exercises import BATCH, SMALL, actor, decoded, scored, scorer, trainer
from tests.real.fake_cuda.machine import cuda_machine
from tests.real.fake_cuda.order import CudaMisuse
from tests.real.tiny import single_thread

single_thread()


def _capture(compute: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
    return device.CudaCapture(torch.device("cuda", 0))(compute)


def test_a_read_on_another_stream_needs_a_wait() -> None:
    with cuda_machine():
        made = torch.ones(3, device="cuda")
        beside: Any = torch.cuda.Stream()
        with torch.cuda.stream(beside), pytest.raises(CudaMisuse, match="before waiting for stream 0"):
            made.add(1)
        done: Any = torch.cuda.Event()
        done.record()
        beside.wait_event(done)
        with torch.cuda.stream(beside):
            later = made.add(1)
            made.add_(1)
        with pytest.raises(CudaMisuse, match="before waiting"):
            later.add(1)
        with pytest.raises(CudaMisuse, match="before waiting"):
            made.zero_()
        torch.cuda.synchronize()
        assert later.add(1).tolist() == [3, 3, 3]


def test_the_host_reads_a_copy_in_flight_after_a_wait_only() -> None:
    with cuda_machine() as machine:
        copied = torch.ones(2, device="cuda").to("cpu", non_blocking=True)
        with pytest.raises(CudaMisuse, match="the host's read"):
            copied.tolist()
        torch.cuda.synchronize()
        assert copied.tolist() == [1, 1]
        assert sum(machine.waits.values()) == 1


def test_mixed_devices_and_a_cpu_generator_are_refused() -> None:
    with cuda_machine():
        here, there = torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")
        with pytest.raises(CudaMisuse, match="same device"):
            here + there
        with pytest.raises(CudaMisuse, match="same device"):
            here + torch.ones(2)
        with pytest.raises(CudaMisuse, match="several devices"):
            here[torch.tensor([True, False])]
        with pytest.raises(CudaMisuse, match="generator of the CPU"):
            torch.rand(2, device="cuda", generator=torch.Generator())
        assert (here * torch.tensor(2.0)).tolist() == [2, 2]  # a number may come from anywhere


def test_a_graph_computes_when_it_is_replayed_at_the_addresses_it_was_captured_with() -> None:
    with cuda_machine():
        given = torch.ones(2, device="cuda")
        held = [given]
        replay, out = _capture(lambda: held[0] * 2)
        assert torch.isnan(out).all()
        given.fill_(5)
        replay()
        assert out.tolist() == [10, 10]
        held.clear()
        del given
        with pytest.raises(CudaMisuse, match="given back"):
            replay()


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (lambda given, kept: given * given.sum().item(), "the host waits"),
        (lambda given, kept: given + torch.ones(2).to("cuda"), "a copy from cpu"),
        (lambda given, kept: given[given > 0], "waits for the device"),
    ],
)
def test_what_a_capture_cannot_hold(step: Callable[[Any, Any], torch.Tensor], why: str) -> None:
    with cuda_machine():
        given = torch.ones(2, device="cuda")
        calls: list[int] = []

        def compute() -> torch.Tensor:
            calls.append(0)
            # The two runs that warm up may do anything.
            return given * 1 if len(calls) < 3 else step(given, None)

        with pytest.raises(CudaMisuse, match=why):
            _capture(compute)


def test_memory_of_a_capture_is_not_kept_for_other_use() -> None:
    with cuda_machine():
        arena: list[torch.Tensor] = []

        def compute() -> torch.Tensor:
            arena[:] = [torch.zeros(4, device="cuda")]
            return arena[0] + 1

        replay, _ = _capture(compute)
        replay()
        with pytest.raises(CudaMisuse, match="allocated while a graph was captured"):
            arena[0].add_(1)


# ---- mutations ---------------------------------------------------------------------------------------------


def _functions(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    for name, one in vars(module).items():
        members = vars(one).items() if isinstance(one, type) else [("", one)]
        for member, member_found in members:
            found = inspect.unwrap(member_found) if callable(member_found) else member_found
            if isinstance(found, FunctionType) and found.__code__.co_filename == module.__file__:
                yield f"{name}.{member}", found


@contextmanager
def mutated(module: ModuleType, text: str) -> Iterator[None]:
    """The module's functions have the code of ``text`` inside the block, wherever they were imported to."""
    assert module.__file__ is not None
    copy = ModuleType(module.__name__)
    copy.__file__ = module.__file__
    exec(compile(text, module.__file__, "exec"), copy.__dict__)
    fresh = dict(_functions(copy))
    changed = [(one, fresh[name]) for name, one in _functions(module) if one.__code__ != fresh[name].__code__]
    assert changed
    before = [(one, one.__code__) for one, _ in changed]
    try:
        for one, new in changed:
            one.__code__ = new.__code__
        yield
    finally:
        for one, code in before:
            one.__code__ = code


def _source(module: ModuleType) -> str:
    assert module.__file__ is not None
    return Path(module.__file__).read_text()


def _decode(dtype: str = "float32") -> None:
    flash = patch.object(attention_check, "cached_path", lambda *shape: "flash")
    with cuda_machine() as machine, flash if dtype == "bfloat16" else patch.object(device, "__doc__", ""):
        engine = actor("cuda:1", dtype, sampling=Sampling(temperature=1.0))
        machine.waits.clear()
        decoded(engine)
        if "off" in (state := str(engine.resolved_config()["cuda_graphs"])):
            assert "plain" in state, state
        assert set(machine.waits) <= {"engines/device.py:to_host", "engines/packed_graphs.py:_capture"}


def _decode_captured() -> None:
    _decode("bfloat16")


def _score() -> None:
    with cuda_machine() as machine:
        engine = scorer("cuda")
        machine.waits.clear()
        scored(engine)
        assert sum(machine.waits.values()) == engine.counts().batches


def _score_alone() -> None:
    with cuda_machine() as machine:
        engine = TorchScorer(models.build_reward_model(SMALL, 1, device="cuda"))
        machine.waits.clear()
        engine.append([ScorePiece(0, (1, 2, 3), False)])
        assert sum(machine.waits.values()) == 1


def _decode_while_the_arena_grows() -> None:
    """Two rollouts at a time, always in the same captured step."""
    with cuda_machine(), patch.object(attention_check, "cached_path", lambda *shape: "flash"):
        engine = actor("cuda", "bfloat16")
        engine.submit([Request(0, (1,) * 140, 12), Request(1, (2,), 12)])
        for _ in range(3):
            engine.step()
        engine.abort([1])
        engine.submit([Request(2, (3,) * 200, 6)])
        generation = engine._packed.store.generation
        for _ in range(3):
            engine.step()
        assert engine._packed.store.generation > generation


def _train() -> None:
    with cuda_machine():
        trainer("cuda", critic="value_head", carried="mask").update(BATCH, 1)


EXERCISES: dict[ModuleType, tuple[Callable[[], None], ...]] = {
    packed_plan: (_decode,),
    packed_model: (_decode, _train),
    packed_kernels: (_decode_captured,),
    packed_graphs: (_decode_captured,),
    torch_sampling: (_decode,),
    torch_scorer: (_score,),
    forward: (_train,),
    batching: (_train,),
}
"""What runs through the copies to the device of each module."""


def _copies() -> Iterator[Any]:
    """Every call of ``to_device``, with the module's text in which it is left out."""
    for module, exercises in EXERCISES.items():
        text = _source(module)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "to_device":
                call = ast.get_source_segment(text, node)
                left = ast.get_source_segment(text, node.args[0])
                assert call is not None and left is not None
                yield pytest.param(
                    module, text.replace(call, f"({left})"), exercises, id=f"{module.__name__}:{node.lineno}"
                )


@pytest.mark.parametrize(("module", "text", "exercises"), list(_copies()))
def test_a_tensor_left_on_the_cpu_is_an_error(
    module: ModuleType, text: str, exercises: tuple[Callable[[], None], ...]
) -> None:
    with mutated(module, text), pytest.raises(CudaMisuse):
        for exercise in exercises:
            exercise()


@pytest.mark.parametrize(
    ("module", "line", "instead", "exercise"),
    [
        (device, "stream.wait_stream(current)", "pass", _decode_captured),
        (device, "current.wait_stream(stream)", "pass", _decode_captured),
        (device, "with torch.cuda.device(self._device):", "if True:", _decode_captured),
        (device, ", non_blocking=True)", ")", _decode),
        (device, "values.cpu()", "values.to('cpu', non_blocking=True)", _decode),
        (torch_scorer, "synchronize(self._packed.device)", "pass", _score_alone),
        (torch_sampling, "to_host(", "(", _decode),
        (
            packed_graphs,
            "self._captured.clear()\n            self._generation",
            "self._generation",
            _decode_while_the_arena_grows,
        ),
    ],
)
def test_a_wait_or_a_stream_left_out_is_an_error(
    module: ModuleType, line: str, instead: str, exercise: Callable[[], None]
) -> None:
    text = _source(module)
    assert line in text
    with mutated(module, text.replace(line, instead)), pytest.raises(AssertionError):
        exercise()


def test_the_exercises_pass_as_they_are() -> None:
    growing = _decode_while_the_arena_grows
    for exercise in (_decode, _decode_captured, growing, _score, _score_alone, _train):
        exercise()
