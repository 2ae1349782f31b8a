"""Time, devices and what runs on them, compiled (``model/clock.py``, ``model/device.py``)."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment"

import math
from typing import Any

from oppo_sim import instants
from oppo_sim.fast.arrays import (
    answers_in,
    arrived_at_in,
    batch_in,
    device_actors_in,
    device_list_in,
    devices_in,
    fire_in,
    flights_in,
    replicas_in,
    rollouts_in,
    runners_in,
    trace_in,
    way_at_in,
    whole_at_in,
    workers_in,
)
from oppo_sim.fast.codes import NO_ROOM, ONE_STEP_OFF, SYNCHRONOUS
from oppo_sim.fast.compiled import compiled, rule
from oppo_sim.fast.records import State
from oppo_sim.model import formulas

tolerance = rule(instants.instant_tolerance)
series_seconds = rule(formulas.series_seconds)
iterations_until = rule(formulas.iterations_until, series_seconds=series_seconds)
device_rate = rule(formulas.device_rate)
time_on_device = rule(formulas.time_on_device)


# ---- the clock (model/clock.py) ----------------------------------------------------------------------------


@compiled
def set_event(s: State, actor: int, seconds: float) -> None:
    """The actor's next event is at ``seconds`` (inf: it has none)."""
    fire = fire_in(s)
    i = actor + s.leaves
    fire[i] = seconds
    while i > 1:
        other = fire[i ^ 1]
        seconds = other if other < seconds else seconds
        i >>= 1
        if fire[i] == seconds:
            return  # nor does anything change above
        fire[i] = seconds


@compiled
def next_actor(s: State) -> int:
    """Whose event is next; of two at one time, the lower one's."""
    fire = fire_in(s)
    i = 1
    while i < s.leaves:
        i = 2 * i + (fire[2 * i] > fire[i])
    return i - s.leaves


@compiled
def event_in_instant(s: State) -> bool:
    """True if the next event lies in the present instant."""
    soonest = fire_in(s)[1]
    return soonest < math.inf and soonest - s.instant <= tolerance(soonest)


@compiled
def rebase(s: State) -> None:
    """``Machine.begin_row``: seconds, busy ones too, are counted from now on."""
    passed = s.now
    s.origin += passed
    s.now = 0.0
    s.instant -= passed
    s.phase_ended -= passed
    s.batch_ended -= passed
    for i in range(1, 2 * s.leaves):
        fire_in(s)[i] -= passed
    for d in range(s.devices):
        devices_in(s)[d].busy = devices_in(s)[d].busy_since = 0.0
    for i in range(s.answers_due):
        answers_in(s)[i].at -= passed
    for actor in range(s.replicas + s.workers + 1):
        runner = runners_in(s)[actor]
        runner.started -= passed
        runner.updated -= passed
        runner.end -= passed
    for r in range(s.replicas):
        replicas_in(s)[r].at -= passed
        replicas_in(s)[r].link_free -= passed
    for i in range(s.first_sent, s.last_sent):
        way_at_in(s)[i & (way_at_in(s).shape[0] - 1)] -= passed
    if s.schedule == SYNCHRONOUS and not s.keeps_rollouts:
        return  # nobody reads what follows
    for i in range(s.arrived):
        arrived_at_in(s)[i] -= passed
    for i in range(s.wholes):
        whole_at_in(s)[i] -= passed
    for i in range(s.flights):
        for slot in range(flights_in(s)[i] * s.group_size, (flights_in(s)[i] + 1) * s.group_size):
            rebase_rollout(s, slot, passed)
    if s.schedule == ONE_STEP_OFF and s.step:
        for i in range(s.batch):
            rebase_rollout(s, batch_in(s)[i], passed)


@compiled
def rebase_rollout(s: State, slot: int, passed: float) -> None:
    """``RolloutState.rebase``."""
    rollouts_in(s)[slot].finished_at -= passed
    rollouts_in(s)[slot].scored_at -= passed


# ---- devices and what runs on them (model/device.py) -------------------------------------------------------


@compiled
def start(
    s: State, actor: int, at: float, seconds: float, memory: float, arithmetic: float, turns: float
) -> None:
    """``Runner.start``."""
    runner = runners_in(s)[actor]
    runner.running = 1
    runner.started = at
    runner.seconds = seconds
    for i in range(runner.first_device, runner.first_device + runner.devices):
        d = device_list_in(s)[i]
        device = devices_in(s)[d]
        if device.active == 0:
            device.busy_since = at
        device_actors_in(s)[d, device.active] = actor
        device.active += 1
    if runner.shared:
        runner.memory, runner.arithmetic, runner.turns = memory, arithmetic, turns
        runner.done = runner.rate = runner.end = 0.0
        runner.updated = at
        touch(s, runner)
    else:
        runner.end = at + seconds
        set_event(s, actor, max(runner.end, s.now))


@compiled
def touch(s: State, runner: Any) -> None:
    """``Runner._touch``."""
    s.dirty = 1
    for i in range(runner.first_device, runner.first_device + runner.devices):
        devices_in(s)[device_list_in(s)[i]].dirty = 1


@compiled
def progress(runner: Any, at: float) -> float:
    """``Runner.progress``."""
    return runner.done + (at - runner.updated) * runner.rate if runner.shared else at - runner.started


@compiled
def shorten(s: State, actor: int, seconds: float) -> None:
    """``Runner.shorten``."""
    runner = runners_in(s)[actor]
    runner.seconds = seconds
    if runner.shared:
        runner.reschedule = 1
        touch(s, runner)
    else:
        runner.end = runner.started + seconds
        set_event(s, actor, max(runner.end, s.now))


@compiled
def rate_of(s: State, d: int, runner: Any) -> float:
    """``Device.rate`` and ``Host.rate``."""
    device = devices_in(s)[d]
    if device.active < 2:
        return 1.0
    if device.host:
        return device_rate(device.active, runner.slowed_by, 0.0, 0.0, 0.0)
    memory = arithmetic = 0.0
    for i in range(device.active):
        other = runners_in(s)[device_actors_in(s)[d, i]]
        if s.time_slices:
            memory += time_on_device(other.memory, other.arithmetic)
        else:
            memory += other.memory
            arithmetic += other.arithmetic
    return device_rate(
        device.active, s.interference, memory, arithmetic, runner.turns if s.time_slices else 0.0
    )


@compiled
def rerate(s: State, actor: int) -> None:
    """``Runner.rerate``."""
    runner = runners_in(s)[actor]
    rate = math.inf
    for i in range(runner.first_device, runner.first_device + runner.devices):
        rate = min(rate, rate_of(s, device_list_in(s)[i], runner))
    if rate == runner.rate and not runner.reschedule:
        return
    runner.done += (s.now - runner.updated) * runner.rate
    runner.updated = s.now
    runner.rate = rate
    runner.reschedule = 0
    runner.end = s.now + max(0.0, runner.seconds - runner.done) / rate
    set_event(s, actor, max(runner.end, s.now))


@compiled
def rerate_all(s: State) -> None:
    """``Machine._rerate``."""
    s.dirty = 0
    for d in range(s.devices):
        device = devices_in(s)[d]
        if device.shared and device.dirty:
            device.dirty = 0
            for i in range(device.active):
                rerate(s, device_actors_in(s)[d, i])


@compiled
def ended(s: State, actor: int) -> float:
    """``Runner._fire`` but for who is notified; returns the end (seconds)."""
    runner = runners_in(s)[actor]
    at = runner.end
    runner.running = 0
    set_event(s, actor, math.inf)
    for i in range(runner.first_device, runner.first_device + runner.devices):
        d = device_list_in(s)[i]
        device = devices_in(s)[d]
        device.active -= 1
        if device.active == 0:
            device.busy += at - device.busy_since
        else:
            kept = 0
            for j in range(device.active + 1):
                if device_actors_in(s)[d, j] != actor:
                    device_actors_in(s)[d, kept] = device_actors_in(s)[d, j]
                    kept += 1
    if runner.shared:
        touch(s, runner)
    return at


@compiled
def busy(s: State, d: int) -> float:
    """``Device.busy_until`` now."""
    device = devices_in(s)[d]
    return device.busy + (s.now - device.busy_since if device.active else 0.0)


@compiled
def busy_rollout(s: State) -> float:
    """Busy seconds of all replicas in this row."""
    total = 0.0
    for r in range(s.replicas):
        total += busy(s, r)
    return total


@compiled
def busy_scoring(s: State, total: float) -> float:
    """``total`` and the busy seconds of all scoring workers in this row."""
    for w in range(s.workers):
        total += busy(s, workers_in(s)[w].device)
    return total


@compiled
def busy_training(s: State) -> float:
    """Busy seconds of the training devices in this row."""
    total = 0.0
    for i in range(s.train_devices - s.hosts):
        total += busy(s, device_list_in(s)[s.train_first + i])
    return total


# ---- the timeline ------------------------------------------------------------------------------------------


@compiled
def record(
    s: State, what: int, index: int, stage: int, began: float, at: float, a: float, b: float, c: float
) -> None:
    """A span or marker of a row whose timeline is kept."""
    i = s.traced
    if i >= trace_in(s).shape[0]:
        s.error = NO_ROOM
        return
    row = trace_in(s)[i]
    row[0], row[1], row[2] = what, index, stage
    row[3], row[4], row[5] = s.origin + began, s.origin + at, s.step
    row[6], row[7], row[8] = a, b, c
    s.traced = i + 1
