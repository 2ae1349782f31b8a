"""All engines in the driver's process, one after the other: the simplest placement, and the one for
lock-step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from oppo_real.engines.interface import Actor, Scorer
from oppo_real.placement.clock import Alarms, LockStep
from oppo_real.placement.events import Event, Job, QueuedPiece, Rested, Scored
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
        ``scoring_time`` of them, a tool as many as it has seconds. ``elapsed``: what the clock shows at
        first."""
        self._replicas = [ReplicaHost(index, actor, stream) for index, actor in enumerate(actors)]
        self._workers = [
            ScorerHost(index, scorer, max_scoring_tokens) for index, scorer in enumerate(scorers)
        ]
        self._lock_step = lock_step
        self._origin = monotonic() - elapsed
        self._clock = LockStep(elapsed)
        self._alarms = Alarms()
        self.set_alarm, self.cancel_alarm = self._alarms.set, self._alarms.cancel
        # Lock-step: batches in service by worker.
        self._scoring: dict[int, Scored] = {}
        self._scoring_time = scoring_time

    def now(self) -> float:
        return self._clock.now if self._lock_step else monotonic() - self._origin

    @property
    def decoding(self) -> bool:
        """A replica does not rest."""
        return any(replica.active for replica in self._replicas)

    def submit(self, replica: int, jobs: Sequence[Job]) -> None:
        self._replicas[replica].submit(jobs)

    def join(self, replica: int, jobs: Sequence[Job]) -> None:
        if not self._lock_step or self._clock.join(replica, jobs):
            self._replicas[replica].join(jobs, self.now())

    def abort(self, replica: int, rollout_ids: Sequence[int]) -> None:
        self._replicas[replica].abort(rollout_ids)

    def generate(self, chunk_size: int, round_size: int | None) -> None:
        self._clock.generate(range(len(self._replicas)))
        for replica in self._replicas:
            replica.begin(self.now(), chunk_size, round_size)

    def stop(self) -> list[Event]:
        if self._lock_step:
            return [event for index in self._clock.stop() for event in self._rest(index)]
        return [event for replica in self._replicas if replica.active for event in replica.rest()]

    def rests(self, event: Rested) -> bool:
        return not self._replicas[event.replica].active

    def score(self, worker: int, pieces: Sequence[QueuedPiece]) -> None:
        self._workers[worker].queue(pieces)

    def forget(self, worker: int, keys: Sequence[int]) -> None:
        self._workers[worker].forget(keys)

    def load_weights(self, weights: "Mapping[str, torch.Tensor]", version: int, keep_kv: bool) -> None:
        for replica in self._replicas:
            replica.load_weights(weights, version, keep_kv)

    def wake(self) -> None:
        pass  # nothing waits here: whoever asks for events works

    def events(self, timeout: float | None = None) -> list[Event]:
        while True:
            events = self._next_instant() if self._lock_step else self._next_turn()
            if events or timeout is not None:
                return events
            if not self.decoding:
                answer = self._alarms.next()
                assert answer is not None, "nothing is left to generate or to score, but the driver waits"
                sleep(max(0.0, answer - self.now()))

    def _next_turn(self) -> list[Event]:
        events: list[Event] = [*self._alarms.due(self.now())]
        for worker in self._workers:
            if worker.waiting:
                events += [worker.take(), worker.score(self.now)]
        for replica in self._replicas:
            if replica.active:
                events += replica.turn(self.now(), self.now)
        return events

    def _next_instant(self) -> list[Event]:
        events: list[Event] = []
        for index, replica in enumerate(self._replicas):
            if replica.active and replica.idle:
                events += self._rest(index)
        if events:
            return events
        clock = self._clock
        for index, worker in enumerate(self._workers):
            if worker.waiting and index not in self._scoring:
                events.append(worker.take())
                ended = worker.score(self.now)
                self._scoring[index] = replace(ended, at=clock.now + self._scoring_time(ended.tokens))
        if not clock.advance([*(ended.at for ended in self._scoring.values()), self._alarms.next()]):
            return events
        for index, ended in list(self._scoring.items()):
            if clock.is_now(ended.at):
                events.append(self._scoring.pop(index))
        for index, began, stopping in clock.ending():
            replica = self._replicas[index]
            events += replica.turn(began, self.now)
            if stopping and replica.active:
                events += replica.rest()
            if not replica.active:
                clock.rest(index)
            replica.submit(clock.joining(index))
        return [*events, *self._alarms.due(clock.now)]

    def _rest(self, index: int) -> Sequence[Event]:
        self._clock.rest(index)
        return self._replicas[index].rest()

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
