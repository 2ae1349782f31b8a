"""The asynchronous schedule: generation goes on during training."""

from collections.abc import Callable

from oppo_sim.instants import instant_tolerance
from oppo_sim.policies.interface import Arrangement
from oppo_sim.schedule.batches import WholeBatches
from oppo_sim.schedule.ledger import Begun
from oppo_sim.schedule.plant import Plant, Signal, Wait
from oppo_sim.schedule.rollout import F
from oppo_sim.schedule.rules import new_stages
from oppo_sim.schedule.scheduler import Scheduler, ScheduleSetup


class Asynchronous(Scheduler[F]):
    """Generation goes on during training and pauses only for ``update_weights`` (docs/policies.md)."""

    every_instant = True

    def __init__(
        self,
        setup: ScheduleSetup,
        plant_of: Callable[[Scheduler[F]], Plant[F]],
        oracle_length: Callable[[F], int] | None = None,
    ) -> None:
        super().__init__(setup, plant_of, oracle_length)
        self._batches: WholeBatches[F] = WholeBatches(setup.batch)
        self._batch_ready: Signal | None = None
        self._paused = self.plant.signal()
        self._draining = False
        """Rollouts that have begun run to their end before the update."""

    # ---- what the plant reports ----------------------------------------------------------------------------

    def finished(self, rollout: F, at: float) -> None:
        self.ledger.finish(rollout, at, self.version)
        if self.granularity == "rollout":
            self._score_whole((rollout,))
        elif self.granularity == "batch":
            self._batches.add(rollout, at)

    def scored(self, rollout: F, at: float) -> None:
        self._ready_or_filtered(rollout, at)

    def stop_check(self) -> None:
        filtered = self._drop_filtered()
        if not (self._stopping or self._draining):
            self._replace_filtered(filtered)
        self._score_whole(self._batches.take())
        if self._stopping and self.plant.stopped():
            self._stopping = False
            self.plant.rest()
            self._paused.succeed()

    def all_idle(self) -> None:
        """Nothing to generate until the next update admits more."""
        if self._draining:
            self._draining = False
            self.plant.rest()
            self._paused.succeed()

    def instant_over(self) -> None:
        if self._batch_ready and self.ledger.phase_over():
            ready, self._batch_ready = self._batch_ready, None
            ready.succeed()

    # ---- the trainer ---------------------------------------------------------------------------------------

    def process(self) -> Wait[None]:
        plant, ledger = self.plant, self.ledger
        for step in range(self.setup.steps):
            self._batches.rebase(self._begin_row(step))
            began = plant.now()
            held = self._begin_step(step).arrangement.hold
            plant.generate(self._plan.chunk_size, None, asleep=False, first=step == 0)
            busy = 0.0
            if step:  # what the trainer does after an update, while generation goes on
                busy = yield from plant.other(step)
            self._batch_ready = plant.signal()
            yield self._batch_ready
            taken = plant.now()
            batch = ledger.take_batch(self.version)
            last_finish = max(began, *(rollout.finished_at or 0.0 for rollout in batch))
            ready = self._ready(batch, last_finish, taken) if busy else taken
            stages = new_stages(last_finish - began, max(0.0, ready - last_finish))
            stages["other"] = taken - ready
            stages |= yield from plant.train(step, batch, self.version)
            self._paused = plant.signal()
            self._stopping = True
            plant.stop()
            yield self._paused
            if not self.setup.policy.partial_rollout:
                yield from self._drain(held)
            stages["update_weights"] = yield from plant.update_weights(step, self.version + 1)
            unfinished = ledger.unfinished_count()
            self._close_row(step, stages, batch, (unfinished, ledger.in_flight - unfinished), None)
            ledger.close_version(self.version)
            ledger.begin_version()
            self.version += 1
            yield from plant.end_step(step)

    def _drain(self, held: frozenset[int]) -> Wait[None]:
        """All that rests, has tokens and is not ``held`` runs to its end; what has none waits for the new
        weights."""
        plant = self.plant
        unfinished = self.ledger.unfinished.values()
        hold = held | {rollout.rollout_id for rollout in unfinished if not rollout.generated}
        plant.place(Begun(self._plan, [], 0, Arrangement(hold=hold), []))
        self._paused = plant.signal()
        self._draining = True
        plant.generate(self._plan.chunk_size, None, asleep=False, first=False)
        yield self._paused

    def _ready(self, batch: list[F], last_finish: float, taken: float) -> float:
        """When the trainer could have taken the batch, had it been free; ``taken``: it was (seconds)."""
        ready = max(last_finish, *(rollout.scored_at or 0.0 for rollout in batch))
        return ready if taken - ready > instant_tolerance(taken) else taken
