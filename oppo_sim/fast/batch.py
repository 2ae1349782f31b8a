"""Who runs and who waits on a replica, and the KV blocks they hold, compiled (``model/batch.py``)."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment"

import numpy as np

from oppo_sim.fast.arrays import (
    classes_in,
    cuts_in,
    finals_in,
    groups_in,
    keys_in,
    replicas_in,
    residues_in,
    rollouts_in,
    turns_in,
    waiting_in,
)
from oppo_sim.fast.codes import NO_ROOM, NO_SLOT, SLOT_BITS, UNBOUNDED
from oppo_sim.fast.compiled import compiled, rule
from oppo_sim.fast.ordering import clear, heap_down, heap_up, sort_by_key
from oppo_sim.fast.prefixes import leave_prefix, runs_prefix
from oppo_sim.fast.records import State
from oppo_sim.fast.tools import release_all, release_highest, release_kept
from oppo_sim.model import formulas

iterations_that_fit = rule(formulas.iterations_that_fit)


@compiled
def running_slot(s: State, r: int, i: int) -> int:
    """The slot at place ``i`` of the heap of the replica's running rollouts."""
    return finals_in(s)[r, i] & NO_SLOT


@compiled
def count_class(s: State, r: int, slot: int, more: int) -> None:
    """A rollout begins to run (1) or no longer does (−1). Its context is that of its class plus the replica's
    iteration, but for whole blocks."""
    rollout = rollouts_in(s)[slot]
    classes_in(s)[r, (np.int64(rollout.prompt) + rollout.turn_end - rollout.final) % s.kv_block_tokens] += (
        more
    )


@compiled
def blocks_for_next_token(s: State, r: int) -> int:
    """``ReplicaBatch._blocks_for_next_token``: a context's whole blocks are what is beyond its residue."""
    replica, block = replicas_in(s)[r], s.kv_block_tokens
    beyond = 0
    for i in range(block):
        beyond += classes_in(s)[r, i] * ((i + replica.iteration) % block)
    return (replica.kv - beyond) // block + replica.running - replica.shared_running


@compiled
def most_blocks(s: State, r: int) -> int:
    """At least ``blocks_for_next_token``, without a look at every rollout."""
    replica = replicas_in(s)[r]
    return replica.kv // s.kv_block_tokens + replica.running - replica.shared_running


@compiled
def kept_blocks(s: State, r: int) -> int:
    """``ReplicaBatch._kept_blocks``."""
    replica = replicas_in(s)[r]
    return replica.kept_blocks - (replica.shared_blocks - replica.shared_running)


@compiled
def iterations_before_full(s: State, r: int, wanted: int) -> int:
    """``ReplicaBatch.iterations_before_full``, at most ``wanted``."""
    replica, residues = replicas_in(s)[r], residues_in(s)
    block = s.kv_block_tokens
    grown_most = replica.running * ((wanted + block - 1) // block)
    if most_blocks(s, r) + kept_blocks(s, r) + grown_most <= s.kv_blocks:
        return wanted
    free = s.kv_blocks - blocks_for_next_token(s, r) - kept_blocks(s, r)
    for i in range(block):
        residues[(i + replica.iteration) % block] = classes_in(s)[r, i]
    return min(wanted, iterations_that_fit(residues[:block], free, replica.running))


@compiled
def enqueue(s: State, r: int, slot: int) -> None:
    """``ReplicaBatch.enqueue``."""
    replica, waiting = replicas_in(s)[r], waiting_in(s)
    if s.tools and turns_in(s)[slot].at_tool:
        replica.away += 1
        rollouts_in(s)[slot].queued = 1
        return
    first, end = replica.first_waiting, replica.first_waiting + replica.waiting
    identity = rollouts_in(s)[slot].id
    if first and first < end and rollouts_in(s)[waiting[r, (first + end) // 2]].id > identity:
        # Nearer to the first ones: these move.
        i = replica.first_waiting = first - 1
        while i + 1 < end and rollouts_in(s)[waiting[r, i + 1]].id < identity:
            waiting[r, i] = waiting[r, i + 1]
            i += 1
    else:
        i = begin_waiting(s, r) if end == waiting.shape[1] else end
        if i >= waiting.shape[1]:
            s.error = NO_ROOM
            return
        while i > replica.first_waiting and rollouts_in(s)[waiting[r, i - 1]].id > identity:
            waiting[r, i] = waiting[r, i - 1]
            i -= 1
    waiting[r, i] = slot
    replica.waiting += 1
    rollouts_in(s)[slot].queued = 1


@compiled
def begin_waiting(s: State, r: int) -> int:
    """Move those that wait to the begin of their table; the place after them."""
    replica, waiting = replicas_in(s)[r], waiting_in(s)
    for i in range(replica.waiting if replica.first_waiting else 0):
        waiting[r, i] = waiting[r, replica.first_waiting + i]
    replica.first_waiting = 0
    return replica.waiting


@compiled
def push(s: State, r: int, slot: int) -> None:
    """A rollout runs, until its final iteration."""
    replica, finals = replicas_in(s)[r], finals_in(s)
    i = replica.running
    if i >= finals.shape[1]:
        s.error = NO_ROOM
        return
    finals[r, i] = (rollouts_in(s)[slot].final << SLOT_BITS) | slot
    replica.running = i + 1
    count_class(s, r, slot, 1)
    heap_up(finals[r], i)


@compiled
def push_cut(s: State, r: int, iteration: int, slot: int) -> None:
    """A running rollout's next cut, mostly the last one to come."""
    replica, cuts = replicas_in(s)[r], cuts_in(s)[r]
    first, i, around = replica.first_cut, replica.last_cut, cuts.shape[0] - 1
    if i - first > around:
        s.error = NO_ROOM
        return
    replica.last_cut = i + 1
    while i > first and cuts[(i - 1) & around] >> SLOT_BITS > iteration:
        cuts[i & around] = cuts[(i - 1) & around]
        i -= 1
    cuts[i & around] = (iteration << SLOT_BITS) | slot


@compiled
def cut_to_come(s: State, r: int) -> int:
    """The iteration of the replica's next cut, and its slot."""
    cuts = cuts_in(s)[r]
    return cuts[replicas_in(s)[r].first_cut & (cuts.shape[0] - 1)]


@compiled
def leave(s: State, r: int, place: int) -> None:
    """A running rollout, at ``place`` of the replica's heap, is no longer there and frees its KV."""
    replica, finals, cuts = replicas_in(s)[r], finals_in(s)[r], cuts_in(s)[r]
    slot = running_slot(s, r, place)
    rollout = rollouts_in(s)[slot]
    rollout.generated = rollout.turn_end - (rollout.final - replica.iteration)
    rollout.has_kv = rollout.queued = 0
    count_class(s, r, slot, -1)
    replica.running -= 1
    replica.kv -= rollout.prompt + rollout.generated
    if s.shares_prefixes:
        leave_prefix(s, r, slot)
    last = replica.running
    if place < last:
        finals[place] = finals[last]
        heap_down(finals, last, place)
        heap_up(finals, place)
    for i in range(replica.first_cut, replica.last_cut):
        if cuts[i & (cuts.shape[0] - 1)] & NO_SLOT == slot:
            cuts[i & (cuts.shape[0] - 1)] |= NO_SLOT  # its cut still ends a run of iterations


@compiled
def give_up_kept(s: State, r: int) -> None:
    """``ReplicaBatch._give_up_kept``."""
    replica = replicas_in(s)[r]
    if most_blocks(s, r) + kept_blocks(s, r) <= s.kv_blocks:
        return
    while replica.kept and blocks_for_next_token(s, r) + kept_blocks(s, r) > s.kv_blocks:
        release_highest(s, r)


@compiled
def preempt_until_it_fits(s: State, r: int) -> None:
    """``ReplicaBatch.preempt_until_it_fits``."""
    replica, capacity = replicas_in(s)[r], s.kv_blocks
    give_up_kept(s, r)
    if most_blocks(s, r) <= capacity:
        return
    while replica.running and blocks_for_next_token(s, r) > capacity:
        victim = 0
        for i in range(1, replica.running):
            if rollouts_in(s)[running_slot(s, r, i)].id > rollouts_in(s)[running_slot(s, r, victim)].id:
                victim = i
        slot = running_slot(s, r, victim)
        leave(s, r, victim)
        rollouts_in(s)[slot].preemptions += 1
        s.preemptions += 1
        replica.stale = 1
        enqueue(s, r, slot)


@compiled
def remove(s: State, r: int, slot: int) -> None:
    """``ReplicaBatch.remove``."""
    replica, rollout = replicas_in(s)[r], rollouts_in(s)[slot]
    if rollout.has_kv:
        for i in range(replica.running):
            if running_slot(s, r, i) == slot:
                leave(s, r, i)
                break
    elif s.tools and turns_in(s)[slot].at_tool:
        replica.away -= 1
    else:
        kept = first = replica.first_waiting
        for i in range(first, first + replica.waiting):
            if waiting_in(s)[r, i] != slot:
                waiting_in(s)[r, kept] = waiting_in(s)[r, i]
                kept += 1
        replica.waiting = kept - first
    if s.tools:
        release_kept(s, r, slot)
    rollout.queued = 0
    replica.rows, replica.padded_kv = replica.running, replica.kv


@compiled
def room(s: State, r: int) -> int:
    """``ReplicaBatch._room``: how many waiting rollouts, in id order, may join now."""
    replica = replicas_in(s)[r]
    count = replica.waiting
    if not s.limited:
        return count
    if s.max_num_seqs != UNBOUNDED:
        count = min(count, s.max_num_seqs - replica.running)
    if s.kv_blocks != UNBOUNDED and fitting(s, r, count, most_blocks(s, r)) < count:
        return fitting(s, r, count, blocks_for_next_token(s, r))
    return max(count, 0)


@compiled
def fitting(s: State, r: int, count: int, used: int) -> int:
    """Of ``count`` waiting rollouts, how many the KV blocks hold beside ``used``."""
    joining = -1
    for position in range(count):
        slot = waiting_in(s)[r, replicas_in(s)[r].first_waiting + position]
        rollout = rollouts_in(s)[slot]
        if s.shares_prefixes and rollout.shares:
            if rollout.group == joining or runs_prefix(s, r, slot):
                used -= groups_in(s)[rollout.group].prefix // s.kv_block_tokens
            joining = rollout.group
        used += (rollout.prompt + rollout.generated) // s.kv_block_tokens + 1
        if used > s.kv_blocks:
            return position
    return max(count, 0)


@compiled
def sync_generated(s: State, r: int) -> None:
    """``ReplicaBatch.sync_generated``."""
    replica = replicas_in(s)[r]
    for i in range(replica.running):
        rollout = rollouts_in(s)[running_slot(s, r, i)]
        rollout.generated = rollout.turn_end - (rollout.final - replica.iteration)


@compiled
def release_kv(s: State) -> None:
    """``SimulatedPlant.update_weights``: all KV is freed."""
    for r in range(s.replicas):
        replica = replicas_in(s)[r]
        sync_generated(s, r)
        begin_waiting(s, r)
        for i in range(replica.running):
            slot = running_slot(s, r, i)
            rollouts_in(s)[slot].has_kv = 0
            if s.shares_prefixes:
                leave_prefix(s, r, slot)
            waiting_in(s)[r, replica.waiting] = slot
            replica.waiting += 1
        replica.first_cut = replica.last_cut = 0
        replica.running = replica.kv = replica.rows = replica.padded_kv = 0
        clear(classes_in(s)[r], 0, s.kv_block_tokens)
        if s.limited or s.shares_prefixes:
            for i in range(replica.waiting):
                keys_in(s)[i] = rollouts_in(s)[waiting_in(s)[r, i]].id
            sort_by_key(keys_in(s), waiting_in(s)[r], replica.waiting)
    if s.tools:
        release_all(s)
