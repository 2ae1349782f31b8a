"""Sorting, heaps and draws of the compiled path."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment"

from typing import Any

import numpy as np

from oppo_sim.fast.compiled import compiled
from oppo_sim.fast.records import Array


@compiled
def clear(array: Array, first: int, last: int) -> None:
    """Zeros from ``first`` on, before ``last``."""
    for i in range(first, last):
        array[i] = 0


@compiled
def mixed(state: Any) -> Any:
    """``draws._mix``."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@compiled
def draw_index(key: Any, counter: int, size: int) -> int:
    """``draws.draw_index`` for sizes below 2^31, in two halves since the product has up to 95 bits."""
    drawn = mixed(key ^ mixed(np.uint64(counter)))
    low, high = drawn & np.uint64(0xFFFFFFFF), drawn >> np.uint64(32)
    wide = np.uint64(size)
    return np.int64((high * wide + ((low * wide) >> np.uint64(32))) >> np.uint64(32))


@compiled
def sort_by_key(keys: Array, items: Array, count: int) -> None:
    """Sort the first ``count`` of both by rising keys (Shell's method, Knuth's gaps)."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            key, item = keys[i], items[i]
            j = i
            while j >= gap and keys[j - gap] > key:
                keys[j], items[j] = keys[j - gap], items[j - gap]
                j -= gap
            keys[j], items[j] = key, item
        gap //= 3


@compiled
def heap_up(keys: Array, position: int) -> None:
    """Move the entry at ``position`` up to where it belongs."""
    key = keys[position]
    while position > 0:
        parent = (position - 1) >> 1
        if keys[parent] <= key:
            break
        keys[position] = keys[parent]
        position = parent
    keys[position] = key


@compiled
def heap_down(keys: Array, count: int, position: int) -> None:
    """Move the entry at ``position`` down to where it belongs."""
    key = keys[position]
    child = 2 * position + 1
    while child < count:
        if child + 1 < count and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        keys[position] = keys[child]
        position = child
        child = 2 * position + 1
    keys[position] = key
