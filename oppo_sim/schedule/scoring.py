"""Which worker scores which piece, and what a free worker takes (docs/model.md §3.4, C8, C9, C20). One object
for simulated and real workers."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar

from oppo_sim.schedule.rollout import F, scorer_key

P = TypeVar("P")
_ROLLOUT_ID = attrgetter("rollout.rollout_id")


@dataclass(slots=True, eq=False)
class Piece(Generic[F]):
    """What a rollout has made since its last cut. Tokens."""

    rollout: F
    drops: int
    """Of the rollout when it was cut: one that was dropped since has more."""
    new: int
    past: int
    """What its worker has had of the rollout before."""
    last: bool

    @property
    def key(self) -> int:
        """As ``scorer_key``, of its rollout when it was cut."""
        return scorer_key(self.rollout.rollout_id, self.drops)


class ScoringWorker(Generic[F]):
    """What one worker has to do."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.queue: deque[Piece[F]] = deque()
        self.batch: list[Piece[F]] = []
        """In service."""
        self.load = 0
        """Tokens queued or in service."""
        self.held = 0
        """Tokens in its KV for rollouts without a score."""


class ScoringRouter(Generic[F]):
    """Takes pieces as they are cut, assigns them to workers, and knows what each has to do."""

    def __init__(self, num_workers: int, kv_capacity_tokens: int | None) -> None:
        self.workers: list[ScoringWorker[F]] = [ScoringWorker(index) for index in range(num_workers)]
        self.pieces = 0
        """Assigned so far."""
        self._capacity = kv_capacity_tokens
        self._inbox: list[Piece[F]] = []

    def offer(self, rollout: F, new: int, past: int, last: bool) -> None:
        """A piece arrives at the current instant."""
        self._inbox.append(Piece(rollout, rollout.drops, new, past, last))

    def arrive(self, piece: Piece[F]) -> None:
        """A piece that was cut earlier arrives at the current instant."""
        self._inbox.append(piece)

    def settle(self) -> list[tuple[ScoringWorker[F], Piece[F]]]:
        """End of an instant: queue what arrived, in id order. Returns what was queued where."""
        inbox = self._inbox
        if not inbox:
            return []
        if len(inbox) > 1:
            inbox.sort(key=_ROLLOUT_ID)
        assigned = [(worker, piece) for piece in inbox if (worker := self._queue(piece)) is not None]
        inbox.clear()
        self.pieces += len(assigned)
        return assigned

    def forget(self, rollout: F) -> ScoringWorker[F] | None:
        """Remove a dropped rollout: pieces that wait, held KV. A piece in service completes for nothing.
        Returns the worker that had some of it."""
        self._inbox = [piece for piece in self._inbox if piece.rollout is not rollout]
        if rollout.worker < 0:
            return None
        worker = self.workers[rollout.worker]
        worker.load -= sum([piece.new for piece in worker.queue if piece.rollout is rollout])
        worker.queue = deque(piece for piece in worker.queue if piece.rollout is not rollout)
        worker.held -= rollout.held_by_scorer
        rollout.held_by_scorer = 0
        return worker

    def take(self, worker: ScoringWorker[F], keys: Iterable[int]) -> None:
        """A worker elsewhere has taken the next pieces of these rollouts as a batch."""
        for key in keys:
            piece = next((piece for piece in worker.queue if piece.key == key), None)
            if piece is not None:  # else its rollout was dropped meanwhile
                worker.queue.remove(piece)
                worker.batch.append(piece)

    def end_batch(self, worker: ScoringWorker[F], at: float) -> list[F]:
        """The batch in service has ended at ``at`` (seconds); returns the rollouts that have their score
        now."""
        batch, worker.batch = worker.batch, []
        scored = []
        for piece in batch:
            worker.load -= piece.new
            rollout = piece.rollout
            if piece.last and piece.drops == rollout.drops:
                rollout.scored_at = at
                worker.held -= rollout.held_by_scorer
                rollout.held_by_scorer = 0
                scored.append(rollout)
        return scored

    def _queue(self, piece: Piece[F]) -> ScoringWorker[F] | None:
        rollout, workers = piece.rollout, self.workers
        if rollout.worker >= 0:
            worker = workers[rollout.worker]
        elif len(workers) == 1:
            worker = workers[0]
        else:
            worker = min(workers, key=lambda worker: (worker.load, worker.index))
        if self._capacity is not None:
            if not piece.last and (rollout.withheld or worker.held + piece.new > self._capacity):
                rollout.withheld += piece.new
                return None
            if rollout.withheld:
                piece.new += rollout.withheld
                piece.past -= rollout.withheld
                rollout.withheld = 0
            worker.held += piece.new
            rollout.held_by_scorer += piece.new
        rollout.worker = worker.index
        worker.load += piece.new
        worker.queue.append(piece)
        return worker


def next_batch(queue: deque[P], max_scoring_tokens: int, tokens: Callable[[P], int]) -> list[P]:
    """Remove what a free worker takes: what is queued, in order, up to ``max_scoring_tokens``; an oversized
    piece goes alone."""
    batch = [queue.popleft()]
    total = tokens(batch[0])
    while queue and (total := total + tokens(queue[0])) <= max_scoring_tokens:
        batch.append(queue.popleft())
    return batch
