"""The synchronous schedule: generate until the phase ends, score, train, carry; and one-step-off, which
overlaps two batches."""

from collections.abc import Generator
from typing import Any, NamedTuple

from simpy.events import Event

from oppo_sim.model.machine import Machine
from oppo_sim.model.rollout import Rollout
from oppo_sim.model.row import read_busy
from oppo_sim.model.run import ModelInput, RunState
from oppo_sim.policies.interface import StepPlan
from oppo_sim.results.sinks import Sink
from oppo_sim.schedule.ledger import PhaseOutcome
from oppo_sim.schedule.rules import new_stages, runs_in_rounds, streams_pieces


class Generated(NamedTuple):
    """A phase that has ended."""

    plan: StepPlan
    outcome: PhaseOutcome[Rollout]
    seconds: float
    ended: float
    """Seconds since the begin of the row."""


class PhasedRun:
    """Drives the machine by phases that end when B rollouts have finished."""

    def __init__(self, given: ModelInput, sink: Sink) -> None:
        self.given = given
        self.rounds = runs_in_rounds(given.policy)
        self.machine = Machine(
            given.machine,
            given.costs,
            self,
            stream=streams_pieces(given.policy, given.machine.streamable),
            counterfactual=given.counterfactual,
            timeline=given.timeline_steps is not None,
        )
        self.state = RunState(given, sink, self.machine)
        self._plan = StepPlan(0, 1)
        self._finish_seen = False
        self._began = 0.0
        self._phase_over = self.machine.clock.event()

    # ---- what the machine tells ----------------------------------------------------------------------------

    def finished(self, rollout: Rollout, at: float) -> None:
        state = self.state
        state.ledger.finish(rollout, at, state.version)
        state.ledger.ready(rollout, at)
        self._finish_seen = True
        if state.granularity == "rollout" and not self.rounds:
            state.score_whole((rollout,))

    def scored(self, rollout: Rollout, at: float) -> None:
        self.state.note_score(rollout)

    def stop_check(self, now: float) -> None:
        if self.rounds or not (self._finish_seen or self.machine.stopping):
            return
        self._finish_seen = False
        machine = self.machine
        if not machine.stopping and self.state.ledger.phase_over():
            machine.stop(now)
        if machine.stopping and machine.stopped():
            self._end_phase()

    def all_idle(self, now: float) -> None:
        if not self.rounds:
            raise AssertionError("no replica has work, but the phase has not ended")
        barrier = max(replica.at for replica in self.machine.replicas)
        self._deliver_round()
        if self.state.ledger.phase_over():
            self._end_phase()
            return
        for replica in self.machine.replicas:
            replica.begin_round(barrier, self._plan.chunk_size)
            replica.next_activity()

    def instant_over(self, now: float) -> None:
        pass

    # ---- a phase -------------------------------------------------------------------------------------------

    def begin_phase(self, step: int) -> Event:
        """Admit and start generating; the event's value is a ``Generated``."""
        state, machine = self.state, self.machine
        begun = state.ledger.begin_step(step, state.version)
        self._plan = begun.plan
        self._began = machine.clock.now
        state.place(begun)
        self._phase_over = machine.clock.event()
        if state.ledger.phase_over():
            self._hand_out(self._began)
        else:
            machine.generate(
                self._began, begun.plan.chunk_size, begun.plan.chunk_size if self.rounds else None
            )
        return self._phase_over

    def _end_phase(self) -> None:
        self._hand_out(self.machine.rest())

    def _hand_out(self, at: float) -> None:
        state = self.state
        outcome = state.ledger.end_phase(state.version)
        if state.granularity == "batch":
            state.score_whole(outcome.trained)
        state.drop(outcome.dropped)
        self._phase_over.succeed(Generated(self._plan, outcome, at - self._began, at))

    def _deliver_round(self) -> None:
        """At the barrier, pieces of the round reach the scorer."""
        granularity = self.state.granularity
        for replica in self.machine.replicas:
            made, replica.made_in_round = replica.made_in_round, []
            if granularity == "chunk":
                replica.sync_generated()
                for rollout in dict.fromkeys((*made, *replica.running)):
                    if rollout.generated > rollout.cut:
                        replica.hand_over(rollout, rollout.finished_at is not None)
            elif granularity == "rollout":
                self.state.score_whole([rollout for rollout in made if rollout.finished_at is not None])


class SynchronousRun(PhasedRun):
    """One phase a step, then scoring, then training."""

    def process(self) -> Generator[Event, Any, None]:
        """The SimPy process of the run."""
        for step in range(self.given.steps):
            yield from self._step(step)

    def _step(self, step: int) -> Generator[Event, Any, None]:
        state, clock = self.state, self.machine.clock
        state.begin_row(step)
        generated: Generated = yield self.begin_phase(step)
        batch = generated.outcome.trained
        state.mark("gen_end", clock.origin + generated.ended, step)
        scores = state.scores_of(batch)
        if scores is not None:
            yield scores
        last_score = read_busy(self.machine, clock.now)
        stages = new_stages(generated.seconds, max(0.0, clock.now - generated.ended))
        stages |= yield from state.trainer.train(step, batch)
        stages["update_weights"] = yield from state.trainer.update_weights(step)
        outcome = generated.outcome
        state.close_row(step, stages, batch, generated.plan, (outcome.deferred, outcome.surplus), last_score)
        state.version += 1
        state.release_kv()


class OneStepOffRun(PhasedRun):
    """Step t trains batch t while batch t+1 is generated (docs/asynchronous.md)."""

    def process(self) -> Generator[Event, Any, None]:
        """The SimPy process of the run."""
        state = self.state
        state.begin_row(0)
        current: Generated = yield self.begin_phase(0)
        for step in range(self.given.steps):
            if step:
                passed = state.begin_row(step)
                current = current._replace(ended=current.ended - passed)
                for rollout in current.outcome.trained:
                    rollout.rebase(passed)
            following = self.begin_phase(step)
            batch = current.outcome.trained
            scores = state.scores_of(batch)
            if scores is not None:
                yield scores
            last_score = max(rollout.scored_at or 0.0 for rollout in batch)
            stages = new_stages(current.seconds, max(0.0, last_score - current.ended))
            stages |= yield from state.trainer.train(step, batch)
            upcoming: Generated = yield following
            stages["update_weights"] = yield from state.trainer.update_weights(step)
            state.close_row(step, stages, batch, self._plan, (0, 0), None, upcoming.outcome.trained)
            state.version += 1
            state.release_kv()
            current = upcoming
