"""Real engines as a schedule's ``Plant``: rollouts to replicas, pieces to scoring workers, and what they tell
back."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from oppo_real.engines.interface import ScorePiece
from oppo_real.placement.events import (
    Answered,
    Delivered,
    Event,
    Job,
    QueuedPiece,
    Rested,
    Taken,
    TokenDelta,
)
from oppo_real.run.inputs import Metrics, RunInput
from oppo_real.run.meters import Meters
from oppo_real.run.rollout import RealRollout
from oppo_real.run.signals import CallerSignal, Signal, happened
from oppo_real.run.tools import ToolCalls
from oppo_sim.columns import TRAINING_STAGES, timing
from oppo_sim.costs.interface import Costs
from oppo_sim.costs.linear import LinearEngine, LinearTraining
from oppo_sim.model.row import StepRows
from oppo_sim.results.sinks import Sink
from oppo_sim.schedule.ledger import Begun
from oppo_sim.schedule.plant import BusyReading, StepEnd, Wait
from oppo_sim.schedule.rules import (
    Stages,
    effective_granularity,
    equal_rewards,
    runs_in_rounds,
    streams_pieces,
)
from oppo_sim.schedule.scheduler import Scheduler, ScheduleSetup
from oppo_sim.schedule.schedules import make_scheduler
from oppo_sim.schedule.scoring import Piece, ScoringRouter

UNKNOWN_PEAKS = Costs(LinearEngine(1.0), LinearEngine(1.0), LinearTraining(), {})
"""No datasheet rates: achieved rates are left empty."""


def make_plant(inputs: RunInput, sink: Sink) -> "EnginePlant":
    """A run, ready for ``run`` or ``drive``."""
    policy, machine = inputs.policy, inputs.machine
    scheduler = make_scheduler(
        ScheduleSetup(
            policy,
            inputs.batch,
            machine.num_replicas,
            machine.streamable,
            inputs.steps,
            inputs.first_step,
            machine.groups_together,
            None if inputs.sample_rewards is None else partial(equal_rewards, inputs.sample_rewards),
        ),
        lambda scheduler: EnginePlant(inputs, sink, scheduler),
        _forced_length if inputs.replays else None,
    )
    assert isinstance(scheduler.plant, EnginePlant)
    return scheduler.plant


class EnginePlant:
    """One run over a worker group."""

    signal = Signal

    def __init__(self, inputs: RunInput, sink: Sink, scheduler: Scheduler[RealRollout]) -> None:
        machine = inputs.machine
        self.inputs = inputs
        self.scheduler = scheduler
        self.router: ScoringRouter[RealRollout] = ScoringRouter(
            machine.num_workers, machine.scorer_kv_capacity_tokens
        )
        self.admitted_steps: list[int] = []
        """Step of each admission, by id: what a resumed run repeats to its source."""
        self.meters = Meters(machine, inputs.timeline_steps)
        self.metrics: Metrics = {}
        """Of the last update."""
        self.batch: list[RealRollout] = []
        """Trained last."""
        self._stopping = False
        self._group = inputs.worker_group
        self.tools = ToolCalls(self._group, self._join)
        self._rounds = runs_in_rounds(inputs.policy)
        self._streams = streams_pieces(inputs.policy, machine.streamable)
        self._keeps_round = effective_granularity(inputs.policy, machine.streamable) != "batch"
        self._generating = False
        self._decoding: set[int] = set()
        self._rested_at = 0.0
        self._round: dict[int, RealRollout] = {}
        self._postponed: int | None = None
        """Size of a round that begins with an answer: until then nobody has anything to decode."""
        self._pieces = 0
        self._row_began = 0.0
        self._rows = StepRows(
            sink,
            inputs.policy,
            UNKNOWN_PEAKS,
            self._reward,
            inputs.source.mean_response_length,
            inputs.recorded_timing,
            self.meters.read(self.now()),
        )

    # ---- driving -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """All steps."""
        for _ in self.drive():
            raise AssertionError("the run waits for a caller who is not there")

    def drive(self) -> Iterator[CallerSignal]:
        """All steps, handling events while the schedule waits. Pauses with the signal that the caller is to
        give, or where he has to act before anything happens, and, under ``own_loop``, after each step."""
        process = self.scheduler.process()
        value = None
        while True:
            try:
                signal: Signal = process.send(value)
            except StopIteration:
                return
            if isinstance(signal, CallerSignal):
                yield signal
            self._settle()
            while not signal.happened:
                events = self._group.events(signal.patience)
                if not events and signal.patience is None:
                    yield happened()
                self._handle(events)
                self._settle()
            value = signal.value

    def _settle(self) -> None:
        """The decisions of an instant, in the order of the simulator's."""
        scheduler = self.scheduler
        if self._generating:
            scheduler.stop_check()
            if self._generating and not self._stopping and not self._decoding and not self._awaits_answer:
                scheduler.all_idle()
        pieces: dict[int, list[QueuedPiece]] = {}
        for worker, piece in self.router.settle():
            pieces.setdefault(worker.index, []).append(_queued(piece))
        for index, queued in pieces.items():
            self._group.score(index, queued)
        if scheduler.every_instant:
            scheduler.instant_over()

    @property
    def _awaits_answer(self) -> bool:
        """Nobody decodes, but somebody will in this phase. In a round he waits for the next one."""
        return self._postponed is not None if self._rounds else self.tools.waiting

    # ---- rollouts to machines ------------------------------------------------------------------------------

    def now(self) -> float:
        return self._group.now()

    def admit(self, rollout_id: int, step: int) -> RealRollout:
        drawn = self.inputs.source.draw(rollout_id, step)
        self.admitted_steps.append(step)
        group = rollout_id // self.inputs.batch.group_size
        rollout = RealRollout(
            rollout_id,
            group,
            drawn.prompt,
            drawn.forced_length,
            drawn.trace_row,
            step,
            self.now(),
            drawn.waits,
            drawn.answers,
        )
        rollout.clipped = drawn.clipped
        return rollout

    def place(self, begun: Begun[RealRollout]) -> None:
        leaving: dict[int, list[int]] = {}
        joining: dict[int, list[RealRollout]] = {}
        for rollout in self.scheduler.ledger.unfinished.values():
            if rollout.finished_at is not None:
                continue
            wanted = -1 if rollout.rollout_id in begun.arrangement.hold else rollout.replica
            if wanted == rollout.host:
                continue
            if rollout.host >= 0:
                leaving.setdefault(rollout.host, []).append(rollout.rollout_id)
            if wanted >= 0 and not rollout.waits_for_tool:
                joining.setdefault(wanted, []).append(rollout)
            rollout.host = wanted
            self.tools.taken(rollout)
        for replica, ids in leaving.items():
            self._group.abort(replica, ids)
        self._submit(joining)

    def join(self, admitted: list[RealRollout]) -> None:
        for rollout in admitted:
            rollout.host = rollout.replica
            if not self._join(rollout):  # at the barrier of a round
                self._submit({rollout.host: [rollout]})

    def _submit(self, joining: dict[int, list[RealRollout]]) -> None:
        for replica, rollouts in joining.items():
            rollouts.sort(key=lambda rollout: rollout.rollout_id)
            self._group.submit(replica, [self._job(rollout) for rollout in rollouts])

    def _job(self, rollout: RealRollout) -> Job:
        return Job(rollout.request(self.inputs.max_response_length), rollout.next_cut)

    def _join(self, rollout: RealRollout) -> bool:
        """Let it join its replica while generation goes on. False: it can only when generation goes on
        again, or (in rounds) its replica is at the barrier."""
        if not self._generating or self._stopping:
            return False
        if self._rounds and rollout.host not in self._decoding and self._postponed is None:
            return False
        if self._postponed is not None:
            self._submit({rollout.host: [rollout]})
            self._decode(self._postponed, self._postponed)
        else:
            self._decoding.add(rollout.host)
            self._group.join(rollout.host, [self._job(rollout)])
        return True

    def generate(self, chunk_size: int, round_size: int | None, asleep: bool, first: bool) -> None:
        self._generating, self._stopping = True, False
        self._rested_at = self.now()
        self._decode(chunk_size, round_size)

    def next_round(self, round_size: int) -> None:
        self._submit_answered()
        if any(_decodes(rollout) for rollout in self.scheduler.ledger.unfinished.values()):
            self._decode(round_size, round_size)
        else:
            self._postponed = round_size

    def leave_barrier(self, then: Callable[[], None]) -> None:
        then()

    def _submit_answered(self) -> None:
        joining: dict[int, list[RealRollout]] = {}
        for rollout in self.tools.take_answered():
            joining.setdefault(rollout.host, []).append(rollout)
        self._submit(joining)

    def _decode(self, chunk_size: int, round_size: int | None) -> None:
        self._submit_answered()
        self._postponed = None
        self._decoding = set(range(self.inputs.machine.num_replicas))
        self._group.generate(chunk_size, round_size)

    def end_round(self) -> Iterable[RealRollout]:
        decoded, self._round = self._round, {}
        return decoded.values()

    def stop(self) -> None:
        self._stopping = True
        self._handle(self._group.stop())

    def stopped(self) -> bool:
        return not self._decoding

    def rest(self) -> float:
        self._generating = self._stopping = False
        self._postponed = None
        return self._rested_at

    def hand_over(self, rollout: RealRollout, last: bool) -> None:
        self.router.offer(rollout, *rollout.take_piece(), last)

    def drop(self, rollout: RealRollout) -> None:
        self.tools.forget(rollout)
        if rollout.host >= 0:
            self._group.abort(rollout.host, [rollout.rollout_id])
            rollout.host = -1
        worker = self.router.forget(rollout)
        if worker is not None:
            self._group.forget(worker.index, [rollout.key])

    def read_last_score(self, batch: Sequence[RealRollout], ended: float) -> BusyReading:
        last = max(rollout.scored_at or 0.0 for rollout in batch)
        return self.meters.read(max(last, ended))

    # ---- events --------------------------------------------------------------------------------------------

    def _handle(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Delivered):
                for delta in event.deltas:
                    self._take(delta)
                self.meters.decoded(event)
            elif isinstance(event, Rested):
                self.meters.rested(event.replica, event.counts)
                if self._group.rests(event):
                    self._decoding.discard(event.replica)
                    self._rested_at = max(self._rested_at, event.at)
            elif isinstance(event, Answered):
                self.tools.answer(event.rollout_id)
            elif isinstance(event, Taken):
                self.router.take(self.router.workers[event.worker], event.keys)
                self.meters.tally.scoring_batches += 1
            else:
                self.meters.scored(event)
                for rollout in self.router.end_batch(self.router.workers[event.worker], event.at):
                    rollout.score = event.scores[rollout.key]
                    rollout.ref_log_probs = event.ref_log_probs.get(rollout.key)
                    self.scheduler.scored(rollout, event.at)

    def _take(self, delta: TokenDelta) -> None:
        rollout = self.scheduler.ledger.unfinished[delta.rollout_id]
        rollout.take_tokens(delta.tokens, delta.log_probs, delta.weight_version)
        rollout.next_cut = delta.next_cut
        if self._rounds and self._keeps_round:
            self._round[rollout.rollout_id] = rollout
        last = delta.finish_reason is not None
        if last:
            rollout.response_length = rollout.generated
            rollout.finish_reason = delta.finish_reason
            rollout.host = -1
            if not self.inputs.replays:
                rollout.clipped = delta.finish_reason == "length"
        if delta.cut and self._streams:
            self.hand_over(rollout, last)
            self.meters.mark("chunk", "rollout", rollout.replica, delta.at)
        if last:
            self.scheduler.finished(rollout, delta.at)
        elif delta.calls_tool:
            self.tools.call(rollout, delta.at, self.now())

    # ---- training ------------------------------------------------------------------------------------------

    def train(self, step: int, batch: list[RealRollout], version: int) -> Wait[Stages]:
        """In a thread where engines work by themselves meanwhile; by the caller under ``own_loop``. Stage
        times are those that the training says; none in lock-step."""
        began = self.now()
        self.batch = batch
        if self.inputs.own_loop:
            self.metrics = yield CallerSignal()
        else:
            rollouts = [rollout.for_training() for rollout in batch]
            training = self.inputs.training
            if self._group.concurrent and not self.inputs.lock_step:
                thread = self.inputs.training_thread
                self.metrics = yield thread.do(lambda: training.update(rollouts, version), self._group.wake)
            else:
                self.metrics = training.update(rollouts, version)
        stages = dict.fromkeys(TRAINING_STAGES, 0.0)
        if self.inputs.lock_step:
            return stages
        if timing("reward") in self.metrics:  # a loop of the caller's that scores, too
            stages["reward"] = self.metrics[timing("reward")]
        at = began
        for stage in TRAINING_STAGES[:-1]:
            seconds = stages[stage] = self.metrics.get(timing(stage), 0.0)
            self.meters.trained(stage, at, seconds)
            at += seconds
        self.meters.training_s += at - began
        return stages

    def update_weights(self, step: int, version: int) -> Wait[float]:
        began = self.now()
        keep_kv = not self.inputs.machine.clear_kv_cache_on_weight_sync
        self._group.load_weights(self.inputs.training.weights(), version, keep_kv)
        seconds = self.now() - began
        self.meters.synced(began, seconds)
        yield from ()
        return seconds

    # ---- rows ----------------------------------------------------------------------------------------------

    def _reward(self, step: int, batch: Sequence[RealRollout]) -> float | None:
        if self.inputs.rewards is not None:
            return self.inputs.rewards.batch_mean(step, [rollout.trace_row for rollout in batch])
        return sum([rollout.score or 0.0 for rollout in batch]) / len(batch)

    def begin_row(self, step: int) -> float:
        self.meters.begin_row(step)
        self._pieces = self.router.pieces
        reading = self.meters.read(self.now())
        self._row_began = reading.at
        self._rows.begin(reading)
        return 0.0

    def other(self, step: int) -> Wait[float]:
        yield from ()
        return 0.0

    def mark(self, name: str, at: float, step: int) -> None:
        self.meters.mark(name, "training", 0, at)

    def close_row(self, end: StepEnd[RealRollout]) -> None:
        tally, reading = self.meters.tally, self.meters.read(self.now())
        tally.pieces = self.router.pieces - self._pieces
        self.mark("step_end", reading.at, end.step)
        if self.inputs.policy.schedule == "synchronous" and not self.inputs.lock_step:
            # Stages follow one another: what is left is the driver's own, messages and the rows before.
            end.stages["other"] = max(0.0, reading.at - self._row_began - sum(end.stages.values()))
        self._rows.close(end, tally, reading, None)

    def end_step(self, step: int) -> Wait[None]:
        self.inputs.after_step(step)
        if self.inputs.own_loop:
            yield happened()


def _queued(piece: Piece[RealRollout]) -> QueuedPiece:
    rollout = piece.rollout
    tokens = rollout.span_of(piece.past, piece.new)
    return QueuedPiece(ScorePiece(piece.key, tokens, piece.last), rollout.prompt_length)


def _decodes(rollout: RealRollout) -> bool:
    return rollout.host >= 0 and not rollout.waits_for_tool


def _forced_length(rollout: RealRollout) -> int:
    assert rollout.forced_length is not None
    return rollout.forced_length
