"""Policies whose generation goes on during training (docs/policies.md)."""

from dataclasses import dataclass

from .config import ReferenceConfig, ReferenceResult, StepRecord
from .controllers import ChunkControl
from .generation import Generation
from .machine import Machine
from .pool import Lengths, Pool
from .synchronous import Rewards, finish, ids_of
from .training import Other, Training, WeightUpdate
from .work import Group, in_order_of_instants, members_of, same_instant


@dataclass(eq=False)
class Batch:
    """A batch of one-step-off and its generation."""

    groups: list[Group]
    generation: Generation
    handed_over: bool = False

    @property
    def scored(self) -> bool:
        return self.generation.end is not None and all(group.scored for group in self.groups)


def run_one_step_off(config: ReferenceConfig, lengths: Lengths, rewards: Rewards) -> ReferenceResult:
    """Step t trains batch t while batch t+1 is generated."""
    machine = Machine(config)
    pool = Pool(config, machine, lengths)
    chunk_control = ChunkControl(config)
    batches: list[Batch] = []
    records: list[StepRecord] = []
    for step in range(config.steps):
        machine.chunk_size = chunk_control.size_for(step)
        record = _one_step(machine, pool, batches, step)
        records.append(record)
        rewards(step, record.trained_ids)
        chunk_control.observe(
            step, record.seconds, sum(rollout.response_length for rollout in record.trained)
        )
    return finish(pool, records)


def _one_step(machine: Machine, pool: Pool, batches: list[Batch], step: int) -> StepRecord:
    world, scorer = machine.world, machine.scorer
    start = world.now
    machine.begin_counting()
    _generate_next_batch(machine, pool, batches, step)
    training: Training | None = None
    while True:
        newest = _poll_generation(machine, pool, batches, step)
        if training is None and batches[step].scored:
            training = Training(machine, batches[step].groups)
        if training is not None:
            training.poll()
            if training.done and len(batches) == step + 2 and newest.generation.end is not None:
                break
        scorer.take()
        world.advance()
    trained = training.trained(machine.version)
    update = _update_weights(machine)
    other = Other(machine)
    while not other.done:
        scorer.take()
        world.advance()
    pool.remove(training.batch)
    generation = batches[step].generation
    assert generation.end is not None
    return StepRecord(
        step=step,
        start=start,
        gen=generation.end - generation.start,
        reward=max(0.0, max(rollout.score_time for rollout in trained) - generation.end),
        stages=training.stages | {"update_weights": update.seconds, "other": other.seconds},
        seconds=world.now - start,
        trained=trained,
        deferred=(),
        surplus=(),
        dropped=(),
        delta=0,
        chunk_size=machine.chunk_size,
        counters=machine.counters,
        busy=world.busy,
    )


def _generate_next_batch(machine: Machine, pool: Pool, batches: list[Batch], step: int) -> None:
    groups = pool.admit(machine.config.rollout_batch_size, step)
    machine.place(members_of(groups))
    generation = Generation(
        machine, pool, lambda: all(group.finished for group in groups), first=not batches, groups=groups
    )
    batches.append(Batch(groups, generation))


def _poll_generation(machine: Machine, pool: Pool, batches: list[Batch], step: int) -> Batch:
    """Drive the newest batch; in step 0 the second follows the first."""
    while True:
        newest = batches[-1]
        newest.generation.poll()
        if newest.generation.end is None:
            return newest
        if not newest.handed_over:
            newest.handed_over = True
            if machine.config.granularity == "batch":
                for rollout in members_of(newest.groups):
                    machine.scorer.cut(rollout, machine.chunk_size)
        if len(batches) == step + 2:
            return newest
        _generate_next_batch(machine, pool, batches, step)


def _update_weights(machine: Machine) -> WeightUpdate:
    update = WeightUpdate(machine)
    while not update.done:
        machine.scorer.take()
        machine.world.advance()
    return update


def run_async(config: ReferenceConfig, lengths: Lengths, rewards: Rewards) -> ReferenceResult:
    """Rows of the asynchronous policy, one update each."""
    machine = Machine(config)
    pool = Pool(config, machine, lengths)
    chunk_control = ChunkControl(config)
    sent: list[Group] = []
    records: list[StepRecord] = []
    for step in range(config.steps):
        machine.chunk_size = chunk_control.size_for(step)
        record = _one_row(machine, pool, sent, step)
        records.append(record)
        rewards(step, record.trained_ids)
        chunk_control.observe(
            step, record.seconds, sum(rollout.response_length for rollout in record.trained)
        )
    return finish(pool, records)


def _one_row(machine: Machine, pool: Pool, sent: list[Group], step: int) -> StepRecord:
    config, world, scorer = machine.config, machine.world, machine.scorer
    start = world.now
    machine.begin_counting()
    for rollout in members_of(pool.in_flight):
        rollout.decoded_in_step = False
    must = _must_be_trained(pool, machine.version) if config.wait_for_due else []
    may_be_admitted = config.rollout_batch_size * (machine.version + config.max_staleness + 1)
    machine.place(members_of(pool.admit(may_be_admitted - (pool.admitted - pool.filtered), step)))
    for replica in machine.replicas:
        replica.begin_phase()

    # The engine never sleeps; the trainer is busy with other things after an update.
    awake = world.now + (config.added.get("first_step", 0.0) if step == 0 else 0.0)
    free = world.now + (config.added.get("other", 0.0) if step else 0.0)
    for until in (awake, free):
        if until > world.now:
            world.start(until - world.now, (), (0.0, 0.0), lambda end: None)
    training: Training | None = None
    while True:
        if training is not None:
            training.poll()
        gone = pool.filter(asynchronous=True)
        if training is None or not training.done:
            pool.replace(gone)
        if config.granularity == "batch":
            _send_whole_batches(machine, pool, sent)
        slack = same_instant(world.now - start)
        if training is None and world.now >= free - slack:
            batch = _scored_batch(pool, start) if all(group.scored for group in must) else []
            if batch:
                taken_at = world.now
                training = Training(machine, batch)
                pool.remove(batch)
        if training is not None:
            training.poll()
        pausing = training is not None and training.done
        if pausing and not any(replica.busy for replica in machine.replicas):
            break
        for replica in machine.replicas:
            if not pausing and not replica.busy and world.now >= awake - slack:
                replica.start_next()
        scorer.take()
        world.advance()
    assert training is not None
    trained = training.trained(machine.version)
    if not config.interrupts:
        _let_begun_finish(machine, pool, sent)
    update = _update_weights(machine)
    pool.filter(asynchronous=True)
    pool.count_deferrals()
    finished = [group for group in pool.in_flight if group.finished]
    last_finish = max(start, *(rollout.finish_time for rollout in trained))
    # Could the trainer have taken the batch before it was free?
    there = max(last_finish, *(rollout.score_time for rollout in trained)) if free > start else taken_at
    waited = taken_at - there if taken_at - there > same_instant(taken_at - start) else 0.0
    return StepRecord(
        step=step,
        start=start,
        gen=last_finish - start,
        reward=taken_at - waited - last_finish,
        stages=training.stages | {"update_weights": update.seconds, "other": waited},
        seconds=world.now - start,
        trained=trained,
        deferred=ids_of(pool.unfinished()),
        surplus=ids_of(
            in_order_of_instants(finished, lambda group: group.finish_time, lambda group: group.id, start)
        ),
        dropped=(),
        delta=0,
        chunk_size=machine.chunk_size,
        counters=machine.counters,
        busy=world.busy,
    )


def _send_whole_batches(machine: Machine, pool: Pool, sent: list[Group]) -> None:
    """``batch`` scoring: B at a time, as soon as B finished ones wait to be sent."""
    unsent = [group for group in pool.in_flight if group.finished and group not in sent]
    unsent = in_order_of_instants(
        unsent, lambda group: group.finish_time, lambda group: group.id, machine.world.row_start
    )
    count = machine.config.rollout_batch_size // machine.config.group_size
    while len(unsent) >= count:
        for rollout in members_of(unsent[:count]):
            machine.scorer.cut(rollout, machine.chunk_size)
        sent.extend(unsent[:count])
        unsent = unsent[count:]


def _let_begun_finish(machine: Machine, pool: Pool, sent: list[Group]) -> None:
    """Rollouts with tokens decode until they are done; the others leave their replica until then."""
    aside = []
    for replica in machine.replicas:
        for rollout in replica.unfinished():
            if rollout.generated == 0:
                rollout.in_kv = False
                replica.members.remove(rollout)
                aside.append((replica, rollout))
        replica.begin_phase()
    while True:
        if machine.config.granularity == "batch":
            _send_whole_batches(machine, pool, sent)
        for replica in machine.replicas:
            if not replica.busy:
                replica.start_next()
        machine.scorer.take()
        waiting = any(rollout.at_tool for replica in machine.replicas for rollout in replica.members)
        if not waiting and not any(replica.busy for replica in machine.replicas):
            break
        machine.world.advance()
    for replica, rollout in aside:
        replica.add(rollout)


def _first_version(group: Group) -> int:
    """Of the first token of a group: that of its oldest member."""
    return min((member.versions[0] for member in group.members if member.versions), default=1 << 60)


def _must_be_trained(pool: Pool, version: int) -> list[Group]:
    """As few of the oldest unscored as let every started group be trained in time: with them in this batch
    and groups in order of their first version, so many a batch, none is trained too late."""
    config = pool.config
    count = config.rollout_batch_size // config.group_size
    started = [group for group in pool.in_flight if _first_version(group) < version]
    unscored = sorted(
        (group for group in started if not group.scored), key=lambda group: (_first_version(group), group.id)
    )
    for waited in range(len(unscored) + 1):
        ready = [group for group in started if group.scored] + unscored[:waited]
        ready.sort(key=_first_version)
        left = sorted(_first_version(group) for group in [*ready[count:], *unscored[waited:]])
        # Batch number ``place // count`` from the next one on trains it at this version:
        if all(
            version + 1 + place // count - first <= config.max_staleness for place, first in enumerate(left)
        ):
            return unscored[:waited]
    raise AssertionError("too many rollouts of old versions are in flight")


def _scored_batch(pool: Pool, row_start: float) -> list[Group]:
    """The B scored that are trained next, or nothing yet."""
    config = pool.config
    scored = [group for group in pool.in_flight if group.scored]
    count = config.rollout_batch_size // config.group_size
    if len(scored) < count:
        return []
    ordered = in_order_of_instants(scored, lambda group: group.score_time, lambda group: group.id, row_start)
    if config.oldest_first:
        ordered.sort(key=_first_version)
    return ordered[:count]
