"""The policy's weights in memory that several processes see: written by the driver, read by the replicas."""

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
class SharedWeights:
    """One block of shared memory with every tensor in it; sent to a process, it is the same memory there."""

    block: torch.Tensor
    places: tuple[_Place, ...]

    def views(self) -> dict[str, torch.Tensor]:
        """The tensors, by name, without a copy."""
        found = {}
        for place in self.places:
            count = prod(place.shape) * place.dtype.itemsize
            found[place.name] = self.block[place.start : place.start + count].view(place.dtype).view(place.shape)
        return found

    def write(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy weights of the same names and shapes into the block."""
        for name, view in self.views().items():
            view.copy_(weights[name])


def shared_weights(weights: Mapping[str, torch.Tensor]) -> SharedWeights:
    """A block for tensors like ``weights``, filled with them. Raises OppoError where the system has too little shared memory."""
    places = []
    size = 0
    for name, tensor in weights.items():
        places.append(_Place(name, tensor.dtype, tuple(tensor.shape), size))
        size += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
    try:
        block: torch.Tensor = torch.empty(size, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        mend = "enlarge /dev/shm, or set real.placement.kind to inline"
        raise OppoError(f"no {size / 2**20:.0f} MiB of shared memory for the weights ({reason}): {mend}") from None
    shared = SharedWeights(block, tuple(places))
    shared.write(weights)
    return shared
