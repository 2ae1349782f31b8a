"""Prefixes that a serving engine's scorer keeps, compiled (``model/scorer_cache.py``). Only runs with
``s.scorer_cache_blocks`` come here. Entries count from 1, so that 0 is none."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment, arg-type"

import numpy as np

from oppo_sim.fast.arrays import cached_in, caches_in, rollouts_in, workers_in
from oppo_sim.fast.compiled import compiled
from oppo_sim.fast.records import State


@compiled
def entry_place(s: State, w: int, i: int) -> int:
    """Where entry ``i`` of worker ``w`` lies."""
    return w * (s.scorer_cache_blocks + 1) + i


@compiled
def remove_entry(s: State, w: int, i: int) -> None:
    """Entry ``i`` is no more."""
    worker, caches = workers_in(s)[w], caches_in(s)
    entry = caches[entry_place(s, w, i)]
    if not entry.in_use:
        worker.idle -= entry.blocks
    if worker.first_in_use == i:
        worker.first_in_use = entry.newer
    if entry.older:
        caches[entry_place(s, w, entry.older)].newer = entry.newer
    else:
        worker.oldest = entry.newer
    if entry.newer:
        caches[entry_place(s, w, entry.newer)].older = entry.older
    else:
        worker.newest = entry.older
    if entry.slot >= 0:
        cached_in(s)[entry.slot] = 0
    entry.newer = worker.spare
    worker.spare = i


@compiled
def add_entry(s: State, w: int, slot: int, blocks: int) -> int:
    """The entry, newest of all and in use, of so many blocks."""
    worker, caches = workers_in(s)[w], caches_in(s)
    i = worker.spare
    if i:
        worker.spare = caches[entry_place(s, w, i)].newer
    else:
        worker.entries += 1
        i = worker.entries
    entry = caches[entry_place(s, w, i)]
    entry.slot, entry.blocks, entry.in_use = slot, blocks, 1
    entry.older, entry.newer = worker.newest, 0
    if worker.newest:
        caches[entry_place(s, w, worker.newest)].newer = i
    else:
        worker.oldest = i
    worker.newest = i
    if worker.first_in_use == 0:
        worker.first_in_use = i
    return i


@compiled
def end_iteration(s: State, w: int) -> None:
    """``PrefixCache.end_iteration``."""
    worker = workers_in(s)[w]
    worker.room += worker.open
    worker.open = 0
    worker.left = s.scorer_iteration_tokens
    i = worker.first_in_use
    while i:
        entry = caches_in(s)[entry_place(s, w, i)]
        entry.in_use = 0
        worker.idle += entry.blocks
        i = np.int64(entry.newer)
    worker.first_in_use = 0


@compiled
def take_blocks(s: State, w: int, blocks: int) -> None:
    """``PrefixCache._take``."""
    worker = workers_in(s)[w]
    while worker.room < blocks:
        entry = caches_in(s)[entry_place(s, w, worker.oldest)]
        gone = min(np.int64(entry.blocks), blocks - worker.room)
        entry.blocks -= gone
        worker.idle -= gone
        worker.room += gone
        if entry.blocks == 0:
            remove_entry(s, w, worker.oldest)
    worker.room -= blocks


@compiled
def prefill_cached(s: State, w: int, slot: int, goes_on: bool, upto: int) -> int:
    """``PrefixCache.prefill``; an entry of a rollout that does not go on belongs to nobody."""
    worker, cached, block = workers_in(s)[w], cached_in(s), s.scorer_block_tokens
    if worker.left == 0:
        end_iteration(s, w)
    held = np.int64(0)
    i = np.int64(cached[slot])
    if i:
        held = np.int64(caches_in(s)[entry_place(s, w, i)].blocks)
        remove_entry(s, w, i)
    blocks = min((upto + block - 1) // block, s.scorer_cache_blocks)
    if worker.room + worker.idle < blocks - held:
        end_iteration(s, w)
    done, taken = held * block, held
    while done < upto:
        if worker.left == 0:
            end_iteration(s, w)
        new = min(upto - done, worker.left)
        done += new
        worker.left -= new
        need = min((done + block - 1) // block, blocks) - taken
        take_blocks(s, w, need)
        taken += need
    whole = min(upto // block, blocks)
    worker.open += blocks - whole
    if whole:
        i = add_entry(s, w, slot if goes_on else -1, whole)
        if goes_on:
            cached[slot] = i
    return held * block


@compiled
def disown(s: State, slot: int) -> None:
    """A dropped rollout: what is kept of it belongs to nobody."""
    i = cached_in(s)[slot]
    if i:
        caches_in(s)[entry_place(s, rollouts_in(s)[slot].worker, i)].slot = -1
        cached_in(s)[slot] = 0
