"""Simulated scoring workers: batches of pieces that take time."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter

from oppo_sim.costs.interface import Demand, PrefillCost
from oppo_sim.model.device import Runner
from oppo_sim.model.formulas import piece_seconds, prefilled_tokens, time_on_device
from oppo_sim.model.links import Links
from oppo_sim.model.rollout import Rollout
from oppo_sim.model.scorer_cache import PrefixCache
from oppo_sim.model.tally import Tally, Work
from oppo_sim.results.spans import Span
from oppo_sim.schedule.scoring import Piece, ScoringRouter, ScoringWorker, next_batch

_NEW = attrgetter("new")


class Scorer(ScoringRouter[Rollout]):
    """All scoring workers."""

    def __init__(
        self,
        runners: Sequence[Callable[[Callable[[float], None]], Runner]],
        cost: PrefillCost,
        max_scoring_tokens: int,
        kv_capacity_tokens: int | None,
        block_tokens: int,
        cache: Callable[[], PrefixCache] | None,
        piece_fixed_s: float,
        wake_s: float,
        links_to: Callable[[Callable[[Piece[Rollout]], None]], Links] | None,
        on_scored: Callable[[Rollout, float], None],
    ) -> None:
        """``runners`` make what runs the batches of each worker, given what to call at their end;
        ``links_to`` what pieces cross, given what to call with those that arrive (None: they arrive when they
        are cut)."""
        super().__init__(len(runners), kv_capacity_tokens)
        self.tally = Tally()
        self.spans: list[Span] | None = None
        self.step = 0
        self.origin = 0.0
        """Seconds of the run at which the row began."""
        self.work_of = [Work() for _ in self.workers]
        self._cost = cost
        self._max_tokens = max_scoring_tokens
        self._block = block_tokens
        self._caches = None if cache is None else [cache() for _ in runners]
        self._piece_fixed_s = piece_fixed_s
        self._wake_s = wake_s
        self._asleep = [False] * len(self.workers)
        self._links = None if links_to is None else links_to(self.arrive)
        self._on_scored = on_scored
        self.runners = [
            runner_of(partial(self._batch_ended, worker))
            for runner_of, worker in zip(runners, self.workers, strict=True)
        ]

    def offer(self, rollout: Rollout, new: int, past: int, last: bool) -> None:
        if self._links is None:
            super().offer(rollout, new, past, last)
        else:
            self._links.take(Piece(rollout, rollout.drops, new, past, last))

    def forget(self, rollout: Rollout) -> ScoringWorker[Rollout] | None:
        if self._links is not None:
            self._links.forget(rollout)
        return super().forget(rollout)

    def move(self, rollout: Rollout, left: int) -> None:
        """A rollout has left replica ``left`` for another."""
        if self._links is not None:
            self._links.move(rollout, left)

    def rebase(self, passed: float) -> None:
        """Seconds are counted from a moment ``passed`` seconds later."""
        if self._links is not None:
            self._links.rebase(passed)

    def sleep(self) -> None:
        """Every worker is to be woken before its next batch."""
        self._asleep = [True] * len(self.workers)

    def work(self, at: float) -> None:
        """End of an instant: queue what arrived; free workers take what is queued."""
        if self._links is not None:
            self._links.send(at)
        if self._inbox:
            self.tally.pieces += len(self.settle())
        for worker in self.workers:
            if worker.queue:
                runner = self.runners[worker.index]
                if not runner.running:
                    self._start(worker, runner, at)

    def _start(self, worker: ScoringWorker[Rollout], runner: Runner, at: float) -> None:
        worker.batch = next_batch(worker.queue, self._max_tokens, _NEW)
        pieces, tokens, pairs, again = self._work_of(worker)
        cost, tally, done = self._cost, self.tally, self.work_of[worker.index]
        tally.scored += sum([piece.new for piece in worker.batch]) + again
        tally.scoring_batches += 1
        alone, demand = 0.0, Demand(0.0, 0.0)
        if tokens:
            work = cost.prefill_work(tokens, pairs)
            if work is not None:
                done.flops += work.flops
                done.bytes += work.bytes
            alone = cost.prefill_time(tokens, pairs)
            demand = cost.prefill_demand(tokens, pairs)
        seconds = piece_seconds(pieces, alone, self._piece_fixed_s)
        if self._asleep[worker.index]:
            self._asleep[worker.index] = False
            seconds += self._wake_s
        if seconds > alone:  # meanwhile the device does nothing
            share = alone / seconds
            demand = Demand(demand.memory * share, demand.arithmetic * share)
        done.kernel_s += time_on_device(demand.memory, demand.arithmetic) * seconds
        runner.start(at, seconds, demand)

    def _work_of(self, worker: ScoringWorker[Rollout]) -> tuple[int, int, float, int]:
        """Of a worker's batch: how many pieces prefill something, tokens that they prefill, query-key pairs,
        and those of the tokens that were prefilled before."""
        pieces, tokens, pairs = 0, 0, 0.0
        for piece in worker.batch:
            past, upto = self._places(piece)
            new = upto - past
            pieces += new > 0
            tokens += new
            pairs += new * (past + new * 0.5)
        if self._caches is None:
            return pieces, tokens, pairs, 0
        again = 0
        for past, kept in self._lost(worker, self._caches[worker.index]):
            again += past - kept
            pairs += (past - kept) * (kept + (past - kept) * 0.5)
        return pieces, tokens + again, pairs, again

    def _places(self, piece: Piece[Rollout]) -> tuple[int, int]:
        """From which to before which of its rollout's tokens a piece prefills."""
        end = piece.past + piece.new
        upto = end if piece.last else prefilled_tokens(end, self._block)
        return prefilled_tokens(piece.past, self._block), upto

    def _lost(self, worker: ScoringWorker[Rollout], cache: PrefixCache) -> Iterator[tuple[int, int]]:
        """Of each rollout in a batch: tokens that were prefilled before, and how many of them are left. Its
        pieces are one request to the engine, at the first one's place."""
        uptos = {piece.key: self._places(piece)[1] for piece in worker.batch}
        for piece in worker.batch:
            past, upto = self._places(piece)[0], uptos.pop(piece.key, 0)
            if upto > past:
                yield past, cache.prefill(piece.key, upto)
        cache.end_iteration()

    def _batch_ended(self, worker: ScoringWorker[Rollout], at: float) -> None:
        if self.spans is not None:
            args: dict[str, float | int | str] = {
                "pieces": len(worker.batch),
                "tokens": sum([piece.new for piece in worker.batch]),
            }
            began, ended = self.origin + self.runners[worker.index].started, self.origin + at
            self.spans.append(Span("scoring", worker.index, "score", began, ended, self.step, args))
        for rollout in self.end_batch(worker, at):
            self._on_scored(rollout, at)
