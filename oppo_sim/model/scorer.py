"""Scoring workers: one queue each, pieces unsplit, in order of (arrival, id)."""

from collections import deque
from collections.abc import Callable

from oppo_sim.costs.interface import EngineCost
from oppo_sim.model.device import Runner
from oppo_sim.model.rollout import Rollout
from oppo_sim.model.tally import Tally
from oppo_sim.results.spans import Span

Piece = tuple[Rollout, int, int, int, bool]
"""(rollout, its incarnation, new tokens, tokens its worker has seen before, last piece)."""


class Worker:
    """One scoring worker."""

    def __init__(self, index: int, runner_of: Callable[[Callable[[float], None]], Runner]) -> None:
        self.index = index
        self.runner = runner_of(self._batch_ended)
        self.queue: deque[Piece] = deque()
        self.load = 0
        """Tokens queued or in service."""
        self.held = 0
        """Tokens in its KV for rollouts without a score."""
        self.batch: list[Piece] = []
        self.ended: Callable[[Worker, float], None] = _nobody_listens

    def _batch_ended(self, at: float) -> None:
        self.ended(self, at)


class Scorer:
    """All scoring workers."""

    def __init__(
        self,
        workers: list[Worker],
        cost: EngineCost,
        max_scoring_tokens: int,
        kv_capacity_tokens: int | None,
        on_scored: Callable[[Rollout, float], None],
    ) -> None:
        self.workers = workers
        self.tally = Tally()
        self.spans: list[Span] | None = None
        self.step = 0
        self.origin = 0.0
        """Seconds of the run at which the row began."""
        self._cost = cost
        self._max_tokens = max_scoring_tokens
        self._capacity = kv_capacity_tokens
        self._on_scored = on_scored
        self._inbox: list[tuple[int, int, Piece]] = []
        for worker in workers:
            worker.ended = self._batch_ended

    def offer(self, rollout: Rollout, new: int, past: int, last: bool) -> None:
        """A piece arrives at the current instant."""
        self._inbox.append(
            (rollout.rollout_id, len(self._inbox), (rollout, rollout.incarnation, new, past, last))
        )

    def settle(self, at: float) -> None:
        """End of an instant: queue what arrived, in id order; free workers take what is queued."""
        inbox = self._inbox
        if inbox:
            if len(inbox) > 1:
                inbox.sort()
            for _, _, piece in inbox:
                self._queue(piece)
            inbox.clear()
        for worker in self.workers:
            if worker.queue and not worker.runner.running:
                self._take(worker, at)

    def forget(self, rollout: Rollout) -> None:
        """Remove a dropped rollout: queued pieces, held KV. A piece in service completes for nothing."""
        self._inbox = [entry for entry in self._inbox if entry[2][0] is not rollout]
        if rollout.worker < 0:
            return
        worker = self.workers[rollout.worker]
        kept = [piece for piece in worker.queue if piece[0] is not rollout]
        worker.load -= sum(piece[2] for piece in worker.queue) - sum(piece[2] for piece in kept)
        worker.queue = deque(kept)
        worker.held -= rollout.held_by_scorer
        rollout.held_by_scorer = 0

    def _queue(self, piece: Piece) -> None:
        rollout, incarnation, new, past, last = piece
        workers = self.workers
        if rollout.worker >= 0:
            worker = workers[rollout.worker]
        elif len(workers) == 1:
            worker = workers[0]
        else:
            worker = min(workers, key=lambda worker: (worker.load, worker.index))
        if self._capacity is not None:
            if not last and (rollout.withheld or worker.held + new > self._capacity):
                rollout.withheld += new
                return
            if rollout.withheld:
                new, past = new + rollout.withheld, past - rollout.withheld
                piece = (rollout, incarnation, new, past, last)
                rollout.withheld = 0
            worker.held += new
            rollout.held_by_scorer += new
        rollout.worker = worker.index
        worker.load += new
        worker.queue.append(piece)
        self.tally.pieces += 1

    def _take(self, worker: Worker, at: float) -> None:
        queue = worker.queue
        limit = self._max_tokens
        piece = queue.popleft()
        batch = [piece]
        tokens = new = piece[2]
        pairs = new * (piece[3] + new * 0.5)
        while queue and tokens + queue[0][2] <= limit:
            piece = queue.popleft()
            batch.append(piece)
            new = piece[2]
            tokens += new
            pairs += new * (piece[3] + new * 0.5)
        worker.batch = batch
        cost, tally = self._cost, self.tally
        tally.scored += tokens
        tally.scoring_batches += 1
        work = cost.prefill_work(tokens, pairs)
        if work is not None:
            tally.scoring_flops += work.flops
            tally.scoring_bytes += work.bytes
        runner = worker.runner
        if runner.shared:
            runner.start(at, cost.prefill_time(tokens, pairs), cost.prefill_demand(tokens, pairs))
        else:
            runner.start(at, cost.prefill_time(tokens, pairs))

    def _batch_ended(self, worker: Worker, at: float) -> None:
        batch, worker.batch = worker.batch, []
        tokens = 0
        for rollout, incarnation, new, _, last in batch:
            tokens += new
            if last and incarnation == rollout.incarnation:
                rollout.scored_at = at
                worker.held -= rollout.held_by_scorer
                rollout.held_by_scorer = 0
                self._on_scored(rollout, at)
        worker.load -= tokens
        if self.spans is not None:
            args: dict[str, float | int | str] = {"pieces": len(batch), "tokens": tokens}
            began = self.origin + worker.runner.started
            self.spans.append(
                Span("scoring", worker.index, "score", began, self.origin + at, self.step, args)
            )


def _nobody_listens(worker: Worker, at: float) -> None:
    raise AssertionError("a worker outside a scorer")
