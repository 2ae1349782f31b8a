"""What every schedule shares: rows drawn from the trace, the ledger, rewards, reports and sinks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from oppo_sim.costs.interface import Costs
from oppo_sim.model.counterfactual import ACTUAL, Counterfactual
from oppo_sim.model.machine import Machine
from oppo_sim.model.rollout import Rollout
from oppo_sim.model.row import BusyReading, Recorded, StepFacts, conclude_step, read_busy, step_row
from oppo_sim.model.setup import MachineSetup
from oppo_sim.model.training import Trainer
from oppo_sim.policies.interface import KEEP, Batch, Policy, StepPlan
from oppo_sim.results.sinks import Sink
from oppo_sim.results.spans import Marker
from oppo_sim.rewards import BatchRewards
from oppo_sim.schedule.ledger import Begun, Ledger
from oppo_sim.schedule.rules import Stages, effective_granularity


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
    counterfactual: Counterfactual = ACTUAL
    timeline_steps: tuple[int, int] | None = None
    """First and last step whose spans are recorded; None: no timeline."""
    recorded_timing: Recorded = None
    """Lock-step: stage times that the policy is told instead of the simulated ones, one mapping a step."""


class RunState:
    """The parts a schedule works with."""

    def __init__(self, given: ModelInput, sink: Sink, machine: Machine) -> None:
        self.given = given
        self.sink = sink
        self.machine = machine
        self.version = 0
        self.granularity = effective_granularity(given.policy, given.machine.streamable)
        self.ledger: Ledger[Rollout] = Ledger(
            given.policy,
            given.batch,
            given.machine.num_replicas,
            self._make_rollout,
            lambda rollout: rollout.response_length,
        )
        self.trainer = Trainer(machine, given.costs.training)
        self._held = False
        self._awaited: set[int] = set()
        self._all_scored = machine.clock.event()
        self._begin = read_busy(machine, 0.0)

    def _make_rollout(self, rollout_id: int, step: int) -> Rollout:
        given = self.given
        row = given.cursor.draw(rollout_id, step)
        rows = given.rows
        rollout = Rollout(
            rollout_id,
            rollout_id // given.batch.group_size,
            rows.prompt_lengths[row],
            rows.response_lengths[row],
            row,
            step,
            self.machine.clock.elapsed,
        )
        rollout.clipped = rows.clipped[row]
        return rollout

    def begin_row(self, step: int) -> float:
        """Start counting for a row at the current moment, seconds too; returns those since the last row
        began."""
        shown = self.given.timeline_steps
        passed = self.machine.begin_row(step, shown is not None and shown[0] <= step <= shown[1])
        self.ledger.rebase(passed)
        self._begin = read_busy(self.machine, 0.0)
        return passed

    def place(self, begun: Begun[Rollout]) -> None:
        """Put rollouts on the replicas where the ledger placed them."""
        replicas = self.machine.replicas
        hold = begun.arrangement.hold
        for rollout, left in begun.moved:
            if rollout.queued:
                replicas[left].remove(rollout)
        if begun.arrangement is not KEEP or self._held:
            self._held = bool(hold)
            for rollout in self.ledger.unfinished.values():
                if rollout.rollout_id in hold:
                    if rollout.queued:
                        replicas[rollout.replica].remove(rollout)
                elif not rollout.queued and rollout.finished_at is None:
                    replicas[rollout.replica].enqueue(rollout)
        else:
            for rollout in begun.admitted:
                replicas[rollout.replica].enqueue(rollout)
        self.machine.tally.admitted += begun.new

    def score_whole(self, rollouts: Sequence[Rollout]) -> None:
        """Hand over what has not been handed over yet (``batch`` and ``rollout`` granularity)."""
        for rollout in rollouts:
            if not rollout.sent_to_scorer:
                rollout.sent_to_scorer = True
                self.machine.replicas[rollout.replica].hand_over(rollout, True)

    def scores_of(self, batch: list[Rollout]) -> Any:
        """An event for the moment all of ``batch`` is scored, or None if it is."""
        self._awaited = {rollout.rollout_id for rollout in batch if rollout.scored_at is None}
        if not self._awaited:
            return None
        self._all_scored = self.machine.clock.event()
        return self._all_scored

    def note_score(self, rollout: Rollout) -> None:
        """A score exists."""
        if self._awaited:
            self._awaited.discard(rollout.rollout_id)
            if not self._awaited:
                self._all_scored.succeed()

    def release_kv(self) -> None:
        """At a weight sync, free the actor's KV if the scenario says so."""
        if self.given.machine.clear_kv_cache_on_weight_sync:
            for replica in self.machine.replicas:
                replica.release_kv()

    def drop(self, dropped: Sequence[Rollout]) -> None:
        """Remove dropped rollouts from replicas and scorer."""
        tally = self.machine.tally
        for rollout in dropped:
            if rollout.queued:
                self.machine.replicas[rollout.replica].remove(rollout)
            self.machine.scorer.forget(rollout)
            tally.dropped += 1
            tally.dropped_tokens += rollout.generated

    def mark(self, name: str, at: float, step: int) -> None:
        """A moment on the timeline."""
        if self.machine.scorer.spans is not None:
            self.machine.markers.append(Marker(name, "training", 0, at, step))

    def close_row(
        self,
        step: int,
        stages: Stages,
        batch: list[Rollout],
        plan: StepPlan,
        counts: tuple[int, int],
        last_score: BusyReading | None,
        next_batch: Sequence[Rollout] = (),
    ) -> None:
        """Write the row that ends now and tell the policy. ``counts`` is (deferred, surplus); ``next_batch``
        is generated already."""
        given = self.given
        end = read_busy(self.machine, self.machine.clock.now)
        stages["step"] = end.at
        reward = given.rewards.batch_mean(step, [rollout.trace_row for rollout in batch])
        deferred, surplus = counts
        facts = StepFacts(
            step,
            self.version,
            stages,
            batch,
            self.machine.tally.admitted,
            deferred,
            surplus,
            self.ledger.tokens_in_flight() + sum([rollout.generated for rollout in next_batch]),
            plan.overcommit,
            plan.chunk_size,
            reward,
            given.rows.mean_response_length(step),
            self._begin,
            last_score,
            end,
            self.trainer.flops,
            self.machine.clock.origin,
        )
        row = step_row(
            self.machine.tally,
            len(self.machine.replicas),
            len(self.machine.scorer.workers),
            given.costs,
            facts,
        )
        self.mark("step_end", self.machine.clock.elapsed, step)
        conclude_step(self.sink, given.policy, row, facts, given.recorded_timing)
