"""The ``async`` schedule: generation goes on during training and pauses only for ``update_weights``
(docs/asynchronous.md)."""

from collections.abc import Generator
from typing import Any

from simpy.events import Event

from oppo_sim.model.machine import Machine
from oppo_sim.model.rollout import Rollout
from oppo_sim.model.run import ModelInput, RunState
from oppo_sim.policies.interface import StepPlan
from oppo_sim.results.sinks import Sink
from oppo_sim.schedule.batches import WholeBatches
from oppo_sim.schedule.rules import new_stages, streams_pieces


class AsyncRun:
    """Drives the machine without phases."""

    def __init__(self, given: ModelInput, sink: Sink) -> None:
        self.given = given
        self.machine = Machine(
            given.machine,
            given.costs,
            self,
            stream=streams_pieces(given.policy, given.machine.streamable),
            counterfactual=given.counterfactual,
            timeline=given.timeline_steps is not None,
        )
        self.machine.every_instant = True
        self.state = RunState(given, sink, self.machine)
        self._batches: WholeBatches[Rollout] = WholeBatches(given.batch)
        self._batch_ready: Event | None = None
        self._paused = self.machine.clock.event()

    # ---- what the machine tells ----------------------------------------------------------------------------

    def finished(self, rollout: Rollout, at: float) -> None:
        state = self.state
        state.ledger.finish(rollout, at, state.version)
        if state.granularity == "rollout":
            state.score_whole((rollout,))
        elif state.granularity == "batch":
            self._batches.add(rollout, at)

    def scored(self, rollout: Rollout, at: float) -> None:
        self.state.ledger.ready(rollout, at)

    def stop_check(self, now: float) -> None:
        self.state.score_whole(self._batches.take())
        if self.machine.stopping and self.machine.stopped():
            self.machine.rest()
            self._paused.succeed()

    def all_idle(self, now: float) -> None:
        """Nothing to generate until the next update admits more."""

    def instant_over(self, now: float) -> None:
        if (
            self._batch_ready is not None
            and self.state.ledger.finished_count >= self.given.batch.rollout_batch_size
        ):
            ready, self._batch_ready = self._batch_ready, None
            ready.succeed()

    # ---- the trainer ---------------------------------------------------------------------------------------

    def process(self) -> Generator[Event, Any, None]:
        """The SimPy process of the run: the trainer, which admits, takes batches and updates weights."""
        state, machine = self.state, self.machine
        clock = machine.clock
        for step in range(self.given.steps):
            self._batches.rebase(state.begin_row(step))
            plan = self._admit(step)
            self._batch_ready = clock.event()
            yield self._batch_ready
            taken = clock.now
            batch = state.ledger.take_batch(state.version)
            last_finish = max(0.0, *(rollout.finished_at or 0.0 for rollout in batch))
            stages = new_stages(last_finish, taken - last_finish)
            stages |= yield from state.trainer.train(step, batch)
            self._paused = clock.event()
            machine.stop(clock.now)
            yield self._paused
            stages["update_weights"] = yield from state.trainer.update_weights(step)
            unfinished = state.ledger.unfinished_count()
            state.close_row(
                step, stages, batch, plan, (unfinished, state.ledger.in_flight - unfinished), None
            )
            state.ledger.close_version(state.version)
            state.ledger.begin_version()
            state.version += 1
            state.release_kv()

    def _admit(self, step: int) -> StepPlan:
        state, machine = self.state, self.machine
        begun = state.ledger.begin_step(step, state.version)
        state.place(begun)
        machine.generate(machine.clock.now, begun.plan.chunk_size, None)
        return begun.plan
