"""The schedules, compiled (``oppo_sim/schedule``, ``model/machine.py``, ``model/training.py``)."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment"

import math

import numpy as np

from oppo_sim.fast.activities import (
    busy_rollout,
    busy_scoring,
    ended,
    event_in_instant,
    iterations_until,
    next_actor,
    pass_cancelled,
    progress,
    record,
    rerate_all,
    series_seconds,
    set_event,
    shorten,
    start,
    time_on_device,
    tolerance,
)
from oppo_sim.fast.admission import (
    admit,
    begin_row,
    close_version,
    count_deferrals,
    drop_groups,
    note_generated,
    order_arrivals,
    order_by_instant,
    phase_over,
    place,
    select,
)
from oppo_sim.fast.costs import stage_times
from oppo_sim.fast.ordering import clear
from oppo_sim.fast.records import (
    ADMIT,
    ARRANGE,
    ASK_MODEL,
    ASYNC,
    BEGIN,
    BUSY,
    BY_BATCH,
    BY_CHUNK,
    DECODE,
    DRAIN,
    DROP,
    FIRST_PHASE,
    IDLE,
    MARK_GENERATED,
    OK,
    ONE_STEP_OFF,
    OTHER,
    PARALLEL_STAGES,
    PAUSE,
    PHASE,
    PLACE,
    PLAN,
    READY,
    READY_BATCH,
    SCORE,
    SELECT,
    SPAN_BARRIER,
    SPAN_SCORE,
    SPAN_TRAINING,
    SPAN_WAKE,
    STAGES,
    SYNCHRONOUS,
    TRAIN,
    UPDATE,
    State,
    activity_s_in,
    activity_stages_in,
    batch_in,
    compiled,
    fire_in,
    flights_in,
    groups_in,
    passed_s_in,
    queue_in,
    replicas_in,
    rollouts_in,
    runners_in,
    selection_in,
    stage_s_in,
    whole_at_in,
    wholes_in,
    workers_in,
)
from oppo_sim.fast.replica import (
    enqueue,
    next_activity,
    ready,
    release_kv,
    remove,
    replica_ended,
    stops_now,
    sync_generated,
)
from oppo_sim.fast.rows import close_row
from oppo_sim.fast.scorer import hand_over, piece_arrives, queue_place, settle_scorer
from oppo_sim.fast.tools import anybody_away, next_answer, take_answer

# ---- generation (model/machine.py, schedule/schedules.py) -------------------------------------------------


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
    if slot < 0:
        return
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
    """``PhasedRun._deliver_round``: at the barrier, pieces of the round reach the scorer."""
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
    """``PhasedRun.all_idle``: the round is over."""
    if s.schedule == ASYNC:
        if s.draining:
            rest(s)
            s.draining = 0
            s.paused = s.resume = 1
        return  # nothing to generate until the next update admits more
    if not s.rounds:
        s.error = ASK_MODEL
        return
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
    """``PhasedRun._after_barrier``: the phase is over, or another round begins."""
    if phase_over(s):
        begin_end(s, rest(s))
        return
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
            send_whole_batches(s)
            if s.stopping and s.active == 0:
                rest(s)
                s.paused = s.resume = 1
        elif not s.rounds and (s.finish_seen or s.stopping):
            s.finish_seen = 0
            if not s.stopping and phase_over(s):
                stop(s)
            if s.stopping and s.active == 0:
                begin_end(s, rest(s))
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
    """``PhasedRun._hand_out`` begins: the phase ended at ``at``."""
    s.phase_s = at - s.phase_began
    s.phase_ended = at
    s.ending = 1


@compiled
def end_phase(s: State) -> None:
    """``Ledger.end_phase`` and ``PhasedRun._hand_out``, from question to question."""
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


# ---- the scores of a batch, and its training (model/run.py, model/training.py) -----------------------------


@compiled
def scoring_ended(s: State, w: int) -> None:
    """``Scorer._batch_ended`` and ``scored`` of the schedule."""
    worker, queue = workers_in(s)[w], queue_in(s)
    at = ended(s, s.replicas + w)
    tokens = 0
    for i in range(worker.head, worker.served):
        place = queue_place(s, w, i)
        tokens += queue[place, 1]
        slot = queue[place, 0]
        rollout = rollouts_in(s)[slot]
        if queue[place, 3] and queue[place, 4] == rollout.incarnation:
            rollout.scored = 1
            rollout.scored_at = at
            worker.held -= rollout.held
            rollout.held = 0
            if rollout.to_score:
                rollout.to_score = 0
                s.to_score -= 1
                if s.to_score == 0:
                    s.resume = 1
            if s.schedule == ASYNC:
                ready(s, slot, at)
    worker.load -= tokens
    if s.tracing:
        began = runners_in(s)[s.replicas + w].started
        record(s, SPAN_SCORE, w, 0, began, at, worker.served - worker.head, tokens, 0.0)
    worker.head = worker.served
    if worker.head == worker.tail:
        worker.head = worker.served = worker.tail = 0  # the same few cache lines again


@compiled
def take_selection(s: State) -> None:
    """The batch selected last is the one to train."""
    for i in range(s.batch):
        batch_in(s)[i] = selection_in(s)[i]


@compiled
def await_scores(s: State) -> None:
    """``_await_scores``."""
    s.to_score = 0
    for i in range(s.batch):
        rollout = rollouts_in(s)[batch_in(s)[i]]
        if not rollout.scored:
            rollout.to_score = 1
            s.to_score += 1


@compiled
def note_scores(s: State) -> None:
    """The stages before training, of a batch whose scores exist."""
    if s.schedule == SYNCHRONOUS:
        s.gen_s = s.phase_s
        s.reward_s = max(0.0, s.now - s.phase_ended)
        s.scored_at = s.now
        s.scored_inference = busy_scoring(s, busy_rollout(s))
        return
    last = 0.0 if s.schedule == ASYNC else -math.inf
    for i in range(s.batch):
        rollout = rollouts_in(s)[batch_in(s)[i]]
        last = max(last, rollout.finished_at if s.schedule == ASYNC else rollout.scored_at)
    if s.schedule == ASYNC:
        ready = s.now
        if s.other_passed > 0.0:
            ready = last
            for i in range(s.batch):
                ready = max(ready, rollouts_in(s)[batch_in(s)[i]].scored_at)
            if s.now - ready <= tolerance(s.now):
                ready = s.now
        s.gen_s, s.reward_s, s.other_passed = last, ready - last, s.now - ready
    else:
        s.reward_s = max(0.0, last - s.batch_ended)


@compiled
def plan_training(s: State) -> None:
    """``Trainer.train``: the stages of the batch, as activities one after the other."""
    tokens = squares = 0
    for i in range(s.batch):
        rollout = rollouts_in(s)[batch_in(s)[i]]
        length = np.int64(rollout.prompt) + rollout.response
        tokens += length
        squares += length * length
    stage_times(s, float(tokens), squares / 2.0, float(s.batch))
    clear(passed_s_in(s), 0, STAGES)
    s.activity = 0
    count = 0
    first = 0
    if s.parallel_inference:
        # As one activity that lasts as long as the longest of them, in legs that end where the shorter ones
        # do.
        first = PARALLEL_STAGES
        before = 0.0
        longest = max(stage_s_in(s)[0], stage_s_in(s)[1], stage_s_in(s)[2])
        while before < longest:
            until = longest
            for i in range(PARALLEL_STAGES):
                if before < stage_s_in(s)[i] < until:
                    until = stage_s_in(s)[i]
            activity_s_in(s)[count] = until - before
            activity_stages_in(s)[count] = 0
            for i in range(PARALLEL_STAGES):
                if stage_s_in(s)[i] >= until:
                    activity_stages_in(s)[count] |= 1 << i
            count += 1
            before = until
    for i in range(first, STAGES):
        activity_s_in(s)[count] = stage_s_in(s)[i]
        activity_stages_in(s)[count] = 1 << i
        count += 1
    s.activities = count - 1  # the last is ``update_weights``


@compiled
def run_stage(s: State, last: int) -> bool:
    """``Trainer._run`` of the next activity up to ``last`` that takes time; False: there is none left."""
    while s.activity <= last and activity_s_in(s)[s.activity] <= 0.0:
        s.activity += 1
    if s.activity > last:
        return False
    s.trainer_active = 1
    s.trainer_began = s.now
    actor = s.replicas + s.workers
    runner = runners_in(s)[actor]
    if s.activity == s.activities:
        runner.first_device, runner.devices, runner.shared = s.sync_first, s.sync_devices, s.sync_shared
        memory, arithmetic = s.sync_memory, s.sync_arithmetic
        s.sync_kernel_s += time_on_device(memory, arithmetic) * activity_s_in(s)[s.activity]
    else:
        runner.first_device, runner.devices, runner.shared = s.train_first, s.train_devices, s.train_shared
        memory, arithmetic = s.train_memory, s.train_arithmetic
        s.training_kernel_s += time_on_device(memory, arithmetic) * activity_s_in(s)[s.activity]
    start(s, actor, s.now, activity_s_in(s)[s.activity], memory, arithmetic)
    return True


@compiled
def stage_ended(s: State) -> None:
    """``Trainer._ended``: one activity is done."""
    ended(s, s.replicas + s.workers)
    s.trainer_active = 0
    stages = activity_stages_in(s)[s.activity]
    for i in range(STAGES):
        if stages & (1 << i):
            passed_s_in(s)[i] += s.now - s.trainer_began
    if s.tracing:
        stage = -1 if s.parallel_inference and s.activity < s.activities and stages < 8 else 0
        while stage >= 0 and not stages >> stage & 1:
            stage += 1
        record(s, SPAN_TRAINING, 0, stage, s.trainer_began, s.now, 0.0, 0.0, 0.0)
    s.activity += 1
    s.resume = 1


# ---- the process of a run ----------------------------------------------------------------------------------


@compiled
def begin_phase(s: State) -> None:
    """``PhasedRun.begin_phase`` after placement."""
    s.phase_began = s.now
    s.phase_done = 0
    if phase_over(s):
        begin_end(s, s.now)
    else:
        first = s.step == 0 and (s.schedule == SYNCHRONOUS or not s.first_done)
        wake(s, s.gen_phase_s + (s.first_step_s if first else 0.0))


@compiled
def go_on(s: State) -> None:
    """The process of a run (``process`` of each schedule), from where it waits to where it waits next."""
    while s.error == OK and s.asking == OK and s.ending == 0:
        if s.doing == BEGIN:
            if s.step == s.until:
                s.resume = 1
                return
            begin_row(s)
            s.doing = ADMIT
        elif s.doing == ADMIT:
            if s.asks_plan and not s.planned:
                s.asking = PLAN
                return
            s.planned = 0
            admit(s)
            s.doing = PLACE
        elif s.doing == PLACE:
            if s.asks_arrange and not s.arranged:
                s.asking = ARRANGE
                return
            if s.asks_arrange:
                s.arranged = 0
                place(s)
            if s.schedule == ASYNC:
                wake(s, 0.0 if s.step else s.first_step_s)
                s.other_passed = 0.0
                if s.step:  # what the trainer does after an update, while generation goes on
                    spend_other(s)
                s.doing = BUSY
                continue
            if s.schedule == ONE_STEP_OFF and s.first_done:
                # The batch before goes on while this one is generated.
                await_scores(s)
                s.doing = SCORE
            else:
                s.doing = PHASE if s.schedule == SYNCHRONOUS else FIRST_PHASE
            begin_phase(s)
        elif s.doing == FIRST_PHASE:
            if not s.phase_done:
                return
            keep_generated(s)
            s.first_done = 1
            s.doing = ADMIT
        elif s.doing == PHASE:
            if not s.phase_done:
                return
            take_selection(s)
            if s.tracing:
                record(s, MARK_GENERATED, 0, 0, s.phase_ended, s.phase_ended, 0.0, 0.0, 0.0)
            await_scores(s)
            s.doing = SCORE
        elif s.doing == BUSY:
            if s.spending:
                return
            s.awaiting_batch = 1
            s.doing = READY_BATCH
            return
        elif s.doing == READY_BATCH:
            if s.awaiting_batch:
                return
            if not s.selected:
                order_arrivals(s)
                s.selected = 1
                if s.asks_select:
                    s.asking = SELECT
                    return
            s.selected = 0
            select(s)
            take_selection(s)
            s.to_score = 0
            s.doing = SCORE
        elif s.doing == SCORE:
            if s.to_score:
                return
            note_scores(s)
            plan_training(s)
            s.doing = TRAIN
        elif s.doing == TRAIN:
            if s.trainer_active or run_stage(s, s.activities - 1):
                return
            if s.schedule == ASYNC:
                s.paused = 0
                stop(s)
            s.doing = PAUSE
        elif s.doing == PAUSE:
            if s.schedule == ASYNC and not s.paused:
                return
            if s.schedule == ONE_STEP_OFF and not s.phase_done:
                return
            s.doing = UPDATE
            if s.drains:
                drain(s)
                s.doing = DRAIN
                return
        elif s.doing == DRAIN:
            if not s.paused:
                return
            take_back(s)
            s.doing = UPDATE
        elif s.doing == UPDATE:
            if s.trainer_active or run_stage(s, s.activities):
                return
            if s.schedule != ASYNC:
                spend_other(s)
            s.doing = OTHER
        elif s.spending:
            return
        else:
            if s.schedule == ASYNC:
                count_async(s)
            close_row(s)
            if s.schedule == ASYNC:
                close_version(s)
                note_generated(s)
            s.step += 1
            if s.clear_kv:
                release_kv(s)
            if s.schedule == ONE_STEP_OFF:
                keep_generated(s)
            s.doing = BEGIN


@compiled
def drain(s: State) -> None:
    """``Asynchronous._drain``: what has no token leaves its replica, the rest runs to its end."""
    for i in range(s.flights):
        for slot in range(flights_in(s)[i] * s.group_size, (flights_in(s)[i] + 1) * s.group_size):
            rollout = rollouts_in(s)[slot]
            if rollout.queued and rollout.generated == 0:
                remove(s, rollout.replica, slot)
    s.draining = 1
    s.paused = 0
    generate(s)


@compiled
def take_back(s: State) -> None:
    """``SimulatedPlant.place`` of the next row, for what ``drain`` took off; where the policy arranges,
    ``place`` does it."""
    if s.asks_arrange:
        return
    for i in range(s.flights):
        for slot in range(flights_in(s)[i] * s.group_size, (flights_in(s)[i] + 1) * s.group_size):
            rollout = rollouts_in(s)[slot]
            if not rollout.queued and not rollout.finished:
                enqueue(s, rollout.replica, slot)


@compiled
def keep_generated(s: State) -> None:
    """One-step-off: the batch generated last is the one to train next."""
    take_selection(s)
    s.gen_s = s.phase_s
    s.batch_ended = s.phase_ended


@compiled
def count_async(s: State) -> None:
    """What is in flight at the end of a row, before new admissions."""
    unfinished = 0
    for i in range(s.flights):
        if groups_in(s)[flights_in(s)[i]].unfinished:
            unfinished += s.group_size
    s.deferred = unfinished
    s.surplus = s.flights * s.group_size - unfinished


@compiled
def run_until(s: State, until: int) -> int:
    """``Clock.drive``: events in the order of time, decisions when none is left in an instant."""
    trainer = s.replicas + s.workers
    fire = fire_in(s)
    s.until = until
    s.asking = OK
    while s.step < until and s.error == OK:
        if s.ending:
            end_phase(s)
        elif s.resume:
            s.resume = 0
            go_on(s)
        else:
            if fire[1] == math.inf:
                return ASK_MODEL
            actor = next_actor(s)
            s.now = fire[1]
            if s.tools and fire[s.leaves + trainer + 3] == s.now:
                tool_answered(s)  # before what else happens at that very moment
            elif actor < s.replicas:
                replica_ended(s, actor)
            elif actor < trainer:
                scoring_ended(s, actor - s.replicas)
            elif actor == trainer:
                stage_ended(s)
            elif actor == trainer + 1:
                timer_ended(s)
            elif actor == trainer + 2:
                piece_arrives(s)
            else:
                pass_cancelled(s)
        if s.asking != OK:
            if not s.ending:
                s.resume = 1
            return s.asking if s.error == OK else s.error
        if s.ending or s.resume or event_in_instant(s):
            continue
        settle(s)
    return int(s.error)
