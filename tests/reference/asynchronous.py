"""Policies whose generation goes on during training (docs/asynchronous.md)."""

from .config import ReferenceConfig, ReferenceResult, StepRecord
from .controllers import ChunkControl
from .generation import Generation
from .machine import Machine
from .pool import Lengths, Pool
from .synchronous import Rewards, finish, ids_of
from .training import Training, WeightUpdate
from .work import Group, in_order_of_instants, members_of


def run_one_step_off(config: ReferenceConfig, lengths: Lengths, rewards: Rewards) -> ReferenceResult:
    """Step t trains batch t while batch t+1 is generated."""
    machine = Machine(config)
    pool = Pool(config, machine, lengths)
    chunk_control = ChunkControl(config)
    world, scorer = machine.world, machine.scorer
    records: list[StepRecord] = []
    batches: list[list[Group]] = []
    phases: list[Generation] = []

    def generate_next_batch(step: int) -> None:
        pool.in_flight = []  # the batches before this one are finished, and wait for the trainer on their own
        batches.append(pool.admit(config.rollout_batch_size, step))
        machine.place(members_of(batches[-1]))
        phases.append(Generation(machine, pool))

    def poll_generation(step: int) -> None:
        while True:
            phases[-1].poll()
            sent = members_of(batches[-1])[0].sent > 0
            if phases[-1].end is None:
                return
            if config.granularity == "batch" and not sent and batches[-1] not in handed_over:
                handed_over.append(batches[-1])
                for rollout in members_of(batches[-1]):
                    scorer.cut(rollout, machine.chunk_size)
            if len(batches) == step + 2:
                return
            generate_next_batch(step)

    handed_over: list[list[Group]] = []
    for step in range(config.steps):
        machine.chunk_size = chunk_control.size_for(step)
        start = world.now
        machine.begin_counting()
        generate_next_batch(step)
        training: Training | None = None
        while True:
            poll_generation(step)
            batch_generated = len(phases) > step + (1 if phases[step].end is not None else 2)
            if training is None and batch_generated and all(group.scored for group in batches[step]):
                training = Training(machine, batches[step])
            if training is not None:
                training.poll()
                if training.done and len(phases) == step + 2 and phases[step + 1].end is not None:
                    break
            scorer.take()
            world.advance()
        trained = training.trained(machine.version)
        update = WeightUpdate(machine)
        while not update.done:
            scorer.take()
            world.advance()
        gen_start, gen_end = phases[step].start, phases[step].end
        assert gen_end is not None
        record = StepRecord(
            step=step,
            start=start,
            gen=gen_end - gen_start,
            reward=max(rollout.score_time for rollout in trained) - gen_end,
            stages=training.stages | {"update_weights": update.seconds},
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
        records.append(record)
        rewards(step, record.trained_ids)
        chunk_control.observe(step, record.seconds, sum(rollout.response_length for rollout in trained))
    return finish(pool, records)
