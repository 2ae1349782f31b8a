"""The policy's weights as one block of bytes: memory that the processes of a machine share, or what is sent
to other machines."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch

from oppo_sim.errors import OppoError

_ALIGNMENT = 64  # bytes


@dataclass(frozen=True)
class _Place:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int


@dataclass(frozen=True)
class Layout:
    """Where each tensor lies in the block."""

    places: tuple[_Place, ...]
    size: int
    """Bytes."""

    def views(self, block: torch.Tensor) -> dict[str, torch.Tensor]:
        """The tensors, by name, without a copy; ``block`` is uint8 [size]."""
        found = {}
        for place in self.places:
            count = prod(place.shape) * place.dtype.itemsize
            found[place.name] = block[place.start : place.start + count].view(place.dtype).view(place.shape)
        return found

    def write(self, block: torch.Tensor, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy weights of the same names and shapes into the block."""
        for name, view in self.views(block).items():
            view.copy_(weights[name])


def layout_of(weights: Mapping[str, torch.Tensor]) -> Layout:
    """For tensors like ``weights``."""
    places = []
    size = 0
    for name, tensor in weights.items():
        places.append(_Place(name, tensor.dtype, tuple(tensor.shape), size))
        size += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
    return Layout(tuple(places), size)


@dataclass(frozen=True)
class SharedWeights:
    """One block of shared memory, written by the driver and read by the replicas; sent to a process, it is
    the same memory there."""

    block: torch.Tensor
    layout: Layout

    def write(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy weights of the same names and shapes into the block."""
        self.layout.write(self.block, weights)

    def __call__(self, published: None) -> dict[str, torch.Tensor]:
        """The tensors, by name, without a copy."""
        return self.layout.views(self.block)


def shared_weights(weights: Mapping[str, torch.Tensor]) -> SharedWeights:
    """A block for tensors like ``weights``, filled with them. Raises OppoError where the system has too
    little shared memory."""
    layout = layout_of(weights)
    try:
        block: torch.Tensor = torch.empty(layout.size, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        mend = "enlarge /dev/shm, or set real.placement.kind to inline"
        raise OppoError(
            f"no {-(-layout.size // 2**20)} MiB of shared memory for the weights ({reason}): {mend}"
        ) from None
    shared = SharedWeights(block, layout)
    shared.write(weights)
    return shared
