"""``torch.cuda`` of the machine: streams, events, graphs, queries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from tests.real.fake_cuda.graphs import Recording
from tests.real.fake_cuda.machine import Machine
from tests.real.fake_cuda.order import Clock, CudaMisuse, where


class _Stream:
    def __init__(self, machine: Machine, device: torch.device, clock: Clock) -> None:
        self.device, self.clock, self._machine = device, clock, machine

    def wait_stream(self, other: _Stream) -> None:
        self.clock.learn(other.clock)

    def wait_event(self, event: _Event) -> None:
        self.clock.learn_all(event.seen)

    def record_event(self, event: _Event | None = None) -> _Event:
        event = event or _Event(self._machine)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self._machine.wait(self.clock)


class _Event:
    def __init__(self, machine: Machine) -> None:
        self.seen: dict[int, int] = {}
        self._machine = machine

    def record(self, stream: _Stream | None = None) -> None:
        clock = self._machine.current[self._machine.device_number] if stream is None else stream.clock
        self.seen = dict(clock.seen)

    def wait(self, stream: _Stream | None = None) -> None:
        clock = self._machine.current[self._machine.device_number] if stream is None else stream.clock
        clock.learn_all(self.seen)

    def elapsed_time(self, later: _Event) -> float:
        """Milliseconds, one for each thing that was queued between."""
        return float(sum(later.seen.values()) - sum(self.seen.values()))

    def synchronize(self) -> None:
        done = Clock(-2)
        done.learn_all(self.seen)
        self._machine.wait(done)


class _Graph:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.recording: Recording | None = None
        self.memory: Any = None

    def pool(self) -> Any:
        return self.memory

    def replay(self) -> None:
        machine, recording = self._machine, self.recording
        if recording is None:
            raise CudaMisuse("a graph is replayed before it is captured")
        if not recording.steps:
            raise CudaMisuse("an empty graph is replayed: what it was to hold ran elsewhere")
        # A graph is launched into the current stream of the current device, whatever its own device is.
        stream = machine.current[machine.device_number]
        stream.learn(machine.host)
        if machine.device_number != recording.device.index:
            raise CudaMisuse(f"a graph of {recording.device} is replayed on cuda:{machine.device_number}")
        with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
            recording.replay(lambda reads, writes: stream.work("a replay", reads, writes))


@contextmanager
def replaced(machine: Machine) -> Iterator[None]:
    """``torch.cuda`` is this machine's inside the block."""

    def index(device: Any = None) -> int:
        return machine.device("cuda" if device is None else device).index or 0

    @contextmanager
    def on_device(device: Any) -> Iterator[None]:
        before = machine.device_number
        machine.device_number = index(device)
        try:
            yield
        finally:
            machine.device_number = before

    def current_stream(device: Any = None) -> _Stream:
        number = index(device)
        return _Stream(machine, torch.device("cuda", number), machine.current[number])

    @contextmanager
    def on_stream(stream: _Stream) -> Iterator[None]:
        number = stream.device.index
        before = machine.current[number]
        with on_device(number):
            machine.current[number] = stream.clock
            try:
                yield
            finally:
                machine.current[number] = before

    first: list[_Stream] = []

    @contextmanager
    def capture(
        graph: _Graph, pool: Any = None, stream: _Stream | None = None, **options: Any
    ) -> Iterator[None]:
        if stream is None:
            # As PyTorch has it: one stream for all captures, of the device that was current at the first.
            if not first:
                first.append(Stream())
            stream = first[0]
        recording = Recording(stream.device)
        with on_stream(stream):
            machine.recording = (recording, stream.clock)
            try:
                yield
            finally:
                machine.recording = None
        with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
            recording.end()
        graph.recording = recording
        graph.memory = object() if pool is None else pool
        machine.pools.add(graph.memory)

    def synchronize(device: Any = None) -> None:
        everything = Clock(-2)
        for clock in machine.clocks:
            everything.learn(clock)
        machine.wait(everything)

    class Stream(_Stream):
        def __init__(self, device: Any = None, **options: Any) -> None:
            super().__init__(machine, torch.device("cuda", index(device)), machine.new_clock())

    class Event(_Event):
        def __init__(self, **options: Any) -> None:
            super().__init__(machine)

    class CUDAGraph(_Graph):
        def __init__(self, **options: Any) -> None:
            super().__init__(machine)

    replacements = {
        "is_available": lambda: not machine.inside,
        "is_initialized": lambda: not machine.inside,
        "_lazy_init": lambda: None,
        "device_count": lambda: machine.count,
        "current_device": lambda: machine.device_number,
        "device": on_device,
        "set_device": lambda device: setattr(machine, "device_number", index(device)),
        "Stream": Stream,
        "current_stream": current_stream,
        "stream": on_stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "graph": capture,
        "synchronize": synchronize,
        "_sleep": lambda cycles: None,
        "mem_get_info": lambda device=None: (machine.free, machine.free),
        "get_device_name": lambda device=None: f"fake GPU {index(device)}",
        "get_device_properties": lambda device=None: SimpleNamespace(
            name=f"fake GPU {index(device)}", total_memory=machine.free, major=9, minor=0
        ),
        "get_device_capability": lambda device=None: (9, 0),
        "get_arch_list": lambda: ["sm_80", "sm_90"],
        "empty_cache": lambda: None,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: None,
    }
    grouped = torch._C._group_tensors_by_device_and_dtype  # type: ignore[attr-defined]

    def by_device(lists: Any, with_indices: bool = False) -> Any:
        """Of tensors whose devices C++ does not know."""
        found = grouped(lists, with_indices)
        return {(where(group[0][0]), dtype): (group, at) for (_, dtype), (group, at) in found.items()}

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch._C, "_group_tensors_by_device_and_dtype", by_device))
        for name, value in replacements.items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        yield
