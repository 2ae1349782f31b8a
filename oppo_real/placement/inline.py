"""All engines in the driver's process, one after the other: the simplest placement, and the one for
lock-step."""

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from oppo_real.engines.interface import Actor, Scorer
from oppo_real.placement.events import Event, Job, QueuedPiece
from oppo_real.placement.host import ReplicaHost, ScorerHost

if TYPE_CHECKING:
    import torch


class InlineWorkerGroup:
    """A ``WorkerGroup`` without processes. Nothing overlaps: an iteration of each replica, then a batch "
    "of each
    scoring worker, in turn."""

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
    ) -> None:
        """``lock_step``: one clock counts iterations; scoring takes none. ``elapsed``: what the clock shows
        at first."""
        self._replicas = [ReplicaHost(index, actor, stream) for index, actor in enumerate(actors)]
        self._workers = [
            ScorerHost(index, scorer, max_scoring_tokens) for index, scorer in enumerate(scorers)
        ]
        self._lock_step = lock_step
        self._iterations = elapsed
        self._origin = monotonic() - elapsed
        self._stopped: list[Event] = []

    def now(self) -> float:
        return self._iterations if self._lock_step else monotonic() - self._origin

    def submit(self, replica: int, jobs: Sequence[Job]) -> None:
        self._replicas[replica].submit(jobs)

    def abort(self, replica: int, rollout_ids: Sequence[int]) -> None:
        self._replicas[replica].abort(rollout_ids)

    def generate(self, chunk_size: int, round_size: int | None) -> None:
        for replica in self._replicas:
            replica.begin(self.now(), chunk_size, round_size)

    def stop(self) -> None:
        for replica in self._replicas:
            if replica.active:
                self._stopped.extend(replica.rest())

    def score(self, worker: int, pieces: Sequence[QueuedPiece]) -> None:
        self._workers[worker].queue(pieces)

    def forget(self, worker: int, keys: Sequence[int]) -> None:
        self._workers[worker].forget(keys)

    def load_weights(self, weights: "Mapping[str, torch.Tensor]", version: int, keep_kv: bool) -> None:
        for replica in self._replicas:
            replica.load_weights(weights, version, keep_kv)

    def events(self, timeout: float | None = None) -> list[Event]:
        events, self._stopped = self._stopped, []
        for worker in self._workers:
            while worker.waiting:
                events.append(worker.serve(self.now))
                if not self._lock_step:
                    break
        if self._lock_step and events:
            return events
        active = [replica for replica in self._replicas if replica.active]
        if self._lock_step and active:
            self._iterations += 1
        began = self.now() - self._lock_step
        idle = [replica for replica in active if not self._iterate(replica, began, events)]
        if self._lock_step and active and len(idle) == len(active):
            self._iterations -= 1  # nobody had anything to do: no iteration has passed
        for replica in idle:
            events.extend(replica.rest())
        assert events or active or timeout is not None, (
            "nothing is left to generate or to score, but the driver waits"
        )
        return events

    def _iterate(self, replica: ReplicaHost, began: float, events: list[Event]) -> bool:
        if not replica.iterate(began if self._lock_step else self.now(), self.now):
            return False
        delivered = replica.delivered()
        if delivered is not None:
            events.append(delivered)
        return True

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
