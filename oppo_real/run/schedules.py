"""The schedules of a real run; the decisions are those of ``oppo_sim.model.synchronous`` and
``oppo_sim.model.asynchronous``."""

from typing import NamedTuple

from oppo_real.run.given import RunInput
from oppo_real.run.rollout import RealRollout
from oppo_real.run.state import RunState
from oppo_sim.errors import OppoError
from oppo_sim.model.row import BusyReading
from oppo_sim.policies.interface import StepPlan
from oppo_sim.results.sinks import Sink
from oppo_sim.schedule.batches import WholeBatches
from oppo_sim.schedule.ledger import PhaseOutcome
from oppo_sim.schedule.rules import Stages, new_stages


class Generated(NamedTuple):
    """A phase that has ended."""

    plan: StepPlan
    outcome: PhaseOutcome[RealRollout]
    began: float
    ended: float


class Collected(NamedTuple):
    """A batch that is generated and scored."""

    generated: Generated
    last_score: BusyReading
    stages: Stages


class _Phased:
    """Phases that end when B rollouts have finished."""

    def __init__(self, given: RunInput, sink: Sink) -> None:
        self.given = given
        self.state = RunState(given, sink, self)
        self._plan = StepPlan(0, 1)
        self._began = 0.0
        self._generating = False
        self._generated: Generated | None = None
        self._unscored: set[int] = set()

    def finished(self, rollout: RealRollout, at: float) -> None:
        state = self.state
        state.ledger.finish(rollout, at, state.version)
        state.ledger.ready(rollout, at)
        if state.granularity == "rollout" and not state.rounds:
            state.score_whole((rollout,))

    def scored(self, rollout: RealRollout, at: float) -> None:
        self._unscored.discard(rollout.rollout_id)

    def begin_phase(self, step: int) -> None:
        """Admit and start generating."""
        state = self.state
        begun = state.ledger.begin_step(step, state.version)
        self._plan = begun.plan
        self._began = state.worker_group.now()
        self._generated = None
        state.place(begun)
        if state.ledger.phase_over():
            self._hand_out(self._began)
        else:
            state.rested_at = self._began
            self._generating = True
            state.generate(begun.plan)

    def go_on(self, timeout: float | None = None) -> None:
        """Handle what happened; ends the phase when its end has come."""
        state = self.state
        state.pump(timeout)
        if not self._generating:
            return
        if state.rounds:
            if state.decoding:
                return
            state.deliver_round()
            if not state.ledger.phase_over():
                state.generate(self._plan)
                return
        elif not state.ledger.phase_over():
            assert state.decoding, "no replica has work, but the phase has not ended"
            return
        self._generating = False
        self._hand_out(state.rest())

    def _hand_out(self, at: float) -> None:
        state = self.state
        outcome = state.ledger.end_phase(state.version)
        if state.granularity == "batch":
            state.score_whole(outcome.trained)
        state.drop(outcome.dropped)
        state.router.settle()
        self._generated = Generated(self._plan, outcome, self._began, at)

    def await_phase(self) -> Generated:
        """Wait for the end of the phase."""
        while self._generated is None:
            self.go_on()
        return self._generated

    def await_scores(self, batch: list[RealRollout]) -> float:
        """Wait until all of ``batch`` is scored; returns when the last score came (seconds)."""
        self._unscored = {rollout.rollout_id for rollout in batch if rollout.scored_at is None}
        while self._unscored:
            self.go_on()
        return max(rollout.scored_at or 0.0 for rollout in batch)


class SynchronousRun(_Phased):
    """One phase a step, then scoring, then training."""

    def run(self) -> None:
        """All steps."""
        for step in range(self.given.first_step, self.given.steps):
            self.step(step)
            self.given.after_step(step)

    def step(self, step: int) -> None:
        """One step."""
        collected = self.collect(step)
        self.conclude(step, collected, self.state.train(step, collected.generated.outcome.trained))

    def collect(self, step: int) -> Collected:
        """Generate and score the batch of a step."""
        state = self.state
        state.begin_row(step)
        began = state.worker_group.now()
        self.begin_phase(step)
        generated = self.await_phase()
        batch = generated.outcome.trained
        state.mark("gen_end", generated.ended, step)
        last = self.await_scores(batch)
        last_score = state.read_busy()._replace(at=max(last, generated.ended))
        return Collected(
            generated, last_score, new_stages(generated.ended - began, max(0.0, last - generated.ended))
        )

    def conclude(self, step: int, collected: Collected, trained: Stages) -> None:
        """Bring the new weights to the replicas and write the row; ``trained``: seconds of the training
        stages."""
        state = self.state
        generated, last_score, stages = collected
        batch = generated.outcome.trained
        stages |= trained
        stages["update_weights"] = state.update_weights(step)
        outcome = generated.outcome
        state.close_row(step, stages, batch, generated.plan, (outcome.deferred, outcome.surplus), last_score)
        state.version += 1


class OneStepOffRun(_Phased):
    """Step t trains batch t while batch t+1 is generated (docs/asynchronous.md)."""

    def __init__(self, given: RunInput, sink: Sink) -> None:
        super().__init__(given, sink)
        _check_overlap(given)

    def run(self) -> None:
        """All steps."""
        state = self.state
        state.begin_row(0)
        self.begin_phase(0)
        current = self.await_phase()
        for step in range(self.given.steps):
            if step:
                state.begin_row(step)
            self.begin_phase(step)
            batch = current.outcome.trained
            last = self.await_scores(batch)
            stages = new_stages(current.ended - current.began, max(0.0, last - current.ended))
            stages |= state.train(step, batch, self.go_on)
            upcoming = self.await_phase()
            stages["update_weights"] = state.update_weights(step)
            state.close_row(step, stages, batch, self._plan, (0, 0), None, upcoming.outcome.trained)
            state.version += 1
            current = upcoming
            self.given.after_step(step)


class AsyncRun:
    """Generation goes on during training and pauses only for ``update_weights``."""

    def __init__(self, given: RunInput, sink: Sink) -> None:
        _check_overlap(given)
        self.given = given
        self.state = RunState(given, sink, self)
        self._batches: WholeBatches[RealRollout] = WholeBatches(given.batch)

    def finished(self, rollout: RealRollout, at: float) -> None:
        state = self.state
        state.ledger.finish(rollout, at, state.version)
        if state.granularity == "rollout":
            state.score_whole((rollout,))
        elif state.granularity == "batch":
            self._batches.add(rollout, at)

    def scored(self, rollout: RealRollout, at: float) -> None:
        self.state.ledger.ready(rollout, at)

    def go_on(self, timeout: float | None = None) -> None:
        """Handle what happened; send whole batches to the scorer under ``batch`` scoring."""
        self.state.pump(timeout)
        self._send_batches()

    def _send_batches(self) -> None:
        self.state.score_whole(self._batches.take())
        self.state.router.settle()

    def run(self) -> None:
        """All steps."""
        state, size = self.state, self.given.batch.rollout_batch_size
        for step in range(self.given.steps):
            state.begin_row(step)
            began = state.worker_group.now()
            begun = state.ledger.begin_step(step, state.version)
            state.place(begun)
            state.generate(begun.plan)
            while state.ledger.finished_count < size:
                self.go_on()
            taken = state.worker_group.now()
            batch = state.ledger.take_batch(state.version)
            last_finish = max(rollout.finished_at or 0.0 for rollout in batch)
            stages = new_stages(max(0.0, last_finish - began), max(0.0, taken - max(began, last_finish)))
            stages |= state.train(step, batch, self.go_on)
            state.rest()
            self._send_batches()
            stages["update_weights"] = state.update_weights(step)
            unfinished = state.ledger.unfinished_count()
            state.close_row(
                step, stages, batch, begun.plan, (unfinished, state.ledger.in_flight - unfinished), None
            )
            state.ledger.close_version(state.version)
            state.ledger.begin_version()
            state.version += 1
            self.given.after_step(step)


Run = SynchronousRun | OneStepOffRun | AsyncRun

SCHEDULES: dict[str, type[Run]] = {
    "synchronous": SynchronousRun,
    "one-step-off": OneStepOffRun,
    "async": AsyncRun,
}


def start_run(given: RunInput, sink: Sink) -> Run:
    """The run, ready for ``run()``."""
    return SCHEDULES[given.policy.schedule](given, sink)


def _check_overlap(given: RunInput) -> None:
    if not given.worker_group.concurrent and not given.lock_step:
        raise OppoError(
            f"the {given.policy.schedule} policy generates during training, which needs engines in processes"
            " of their own: set real.placement.kind to processes or ray (or real.lock_step to true)"
        )
