"""Generation, compiled: phases, rounds and stops (``model/machine.py``, ``schedule/schedules.py``)."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment"

import math

from oppo_sim.fast.activities import (
    event_in_instant,
    iterations_until,
    progress,
    record,
    rerate_all,
    series_seconds,
    set_event,
    shorten,
    tolerance,
)
from oppo_sim.fast.admission import admit_within
from oppo_sim.fast.arrays import (
    flights_in,
    replicas_in,
    rollouts_in,
    runners_in,
    selection_in,
    whole_at_in,
    wholes_in,
)
from oppo_sim.fast.batch import enqueue, release_kv, sync_generated
from oppo_sim.fast.codes import (
    ASK_MODEL,
    ASYNC,
    BY_BATCH,
    BY_CHUNK,
    DECODE,
    DROP,
    IDLE,
    READY,
    SELECT,
    SPAN_BARRIER,
    SPAN_TRAINING,
    SPAN_WAKE,
    STAGES,
)
from oppo_sim.fast.compiled import compiled
from oppo_sim.fast.records import State
from oppo_sim.fast.replica import next_activity, stops_now
from oppo_sim.fast.scorer import hand_over, settle_scorer
from oppo_sim.fast.selection import (
    close_version,
    count_deferrals,
    drop_filtered,
    drop_groups,
    order_arrivals,
    order_by_instant,
    phase_over,
    select,
)
from oppo_sim.fast.tools import anybody_away, next_answer, take_answer


@compiled
def generate(s: State) -> None:
    """``Machine.generate``."""
    if s.static or (s.rounds and not s.keeps_kv):
        release_kv(s)  # a batch is formed anew
    s.generating = 1
    s.stopping = s.finish_seen = 0
    begin_replicas(s)


@compiled
def begin_replicas(s: State) -> None:
    """``Replica.begin_phase`` of all, now."""
    s.ready_first = 0
    s.ready_last = s.replicas - 1
    for r in range(s.replicas):
        replica = replicas_in(s)[r]
        replica.at = s.now
        replica.round_left = s.chunk
        replica.state = READY
        replica.stale = 1


@compiled
def wake(s: State, seconds: float) -> None:
    """``Machine.generate`` after ``seconds``."""
    if seconds > 0.0:
        s.waking = 1
        set_timer(s, seconds)
    else:
        generate(s)


@compiled
def set_timer(s: State, seconds: float) -> None:
    """Seconds that pass beside everything else."""
    s.timer_began = s.now
    set_event(s, s.replicas + s.workers + 1, s.now + seconds)


@compiled
def timer_ended(s: State) -> None:
    """Replicas are awake, a round's seconds have passed, or the trainer's ``other`` is over."""
    set_event(s, s.replicas + s.workers + 1, math.inf)
    if s.waking:
        s.waking = 0
        generate(s)
        if s.tracing:
            for r in range(s.replicas):
                record(s, SPAN_WAKE, r, 0, s.timer_began, s.now, 0.0, 0.0, 0.0)
        return
    if s.leaving:
        s.leaving = 2
        for r in range(s.replicas):
            replicas_in(s)[r].at = s.now
            if s.tracing:
                record(s, SPAN_BARRIER, r, 0, s.timer_began, s.now, 0.0, 0.0, 0.0)
        return
    s.spending = 0
    s.other_passed = s.now - s.timer_began
    if s.tracing:
        record(s, SPAN_TRAINING, 0, STAGES, s.timer_began, s.now, 0.0, 0.0, 0.0)
    s.resume = 1


@compiled
def spend_other(s: State) -> None:
    """``Trainer.other`` begins."""
    s.other_passed = 0.0
    if s.other_s > 0.0:
        s.spending = 1
        set_timer(s, s.other_s)


@compiled
def stop(s: State) -> None:
    """``Machine.stop``: iterations and prefills in progress complete, no others start."""
    s.stopping = 1
    for r in range(s.replicas):
        replica = replicas_in(s)[r]
        if replica.state == READY:
            replica.state = IDLE
        else:
            end_with_iteration(s, r)


@compiled
def end_with_iteration(s: State, r: int) -> None:
    """``Replica._end_with_iteration``."""
    replica = replicas_in(s)[r]
    if replica.state == DECODE:
        passed = progress(runners_in(s)[r], s.now - tolerance(s.now))
        k = iterations_until(passed, replica.k, replica.fixed, replica.slope)
        if k < replica.k:
            replica.k = k
            shorten(s, r, series_seconds(k, replica.fixed, replica.slope))


@compiled
def tool_answered(s: State) -> None:
    """``Machine._call_tool.answered`` and ``Machine._tool_answered``: of the next answer."""
    slot = next_answer(s)
    take_answer(s, slot)
    rollout = rollouts_in(s)[slot]
    if not rollout.queued:
        return
    r = rollout.replica
    replicas_in(s)[r].away -= 1
    enqueue(s, r, slot)
    if not s.generating or s.stopping:
        return
    if s.postponed:
        s.postponed = 0
        begin_replicas(s)
    elif not s.rounds or replicas_in(s)[r].state != IDLE:  # else it is at the barrier
        wake_replica(s, r)
        replicas_in(s)[r].answered = s.answered = 1


@compiled
def wake_replica(s: State, r: int) -> None:
    """``Replica.wake``."""
    replica = replicas_in(s)[r]
    if replica.state == IDLE:
        replica.at = s.now
        replica.state = READY
        s.ready_first, s.ready_last = min(s.ready_first, r), max(s.ready_last, r)
    else:
        end_with_iteration(s, r)


@compiled
def replace_filtered(s: State, groups: int) -> None:
    """``Scheduler._replace_filtered`` and ``Machine.join``."""
    if groups == 0:
        return
    admit_within(s, groups)
    if s.rounds:
        return  # at the barrier
    for i in range(s.flights - groups, s.flights):
        for slot in range(flights_in(s)[i] * s.group_size, (flights_in(s)[i] + 1) * s.group_size):
            r = rollouts_in(s)[slot].replica
            wake_replica(s, r)
            replicas_in(s)[r].answered = s.answered = 1


@compiled
def answer_ends_iteration(s: State) -> bool:
    """An end that an answer brought forward to this instant comes before what the answer leads to."""
    s.answered = 0
    found = False
    for r in range(s.replicas):
        if replicas_in(s)[r].answered:
            replicas_in(s)[r].answered = 0
            found = found or (s.generating and stops_now(s, r))
    return found


@compiled
def rest(s: State) -> float:
    """``Machine.rest``: when the last replica stopped."""
    s.generating = s.stopping = s.postponed = 0
    none_ready(s)
    for r in range(s.replicas):
        replicas_in(s)[r].state = IDLE
        sync_generated(s, r)
    return last_at(s)


@compiled
def deliver_round(s: State) -> None:
    """``Phased._deliver_round``: at the barrier, pieces of the round reach the scorer."""
    if s.granularity == BY_BATCH:
        return
    for r in range(s.replicas):
        sync_generated(s, r)
    for i in range(s.flights):
        for slot in range(flights_in(s)[i] * s.group_size, (flights_in(s)[i] + 1) * s.group_size):
            rollout = rollouts_in(s)[slot]
            if s.granularity == BY_CHUNK:
                if rollout.generated > rollout.cut:
                    hand_over(s, slot, rollout.finished)
            elif rollout.finished and not rollout.sent:
                rollout.sent = 1
                hand_over(s, slot, 1)


@compiled
def barrier(s: State) -> None:
    """``Phased.all_idle``: the round is over."""
    if s.schedule == ASYNC:
        if s.draining:
            rest(s)
            s.draining = 0
            s.paused = s.resume = 1
        return  # nothing to generate until the next update admits more
    if not s.rounds:
        s.error = ASK_MODEL
        return
    s.to_replace = drop_filtered(s)
    deliver_round(s)
    if s.round_fixed_s > 0.0:
        s.leaving = 1
        s.timer_began = last_at(s)
        set_event(s, s.replicas + s.workers + 1, max(s.timer_began + s.round_fixed_s, s.now))
    else:
        leave_barrier(s)


@compiled
def last_at(s: State) -> float:
    """When the last replica stopped."""
    last = replicas_in(s)[0].at
    for r in range(s.replicas):
        last = max(last, replicas_in(s)[r].at)
    return last


@compiled
def leave_barrier(s: State) -> None:
    """``Phased._after_barrier``: the phase is over, or another round begins."""
    if phase_over(s):
        begin_end(s, rest(s))
        return
    replace_filtered(s, s.to_replace)
    at = last_at(s)
    if not s.keeps_kv:
        release_kv(s)
    for r in range(s.replicas):
        replicas_in(s)[r].at = at
        replicas_in(s)[r].round_left = s.chunk
        replicas_in(s)[r].stale = 1
        next_activity(s, r)
    if s.active == 0:
        s.postponed = 1  # until a tool answers


@compiled
def none_ready(s: State) -> None:
    """No replica is ready for its next activity."""
    s.ready_first, s.ready_last = s.replicas, -1


@compiled
def settle(s: State) -> None:
    """``Machine.settle``: the decisions of one instant, in their order."""
    if s.answered and answer_ends_iteration(s):
        if s.dirty:
            rerate_all(s)
        return
    if s.generating:
        if s.schedule == ASYNC:
            if s.filtering:
                groups = drop_filtered(s)
                if not s.stopping and not s.draining:
                    replace_filtered(s, groups)
            send_whole_batches(s)
            if s.stopping and s.active == 0:
                rest(s)
                s.paused = s.resume = 1
        elif not s.rounds and (s.finish_seen or s.stopping):
            s.finish_seen = 0
            groups = drop_filtered(s)
            if not s.stopping:
                if phase_over(s):
                    stop(s)
                else:
                    replace_filtered(s, groups)
            if s.stopping and s.active == 0:
                begin_end(s, rest(s))
        if s.answered and answer_ends_iteration(s):
            if s.dirty:
                rerate_all(s)
            return
        if s.stopping:
            for r in range(s.replicas):
                if stops_now(s, r):
                    if s.dirty:
                        rerate_all(s)
                    return
        elif s.leaving == 2:
            s.leaving = 0
            leave_barrier(s)
        elif s.ready_last >= 0 and s.generating:
            idle = False
            for r in range(s.ready_first, s.ready_last + 1):
                if replicas_in(s)[r].state == READY:
                    next_activity(s, r)
                    if replicas_in(s)[r].state == IDLE:
                        idle = True
            none_ready(s)
            if idle and s.active == 0 and (s.rounds or not s.tools or not anybody_away(s)):
                barrier(s)
    if s.ending:
        s.in_settle = 1  # what follows waits until the policy has answered
    else:
        settle_rest(s)


@compiled
def settle_rest(s: State) -> None:
    """What follows the decisions about generation in an instant."""
    settle_scorer(s)
    if s.awaiting_batch and phase_over(s) and not event_in_instant(s):
        s.awaiting_batch = 0
        s.resume = 1
    if s.dirty:
        rerate_all(s)


@compiled
def send_whole_batches(s: State) -> None:
    """``WholeBatches.take``: whole batches of finished groups go to the scorer."""
    groups = s.batch // s.group_size
    count = s.wholes // groups * groups
    if count == 0:
        return
    order_by_instant(s, whole_at_in(s), wholes_in(s), s.wholes)
    for i in range(count):
        for slot in range(wholes_in(s)[i] * s.group_size, (wholes_in(s)[i] + 1) * s.group_size):
            send_whole(s, slot)
    for i in range(count, s.wholes):
        wholes_in(s)[i - count], whole_at_in(s)[i - count] = wholes_in(s)[i], whole_at_in(s)[i]
    s.wholes -= count


@compiled
def send_whole(s: State, slot: int) -> None:
    """``Scheduler._score_whole`` of one."""
    if not rollouts_in(s)[slot].sent:
        rollouts_in(s)[slot].sent = 1
        hand_over(s, slot, 1)


@compiled
def begin_end(s: State, at: float) -> None:
    """``Phased._end_phase`` begins: the phase ended at ``at``."""
    s.phase_s = at - s.phase_began
    s.phase_ended = at
    s.ending = 1


@compiled
def end_phase(s: State) -> None:
    """``Ledger.end_phase`` and ``Phased._end_phase``, from question to question."""
    if s.ending == 1:
        close_version(s)
        count_deferrals(s)
        order_arrivals(s)
        s.ending = 2
        if s.asks_select:
            s.asking = SELECT
            return
    if s.ending == 2:
        select(s)
        s.ending = 3
        if s.asks_drop:
            s.asking = DROP
            return
    if s.granularity == BY_BATCH:
        for i in range(s.batch):
            send_whole(s, selection_in(s)[i])
    drop_groups(s)
    s.surplus = s.fin * s.group_size
    s.deferred = s.flights * s.group_size - s.surplus
    s.ending = 0
    s.phase_done = s.resume = 1
    if s.in_settle:
        s.in_settle = 0
        settle_rest(s)
