"""Every replica and every scoring worker in a process of its own, so that decoding, scoring and training really overlap."""

import multiprocessing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Any

import torch
import torch.multiprocessing  # teaches pickle to share tensors

from oppo_real.placement.engines import ActorSpec, ScorerSpec
from oppo_real.placement.events import Event, Job, QueuedPiece, Rested, Scored
from oppo_real.placement.shared_weights import shared_weights
from oppo_real.placement.worker import Pin, replica_main, scorer_main
from oppo_sim.errors import OppoError

_PATIENCE_S = 10.0  # for a worker to end after it was told to


class _Worker:
    """The driver's end of a worker process."""

    def __init__(self, name: str, process: BaseProcess, connection: Connection) -> None:
        self.name = name
        self.process = process
        self.connection = connection
        self.config: dict[str, Any] = {}

    def send(self, *message: Any) -> None:
        """Raises OppoError if the process is gone, with its own words where it left some."""
        try:
            self.connection.send(message)
        except OSError:
            while self.connection.poll(0):
                self.receive()
            raise self.dead() from None

    def receive(self) -> tuple[Any, ...]:
        """The next message. Raises OppoError if the process failed or is gone."""
        try:
            message: tuple[Any, ...] = self.connection.recv()
        except (EOFError, OSError):
            raise self.dead() from None
        if message[0] == "failed":
            raise OppoError(f"{self.name}: {message[1]}")
        return message

    def dead(self) -> OppoError:
        self.process.join(_PATIENCE_S)
        code = self.process.exitcode
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        mend = "mend the cause, then go on from the last checkpoint with --resume"
        return OppoError(f"{self.name} (process {self.process.pid}) {how}: {mend}")


class ProcessFleet:
    """A ``Fleet`` of processes on this machine."""

    concurrent = True

    def __init__(
        self,
        actors: Sequence[tuple[ActorSpec, Pin]],
        scorers: Sequence[tuple[ScorerSpec, Pin]],
        weights: Mapping[str, torch.Tensor],
        *,
        stream: bool,
        max_scoring_tokens: int,
        lock_step: bool,
        elapsed: float = 0.0,
    ) -> None:
        """``weights``: the policy's, for their names and shapes. Raises OppoError when an engine cannot be built."""
        context = multiprocessing.get_context("spawn")
        self._lock_step = lock_step
        self._iterations = elapsed
        self._origin = 0.0
        self._weights = shared_weights(weights)
        self._decoding: set[int] = set()
        self._unscored = [0] * len(scorers)
        self._early: list[Event] = []
        self._replicas: list[_Worker] = []
        self._workers: list[_Worker] = []

        def start(name: str, main: Any, *arguments: Any) -> _Worker:
            ours, theirs = context.Pipe()
            process = context.Process(target=main, args=(theirs, *arguments), name=f"oppo {name}", daemon=True)
            process.start()
            theirs.close()
            return _Worker(name, process, ours)

        try:
            for index, (actor, to) in enumerate(actors):
                self._replicas.append(start(f"replica {index}", replica_main, index, actor, stream, to, self._weights))
            for index, (scorer, to) in enumerate(scorers):
                self._workers.append(start(f"scoring worker {index}", scorer_main, index, scorer, max_scoring_tokens, to))
            for worker in self._all():
                worker.config = worker.receive()[1]
            self._origin = monotonic() - elapsed
            for worker in self._all():
                worker.send("clock", None if lock_step else self._origin)
        except BaseException:
            self.close()
            raise

    def _all(self) -> list[_Worker]:
        return [*self._replicas, *self._workers]

    def now(self) -> float:
        return self._iterations if self._lock_step else monotonic() - self._origin

    def submit(self, replica: int, jobs: Sequence[Job]) -> None:
        self._replicas[replica].send("submit", list(jobs))

    def abort(self, replica: int, rollout_ids: Sequence[int]) -> None:
        self._replicas[replica].send("abort", list(rollout_ids))

    def generate(self, chunk_size: int, round_size: int | None) -> None:
        for replica in self._replicas:
            replica.send("generate", self.now(), chunk_size, round_size)
        self._decoding = set(range(len(self._replicas)))

    def stop(self) -> None:
        for index in self._decoding:
            self._replicas[index].send("stop")
        if self._lock_step:
            for index in self._decoding:
                self._early.extend(self._replicas[index].receive()[1])

    def score(self, worker: int, pieces: Sequence[QueuedPiece]) -> None:
        self._unscored[worker] += len(pieces)
        self._workers[worker].send("score", self.now(), list(pieces))

    def forget(self, worker: int, keys: Sequence[int]) -> None:
        self._workers[worker].send("forget", list(keys))

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int, keep_kv: bool) -> None:
        self._weights.write(weights)
        for replica in self._replicas:
            replica.send("load", version, keep_kv)
        for replica in self._replicas:
            while (message := replica.receive())[0] != "loaded":
                self._early.extend(message[1])

    def events(self, timeout: float | None = None) -> list[Event]:
        events, self._early = self._early, []
        for event in events:
            self._note(event)
        if self._lock_step:
            return events or self._next_instant()
        while True:
            ready = wait([worker.connection for worker in self._all()], 0 if events else timeout)
            if not ready:
                return events
            for worker in self._all():
                if worker.connection in ready:
                    self._receive(worker, events)

    def _receive(self, worker: _Worker, events: list[Event]) -> None:
        for event in worker.receive()[1]:
            self._note(event)
            events.append(event)

    def _note(self, event: Event) -> None:
        if isinstance(event, Rested):
            self._decoding.discard(event.replica)
        elif isinstance(event, Scored):
            self._unscored[event.worker] -= len(event.pieces)

    def _next_instant(self) -> list[Event]:
        """Scores of this instant; when there are none to come, one iteration of every replica that decodes."""
        events: list[Event] = []
        if any(self._unscored):
            for index, worker in enumerate(self._workers):
                while self._unscored[index]:
                    self._receive(worker, events)
            return events
        stepping = sorted(self._decoding)
        for index in stepping:
            self._replicas[index].send("iterate", self._iterations + 1)
        for index in stepping:
            self._receive(self._replicas[index], events)
        if self._decoding:
            self._iterations += 1
        return events

    def resolved_configs(self) -> dict[str, Any]:
        return {"actors": [worker.config for worker in self._replicas], "scorers": [worker.config for worker in self._workers]}

    def close(self) -> None:
        for worker in self._all():
            with suppress(OSError):
                worker.connection.send(("close",))
        for worker in self._all():
            worker.process.join(_PATIENCE_S if worker.process.exitcode is None else 0)
            if worker.process.is_alive():
                worker.process.terminate()
                worker.process.join(_PATIENCE_S)
            worker.connection.close()
