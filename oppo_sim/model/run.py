"""One simulated run: a schedule over the machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from oppo_sim.costs.interface import Costs
from oppo_sim.model.counterfactual import UNCHANGED, Counterfactual
from oppo_sim.model.machine import Machine
from oppo_sim.model.prefixes import shared_tokens
from oppo_sim.model.rollout import Rollout
from oppo_sim.model.row import DeviceCounts, Recorded, StepRows
from oppo_sim.model.setup import MachineSetup
from oppo_sim.model.tally import Work
from oppo_sim.model.training import Trainer
from oppo_sim.policies.interface import KEEP, Batch, Policy
from oppo_sim.results.sinks import Sink
from oppo_sim.results.spans import Marker, Span
from oppo_sim.rewards import BatchRewards
from oppo_sim.schedule.ledger import Begun
from oppo_sim.schedule.plant import BusyReading, StepEnd, Wait
from oppo_sim.schedule.rules import Stages, equal_rewards, streams_pieces
from oppo_sim.schedule.scheduler import Scheduler, ScheduleSetup
from oppo_sim.schedule.schedules import make_scheduler
from oppo_sim.turns import ToolWait


class Rows(Protocol):
    """Rows of the replayed trace."""

    @property
    def prompt_lengths(self) -> Sequence[int]:
        """Tokens, one entry a row."""

    @property
    def response_lengths(self) -> Sequence[int]:
        """Tokens, one entry a row."""

    @property
    def clipped(self) -> Sequence[bool]:
        """Rows that ended for their length."""

    def mean_response_length(self, step: int) -> float:
        """Mean of the rows that rollouts first admitted in ``step`` are drawn from."""


class RowCursor(Protocol):
    """Draws a row for each admission, in id order."""

    def draw(self, rollout_id: int, step: int) -> int:
        """Row number for the rollout first admitted in ``step``."""


@dataclass(frozen=True)
class ModelInput:
    """One run: machine, costs, policy, trace, rewards."""

    machine: MachineSetup
    costs: Costs
    policy: Policy
    batch: Batch
    rows: Rows
    cursor: RowCursor
    rewards: BatchRewards
    steps: int
    counterfactual: Counterfactual = UNCHANGED
    timeline_steps: tuple[int, int] | None = None
    """First and last step whose spans are recorded; None: no timeline."""
    recorded_timing: Recorded = None
    """Lock-step: stage times that the policy observes instead of the simulated ones, one mapping a step."""
    waits: Sequence[tuple[ToolWait, ...]] | None = None
    """For tools, one entry a row; None: no rollout waits."""
    sample_rewards: Sequence[float] | None = None
    """Dynamic sampling: reward of each row, by which groups are judged; None: every group is trained."""
    gen_batch_size: int | None = None
    """Rollouts generated at a time; None: a dropped group is replaced at once."""


def run_model(inputs: ModelInput, sink: Sink) -> tuple[list[Span], list[Marker]]:
    """Simulate ``inputs.steps`` training steps; rows go to ``sink``. Returns the timeline of
    ``inputs.timeline_steps``."""
    machine = inputs.machine
    setup = ScheduleSetup(
        inputs.policy,
        inputs.batch,
        machine.num_replicas,
        machine.streamable,
        inputs.steps,
        groups_together=machine.groups_together,
        equal_rewards=None
        if inputs.sample_rewards is None
        else partial(equal_rewards, inputs.sample_rewards),
        gen_batch_size=inputs.gen_batch_size,
    )
    scheduler = make_scheduler(
        setup,
        lambda scheduler: SimulatedPlant(inputs, sink, scheduler),
        lambda rollout: rollout.response_length,
    )
    plant = scheduler.plant
    assert isinstance(plant, SimulatedPlant)
    clock = plant.machine.clock
    clock.drive(clock.process(scheduler.process()))
    return plant.machine.spans, plant.machine.markers


class SimulatedPlant:
    """The machine as a schedule's ``Plant``; its signals are SimPy events."""

    def __init__(self, inputs: ModelInput, sink: Sink, scheduler: Scheduler[Rollout]) -> None:
        self._inputs = inputs
        self._scheduler = scheduler
        self.machine = machine = Machine(
            inputs.machine,
            inputs.costs,
            scheduler,
            stream=streams_pieces(inputs.policy, inputs.machine.streamable),
            counterfactual=inputs.counterfactual,
            timeline=inputs.timeline_steps is not None,
        )
        self.signal = machine.clock.event
        self.stopped = machine.stopped
        self.rest = machine.rest
        self.next_round = machine.next_round
        self.leave_barrier = machine.leave_barrier
        self.end_round = machine.end_round
        self.join = machine.join
        self._trainer = Trainer(machine, inputs.costs.training)
        self._rows = StepRows(
            sink,
            inputs.policy,
            inputs.costs,
            lambda step, batch: inputs.rewards.batch_mean(step, [rollout.trace_row for rollout in batch]),
            inputs.rows.mean_response_length,
            inputs.recorded_timing,
            machine.read_busy(),
        )
        self._held = False
        self._shares = inputs.machine.shares_prefixes and inputs.batch.group_size > 1
        self._prompt_length = 0
        """Of the group admitted last, its first member's."""

    def now(self) -> float:
        return self.machine.clock.now

    def admit(self, rollout_id: int, step: int) -> Rollout:
        inputs = self._inputs
        row = inputs.cursor.draw(rollout_id, step)
        rows = inputs.rows
        rollout = Rollout(
            rollout_id,
            rollout_id // inputs.batch.group_size,
            rows.prompt_lengths[row],
            rows.response_lengths[row],
            row,
            step,
            self.machine.clock.elapsed,
            () if inputs.waits is None else inputs.waits[row],
        )
        rollout.clipped = rows.clipped[row]
        if self._shares:
            if rollout_id % inputs.batch.group_size == 0:
                self._prompt_length = rollout.prompt_length
            if rollout.prompt_length == self._prompt_length:
                rollout.prefix = shared_tokens(rollout.prompt_length, inputs.machine.kv_block_tokens)
        return rollout

    def begin_row(self, step: int) -> float:
        shown = self._inputs.timeline_steps
        passed = self.machine.begin_row(step, shown is not None and shown[0] <= step <= shown[1])
        self._rows.begin(self.machine.read_busy(), self.machine.clock.origin)
        return passed

    def place(self, begun: Begun[Rollout]) -> None:
        replicas = self.machine.replicas
        hold = begun.arrangement.hold
        for rollout, left in begun.moved:
            if rollout.queued:
                replicas[left].batch.remove(rollout)
            self.machine.scorer.move(rollout, left)
        if begun.arrangement is not KEEP or self._held:
            self._held = bool(hold)
            for rollout in self._scheduler.ledger.unfinished.values():
                if rollout.rollout_id in hold:
                    if rollout.queued:
                        replicas[rollout.replica].batch.remove(rollout)
                elif not rollout.queued and rollout.finished_at is None:
                    replicas[rollout.replica].batch.enqueue(rollout)
        else:
            for rollout in begun.admitted:
                replicas[rollout.replica].batch.enqueue(rollout)

    def generate(self, chunk_size: int, round_size: int | None, asleep: bool, first: bool) -> None:
        phases = self._inputs.costs.phases
        if asleep:
            self.machine.scorer.sleep()
        seconds = (phases.gen_phase_s if asleep else 0.0) + (phases.first_step_s if first else 0.0)
        self.machine.generate(chunk_size, round_size, seconds)

    def stop(self) -> None:
        self.machine.stop(self.machine.clock.now)

    def hand_over(self, rollout: Rollout, last: bool) -> None:
        self.machine.replicas[rollout.replica].hand_over(rollout, last)

    def drop(self, rollout: Rollout) -> None:
        self.machine.forget(rollout)

    def read_last_score(self, batch: Sequence[Rollout], ended: float) -> BusyReading:
        return self.machine.read_busy()

    def train(self, step: int, batch: list[Rollout], version: int) -> Wait[Stages]:
        return self._trainer.train(step, batch)

    def update_weights(self, step: int, version: int) -> Wait[float]:
        seconds = yield from self._trainer.update_weights(step)
        if self._inputs.machine.clear_kv_cache_on_weight_sync:
            for replica in self.machine.replicas:
                replica.batch.release_kv()
        return seconds

    def other(self, step: int) -> Wait[float]:
        return self._trainer.other(step, self._inputs.costs.phases.other_s)

    def mark(self, name: str, at: float, step: int) -> None:
        self.machine.mark(name, at, step)

    def close_row(self, end: StepEnd[Rollout]) -> None:
        reading = self.machine.read_busy()
        self.mark("step_end", reading.at, end.step)
        machine = self.machine
        tally = machine.tally
        tally.gen = Work.of_all([replica.meter.work for replica in machine.replicas])
        tally.scoring = Work.of_all(machine.scorer.work_of)
        layout = machine.layout
        devices = DeviceCounts(len(layout.training), len(layout.sync), layout.num_devices)
        self._rows.close(end, tally, reading, self._trainer.flops, devices)

    def end_step(self, step: int) -> Any:
        return ()
