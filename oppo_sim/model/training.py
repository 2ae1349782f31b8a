"""The training part of a step, as a SimPy process fragment."""

from oppo_sim.columns import TRAINING_STAGES
from oppo_sim.costs.interface import BatchShape, TrainingCost
from oppo_sim.model.device import Runner
from oppo_sim.model.formulas import time_on_device
from oppo_sim.model.machine import Machine
from oppo_sim.model.rollout import Rollout
from oppo_sim.results.spans import Span
from oppo_sim.schedule.plant import Wait
from oppo_sim.schedule.rules import Stages

PARALLEL = ("old_log_prob", "ref", "values")
SYNC = "update_weights"
OTHER = "other"


class Trainer:
    """Runs the stages one after the other on the training devices (``update_weights`` on the rollout devices
    too)."""

    def __init__(self, machine: Machine, cost: TrainingCost) -> None:
        self._machine = machine
        self._cost = cost
        self._demand, self._sync_demand = cost.demand(), cost.sync_demand()
        self._train = machine.training_runner(self._ended)
        self._sync = machine.sync_runner(self._ended)
        self._done = machine.clock.event()
        self._alone: Stages = {}
        self.flops: float | None = None

    def train(self, step: int, batch: list[Rollout]) -> Wait[Stages]:
        """Everything from ``old_log_prob`` to ``update_actor``; returns the seconds of each stage as they
        passed."""
        # Answers of tools are in the sequences, though no loss counts them.
        prompts = tuple([r.prompt_length + r.tool_tokens for r in batch])
        shape = BatchShape(prompts, tuple([r.response_length for r in batch]))
        alone = self._alone = self._cost.stage_times(shape)._asdict()
        work = self._cost.work(shape)
        self.flops = None if work is None else work.flops
        passed: Stages = dict.fromkeys(TRAINING_STAGES, 0.0)
        stages = [stage for stage in TRAINING_STAGES if stage != SYNC]
        if self._cost.parallel_inference:
            # As one activity that lasts as long as the longest of them, in legs that end where the shorter
            # ones do.
            before = 0.0
            for until in sorted({alone[stage] for stage in PARALLEL}):
                actual = yield from self._run(self._train, step, "+".join(PARALLEL), until - before)
                for stage in PARALLEL:
                    if alone[stage] >= until:
                        passed[stage] += actual
                before = until
            stages = [stage for stage in stages if stage not in PARALLEL]
        for stage in stages:
            passed[stage] = yield from self._run(self._train, step, stage, alone[stage])
        return passed

    def update_weights(self, step: int) -> Wait[float]:
        """Bring the new weights to the rollout engine; returns the seconds that passed."""
        return (yield from self._run(self._sync, step, SYNC, self._alone[SYNC]))

    def other(self, step: int, seconds: float) -> Wait[float]:
        """What is done outside every stage, on no device; returns the seconds that passed."""
        if seconds <= 0.0:
            return 0.0
        clock = self._machine.clock
        began, self._done = clock.now, clock.event()
        clock.call_at(began + seconds, lambda event: self._ended(clock.now))
        yield self._done
        self._record(step, OTHER, began)
        return clock.now - began

    def _record(self, step: int, stage: str, began: float) -> None:
        clock = self._machine.clock
        if self._machine.scorer.spans is not None:
            began_s = clock.origin + began
            self._machine.spans.append(Span("training", 0, stage, began_s, clock.elapsed, step, {}))

    def _run(self, runner: Runner, step: int, stage: str, seconds: float) -> Wait[float]:
        if seconds <= 0.0:
            return 0.0
        clock = self._machine.clock
        began = clock.now
        self._done = clock.event()
        tally = self._machine.tally
        if stage == SYNC:
            runner.start(began, seconds, self._sync_demand)
            tally.sync_kernel_s += time_on_device(*self._sync_demand) * seconds
        else:
            runner.start(began, seconds, self._demand)
            tally.training_kernel_s += time_on_device(*self._demand) * seconds
        yield self._done
        self._record(step, stage, began)
        return clock.now - began

    def _ended(self, at: float) -> None:
        self._done.succeed()
