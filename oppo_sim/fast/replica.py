"""What a replica does next and what ended, compiled (``model/replica.py``)."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment"

import numpy as np

from oppo_sim.fast.activities import ended, progress, record, series_seconds, start, time_on_device, tolerance
from oppo_sim.fast.arrays import (
    demand_in,
    finals_in,
    groups_in,
    line_at_in,
    line_range_in,
    lines_in,
    replicas_in,
    rollouts_in,
    runners_in,
    turns_in,
    waiting_in,
    whole_at_in,
    wholes_in,
    work_in,
)
from oppo_sim.fast.batch import (
    count_class,
    cut_to_come,
    give_up_kept,
    iterations_before_full,
    preempt_until_it_fits,
    push,
    push_cut,
    room,
)
from oppo_sim.fast.codes import (
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
)
from oppo_sim.fast.compiled import compiled
from oppo_sim.fast.costs import forward, inside, note_range
from oppo_sim.fast.ordering import heap_down
from oppo_sim.fast.prefixes import cached_prefix, join_prefix, leave_prefix
from oppo_sim.fast.records import State
from oppo_sim.fast.scorer import hand_over
from oppo_sim.fast.selection import made_tokens_in, ready
from oppo_sim.fast.tools import call_tool, release_kept


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
        slot = waiting_in(s)[r, replica.first_waiting + i]
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
    replica.first_waiting = replica.first_waiting + count if replica.waiting else 0
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
    replica.flops += flops
    replica.traffic += traffic
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
        k = iterations_before_full(s, r, k)
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
def finish(s: State, r: int, slot: int, at: float) -> None:
    """``Replica._finish_rollouts`` of one, and ``finished`` of the schedule."""
    replica, rollout = replicas_in(s)[r], rollouts_in(s)[slot]
    count_class(s, r, slot, -1)
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
        replica.flops += k * work[rows, 0] + work[rows, 1] * kv_sum
        replica.traffic += k * work[rows, 2] + work[rows, 3] * kv_sum
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
