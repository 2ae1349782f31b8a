"""Who may read what: streams and the host as clocks that have seen one another's work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

HOST = -1
"""The host's number; streams count from 0."""


class CudaMisuse(AssertionError):
    """What a CUDA machine would refuse, or would compute wrongly without a word."""


@dataclass(eq=False)
class Place:
    """Of a storage: where it lies and who used it last. Ticks of streams by number."""

    device: torch.device
    written: tuple[int, int] | None = None
    read: dict[int, int] = field(default_factory=dict)
    captured: bool = False
    """Allocated while a graph was captured: the graph's own memory."""


def place_of(tensor: torch.Tensor) -> Place | None:
    """None: plain memory of the host."""
    return getattr(tensor.untyped_storage(), "fake_cuda_place", None)


def put(tensor: torch.Tensor, device: torch.device, captured: bool = False) -> Place:
    """Mark the tensor's storage; views of it are marked with it."""
    found = Place(device, captured=captured)
    tensor.untyped_storage().fake_cuda_place = found  # type: ignore[attr-defined]
    return found


def where(tensor: torch.Tensor) -> torch.device:
    """The device, as the program is told."""
    with torch._C.DisableTorchFunction():
        place = place_of(tensor)
        return tensor.device if place is None else place.device


class Clock:
    """A stream or the host: how much of everybody's work is known to be done before its next."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen: dict[int, int] = {number: 0}

    def learn(self, other: Clock) -> None:
        """All that the other has seen or done comes before what this one does next."""
        self.learn_all(other.seen)

    def learn_all(self, seen: dict[int, int]) -> None:
        """As ``learn``, of a snapshot."""
        for number, tick in seen.items():
            self.seen[number] = max(self.seen.get(number, 0), tick)

    def work(self, what: str, reads: Iterable[Place], writes: Iterable[Place]) -> None:
        """Do one piece of work. Raises CudaMisuse where somebody else's work on the same memory may not be
        done yet."""
        tick = self.seen[self.number] = self.seen[self.number] + 1
        writes = list(writes)
        for place in (*reads, *writes):
            if place.written is not None and not self._knows(*place.written):
                raise CudaMisuse(
                    f"{what} uses memory before waiting for {_named(place.written[0])}, which writes it"
                )
        for place in reads:
            place.read[self.number] = tick
        for place in writes:
            for number, at in place.read.items():
                if not self._knows(number, at):
                    raise CudaMisuse(
                        f"{what} overwrites memory before waiting for {_named(number)}, which reads it"
                    )
            place.written = (self.number, tick)
            place.read.clear()

    def _knows(self, number: int, tick: int) -> bool:
        return self.seen.get(number, 0) >= tick


def _named(number: int) -> str:
    return "the host" if number == HOST else f"stream {number}"
