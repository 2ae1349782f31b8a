"""The schedules, once for simulated and real machines: what a plant is asked to do, and when.

``process`` is a generator that yields what it waits for: SimPy runs it as a process, a real run handles
events until the signal has come.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from oppo_sim.instants import instant_tolerance
from oppo_sim.policies.interface import KEEP, Arrangement, Batch, Policy, StepPlan
from oppo_sim.schedule.batches import WholeBatches
from oppo_sim.schedule.ledger import Begun, Ledger, PhaseOutcome
from oppo_sim.schedule.plant import BusyReading, Plant, Signal, StepEnd, Wait
from oppo_sim.schedule.rollout import F
from oppo_sim.schedule.rules import Stages, effective_granularity, new_stages, runs_in_rounds


@dataclass(frozen=True)
class ScheduleSetup:
    """What is to be scheduled."""

    policy: Policy
    batch: Batch
    num_replicas: int
    streamable: bool
    steps: int
    first_step: int = 0
    """Steps before it were done in an earlier run."""
    groups_together: bool = False
    """All samples of a prompt go to one replica."""
    equal_rewards: Callable[[Sequence[Any]], bool] | None = None
    """Dynamic sampling: whether a group's rollouts have equal rewards, and are dropped and replaced."""
    gen_batch_size: int | None = None
    """Rollouts that are generated at a time, at least B; groups are replaced by as many, once all have
    finished. None: a group is replaced by one, at once."""


@dataclass(frozen=True)
class Generated(Generic[F]):
    """A phase that has ended."""

    outcome: PhaseOutcome[F]
    seconds: float
    ended: float


class Scheduler(ABC, Generic[F]):
    """What all schedules share: ledger, weight version, what a row counts of the ledger's decisions."""

    every_instant = False
    """``instant_over`` is wanted."""

    def __init__(
        self,
        setup: ScheduleSetup,
        plant_of: "Callable[[Scheduler[F]], Plant[F]]",
        oracle_length: Callable[[F], int] | None = None,
    ) -> None:
        """``plant_of`` makes the plant that tells this object what happens; ``oracle_length``: as for the
        ledger."""
        self.setup = setup
        self.version = 0
        """Updates done."""
        self.granularity = effective_granularity(setup.policy, setup.streamable)
        self.plant: Plant[F] = plant_of(self)
        self.ledger: Ledger[F] = Ledger(
            setup.policy,
            setup.batch,
            setup.num_replicas,
            self.plant.admit,
            oracle_length,
            setup.groups_together,
            setup.equal_rewards,
        )
        self._plan = StepPlan(0, 1)
        self._stopping = False
        """The plant was told to stop and has not rested since."""
        self._admitted = 0
        self._dropped: list[int] = []
        self._filtered: list[int] = []

    @abstractmethod
    def process(self) -> Wait[None]:
        """All steps."""

    # ---- what the plant tells ------------------------------------------------------------------------------

    @abstractmethod
    def finished(self, rollout: F, at: float) -> None:
        """A rollout made its last token."""

    @abstractmethod
    def scored(self, rollout: F, at: float) -> None:
        """A rollout's score exists."""

    @abstractmethod
    def stop_check(self) -> None:
        """First decision of an instant: does generation stop?"""

    @abstractmethod
    def all_idle(self) -> None:
        """Generation is on, nobody is stopping it, and no replica has anything left to do."""

    @abstractmethod
    def instant_over(self) -> None:
        """Last decision of an instant, after the scoring workers took work."""

    # ---- what schedules share ------------------------------------------------------------------------------

    def _begin_row(self, step: int) -> float:
        """Returns by how much seconds are fewer from now on."""
        self._admitted = 0
        self._dropped = []
        self._filtered = []
        passed = self.plant.begin_row(step)
        if passed:
            self.ledger.rebase(passed)
        return passed

    def _drop_filtered(self) -> int:
        """Groups with equal rewards leave the scorer; returns how many rollouts."""
        filtered = self.ledger.take_filtered()
        for rollout in filtered:
            self.plant.drop(rollout)
        return len(filtered)

    def _replace_filtered(self, count: int) -> None:
        """Generation goes on: others begin in their place, at once."""
        if count:
            self._admitted += count
            self.plant.join(self.ledger.replace(count))

    def _begin_step(self, step: int) -> Begun[F]:
        self._drop_filtered()  # the plan sees that they are gone
        begun = self.ledger.begin_step(step, self.version, self.setup.gen_batch_size)
        self._plan = begun.plan
        self._admitted += begun.new
        self.plant.place(begun)
        return begun

    def _ready_or_filtered(self, rollout: F, at: float) -> None:
        """It may be selected, or its group is dropped, once the group is whole."""
        self._filtered += self.ledger.ready(rollout, at)

    def _score_whole(self, rollouts: Iterable[F]) -> None:
        """Hand over what has not been handed over yet (``batch`` and ``rollout`` granularity)."""
        for rollout in rollouts:
            if not rollout.sent_to_scorer:
                rollout.sent_to_scorer = True
                self.plant.hand_over(rollout, True)

    def _close_row(
        self,
        step: int,
        stages: Stages,
        batch: list[F],
        left: tuple[int, int],
        last_score: BusyReading | None,
        next_batch: Sequence[F] = (),
    ) -> None:
        """``left``: (deferred, surplus); ``next_batch`` is generated already."""
        in_flight = self.ledger.tokens_in_flight() + sum([rollout.generated for rollout in next_batch])
        self.plant.close_row(
            StepEnd(
                step,
                self.version,
                stages,
                batch,
                self._plan,
                self._admitted,
                *left,
                len(self._dropped),
                sum(self._dropped),
                len(self._filtered),
                sum(self._filtered),
                in_flight,
                last_score,
            )
        )


class _Phased(Scheduler[F]):
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

    # ---- what the plant tells ------------------------------------------------------------------------------

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


class Synchronous(_Phased[F]):
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


class OneStepOff(_Phased[F]):
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

    # ---- what the plant tells ------------------------------------------------------------------------------

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


def make_scheduler(
    setup: ScheduleSetup,
    plant_of: Callable[[Scheduler[F]], Plant[F]],
    oracle_length: Callable[[F], int] | None,
) -> Scheduler[F]:
    """The schedule that the policy asks for, over a plant that is made for it."""
    kinds: dict[str, type[Scheduler[F]]] = {
        "synchronous": Synchronous,
        "one-step-off": OneStepOff,
        "async": Asynchronous,
    }
    return kinds[setup.policy.schedule](setup, plant_of, oracle_length)
