"""Policies that generate, score and train one after the other."""

from collections.abc import Callable

from .config import ReferenceConfig, ReferenceResult, StepRecord
from .controllers import ChunkControl, DeltaControl
from .generation import Generation
from .machine import Machine
from .pool import Lengths, Pool
from .training import Other, Training, WeightUpdate
from .work import Group, members_of

Rewards = Callable[[int, tuple[int, ...]], float]


def run_synchronous(config: ReferenceConfig, lengths: Lengths, rewards: Rewards) -> ReferenceResult:
    """All steps, one after the other."""
    machine = Machine(config)
    pool = Pool(config, machine, lengths)
    delta_control = DeltaControl(config)
    chunk_control = ChunkControl(config)
    records: list[StepRecord] = []
    for step in range(config.steps):
        machine.chunk_size = chunk_control.size_for(step)
        record = _one_step(machine, pool, step, _delta(config, delta_control))
        records.append(record)
        delta_control.observe(rewards(step, record.trained_ids))
        chunk_control.observe(
            step, record.seconds, sum(rollout.response_length for rollout in record.trained)
        )
    return finish(pool, records)


def finish(pool: Pool, records: list[StepRecord]) -> ReferenceResult:
    """The run's result, with what is left in flight (and in the long queue)."""
    left = members_of([*pool.in_flight, *pool.long_queue])
    in_flight = tuple(sorted(rollout.id for rollout in left))
    return ReferenceResult(
        tuple(records), pool.admitted, in_flight, sum(rollout.generated for rollout in left)
    )


def ids_of(groups: list[Group]) -> tuple[int, ...]:
    return tuple(member.id for member in members_of(groups))


def _delta(config: ReferenceConfig, control: DeltaControl) -> int:
    if config.policy == "april":
        return config.rollout_batch_size
    return control.delta if config.policy in ("inter", "oppo", "partial-rollout") else 0


def _one_step(machine: Machine, pool: Pool, step: int, delta: int) -> StepRecord:
    config, world, scorer = machine.config, machine.world, machine.scorer
    start = world.now
    machine.begin_counting()
    delta = pool.begin_step(step, delta)

    generation = Generation(machine, pool, pool.phase_may_end, first=step == 0)
    while True:
        generation.poll()
        if generation.end is not None:
            break
        scorer.take()
        world.advance()
    gen_end = world.now

    batch = pool.select()
    pool.count_deferrals()
    deferred, surplus = pool.unfinished(), list(pool.surplus)
    dropped = pool.drop_the_rest() if config.policy == "tail-batching" else []
    if config.gen_batch_size is not None:
        dropped = pool.drop_surplus()
    if config.granularity == "batch":
        for rollout in members_of(batch):
            scorer.cut(rollout, machine.chunk_size)
    while not all(group.scored for group in batch):
        scorer.take()
        world.advance()
    reward = world.now - gen_end

    training = Training(machine, batch)
    while True:
        training.poll()
        if training.done:
            break
        scorer.take()
        world.advance()
    trained = training.trained(machine.version)
    update = WeightUpdate(machine)
    while not update.done:
        scorer.take()
        world.advance()

    other = Other(machine)
    while not other.done:
        scorer.take()
        world.advance()

    return StepRecord(
        step=step,
        start=start,
        gen=gen_end - start,
        reward=reward,
        stages=training.stages | {"update_weights": update.seconds, "other": other.seconds},
        seconds=world.now - start,
        trained=trained,
        deferred=ids_of([] if dropped else deferred),
        surplus=ids_of([] if dropped else surplus),
        dropped=ids_of(dropped),
        delta=delta,
        chunk_size=machine.chunk_size,
        counters=machine.counters,
        busy=world.busy,
    )
