"""Every replica and every scoring worker in a process of its own on this machine, so that decoding, scoring
and training really overlap."""

import multiprocessing
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal

import torch
import torch.multiprocessing  # teaches pickle to share tensors

from oppo_real.placement.connected import (
    PATIENCE_S,
    WORKER_TIMEOUT_S,
    PipeLink,
    gone,
    limit_waiting,
    silent,
    start_timeout,
)
from oppo_real.placement.engines import ActorSpec, ScorerSpec, parallel_size
from oppo_real.placement.shared_weights import shared_weights
from oppo_real.placement.worker import Pin, serve_replica, serve_scorer
from oppo_sim.errors import OppoError

START_METHOD: Literal["spawn"] = "spawn"
"""Of ``multiprocessing``: a new interpreter each, which no driver with a CUDA context can spoil."""


class _ProcessLink(PipeLink):
    def __init__(
        self, name: str, process: BaseProcess, connection: "Connection[Any, Any]", timeout_s: float | None
    ) -> None:
        self.name = name
        self.process = process
        self.connection = connection
        self._timeout_s = timeout_s
        self._limit_s = start_timeout(timeout_s)
        limit_waiting(connection, self._limit_s)

    def receive(self) -> tuple[Any, ...]:
        message = super().receive()
        if message[0] == "ready":
            self._limit_s = self._timeout_s
            limit_waiting(self.connection, self._limit_s)
        return message

    def ended(self) -> OppoError:
        self.process.join(PATIENCE_S)
        code = self.process.exitcode
        how = (
            f"was ended by signal {-code}"
            if code is not None and code < 0
            else f"ended with exit code {code}"
        )
        return gone(f"{self.name} (process {self.process.pid})", how)

    def hung(self) -> OppoError:
        self.process.kill()  # one that is stopped heeds nothing else
        self.process.join(PATIENCE_S)
        return gone(f"{self.name} (process {self.process.pid})", silent(self._limit_s))


class ProcessTransport:
    """Worker processes, pipes, and weights in shared memory."""

    def __init__(
        self,
        actors: Sequence[tuple[ActorSpec, Pin]],
        scorers: Sequence[tuple[ScorerSpec, Pin]],
        weights: Mapping[str, torch.Tensor],
        *,
        stream: bool,
        max_scoring_tokens: int,
        timeout_s: float | None = WORKER_TIMEOUT_S,
    ) -> None:
        """``weights``: the policy's, for their names and shapes; ``timeout_s``: how long a worker that has
        something to do may say nothing. Raises OppoError where there is no memory for the weights."""
        self.timeout_s = timeout_s
        self._context = multiprocessing.get_context(START_METHOD)
        self._weights = shared_weights(weights)
        self._woken, self._waker = self._context.Pipe(duplex=False)
        self.replicas: list[_ProcessLink] = []
        self.workers: list[_ProcessLink] = []
        try:
            for index, (actor, to) in enumerate(actors):
                self.replicas.append(
                    self._start(
                        f"replica {index}", actor, serve_replica, index, actor, stream, to, self._weights
                    )
                )
            for index, (scorer, to) in enumerate(scorers):
                self.workers.append(
                    self._start(
                        f"scoring worker {index}", scorer, serve_scorer, index, scorer, max_scoring_tokens, to
                    )
                )
        except BaseException:
            self.close()
            raise

    def _start(
        self, name: str, spec: ActorSpec | ScorerSpec, serve: Callable[..., None], *arguments: Any
    ) -> _ProcessLink:
        ours, theirs = self._context.Pipe()
        # Daemons may not have children, which an engine over several devices has.
        daemon = parallel_size(spec) == 1
        process = self._context.Process(
            target=_in_process, args=(serve, theirs, *arguments), name=f"oppo {name}", daemon=daemon
        )
        process.start()
        theirs.close()
        return _ProcessLink(name, process, ours, self.timeout_s)

    def ready(self, timeout: float | None) -> list[_ProcessLink]:
        links = [*self.replicas, *self.workers]
        found = wait([self._woken, *(link.connection for link in links)], timeout)
        if self._woken in found:
            self._woken.recv_bytes()
        return [link for link in links if link.connection in found]

    def wake(self) -> None:
        self._waker.send_bytes(b"w")

    def publish(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._weights.write(weights)

    def close(self) -> None:
        links = [*self.replicas, *self.workers]
        for link in links:
            with suppress(OSError):
                link.connection.send(("close",))
        for link in links:
            link.process.join(PATIENCE_S if link.process.exitcode is None else 0)
            if link.process.is_alive():
                link.process.terminate()
                link.process.join(PATIENCE_S)
            if link.process.is_alive():  # stopped, or deaf
                link.process.kill()
                link.process.join(PATIENCE_S)
            link.connection.close()


def _in_process(serve: Callable[..., None], connection: Connection, *arguments: Any) -> None:
    # The driver decides what an interruption means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(connection, *arguments)
