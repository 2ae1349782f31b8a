"""The schedules, compiled (``oppo_sim/schedule``, ``model/clock.py``)."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment"

import math

from oppo_sim.fast.activities import event_in_instant, next_actor, record, tolerance
from oppo_sim.fast.admission import admit, begin_row, note_generated, place
from oppo_sim.fast.arrays import fire_in, flights_in, groups_in, rollouts_in
from oppo_sim.fast.batch import enqueue, release_kv, remove
from oppo_sim.fast.codes import (
    ADMIT,
    ARRANGE,
    ASK_MODEL,
    ASYNC,
    BEGIN,
    BUSY,
    DRAIN,
    FIRST_PHASE,
    MARK_GENERATED,
    OK,
    ONE_STEP_OFF,
    OTHER,
    PAUSE,
    PHASE,
    PLACE,
    PLAN,
    READY_BATCH,
    SCORE,
    SELECT,
    SYNCHRONOUS,
    TRAIN,
    UPDATE,
)
from oppo_sim.fast.compiled import compiled
from oppo_sim.fast.generation import (
    begin_end,
    end_phase,
    generate,
    settle,
    spend_other,
    stop,
    timer_ended,
    tool_answered,
    wake,
)
from oppo_sim.fast.records import State
from oppo_sim.fast.replica import replica_ended
from oppo_sim.fast.rows import close_row
from oppo_sim.fast.scorer import piece_arrives, sleep_scorers
from oppo_sim.fast.selection import close_version, order_arrivals, phase_over, select
from oppo_sim.fast.training import (
    await_scores,
    note_scores,
    plan_training,
    run_stage,
    scoring_ended,
    stage_ended,
    take_selection,
)


@compiled
def begin_phase(s: State) -> None:
    """``Phased._begin_phase`` after placement."""
    s.phase_began = s.now
    s.phase_done = 0
    if phase_over(s):
        begin_end(s, s.now)
    else:
        first = s.step == 0 and (s.schedule == SYNCHRONOUS or not s.first_done)
        sleep_scorers(s)
        wake(s, s.gen_phase_s + (s.first_step_s if first else 0.0))


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


# ---- states of the process of a run: each goes on to the next, or returns 1, where it waits ----------------


@compiled
def begin(s: State) -> int:
    """Before a row."""
    if s.step == s.until:
        s.resume = 1
        return 1
    begin_row(s)
    s.doing = ADMIT
    return 0


@compiled
def admission(s: State) -> int:
    """Before admission, which the policy may decide."""
    if s.asks_plan and not s.planned:
        s.asking = PLAN
        return 1
    s.planned = 0
    admit(s)
    s.doing = PLACE
    return 0


@compiled
def placement(s: State) -> int:
    """Before placement, which the policy may decide; then generation begins."""
    if s.asks_arrange and not s.arranged:
        s.asking = ARRANGE
        return 1
    if s.asks_arrange:
        s.arranged = 0
        place(s)
    if s.schedule == ASYNC:
        wake(s, 0.0 if s.step else s.first_step_s)
        s.other_passed = 0.0
        if s.step:  # what the trainer does after an update, while generation goes on
            spend_other(s)
        s.doing = BUSY
        return 0
    if s.schedule == ONE_STEP_OFF and s.first_done:
        # The batch before goes on while this one is generated.
        await_scores(s)
        s.doing = SCORE
    else:
        s.doing = PHASE if s.schedule == SYNCHRONOUS else FIRST_PHASE
    begin_phase(s)
    return 0


@compiled
def first_phase(s: State) -> int:
    """One-step-off: generating the first batch."""
    if not s.phase_done:
        return 1
    keep_generated(s)
    s.first_done = 1
    s.doing = ADMIT
    return 0


@compiled
def phase(s: State) -> int:
    """Generating the step's batch."""
    if not s.phase_done:
        return 1
    take_selection(s)
    if s.tracing:
        record(s, MARK_GENERATED, 0, 0, s.phase_ended, s.phase_ended, 0.0, 0.0, 0.0)
    await_scores(s)
    s.doing = SCORE
    return 0


@compiled
def busy(s: State) -> int:
    """Asynchronous: the trainer does what is outside the stages of the step before."""
    if s.spending:
        return 1
    s.awaiting_batch = 1
    s.doing = READY_BATCH
    return 1


@compiled
def ready_batch(s: State) -> int:
    """Asynchronous: waiting for a batch, which the policy may select."""
    if s.awaiting_batch:
        return 1
    if not s.selected:
        order_arrivals(s)
        s.selected = 1
        if s.asks_select:
            s.asking = SELECT
            return 1
    s.selected = 0
    select(s)
    take_selection(s)
    s.to_score = 0
    s.doing = SCORE
    return 0


@compiled
def scores(s: State) -> int:
    """Waiting for the scores of the batch."""
    if s.to_score:
        return 1
    note_scores(s)
    plan_training(s)
    s.doing = TRAIN
    return 0


@compiled
def train(s: State) -> int:
    """The stages of training before the weight update."""
    if s.trainer_active or run_stage(s, s.activities - 1):
        return 1
    if s.schedule == ASYNC:
        s.paused = 0
        stop(s)
    s.doing = PAUSE
    return 0


@compiled
def pause(s: State) -> int:
    """Before the weight update: a pause of generation (asynchronous), or its end (one-step-off)."""
    if s.schedule == ASYNC and not s.paused:
        return 1
    if s.schedule == ONE_STEP_OFF and not s.phase_done:
        return 1
    s.doing = UPDATE
    if s.drains:
        drain(s)
        s.doing = DRAIN
        return 1
    return 0


@compiled
def drained(s: State) -> int:
    """Asynchronous: rollouts run to their end."""
    if not s.paused:
        return 1
    take_back(s)
    s.doing = UPDATE
    return 0


@compiled
def update(s: State) -> int:
    """The weight update."""
    if s.trainer_active or run_stage(s, s.activities):
        return 1
    if s.schedule != ASYNC:
        spend_other(s)
    s.doing = OTHER
    return 0


@compiled
def other(s: State) -> int:
    """What a step does outside its stages; then its row ends."""
    if s.spending:
        return 1
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
    return 0


@compiled
def waits(s: State) -> int:
    """What the process does where it is; 1: it waits there."""
    if s.doing == BEGIN:
        return begin(s)
    if s.doing == ADMIT:
        return admission(s)
    if s.doing == PLACE:
        return placement(s)
    if s.doing == FIRST_PHASE:
        return first_phase(s)
    if s.doing == PHASE:
        return phase(s)
    if s.doing == BUSY:
        return busy(s)
    if s.doing == READY_BATCH:
        return ready_batch(s)
    if s.doing == SCORE:
        return scores(s)
    if s.doing == TRAIN:
        return train(s)
    if s.doing == PAUSE:
        return pause(s)
    if s.doing == DRAIN:
        return drained(s)
    if s.doing == UPDATE:
        return update(s)
    return other(s)


@compiled
def go_on(s: State) -> None:
    """The process of a run (``process`` of each schedule), from where it waits to where it waits next."""
    while s.error == OK and s.asking == OK and s.ending == 0:
        if waits(s):
            return


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
            if s.now - s.instant > tolerance(s.now):
                s.instant = s.now
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
            else:
                piece_arrives(s)
        if s.asking != OK:
            if not s.ending:
                s.resume = 1
            return s.asking if s.error == OK else s.error
        if s.ending or s.resume or event_in_instant(s):
            continue
        settle(s)
    return int(s.error)
