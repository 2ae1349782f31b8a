"""Keys and values of many rollouts in one flat arena a layer: each rollout owns one contiguous extent that
grows as it does.

An extent can be read in place, without copying it together first, which is what a long context needs on a
CPU, and one call of a CUDA kernel reads all of them through (start, length). Extents grow in blocks with a
quarter of headroom, so a token is moved a few times in its life at most; when no hole is wide enough, the
arena is compacted, and made larger or smaller if use has changed. It takes the memory of about one and a half
times the tokens held, less where a rollout's greatest length is known and near.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from oppo_real.engines.device import to_device
from oppo_sim.errors import OppoError

_Value = TypeVar("_Value")


@dataclass
class _Extent:
    start: int
    capacity: int
    length: int
    limit: int | None


def _rounded(tokens: int, block: int) -> int:
    return -(-tokens // block) * block


class KVStore:
    """Keys and values of rollouts, by id. ``layers`` tensors [size, kv_heads, head_dim] each, made when the
    first key arrives.

    Token 0 … block−1 of the arena belong to nobody: padding rows of a captured decode step write there.
    """

    def __init__(self, layers: int, block_tokens: int = 16, shrink: bool = True, room: int = 0) -> None:
        """Extents grow by ``block_tokens``. ``shrink``: give memory back when a quarter is in use. ``room``:
        tokens that the arena has room for from the start; while it lasts, a rollout whose greatest length is
        known gets all of it at once, and is never moved."""
        if block_tokens < 1:
            raise OppoError(f"kv_block_tokens is {block_tokens}; give a number of tokens from 1 on.")
        self.block_tokens = block_tokens
        self.generation = 0
        """Rises whenever the tensors are replaced (what was captured with their addresses is void)."""
        self._shrink = shrink
        self._keys: list[torch.Tensor | None] = [None] * layers
        self._values: list[torch.Tensor | None] = [None] * layers
        self._extents: dict[int, _Extent] = {}
        self._room = _rounded(max(block_tokens, room), block_tokens)
        self._size = self._room
        self._holes = self._one_hole()
        self._held = 0
        self._layer_bytes: dict[int, int] = {}

    # ---- what is where -------------------------------------------------------------------------------------

    def __contains__(self, rollout_id: int) -> bool:
        return rollout_id in self._extents

    def rollouts(self) -> tuple[int, ...]:
        """Ids of all that it holds anything of."""
        return tuple(self._extents)

    def length(self, rollout_id: int) -> int:
        """Tokens whose keys and values are here; 0 for a rollout that has none."""
        extent = self._extents.get(rollout_id)
        return 0 if extent is None else extent.length

    def start(self, rollout_id: int) -> int:
        """Index of the rollout's first token in the arena, until the next ``reserve`` or ``free``."""
        return self._extents[rollout_id].start

    @property
    def tokens(self) -> int:
        """Tokens held now."""
        return self._held

    @property
    def size(self) -> int:
        """Tokens the arena has room for now."""
        return self._size

    def bytes_per_token(self) -> int | None:
        """Bytes one token takes over all layers; None before anything was stored."""
        return sum(self._layer_bytes.values()) if len(self._layer_bytes) == len(self._keys) else None

    def keys(self, layer: int) -> torch.Tensor:
        """[size, kv_heads, head_dim]."""
        return _present(self._keys[layer])

    def values(self, layer: int) -> torch.Tensor:
        """[size, kv_heads, head_dim]."""
        return _present(self._values[layer])

    # ---- growing and freeing -------------------------------------------------------------------------------

    def reserve(self, needs: Mapping[int, int], limits: Mapping[int, int] | None = None) -> None:
        """Make room: rollout → tokens it will hold in all. Unknown ids start empty.

        ``limits``: the most tokens a rollout can ever hold, so that no headroom is made beyond it. Extents
        may move.
        Raises OppoError when memory runs out.
        """
        limits = limits or {}
        growing: dict[int, int] = {}
        for rollout_id, need in needs.items():
            extent = self._extents.get(rollout_id)
            if extent is None:
                extent = self._extents[rollout_id] = _Extent(0, 0, 0, limits.get(rollout_id))
            if need > extent.capacity:
                growing[rollout_id] = self._wanted(need, extent.limit)
        for rollout_id, capacity in growing.items():
            extent = self._extents[rollout_id]
            whole = _rounded(extent.limit or 0, self.block_tokens) if self._room > self.block_tokens else 0
            start = self._take(whole) if whole > capacity else None
            if start is not None:
                self._move(extent, start, whole)
                continue
            start = self._take(capacity)
            if start is None:
                self._rebuild(growing)
                return
            self._move(extent, start, capacity)

    def advance(self, rollout_id: int, tokens: int) -> None:
        """Note that ``tokens`` more were written."""
        self._extents[rollout_id].length += tokens
        self._held += tokens

    def free(self, rollout_id: int) -> None:
        """Forget a rollout's keys and values; one that has none is no error."""
        extent = self._extents.pop(rollout_id, None)
        if extent is None:
            return
        self._held -= extent.length
        self._give_back(extent.start, extent.capacity)
        if not self._shrink:
            return
        if not self._extents:
            self.clear()
        elif sum(other.capacity for other in self._extents.values()) * 4 < self._size:
            self._rebuild({})

    def clear(self) -> None:
        """Forget everything and give the memory back."""
        self._extents.clear()
        self._keys = [None] * len(self._keys)
        self._values = [None] * len(self._values)
        self._size = self._room
        self._holes = self._one_hole()
        self._held = 0
        self.generation += 1

    def write(self, layer: int, index: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store [T, kv_heads, head_dim] at arena positions ``index`` [T]."""
        keys, values = self._keys[layer], self._values[layer]
        if keys is None or values is None:
            keys = self._keys[layer] = _allocate(self._size, key)
            values = self._values[layer] = _allocate(self._size, value)
            self._layer_bytes[layer] = (key[0].numel() + value[0].numel()) * key.element_size()
        keys.index_copy_(0, index, key)
        values.index_copy_(0, index, value)

    # ---- the arena -----------------------------------------------------------------------------------------

    def _one_hole(self) -> list[tuple[int, int]]:
        """All of an empty arena."""
        free = self._size - self.block_tokens
        return [(self.block_tokens, free)] if free else []

    def _wanted(self, need: int, limit: int | None) -> int:
        roomy = need + max(self.block_tokens, need // 4)
        if limit is not None:
            roomy = max(need, min(roomy, limit))
        return _rounded(roomy, self.block_tokens)

    def _take(self, capacity: int) -> int | None:
        """First hole that is wide enough."""
        for position, (start, width) in enumerate(self._holes):
            if width >= capacity:
                if width == capacity:
                    del self._holes[position]
                else:
                    self._holes[position] = (start + capacity, width - capacity)
                return start
        return None

    def _give_back(self, start: int, capacity: int) -> None:
        if not capacity:
            return
        merged: list[tuple[int, int]] = []
        for hole in sorted([*self._holes, (start, capacity)]):
            if merged and merged[-1][0] + merged[-1][1] == hole[0]:
                merged[-1] = (merged[-1][0], merged[-1][1] + hole[1])
            else:
                merged.append(hole)
        self._holes = merged

    def _move(self, extent: _Extent, start: int, capacity: int) -> None:
        old, length = extent.start, extent.length
        if length:
            for tensor in (*self._keys, *self._values):
                if tensor is not None:
                    tensor[start : start + length] = tensor[old : old + length]
        self._give_back(old, extent.capacity)
        extent.start, extent.capacity = start, capacity

    def _rebuild(self, growing: Mapping[int, int]) -> None:
        """Lay extents out anew, ``growing`` ones wider, in a larger or smaller arena if needed."""
        # Everybody gets fresh headroom, or the next one to run out would have everything laid out again.
        fresh = {
            rollout_id: growing.get(rollout_id) or self._wanted(extent.length, extent.limit)
            for rollout_id, extent in self._extents.items()
        }
        capacities = {
            rollout_id: fresh[rollout_id]
            if rollout_id in growing
            else max(extent.capacity, fresh[rollout_id])
            for rollout_id, extent in self._extents.items()
        }
        if self._room > self.block_tokens and sum(capacities.values()) + self.block_tokens > self._size:
            capacities = fresh  # whole extents give up what they do not need yet
        needed = sum(capacities.values()) + self.block_tokens
        fits = self._size // 4 <= needed <= self._size or (not self._shrink and needed <= self._size)
        size = self._size if fits else _rounded(needed + needed // 8, self.block_tokens)
        places: list[tuple[int, int, int]] = []
        start = self.block_tokens
        for rollout_id, extent in self._extents.items():
            places.append((extent.start, start, extent.length))
            extent.start, extent.capacity = start, capacities[rollout_id]
            start += extent.capacity
        self._holes = [(start, size - start)] if size > start else []
        moves = [(old, new, length) for old, new, length in places if length]
        rows = _rows_of(moves, next((one.device for one in self._keys if one is not None), None))
        self._keys = [self._relaid(tensor, moves, rows, size) for tensor in self._keys]
        self._values = [self._relaid(tensor, moves, rows, size) for tensor in self._values]
        if size != self._size:
            self._size = size
            self.generation += 1

    def _relaid(
        self,
        tensor: torch.Tensor | None,
        moves: Sequence[tuple[int, int, int]],
        rows: tuple[torch.Tensor, torch.Tensor] | None,
        size: int,
    ) -> torch.Tensor | None:
        """``moves``: (old place, new place, tokens); ``rows``: the same, token by token."""
        if tensor is None:
            return None
        # The same tensor keeps its address; extents may overlap their new places, hence a copy of each first.
        kept = size == self._size
        target = tensor if kept else _allocate(size, tensor)
        if rows is not None:
            target.index_copy_(0, rows[1], tensor.index_select(0, rows[0]))
        elif kept:
            taken = [(new, tensor[old : old + length].clone()) for old, new, length in moves if old != new]
            for new, piece in taken:
                target[new : new + piece.shape[0]] = piece
        else:
            for old, new, length in moves:
                target[new : new + length] = tensor[old : old + length]
        return target


def _rows_of(
    moves: Sequence[tuple[int, int, int]], device: torch.device | None
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Old and new places of every token on a GPU, which launches one kernel a tensor then, instead of one a
    rollout; a CPU copies extents faster."""
    if device is None or device.type == "cpu" or not moves:
        return None
    old, new = (
        torch.cat([torch.arange(move[side], move[side] + move[2]) for move in moves]) for side in (0, 1)
    )
    return to_device(old, device), to_device(new, device)


def _allocate(size: int, like: torch.Tensor) -> torch.Tensor:
    try:
        return torch.zeros((size, *like.shape[1:]), dtype=like.dtype, device=like.device)
    except RuntimeError as error:  # torch.OutOfMemoryError is one; a CPU raises the plain kind
        raise OppoError(
            f"There is no memory on {like.device} for the keys and values of {size} tokens; lower"
            " kv_capacity_tokens, rollout_batch_size or max_response_length."
        ) from error


def _present(value: _Value | None) -> _Value:
    if value is None:
        raise OppoError("Keys and values were asked for before any were stored.")
    return value
