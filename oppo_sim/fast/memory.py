"""The memory of a compiled run: one record, and the arrays that it points to."""

from collections.abc import Mapping
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

_LINE = 64
"""Bytes of a cache line."""
_COPIED = 1 << 14
"""Bytes of an array up to which a copy costs less than its own place."""


class Zeros(NamedTuple):
    """An array to be made, of its kind in ``records.TABLES``."""

    shape: tuple[int, ...]


class Memory(NamedTuple):
    """A run as the kernel works on it."""

    states: "np.ndarray[Any, Any]"
    """One record of ``records.STATE``, which points to …"""
    tables: "dict[str, np.ndarray[Any, Any]]"
    """… these."""

    def put(self, name: str, table: "np.ndarray[Any, Any]") -> None:
        """Let the run work on another array."""
        import numpy as np

        from oppo_sim.fast import records

        i = list(records.TABLES).index(name)
        table = self.tables[name] = aligned(np.ascontiguousarray(table, dtype=records.TABLES[name]))
        self.states["address"][0, i] = table.ctypes.data
        self.states["length"][0, i] = table.shape[0]
        self.states["width"][0, i] = table.shape[-1]


def make_memory(values: Mapping[str, float], tables: "Mapping[str, np.ndarray[Any, Any] | Zeros]") -> Memory:
    """A record with these values, and its arrays: those to be made, and small ones that are given, lie in one
    piece of memory, each at the begin of a cache line."""
    import numpy as np

    from oppo_sim.fast import records

    kinds, offsets, end = _kinds(), {}, 0
    given: dict[str, np.ndarray[Any, Any]] = {}
    for name, table in tables.items():
        if isinstance(table, Zeros):
            size = prod(table.shape) * kinds[name].itemsize
        else:
            found = given[name] = np.ascontiguousarray(table, dtype=kinds[name])
            if found.nbytes > _COPIED:
                continue
            size = found.nbytes
        offsets[name] = end
        end += -(-size // _LINE) * _LINE
    # Fresh zeros of the system: pages that a run does not touch cost nothing.
    room = np.zeros(end + _LINE, dtype=np.uint8)
    address = room.ctypes.data
    shift, data = -address % _LINE, room.data
    made: dict[str, np.ndarray[Any, Any]] = {}
    places: list[tuple[int, int, int]] = []
    for name, kind in kinds.items():
        if name in offsets:
            shape, at = tables[name].shape, shift + offsets[name]
            made[name] = np.ndarray(shape, dtype=kind, buffer=data, offset=at)
            places.append((address + at, shape[0], shape[-1]))
            if name in given:
                made[name][...] = given[name]
        else:
            found = made[name] = aligned(given[name])
            places.append((found.ctypes.data, found.shape[0], found.shape[-1]))
    states = np.zeros(1, dtype=records.STATE)
    state: Any = states[0]
    for name, value in values.items():
        state[name] = value
    for name, column in zip(("address", "length", "width"), zip(*places, strict=True), strict=True):
        states[name][0] = column
    return Memory(states, made)


@cache
def _kinds() -> "dict[str, np.dtype[Any]]":
    import numpy as np

    from oppo_sim.fast import records

    return {name: np.dtype(kind) for name, kind in records.TABLES.items()}


def aligned(table: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """The table, copied if need be, at the begin of a cache line."""
    import numpy as np

    if table.ctypes.data % _LINE == 0:
        return table
    room = np.empty(table.nbytes + _LINE, dtype=np.uint8)
    first = -room.ctypes.data % _LINE
    moved: np.ndarray[Any, Any] = room[first : first + table.nbytes].view(table.dtype).reshape(table.shape)
    moved[...] = table
    return moved
