"""The schedules, once for simulated and real machines: in phases that end when enough rollouts have finished
(synchronous, one step off-policy), and by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from oppo_sim.policies.interface import KEEP
from oppo_sim.schedule.asynchronous import Asynchronous
from oppo_sim.schedule.ledger import Begun, PhaseOutcome
from oppo_sim.schedule.plant import Plant, Signal, Wait
from oppo_sim.schedule.rollout import F
from oppo_sim.schedule.rules import new_stages, runs_in_rounds
from oppo_sim.schedule.scheduler import Scheduler, ScheduleSetup


@dataclass(frozen=True)
class Generated(Generic[F]):
    """A phase that has ended."""

    outcome: PhaseOutcome[F]
    seconds: float
    ended: float


class Phased(Scheduler[F]):
    """Phases that end when B rollouts have finished."""

    def __init__(
        self,
        setup: ScheduleSetup,
        plant_of: Callable[[Scheduler[F]], Plant[F]],
        oracle_length: Callable[[F], int] | None = None,
    ) -> None:
        self.rounds = runs_in_rounds(setup.policy)
        super().__init__(setup, plant_of, oracle_length)
        self._finish_seen = False
        self._to_replace = 0
        """In rounds: rollouts that left at the barrier."""
        self._began = 0.0
        self._phase_over = self.plant.signal()
        self._awaited: set[int] = set()
        self._all_scored = self._phase_over
        self._gen_batch = setup.gen_batch_size or 0

    # ---- what the plant reports ----------------------------------------------------------------------------

    def finished(self, rollout: F, at: float) -> None:
        ledger = self.ledger
        ledger.finish(rollout, at, self.version)
        self._ready_or_filtered(rollout, at)
        self._finish_seen = True
        if self.granularity == "rollout" and not self.rounds:
            self._score_whole((rollout,))

    def scored(self, rollout: F, at: float) -> None:
        if self._awaited:
            self._awaited.discard(rollout.rollout_id)
            if not self._awaited:
                self._all_scored.succeed()

    def stop_check(self) -> None:
        plant = self.plant
        if self.rounds or not (self._finish_seen or self._stopping):
            return
        self._finish_seen = False
        filtered = self._drop_filtered()
        if not self._stopping:
            if self._enough():
                self._stopping = True
                plant.stop()
            else:
                self._go_on(filtered)
        if self._stopping and plant.stopped():
            self._stopping = False
            self._end_phase(plant.rest())

    def all_idle(self) -> None:
        if not self.rounds:
            raise AssertionError("no replica has work, but the phase has not ended")
        self._to_replace = self._drop_filtered()
        self._deliver_round()
        self.plant.leave_barrier(self._after_barrier)

    def _after_barrier(self) -> None:
        if self._enough():
            self._end_phase(self.plant.rest())
        elif self._gen_batch and not self.ledger.unfinished:
            self._go_on(0)
        else:
            self._go_on(self._to_replace)
            self.plant.next_round(self._plan.chunk_size)

    def instant_over(self) -> None:
        pass

    # ---- a phase -------------------------------------------------------------------------------------------

    def _begin_phase(self, step: int, first: bool) -> Signal:
        """Admit and start generating; the signal's value is a ``Generated``. ``first``: of the run."""
        plant = self.plant
        self._began = plant.now()
        self._begin_step(step)
        over = self._phase_over = plant.signal()
        if self._enough():
            self._end_phase(self._began)
        else:
            self._generate(first)
        return over

    def _enough(self) -> bool:
        """The phase is over; of generation batches the last has finished whole."""
        return self.ledger.phase_over() and not (self._gen_batch and self.ledger.unfinished)

    def _go_on(self, filtered: int) -> None:
        """The phase is not over; ``filtered`` rollouts have left."""
        if not self._gen_batch:
            self._replace_filtered(filtered)
        elif not self.ledger.unfinished:
            self.plant.rest()
            self._admitted += self._gen_batch
            batch = self.ledger.replace(self._gen_batch)
            self.plant.place(Begun(self._plan, batch, len(batch), KEEP, []))
            self._generate(first=False)

    def _generate(self, first: bool) -> None:
        chunk_size = self._plan.chunk_size
        self.plant.generate(chunk_size, chunk_size if self.rounds else None, asleep=True, first=first)

    def _end_phase(self, at: float) -> None:
        outcome = self.ledger.end_phase(self.version, whole_batches=self._gen_batch > 0)
        if self.granularity == "batch":
            self._score_whole(outcome.trained)
        for rollout in outcome.dropped:
            self.plant.drop(rollout)
            self._dropped.append(rollout.generated)
        self._phase_over.succeed(Generated(outcome, at - self._began, at))

    def _deliver_round(self) -> None:
        """At the barrier, pieces of the round reach the scorer."""
        for rollout in self.plant.end_round():
            if rollout.filtered:
                continue
            finished = rollout.finished_at is not None
            if self.granularity == "chunk" and rollout.generated > rollout.cut:
                self.plant.hand_over(rollout, finished)
            elif self.granularity == "rollout" and finished:
                self._score_whole((rollout,))

    def _await_scores(self, batch: list[F]) -> Wait[None]:
        self._awaited = {rollout.rollout_id for rollout in batch if rollout.scored_at is None}
        if self._awaited:
            self._all_scored = self.plant.signal()
            yield self._all_scored


class Synchronous(Phased[F]):
    """One phase a step, then scoring, then training."""

    def process(self) -> Wait[None]:
        plant = self.plant
        for step in range(self.setup.first_step, self.setup.steps):
            self._begin_row(step)
            generated: Generated[F] = yield self._begin_phase(step, step == self.setup.first_step)
            outcome, ended = generated.outcome, generated.ended
            batch = outcome.trained
            plant.mark("gen_end", ended, step)
            yield from self._await_scores(batch)
            last_score = plant.read_last_score(batch, ended)
            stages = new_stages(generated.seconds, max(0.0, last_score.at - ended))
            stages |= yield from plant.train(step, batch, self.version)
            stages["update_weights"] = yield from plant.update_weights(step, self.version + 1)
            stages["other"] = yield from plant.other(step)
            self._close_row(step, stages, batch, (outcome.deferred, outcome.surplus), last_score)
            self.version += 1
            yield from plant.end_step(step)


class OneStepOff(Phased[F]):
    """Step t trains batch t while batch t+1 is generated (docs/policies.md)."""

    def process(self) -> Wait[None]:
        plant = self.plant
        self._begin_row(0)
        current: Generated[F] = yield self._begin_phase(0, True)
        for step in range(self.setup.steps):
            batch, ended = current.outcome.trained, current.ended
            if step:
                passed = self._begin_row(step)
                ended -= passed
                for rollout in batch:
                    rollout.rebase(passed)
            following = self._begin_phase(step, False)
            yield from self._await_scores(batch)
            last_score = max(rollout.scored_at or 0.0 for rollout in batch)
            stages = new_stages(current.seconds, max(0.0, last_score - ended))
            stages |= yield from plant.train(step, batch, self.version)
            current = yield following
            stages["update_weights"] = yield from plant.update_weights(step, self.version + 1)
            stages["other"] = yield from plant.other(step)
            self._close_row(step, stages, batch, (0, 0), None, current.outcome.trained)
            self.version += 1
            yield from plant.end_step(step)


def make_scheduler(
    setup: ScheduleSetup,
    plant_of: Callable[[Scheduler[F]], Plant[F]],
    oracle_length: Callable[[F], int] | None,
) -> Scheduler[F]:
    """The schedule that the policy needs, over a plant that is made for it."""
    kinds: dict[str, type[Scheduler[F]]] = {
        "synchronous": Synchronous,
        "one-step-off": OneStepOff,
        "async": Asynchronous,
    }
    return kinds[setup.policy.schedule](setup, plant_of, oracle_length)
