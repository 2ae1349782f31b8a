"""An engine and what surrounds it on its own side of a process boundary: cuts and buffers of a replica, the
queue of a scoring worker."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oppo_real.engines.interface import Actor, FinishReason, NewTokens, Scorer
from oppo_real.placement.events import (
    DecodeInterval,
    Delivered,
    Event,
    Job,
    QueuedPiece,
    Rested,
    Scored,
    Taken,
    TokenDelta,
)
from oppo_sim.schedule.scoring import next_batch

if TYPE_CHECKING:
    import torch

Clock = Callable[[], float]
"""Seconds since the run began."""


@dataclass
class _Buffer:
    given: int
    """Tokens of context that it did not decode: prompt and answers of tools."""
    generated: int
    next_cut: int
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    version: int = 0
    at: float = 0.0


class ReplicaHost:
    """A replica: decodes by itself between ``begin`` and ``rest``, cutting pieces on the way."""

    def __init__(self, index: int, actor: Actor, stream: bool) -> None:
        """``stream``: cut a rollout each time it has made ``chunk_size`` tokens since its last cut
        (docs/model.md C7)."""
        self.actor = actor
        self.active = False
        self._index = index
        self._stream = stream
        self._chunk_size = 1
        self._left: int | None = None
        self._last = 0.0
        self._told = 0
        self._buffers: dict[int, _Buffer] = {}
        self._ready: list[TokenDelta] = []
        self._intervals: list[DecodeInterval] = []
        self._open: DecodeInterval | None = None

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue rollouts."""
        self.actor.submit([job.request for job in jobs])
        for job in jobs:
            request = job.request
            self._buffers[request.rollout_id] = _Buffer(
                len(request.prompt) + request.answer_tokens, len(request.generated), job.next_cut
            )

    def join(self, jobs: Sequence[Job], at: float) -> None:
        """Queue rollouts while generation goes on; decode again if there was nothing to do."""
        self.submit(jobs)
        self._told += 1
        if not self.active:
            self.active = True
            self._last = at

    def abort(self, rollout_ids: Sequence[int]) -> None:
        """Forget rollouts."""
        self.actor.abort(rollout_ids)
        for rollout_id in rollout_ids:
            self._buffers.pop(rollout_id, None)

    def load_weights(self, weights: "Mapping[str, torch.Tensor]", version: int, keep_kv: bool) -> None:
        """New weights from the next iteration on."""
        self.actor.load_weights(weights, version, keep_kv)

    def begin(self, at: float, chunk_size: int, round_size: int | None) -> None:
        """Decode from now on; with ``round_size``, that many iterations at most."""
        self.active = True
        self._told += 1
        self._last = at
        self._chunk_size = chunk_size
        self._left = round_size
        self._open = None

    @property
    def idle(self) -> bool:
        """There is nothing to do, or the round is over."""
        return self._left == 0 or not self._buffers

    def iterate(self, began: float, clock: Clock) -> bool:
        """One decode iteration. False: there was nothing to do, or the round is over."""
        if self.idle:
            return False
        tokens = self.actor.step()
        if not tokens:
            return False
        at = self._last = clock()
        if self._left is not None:
            self._left -= 1
        kv = sum([self._take(new, at) for new in tokens])
        self._note(began, at, len(tokens), kv)
        return True

    def turn(self, began: float, clock: Clock) -> Sequence[Event]:
        """One decode iteration, and what it cut or finished; at the end of the round, all there is."""
        if not self.iterate(began, clock):
            return self.rest()
        return (self._hand_out(),) if self._ready else ()

    def rest(self) -> tuple[Delivered, Rested]:
        """Stop, and hand over every token. It rests since its last iteration."""
        self.active = False
        for rollout_id, buffer in self._buffers.items():
            if buffer.tokens:
                self._flush(rollout_id, buffer, None, cut=False)
        self._close_interval()
        return self._hand_out(), Rested(self._index, self._last, self.actor.counts(), self._told)

    # ---- inside --------------------------------------------------------------------------------------------

    def _take(self, new: NewTokens, at: float) -> int:
        rollout_id = new.rollout_id
        buffer = self._buffers[rollout_id]
        if buffer.tokens and buffer.version != new.weight_version:
            self._flush(rollout_id, buffer, None, cut=False)
        if not buffer.next_cut:
            buffer.next_cut = self._chunk_size
        buffer.version = new.weight_version
        buffer.at = at
        buffer.tokens.extend(new.tokens)
        buffer.log_probs.extend(new.log_probs)
        buffer.generated += len(new.tokens)
        if new.finish_reason is not None:
            self._flush(rollout_id, buffer, new.finish_reason, cut=True)
            del self._buffers[rollout_id]
        elif self._stream and buffer.generated >= buffer.next_cut:
            buffer.next_cut = buffer.generated + self._chunk_size
            self._flush(rollout_id, buffer, None, cut=True, calls=new.calls_tool)
        elif new.calls_tool:
            self._flush(rollout_id, buffer, None, cut=False, calls=True)
        if new.calls_tool:
            del self._buffers[rollout_id]
        return buffer.given + buffer.generated

    def _flush(
        self, rollout_id: int, buffer: _Buffer, reason: FinishReason | None, *, cut: bool, calls: bool = False
    ) -> None:
        delta = TokenDelta(
            rollout_id,
            tuple(buffer.tokens),
            tuple(buffer.log_probs),
            buffer.version,
            reason,
            cut,
            buffer.next_cut,
            buffer.at,
            calls,
        )
        self._ready.append(delta)
        buffer.tokens.clear()
        buffer.log_probs.clear()

    def _hand_out(self) -> Delivered:
        delivered = Delivered(self._index, tuple(self._ready), tuple(self._intervals))
        self._ready.clear()
        self._intervals.clear()
        return delivered

    def _note(self, began: float, at: float, running: int, kv: int) -> None:
        before = self._open
        if before is not None and before.running == running:
            self._open = DecodeInterval(
                before.start, at, running, before.iterations + 1, max(kv, before.kv_tokens)
            )
            return
        self._close_interval()
        self._open = DecodeInterval(began, at, running, 1, kv)

    def _close_interval(self) -> None:
        if self._open is not None:
            self._intervals.append(self._open)
            self._open = None


class ScorerHost:
    """A scoring worker and its queue."""

    def __init__(self, index: int, scorer: Scorer, max_scoring_tokens: int) -> None:
        self.scorer = scorer
        self._index = index
        self._most = max_scoring_tokens
        self._queue: deque[QueuedPiece] = deque()
        self._batch: list[QueuedPiece] = []

    @property
    def waiting(self) -> bool:
        """There is something to score."""
        return bool(self._queue)

    def queue(self, pieces: Sequence[QueuedPiece]) -> None:
        """Append pieces."""
        self._queue.extend(pieces)

    def forget(self, keys: Sequence[int]) -> int:
        """Remove what is queued and held of rollouts that will not be scored; how many pieces were queued."""
        gone, before = set(keys), len(self._queue)
        self._queue = deque(queued for queued in self._queue if queued.piece.rollout_id not in gone)
        self.scorer.release(keys)
        return before - len(self._queue)

    def take(self) -> Taken:
        """Begin the next batch, which ``score`` is to compute."""
        self._batch = next_batch(self._queue, self._most, _tokens)
        return Taken(self._index, tuple([queued.piece.rollout_id for queued in self._batch]))

    @property
    def tokens(self) -> int:
        """Of the batch taken."""
        return sum(map(_tokens, self._batch))

    def score(self, clock: Clock) -> Scored:
        """Compute the batch taken."""
        batch = self._batch
        began = clock()
        reference = self.scorer.reference_stream()
        if reference is not None:
            reference.expect({queued.piece.rollout_id: queued.prompt_length for queued in batch})
        scores = self.scorer.append([queued.piece for queued in batch])
        references = (
            {} if reference is None else {key: reference.pop_reference_log_probs(key) for key in scores}
        )
        return Scored(
            self._index, began, clock(), len(batch), self.tokens, scores, references, self.scorer.counts()
        )


def _tokens(queued: QueuedPiece) -> int:
    return len(queued.piece.tokens)
