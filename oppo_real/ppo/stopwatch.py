"""Seconds of the stages of an update, by the wall clock."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch

from oppo_sim.columns import timing


class Stopwatch:
    """Measures stages; a stage that never ran took 0 seconds."""

    def __init__(self, stages: tuple[str, ...], device: torch.device) -> None:
        self._seconds = dict.fromkeys(stages, 0.0)
        self._device = device

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to the stage; work queued on the device counts, before and behind."""
        self._wait()
        start = perf_counter()
        yield
        self._wait()
        self._seconds[name] += perf_counter() - start

    def columns(self) -> dict[str, float]:
        """``timing_s/<stage>`` of each stage."""
        return {timing(stage): seconds for stage, seconds in self._seconds.items()}

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
