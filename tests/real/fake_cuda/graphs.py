"""Captured graphs: what was recorded, at which addresses, and run again."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from tests.real.fake_cuda.order import CudaMisuse, Place, place_of


class Address:
    """A tensor as a graph knows it. Memory from outside is not kept alive by it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._shape = (tensor.storage_offset(), tensor.shape, tensor.stride())
        self._dtype = tensor.dtype
        storage = tensor.untyped_storage()
        place = place_of(tensor)
        self._own = storage if place is not None and place.captured else None
        self._memory = weakref.ref(storage)

    def tensor(self) -> torch.Tensor:
        storage = self._memory()
        if storage is None:
            raise CudaMisuse("a graph is replayed over memory that was given back after its capture")
        return torch.empty(0, dtype=self._dtype).set_(storage, *self._shape)


@dataclass(frozen=True)
class _Step:
    run: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[Address, ...]
    """Of new memory; empty for what writes in place."""
    reads: tuple[Place, ...]
    writes: tuple[Place, ...]


@dataclass
class Recording:
    """The work of one graph, in order."""

    device: torch.device
    steps: list[_Step] = field(default_factory=list)
    fresh: list[torch.Tensor] = field(default_factory=list)

    def add(
        self,
        run: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outs: list[torch.Tensor],
        reads: list[Place],
        writes: list[Place],
    ) -> None:
        """Note an operation; ``outs``: its results in new memory."""
        known_args, known_kwargs = tree_map_only(torch.Tensor, Address, (args, kwargs))
        self.steps.append(
            _Step(run, known_args, known_kwargs, tuple(map(Address, outs)), tuple(reads), tuple(writes))
        )
        self.fresh.extend(outs)

    def end(self) -> None:
        """Nothing was computed while capturing: results are rubbish until the first replay."""
        for tensor in self.fresh:
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))
        self.fresh = []

    def replay(self, note: Any) -> None:
        """Run it all again at the same addresses; ``note`` takes what each step reads and writes."""
        for step in self.steps:
            note(step.reads, step.writes)
            args, kwargs = tree_map_only(Address, Address.tensor, (step.args, step.kwargs))
            found = step.run(*args, **kwargs)
            made = [found] if isinstance(found, torch.Tensor) else list(found or ())
            for address, new in zip(step.outs, made, strict=False):
                address.tensor().copy_(new)
