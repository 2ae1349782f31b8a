"""Seconds of stages on a device that works ahead of the host."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import torch

from oppo_real.engines.device import synchronize


class Stopwatch:
    """Seconds of the stages of an update, by the wall clock."""

    def __init__(self, device: torch.device, stages: Sequence[str] = ()) -> None:
        """``stages``: those that are told even if they never ran (0)."""
        self._device = device
        self._seconds = dict.fromkeys(stages, 0.0)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to the stage; work queued on the device counts, before and behind."""
        began = self._now()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + self._now() - began

    def take(self) -> dict[str, float]:
        """Stage → seconds since the last call."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def _now(self) -> float:
        synchronize(self._device)
        return perf_counter()
