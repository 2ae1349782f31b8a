"""The scores of a batch and its training, compiled (``model/run.py``, ``model/training.py``)."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment"

import math

import numpy as np

from oppo_sim.fast.activities import (
    busy_rollout,
    busy_scoring,
    ended,
    record,
    start,
    time_on_device,
    tolerance,
)
from oppo_sim.fast.arrays import (
    activity_s_in,
    activity_stages_in,
    batch_in,
    passed_s_in,
    queue_in,
    rollouts_in,
    runners_in,
    selection_in,
    stage_s_in,
    workers_in,
)
from oppo_sim.fast.codes import ASYNC, PARALLEL_STAGES, SPAN_SCORE, SPAN_TRAINING, STAGES, SYNCHRONOUS
from oppo_sim.fast.compiled import compiled
from oppo_sim.fast.costs import stage_times
from oppo_sim.fast.ordering import clear
from oppo_sim.fast.records import State
from oppo_sim.fast.scorer import queue_place
from oppo_sim.fast.selection import ready


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
    start(s, actor, s.now, activity_s_in(s)[s.activity], memory, arithmetic, 0.0)
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
