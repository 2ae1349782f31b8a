"""What every schedule of a real run shares: the ledger, the router, rows, reports, events of the machines."""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from oppo_real.engines.interface import ActorCounts, Request, ScorerCounts
from oppo_real.placement.events import Delivered, Job, Rested, Scored, TokenDelta
from oppo_real.run.given import Metrics, RunInput
from oppo_real.run.rollout import RealRollout
from oppo_real.run.row import Meter, real_step_row
from oppo_real.run.scoring import ScoringRouter
from oppo_sim.columns import TRAINING_STAGES, timing
from oppo_sim.model.row import BusyReading, StepFacts, conclude_step
from oppo_sim.model.tally import Tally
from oppo_sim.policies.interface import StepPlan
from oppo_sim.results.sinks import Sink
from oppo_sim.results.spans import Marker, Span
from oppo_sim.schedule.ledger import Begun, Ledger
from oppo_sim.schedule.rules import Stages, effective_granularity, runs_in_rounds

T = TypeVar("T")
WAIT_S = 0.02  # how long events are awaited while a thread trains


class Listener(Protocol):
    """A schedule."""

    def finished(self, rollout: RealRollout, at: float) -> None:
        """A rollout made its last token."""

    def scored(self, rollout: RealRollout, at: float) -> None:
        """A rollout's score exists."""


class RunState:
    """The parts a schedule works with."""

    def __init__(self, given: RunInput, sink: Sink, listener: Listener) -> None:
        machine = given.machine
        self.given = given
        self.worker_group = given.worker_group
        self.sink = sink
        self.version = 0
        self.granularity = effective_granularity(given.policy, given.machine.streamable)
        self.rounds = runs_in_rounds(given.policy)
        self.ledger: Ledger[RealRollout] = Ledger(
            given.policy,
            given.batch,
            machine.num_replicas,
            self._make_rollout,
            _forced_length if given.replays else None,
        )
        self.router = ScoringRouter(
            given.worker_group, machine.num_workers, machine.scorer_kv_capacity_tokens
        )
        self.decoding: set[int] = set()
        """Replicas that have not rested yet."""
        self.rested_at = 0.0
        self.admitted_steps: list[int] = []
        """Step of each admission, by id: what a resumed run repeats to its source."""
        self.made_in_round: dict[int, RealRollout] = {}
        self.spans: list[Span] = []
        self.markers: list[Marker] = []
        self.metrics: Metrics = {}
        """Of the last update."""
        self.batch: list[RealRollout] = []
        """Trained last."""
        self._listener = listener
        self._step = given.first_step
        self._tally = Tally()
        self._meter = Meter(machine.num_replicas, machine.num_workers)
        self._begin = self._meter.read(self.worker_group.now())
        self._actor_counts = [ActorCounts()] * machine.num_replicas
        self._scorer_counts = [ScorerCounts()] * machine.num_workers
        self._resubmitted = 0

    # ---- rollouts to machines ------------------------------------------------------------------------------

    def _make_rollout(self, rollout_id: int, step: int) -> RealRollout:
        drawn = self.given.source.draw(rollout_id, step)
        self.admitted_steps.append(step)
        group = rollout_id // self.given.batch.group_size
        rollout = RealRollout(
            rollout_id,
            group,
            drawn.prompt,
            drawn.forced_length,
            drawn.trace_row,
            step,
            self.worker_group.now(),
        )
        rollout.clipped = drawn.clipped
        return rollout

    def place(self, begun: Begun[RealRollout]) -> None:
        """Give rollouts to the replicas where the ledger placed them."""
        leaving: dict[int, list[int]] = {}
        joining: dict[int, list[RealRollout]] = {}
        for rollout in self.ledger.unfinished.values():
            if rollout.finished_at is not None:
                continue
            wanted = -1 if rollout.rollout_id in begun.arrangement.hold else rollout.replica
            if wanted == rollout.host:
                continue
            if rollout.host >= 0:
                leaving.setdefault(rollout.host, []).append(rollout.rollout_id)
            if wanted >= 0:
                joining.setdefault(wanted, []).append(rollout)
            rollout.host = wanted
        for replica, ids in leaving.items():
            self.worker_group.abort(replica, ids)
        for replica, rollouts in joining.items():
            self.worker_group.submit(
                replica, [self._job(rollout) for rollout in sorted(rollouts, key=_by_id)]
            )
        self._tally.admitted += begun.new

    def _job(self, rollout: RealRollout) -> Job:
        if rollout.tokens:
            self._resubmitted += rollout.prompt_length + len(rollout.tokens)
        request = Request(
            rollout.rollout_id,
            rollout.prompt,
            self.given.max_response_length,
            rollout.forced_length,
            tuple(rollout.tokens),
        )
        return Job(request, rollout.next_cut)

    def generate(self, plan: StepPlan) -> None:
        """All replicas decode."""
        self.decoding = set(range(self.given.machine.num_replicas))
        self.worker_group.generate(plan.chunk_size, plan.chunk_size if self.rounds else None)

    def rest(self) -> float:
        """Stop generation, take what is left; returns when the last replica stopped (seconds)."""
        self.worker_group.stop()
        while self.decoding:
            self.pump()
        return self.rested_at

    def score_whole(self, rollouts: Sequence[RealRollout]) -> None:
        """Hand over what has not been handed over yet (``batch`` and ``rollout`` granularity)."""
        for rollout in rollouts:
            if not rollout.sent_to_scorer:
                rollout.sent_to_scorer = True
                self.router.hand_over(rollout, True)

    def drop(self, dropped: Sequence[RealRollout]) -> None:
        """Remove dropped rollouts from replicas and scoring workers."""
        for rollout in dropped:
            if rollout.host >= 0:
                self.worker_group.abort(rollout.host, [rollout.rollout_id])
                rollout.host = -1
            self.router.forget(rollout)
            self._tally.dropped += 1
            self._tally.dropped_tokens += rollout.generated

    # ---- events --------------------------------------------------------------------------------------------

    def pump(self, timeout: float | None = None) -> None:
        """Wait for events (at most ``timeout`` seconds) and handle them."""
        self.router.settle()
        for event in self.worker_group.events(timeout):
            if isinstance(event, Delivered):
                for made in event.made:
                    self._take(made)
                self._account_decoding(event)
            elif isinstance(event, Rested):
                self.decoding.discard(event.replica)
                self.rested_at = max(self.rested_at, event.at)
                self._account_counts(event.replica, event.counts)
            else:
                self._account_scoring(event)
                for rollout in self.router.ended(event):
                    self._listener.scored(rollout, event.at)
        self.router.settle()

    def _take(self, made: TokenDelta) -> None:
        rollout = self.ledger.unfinished[made.rollout_id]
        rollout.tokens.extend(made.tokens)
        rollout.log_probs.extend(made.log_probs)
        rollout.versions.extend([made.weight_version] * len(made.tokens))
        rollout.generated = len(rollout.tokens)
        rollout.next_cut = made.next_cut
        if self.rounds:
            self.made_in_round[rollout.rollout_id] = rollout
        last = made.finish_reason is not None
        if last:
            rollout.response_length = rollout.generated
            rollout.finish_reason = made.finish_reason
            rollout.host = -1
            if not self.given.replays:
                rollout.clipped = made.finish_reason == "length"
        if made.cut and self.granularity == "chunk" and not self.rounds:
            self.router.hand_over(rollout, last)
            if self.shown:
                self.markers.append(Marker("chunk", "rollout", rollout.replica, made.at, self._step))
        if last:
            self._listener.finished(rollout, made.at)

    def deliver_round(self) -> None:
        """At the barrier, pieces of the round reach the scorer."""
        made, self.made_in_round = self.made_in_round, {}
        for rollout in made.values():
            if self.granularity == "chunk" and rollout.generated > rollout.cut:
                self.router.hand_over(rollout, rollout.finished_at is not None)
            elif self.granularity == "rollout" and rollout.finished_at is not None:
                self.score_whole((rollout,))

    def _account_decoding(self, event: Delivered) -> None:
        for interval in event.intervals:
            self._meter.rollout[event.replica] += interval.end - interval.start
            self._tally.kv_peak = max(self._tally.kv_peak, interval.kv_tokens)
            if self.shown:
                args: dict[str, float | int | str] = {
                    "n": interval.running,
                    "iterations": interval.iterations,
                    "kv_tokens": interval.kv_tokens,
                }
                self.spans.append(
                    Span("rollout", event.replica, "decode", interval.start, interval.end, self._step, args)
                )

    def _account_counts(self, replica: int, counts: ActorCounts) -> None:
        before, tally = self._actor_counts[replica], self._tally
        tally.decoded += counts.decoded - before.decoded
        tally.prefilled += counts.prefilled - before.prefilled
        tally.recomputed += counts.recomputed - before.recomputed
        tally.preemptions += counts.preemptions - before.preemptions
        self._actor_counts[replica] = counts

    def _account_scoring(self, event: Scored) -> None:
        self._meter.scoring[event.worker] += event.at - event.began
        self._tally.scored += event.counts.prefilled - self._scorer_counts[event.worker].prefilled
        self._tally.scoring_batches += 1
        self._scorer_counts[event.worker] = event.counts
        if self.shown:
            args: dict[str, float | int | str] = {
                "pieces": len(event.pieces),
                "tokens": sum([tokens for _, tokens in event.pieces]),
            }
            self.spans.append(Span("scoring", event.worker, "score", event.began, event.at, self._step, args))

    # ---- training ------------------------------------------------------------------------------------------

    def train(
        self, step: int, batch: Sequence[RealRollout], go_on: Callable[[float], None] | None = None
    ) -> Stages:
        """Update the weights with the batch, while ``go_on`` handles events; seconds of each stage
        (lock-step: 0)."""
        began = self.worker_group.now()
        rollouts = [rollout.for_training() for rollout in batch]
        self.metrics = self._meanwhile(
            lambda: self.given.training.train(rollouts, self.version), go_on or self.pump
        )
        stages = dict.fromkeys(TRAINING_STAGES, 0.0)
        if self.given.lock_step:
            return stages
        at = began
        for stage in TRAINING_STAGES[:-1]:
            seconds = stages[stage] = self.metrics.get(timing(stage), 0.0)
            if seconds and self.shown:
                self.spans.append(Span("training", 0, stage, at, at + seconds, step, {}))
            at += seconds
        self._meter.training[0] += at - began
        return stages

    def update_weights(self, step: int) -> float:
        """Bring the weights to the replicas, which rest; returns the seconds."""
        began = self.worker_group.now()
        keep_kv = not self.given.machine.clear_kv_cache_on_weight_sync
        self.worker_group.load_weights(self.given.training.weights(), self.version + 1, keep_kv)
        seconds = self.worker_group.now() - began
        self._meter.training[0] += seconds
        for index in range(len(self._meter.rollout)):
            self._meter.rollout[index] += seconds
        if self.shown and seconds:
            self.spans.append(Span("training", 0, "update_weights", began, began + seconds, step, {}))
        return seconds

    def _meanwhile(self, action: Callable[[], T], go_on: Callable[[float], None]) -> T:
        if not self.worker_group.concurrent or self.given.lock_step:
            return action()
        found: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                found.append(action())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, name="training", daemon=True)
        thread.start()
        while thread.is_alive():
            go_on(WAIT_S)
        if failed:
            raise failed[0]
        return found[0]

    # ---- rows ----------------------------------------------------------------------------------------------

    @property
    def shown(self) -> bool:
        """The step in progress is on the timeline."""
        shown = self.given.timeline_steps
        return shown is not None and shown[0] <= self._step <= shown[1]

    def begin_row(self, step: int) -> None:
        """Start counting for a row."""
        self._step = step
        self._tally = Tally()
        self._resubmitted = 0
        self.router.pieces = 0
        self._begin = self._meter.read(self.worker_group.now())

    def read_busy(self) -> BusyReading:
        """The meters now."""
        return self._meter.read(self.worker_group.now())

    def mark(self, name: str, at: float, step: int) -> None:
        """A moment on the timeline."""
        if self.shown:
            self.markers.append(Marker(name, "training", 0, at, step))

    def close_row(
        self,
        step: int,
        stages: Stages,
        batch: list[RealRollout],
        plan: StepPlan,
        counts: tuple[int, int],
        last_score: BusyReading | None,
        next_batch: Sequence[RealRollout] = (),
    ) -> None:
        """Write the row that ends now and tell the policy. ``counts`` is (deferred, surplus); ``next_batch``
        is generated already."""
        given, tally = self.given, self._tally
        self.batch = batch
        end = self.read_busy()
        stages["step"] = end.at - self._begin.at
        if given.rewards is not None:
            reward = given.rewards.batch_mean(step, [rollout.trace_row for rollout in batch])
        else:
            reward = sum([rollout.score or 0.0 for rollout in batch]) / len(batch)
        deferred, surplus = counts
        # An engine that is given a partial response counts it as new.
        moved = min(self._resubmitted, tally.prefilled)
        tally.prefilled -= moved
        tally.recomputed += moved
        tally.pieces = self.router.pieces
        facts = StepFacts(
            step,
            self.version,
            stages,
            list(batch),
            tally.admitted,
            deferred,
            surplus,
            self.ledger.tokens_in_flight() + sum([rollout.generated for rollout in next_batch]),
            plan.overcommit,
            plan.chunk_size,
            reward,
            given.source.mean_response_length(step),
            self._begin,
            last_score,
            end,
            None,
        )
        self.mark("step_end", end.at, step)
        row = real_step_row(given.machine.num_replicas, given.machine.num_workers, tally, facts)
        conclude_step(self.sink, given.policy, row, facts, given.recorded_timing)


def _forced_length(rollout: RealRollout) -> int:
    assert rollout.forced_length is not None
    return rollout.forced_length


def _by_id(rollout: RealRollout) -> int:
    return rollout.rollout_id
