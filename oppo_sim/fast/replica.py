"""One replica, compiled (``model/replica.py``)."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment"

from typing import Any

import numpy as np

from oppo_sim.fast.activities import ended, progress, record, series_seconds, start, time_on_device, tolerance
from oppo_sim.fast.costs import forward, inside, note_range
from oppo_sim.fast.ordering import clear, heap_down, heap_up, sort_by_key
from oppo_sim.fast.prefixes import cached_prefix, join_prefix, leave_prefix, runs_prefix
from oppo_sim.fast.records import (
    ASK_MODEL,
    ASYNC,
    BY_BATCH,
    BY_ROLLOUT,
    DECODE,
    DECODE_RANGE,
    IDLE,
    NO_ROOM,
    NO_SLOT,
    PREFILL,
    READY,
    SLOT_BITS,
    SPAN_DECODE,
    SPAN_PREFILL,
    UNBOUNDED,
    State,
    arrived_at_in,
    arrived_in,
    compiled,
    cuts_in,
    demand_in,
    filtered_in,
    finals_in,
    flights_in,
    groups_in,
    keys_in,
    line_at_in,
    line_range_in,
    lines_in,
    replicas_in,
    residues_in,
    rollouts_in,
    runners_in,
    sample_rewards_in,
    turns_in,
    waiting_in,
    whole_at_in,
    wholes_in,
    work_in,
)
from oppo_sim.fast.scorer import hand_over
from oppo_sim.fast.tools import call_tool, release_all, release_highest, release_kept


@compiled
def running_slot(s: State, r: int, i: int) -> int:
    """The slot at place ``i`` of the heap of the replica's running rollouts."""
    return finals_in(s)[r, i] & NO_SLOT


@compiled
def context_of(s: State, r: int, i: int) -> int:
    """Tokens in KV of the rollout at place ``i`` of the replica's heap."""
    rollout = rollouts_in(s)[running_slot(s, r, i)]
    return rollout.prompt + rollout.turn_end - (rollout.final - replicas_in(s)[r].iteration)


@compiled
def blocks_for_next_token(s: State, r: int) -> int:
    """``Replica._blocks_for_next_token``."""
    replica, block = replicas_in(s)[r], s.kv_block_tokens
    if block == 1:
        return replica.kv + replica.running - replica.shared_running
    blocks = -replica.shared_running
    for i in range(replica.running):
        blocks += context_of(s, r, i) // block + 1
    return blocks


@compiled
def kept_blocks(s: State, r: int) -> int:
    """``Replica._kept_blocks``."""
    replica = replicas_in(s)[r]
    return replica.kept_blocks - (replica.shared_blocks - replica.shared_running)


@compiled
def iterations_that_fit(s: State, r: int) -> int:
    """``Replica._iterations_that_fit``."""
    replica, residues = replicas_in(s)[r], residues_in(s)
    block = s.kv_block_tokens
    free = s.kv_blocks - blocks_for_next_token(s, r) - kept_blocks(s, r)
    cycles = free // replica.running
    free -= cycles * replica.running
    clear(residues, 0, block)
    if block > 1:
        for i in range(replica.running):
            residues[context_of(s, r, i) % block] += 1
    else:
        residues[0] = replica.running
    grown = 0
    for ahead in range(1, block + 1):
        grown += residues[block - ahead]
        if grown > free:
            return cycles * block + ahead
    return cycles * block + block


@compiled
def enqueue(s: State, r: int, slot: int) -> None:
    """``Replica.enqueue``."""
    replica, waiting = replicas_in(s)[r], waiting_in(s)
    if s.tools and turns_in(s)[slot].at_tool:
        replica.away += 1
        rollouts_in(s)[slot].queued = 1
        return
    i = replica.waiting
    if i >= waiting.shape[1]:
        s.error = NO_ROOM
        return
    identity = rollouts_in(s)[slot].id
    while i > 0 and rollouts_in(s)[waiting[r, i - 1]].id > identity:
        waiting[r, i] = waiting[r, i - 1]
        i -= 1
    waiting[r, i] = slot
    replica.waiting += 1
    rollouts_in(s)[slot].queued = 1


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
    """``Replica._give_up_kept``."""
    replica = replicas_in(s)[r]
    while replica.kept and blocks_for_next_token(s, r) + kept_blocks(s, r) > s.kv_blocks:
        release_highest(s, r)


@compiled
def preempt_until_it_fits(s: State, r: int) -> None:
    """``Replica._preempt_until_it_fits``."""
    replica, capacity = replicas_in(s)[r], s.kv_blocks
    give_up_kept(s, r)
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
    """``Replica.remove``."""
    replica, rollout = replicas_in(s)[r], rollouts_in(s)[slot]
    if rollout.has_kv:
        for i in range(replica.running):
            if running_slot(s, r, i) == slot:
                leave(s, r, i)
                break
    elif s.tools and turns_in(s)[slot].at_tool:
        replica.away -= 1
    else:
        kept = 0
        for i in range(replica.waiting):
            if waiting_in(s)[r, i] != slot:
                waiting_in(s)[r, kept] = waiting_in(s)[r, i]
                kept += 1
        replica.waiting = kept
    if s.tools:
        release_kept(s, r, slot)
    rollout.queued = 0
    replica.rows, replica.padded_kv = replica.running, replica.kv


@compiled
def room(s: State, r: int) -> int:
    """``Replica._room``: how many waiting rollouts, in id order, may join now."""
    replica = replicas_in(s)[r]
    count = replica.waiting
    if not s.limited:
        return count
    if s.max_num_seqs != UNBOUNDED:
        count = min(count, s.max_num_seqs - replica.running)
    if s.kv_blocks != UNBOUNDED:
        used = blocks_for_next_token(s, r)
        joining = -1
        for position in range(count):
            slot = waiting_in(s)[r, position]
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
def join(s: State, r: int) -> bool:
    """``Replica._join``: waiting rollouts join and are prefilled as one batch. True if something started."""
    replica = replicas_in(s)[r]
    count = room(s, r)
    if count == 0:
        return False
    tokens = recomputed = kv = longest = fresh = longest_fresh = 0
    pairs = recomputed_pairs = 0.0
    for i in range(count):
        slot = waiting_in(s)[r, i]
        rollout = rollouts_in(s)[slot]
        context = np.int64(rollout.prompt) + rollout.generated
        shared = cached_prefix(s, r, slot) if s.shares_prefixes else 0
        if s.tools:
            new = np.int64(turns_in(s)[slot].unseen)
            past = context - new
            turns_in(s)[slot].unseen = 0
            if turns_in(s)[slot].kept:
                shared = 0
            elif past:
                again = past - shared
                recomputed += again
                recomputed_pairs += again * (shared + again * 0.5)
            else:
                new, past = new - shared, shared
            tokens += new
            pairs += new * (past + new * 0.5)
            release_kept(s, r, slot)
        elif rollout.prefilled:
            again = context - shared
            recomputed += again
            recomputed_pairs += again * (shared + again * 0.5)
        else:
            new = context - shared
            tokens += new
            pairs += new * (shared + new * 0.5)
            rollout.prefilled = 1
        if s.shares_prefixes:
            s.prefix_cached += shared
            join_prefix(s, r, slot)
        kv += context
        longest = max(longest, context)
        if rollout.generated == 0:
            fresh += 1
            longest_fresh = max(longest_fresh, context)
        rollout.has_kv = 1
        final = replica.iteration + rollout.turn_end - rollout.generated
        rollout.final = final
        push(s, r, slot)
        if s.stream:
            if rollout.next_cut == 0:
                rollout.next_cut = s.chunk
            cut = replica.iteration + rollout.next_cut - rollout.generated
            if cut < final or (cut == final and rollout.turn_end < rollout.response):
                push_cut(s, r, cut, slot)
    replica.waiting -= count
    for i in range(replica.waiting):
        waiting_in(s)[r, i] = waiting_in(s)[r, i + count]
    replica.kv += kv
    if replica.kept and s.kv_blocks != UNBOUNDED:
        give_up_kept(s, r)
    s.prefilled += tokens
    s.recomputed += recomputed
    s.kv_peak = max(s.kv_peak, replica.kv + replica.kept - replica.shared_tokens)
    if s.static:
        replica.rows, replica.padded_kv = count, count * longest
        s.padding += count * longest - kv
        if not s.free_padding:
            if s.free_recompute:
                count, longest = fresh, longest_fresh
            tokens, recomputed = count * longest, 0
            pairs, recomputed_pairs = count * longest * longest * 0.5, 0.0
    if not s.free_recompute:
        tokens += recomputed
        pairs += recomputed_pairs
    replica.stale = 1
    if tokens == 0:
        return False
    seconds, flops, traffic, memory, arithmetic = forward(s, 0, float(tokens), pairs)
    seconds *= s.prefill_factor
    s.rollout_flops += flops
    s.rollout_bytes += traffic
    replica.kernel_s += time_on_device(memory, arithmetic) * seconds
    replica.k = count
    replica.state = PREFILL
    s.active += 1
    start(s, r, replica.at, seconds, memory, arithmetic, 0.0)
    return True


@compiled
def decode(s: State, r: int) -> None:
    """``Replica._decode``: iterations until something changes."""
    replica = replicas_in(s)[r]
    n, kv = replica.running, replica.kv
    if s.static and not s.free_padding:
        n, kv = replica.rows, replica.padded_kv
    change = finals_in(s)[r, 0]
    if replica.first_cut < replica.last_cut:
        change = min(change, cut_to_come(s, r))
    k = (change >> SLOT_BITS) - replica.iteration
    if s.rounds and replica.round_left < k:
        k = replica.round_left
    if s.kv_blocks != UNBOUNDED:
        k = min(k, iterations_that_fit(s, r))
    if n >= line_at_in(s).shape[0]:
        s.error = NO_ROOM
        return
    line = line_at_in(s)[n]
    while lines_in(s)[line, 2] < kv:
        line += 1
    fixed, slope, kv_until = lines_in(s)[line, 0], lines_in(s)[line, 1], lines_in(s)[line, 2]
    if s.has_lines_checked:
        if not inside(line_range_in(s)[n, 0], line_range_in(s)[n, 1], float(kv)):
            note_range(s, DECODE_RANGE, float(n), float(kv))
        furthest = kv_until if slope < 0 else float(kv)
        if fixed + slope * furthest <= line_range_in(s)[n, 2]:
            s.error = ASK_MODEL
            return
    if kv_until - kv < float(k * n):
        k = min(k, int(kv_until - kv) // n + 1)
    replica.fixed = fixed + slope * kv
    replica.slope = slope * n
    replica.k = k
    if replica.stale:
        take_demand(s, r, n, kv)
    replica.state = DECODE
    s.active += 1
    seconds = series_seconds(k, replica.fixed, replica.slope)
    start(s, r, replica.at, seconds, replica.memory, replica.arithmetic, replica.turns)


@compiled
def take_demand(s: State, r: int, n: int, kv: int) -> None:
    """``EngineCost.decode_demand``."""
    replica, terms = replicas_in(s)[r], demand_in(s)
    memory = terms[n, 0] + terms[n, 1] * kv
    arithmetic = terms[n, 2] + terms[n, 3] * kv
    if s.relative_demand:
        memory, arithmetic = min(1.0, memory / replica.fixed), min(1.0, arithmetic / replica.fixed)
    elif line_range_in(s)[n, 3] != 0.0:
        share = (replica.fixed - line_range_in(s)[n, 3]) / replica.fixed
        memory, arithmetic = min(1.0, memory * share), min(1.0, arithmetic * share)
    replica.memory, replica.arithmetic = memory, arithmetic
    replica.turns = s.turn_s / replica.fixed
    replica.stale = 0


@compiled
def next_activity(s: State, r: int) -> None:
    """``Replica.next_activity``."""
    replica = replicas_in(s)[r]
    if s.rounds and replica.round_left == 0:
        replica.state = IDLE
        return
    if s.kv_blocks != UNBOUNDED and replica.running:
        preempt_until_it_fits(s, r)
    if replica.waiting and join(s, r):
        return
    if replica.running == 0:
        replica.state = IDLE
        return
    decode(s, r)


@compiled
def made_tokens_in(rollout: Any, version: int) -> None:
    """``RolloutState.made_tokens_in``."""
    if rollout.head < 0:
        rollout.head = version
    if rollout.tail != version:
        rollout.tail = version
        rollout.span += 1


@compiled
def equal_rewards(s: State, place: int) -> bool:
    """``run._equal``."""
    first = sample_rewards_in(s)[rollouts_in(s)[place * s.group_size].row]
    for slot in range(place * s.group_size + 1, (place + 1) * s.group_size):
        if sample_rewards_in(s)[rollouts_in(s)[slot].row] != first:
            return False
    return True


@compiled
def take_out(s: State, place: int) -> None:
    """``Ledger.ready`` of a group with equal rewards: it is in flight no more."""
    filtered_in(s)[s.filtering] = place
    s.filtering += 1
    s.filtered += s.group_size
    s.filtered_ever += s.group_size
    for slot in range(place * s.group_size, (place + 1) * s.group_size):
        s.filtered_tokens += rollouts_in(s)[slot].generated
    kept = 0
    for i in range(s.flights):
        if flights_in(s)[i] != place:
            flights_in(s)[kept] = flights_in(s)[i]
            kept += 1
    s.flights = kept


@compiled
def ready(s: State, slot: int, at: float) -> None:
    """``Ledger.ready``: a finished rollout may be selected, once its group is whole."""
    place = rollouts_in(s)[slot].group
    group = groups_in(s)[place]
    group.missing -= 1
    if group.missing == 0:
        group.whole = 1
        group.finished_step = s.step
        s.awaited -= group.awaited
        group.awaited = 0
        if s.filters and equal_rewards(s, place):
            take_out(s, place)
            return
        arrived_in(s)[s.arrived], arrived_at_in(s)[s.arrived] = place, at
        s.arrived += 1
        s.fin += 1


@compiled
def finish(s: State, r: int, slot: int, at: float) -> None:
    """``Replica._finish_rollouts`` of one, and ``finished`` of the schedule."""
    replica, rollout = replicas_in(s)[r], rollouts_in(s)[slot]
    rollout.generated = rollout.turn_end
    replica.running -= 1
    replica.kv -= rollout.prompt + rollout.turn_end
    rollout.has_kv = 0
    if s.shares_prefixes:
        leave_prefix(s, r, slot)
    if rollout.turn_end < rollout.response:
        call_tool(s, r, slot, at)
        return
    rollout.queued = 0
    if s.stream:
        hand_over(s, slot, 1)
    rollout.finished = 1
    rollout.finished_at = at
    made_tokens_in(rollout, s.step)
    replica.load -= 1
    s.least_load = -1
    group = groups_in(s)[rollout.group]
    group.unfinished -= 1
    if s.schedule != ASYNC:
        ready(s, slot, at)
        s.finish_seen = 1
    elif s.granularity == BY_BATCH and group.unfinished == 0:
        wholes_in(s)[s.wholes], whole_at_in(s)[s.wholes] = rollout.group, at
        s.wholes += 1
    if s.granularity == BY_ROLLOUT and not s.rounds:
        hand_over(s, slot, 1)
        rollout.sent = 1


@compiled
def account(s: State, r: int, at: float) -> None:
    """``Replica._advance``: the iterations that just ended: tokens, finishes, cuts."""
    replica = replicas_in(s)[r]
    k, n = replica.k, replica.running
    rows, kv = n, replica.kv
    s.decoded += k * n
    replica.kernel_s += time_on_device(replica.memory, replica.arithmetic) * runners_in(s)[r].seconds
    if s.tracing:
        shown = replica.padded_kv if s.static else replica.kv
        record(s, SPAN_DECODE, r, 0, runners_in(s)[r].started, at, n, k, shown)
    replica.kv += k * n
    if s.static:
        rows, kv = replica.rows, replica.padded_kv
        s.padding += k * (rows - n)
        replica.padded_kv += k * rows
    if s.knows_actor:
        work, kv_sum = work_in(s), k * kv + rows * (k * (k - 1) * 0.5)
        s.rollout_flops += k * work[rows, 0] + work[rows, 1] * kv_sum
        s.rollout_bytes += k * work[rows, 2] + work[rows, 3] * kv_sum
    s.kv_peak = max(s.kv_peak, kv + k * rows + replica.kept - replica.shared_tokens)
    iteration = replica.iteration + k
    replica.iteration = iteration
    replica.round_left -= k
    while replica.first_cut < replica.last_cut and cut_to_come(s, r) >> SLOT_BITS == iteration:
        slot = cut_to_come(s, r) & NO_SLOT
        replica.first_cut += 1
        if slot != NO_SLOT:
            rollout = rollouts_in(s)[slot]
            rollout.generated = rollout.next_cut
            hand_over(s, slot, 0)
            rollout.next_cut = rollout.cut + s.chunk
            cut = iteration + s.chunk
            if cut < rollout.final or (cut == rollout.final and rollout.turn_end < rollout.response):
                push_cut(s, r, cut, slot)
    finals = finals_in(s)[r]
    while replica.running and finals[0] >> SLOT_BITS == iteration:
        finish(s, r, finals[0] & NO_SLOT, at)
        replica.stale = 1
        finals[0] = finals[replica.running]
        heap_down(finals, replica.running, 0)


@compiled
def replica_ended(s: State, r: int) -> None:
    """``Replica._activity_ended``."""
    replica = replicas_in(s)[r]
    at = ended(s, r)
    s.active -= 1
    if replica.state == PREFILL:
        if s.tracing:
            record(s, SPAN_PREFILL, r, 0, runners_in(s)[r].started, at, replica.k, 0.0, 0.0)
    elif replica.k:
        account(s, r, at)
    replica.at = at
    replica.state = READY
    s.ready_first, s.ready_last = min(s.ready_first, r), max(s.ready_last, r)


@compiled
def stops_now(s: State, r: int) -> bool:
    """``Replica.stops_at`` of now: the iteration in progress ends in this instant."""
    runner = runners_in(s)[r]
    return replicas_in(s)[r].state == DECODE and progress(runner, s.now + tolerance(s.now)) >= runner.seconds


@compiled
def sync_generated(s: State, r: int) -> None:
    """``Replica.sync_generated``."""
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
        for i in range(replica.running):
            slot = running_slot(s, r, i)
            rollouts_in(s)[slot].has_kv = 0
            if s.shares_prefixes:
                leave_prefix(s, r, slot)
            waiting_in(s)[r, replica.waiting] = slot
            replica.waiting += 1
        replica.first_cut = replica.last_cut = 0
        replica.running = replica.kv = replica.rows = replica.padded_kv = 0
        if s.limited or s.shares_prefixes:
            for i in range(replica.waiting):
                keys_in(s)[i] = rollouts_in(s)[waiting_in(s)[r, i]].id
            sort_by_key(keys_in(s), waiting_in(s)[r], replica.waiting)
    if s.tools:
        release_all(s)
