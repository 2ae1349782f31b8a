"""All engines in the driver's process, one after the other: the simplest placement, and the one for
lock-step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from oppo_real.engines.interface import Actor, Scorer
from oppo_real.placement.events import Event, Job, QueuedPiece, Scored
from oppo_real.placement.host import ReplicaHost, ScorerHost

if TYPE_CHECKING:
    import torch


class InlineWorkerGroup:
    """A ``WorkerGroup`` without processes. Nothing overlaps: a batch of each scoring worker, then an
    iteration of each replica, in turn."""

    concurrent = False

    def __init__(
        self,
        actors: Sequence[Actor],
        scorers: Sequence[Scorer],
        *,
        stream: bool,
        max_scoring_tokens: int,
        lock_step: bool,
        elapsed: float = 0.0,
        scoring_time: Callable[[int], float] = lambda tokens: 0.0,
    ) -> None:
        """``lock_step``: one clock counts iterations; a scoring batch of so many tokens takes
        ``scoring_time`` of them. ``elapsed``: what the clock shows at first."""
        self._replicas = [ReplicaHost(index, actor, stream) for index, actor in enumerate(actors)]
        self._workers = [
            ScorerHost(index, scorer, max_scoring_tokens) for index, scorer in enumerate(scorers)
        ]
        self._lock_step = lock_step
        self._origin = monotonic() - elapsed
        # Lock-step: the clock, when the iteration in progress began, batches in service by worker.
        self._now = self._began = elapsed
        self._stopping = False
        self._scoring: dict[int, Scored] = {}
        self._scoring_time = scoring_time

    def now(self) -> float:
        return self._now if self._lock_step else monotonic() - self._origin

    @property
    def decoding(self) -> bool:
        """A replica does not rest."""
        return any(replica.active for replica in self._replicas)

    def submit(self, replica: int, jobs: Sequence[Job]) -> None:
        self._replicas[replica].submit(jobs)

    def abort(self, replica: int, rollout_ids: Sequence[int]) -> None:
        self._replicas[replica].abort(rollout_ids)

    def generate(self, chunk_size: int, round_size: int | None) -> None:
        self._began, self._stopping = self._now, False
        for replica in self._replicas:
            replica.begin(self.now(), chunk_size, round_size)

    def stop(self) -> list[Event]:
        active = [replica for replica in self._replicas if replica.active]
        if self._lock_step and self._now > self._began:
            self._stopping = True
            return []
        return [event for replica in active for event in replica.rest()]

    def score(self, worker: int, pieces: Sequence[QueuedPiece]) -> None:
        self._workers[worker].queue(pieces)

    def forget(self, worker: int, keys: Sequence[int]) -> None:
        self._workers[worker].forget(keys)

    def load_weights(self, weights: "Mapping[str, torch.Tensor]", version: int, keep_kv: bool) -> None:
        for replica in self._replicas:
            replica.load_weights(weights, version, keep_kv)

    def events(self, timeout: float | None = None) -> list[Event]:
        while True:
            events = self._next_instant() if self._lock_step else self._next_turn()
            if events or timeout is not None:
                return events
            assert self.decoding, "nothing is left to generate or to score, but the driver waits"

    def _next_turn(self) -> list[Event]:
        events: list[Event] = []
        for worker in self._workers:
            if worker.waiting:
                events += [worker.take(), worker.score(self.now)]
        for replica in self._replicas:
            if replica.active:
                events += replica.turn(self.now(), self.now)
        return events

    def _next_instant(self) -> list[Event]:
        events: list[Event] = []
        for replica in self._replicas:
            if replica.active and replica.idle:
                events += replica.rest()
        if events:
            return events
        for index, worker in enumerate(self._workers):
            if worker.waiting and index not in self._scoring:
                events.append(worker.take())
                ended = worker.score(self.now)
                self._scoring[index] = replace(ended, at=self._now + self._scoring_time(ended.tokens))
        active = [replica for replica in self._replicas if replica.active]
        ends = [ended.at for ended in self._scoring.values()] + [self._began + 1] * bool(active)
        if not ends:
            return events
        self._now = min(ends)
        for index, ended in list(self._scoring.items()):
            if ended.at == self._now:
                events.append(self._scoring.pop(index))
        if active and self._began + 1 == self._now:
            for replica in active:
                events += replica.turn(self._began, self.now)
                if self._stopping and replica.active:
                    events += replica.rest()
            self._began, self._stopping = self._now, False
        return events

    def resolved_configs(self) -> dict[str, Any]:
        return {
            "actors": [replica.actor.resolved_config() for replica in self._replicas],
            "scorers": [worker.scorer.resolved_config() for worker in self._workers],
        }

    def close(self) -> None:
        for replica in self._replicas:
            replica.actor.close()
        for worker in self._workers:
            worker.scorer.close()
