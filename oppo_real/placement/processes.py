"""Every replica and every scoring worker in a process of its own on this machine, so that decoding, scoring
and training really overlap."""

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import torch
import torch.multiprocessing  # teaches pickle to share tensors

from oppo_real.models_folder import models_folder
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
from oppo_real.placement.shared_weights import SharedWeights, layout_of, shared_weights
from oppo_real.placement.starting import new_process, process_context
from oppo_real.placement.worker import Pin, serve_replica, serve_scorer
from oppo_sim.errors import OppoError

_CAUSES: Final[dict[int, str]] = {
    signal.SIGKILL: " (out of memory, if nobody else ended it: see the kernel's log)",
    signal.SIGBUS: " (/dev/shm may be full: in a container, start it with a larger --shm-size)",
}
"""Of signals that a worker did not send itself."""


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
            f"was ended by signal {-code}{_CAUSES.get(-code, '')}"
            if code is not None and code < 0
            else f"ended with exit code {code}"
        )
        return gone(f"{self.name} (process {self.process.pid})", how)

    def hung(self) -> OppoError:
        self.process.kill()  # one that is stopped heeds nothing else
        self.process.join(PATIENCE_S)
        return gone(f"{self.name} (process {self.process.pid})", silent(self._limit_s))

    def keep(self) -> bool:
        """Let the engine be as new, for another run. False: it did not say that it is."""
        try:
            self.send("keep")
            while self.connection.poll(PATIENCE_S):  # what is under way from the run comes first
                if self.receive()[0] == "kept":
                    return True
        except OppoError:
            pass
        return False

    def serve(self, asked: Any) -> bool:
        """Let a kept engine begin another run. False: it is gone."""
        self._limit_s = start_timeout(self._timeout_s)
        limit_waiting(self.connection, self._limit_s)
        try:
            self.send("serve", asked)
        except OppoError:
            _end([self])
            return False
        return True


@dataclass(frozen=True)
class _Engine:
    """What a worker process was started with. One that is kept serves runs that ask for the same."""

    serve: Callable[..., None]
    index: int
    spec: ActorSpec | ScorerSpec
    to: Pin
    timeout_s: float | None


class KeptEngines:
    """Worker processes whose engines outlive a run, and serve the next that asks for the same ones; and the
    folder of their models. A context manager, at whose end they are gone.

    The weights of one layout have one block of memory here, so runs follow each other.
    """

    def __init__(self) -> None:
        self._ending = ExitStack()
        self._folder = self._ending.enter_context(models_folder())
        self._idle: list[tuple[_Engine, _ProcessLink]] = []
        self._weights: SharedWeights | None = None

    def __enter__(self) -> "KeptEngines":
        return self

    def __exit__(self, *_: object) -> None:
        self.end_idle()
        self._ending.close()

    def models(self, stands_for: str) -> Path:
        """A folder for models that are alike where ``stands_for`` is."""
        folder = self._folder / sha256(stands_for.encode()).hexdigest()[:16]
        folder.mkdir(exist_ok=True)
        return folder

    def weights(self, like: Mapping[str, torch.Tensor]) -> SharedWeights:
        """Memory for tensors like these, filled with them. Raises OppoError where there is none."""
        if self._weights is None or self._weights.layout != layout_of(like):
            self.end_idle()
            self._weights = shared_weights(like)
        self._weights.write(like)
        return self._weights

    def take(self, engine: _Engine) -> _ProcessLink | None:
        """A process with this engine; None: there is none, and none of another that would have its
        memory."""
        for place, (kept, link) in enumerate(self._idle):
            if kept == engine and link.process.is_alive():
                del self._idle[place]
                return link
        self.end_idle()
        return None

    def put(self, engine: _Engine, link: _ProcessLink) -> None:
        """Keep a process that is as new."""
        self._idle.append((engine, link))

    def end_idle(self) -> None:
        """End what nobody uses."""
        idle, self._idle = self._idle, []
        _end([link for _, link in idle])


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
        kept: KeptEngines | None = None,
    ) -> None:
        """``weights``: the policy's, for their names and shapes; ``timeout_s``: how long a worker that has
        something to do may say nothing; ``kept``: where engines come from and go to. Raises OppoError where
        there is no memory for the weights."""
        self.timeout_s = timeout_s
        self._context = process_context(
            [
                *((actor.engine, actor.device) for actor, _ in actors),
                *((scorer.engine, scorer.device) for scorer, _ in scorers),
            ]
        )
        self._kept = kept
        self._weights = shared_weights(weights) if kept is None else kept.weights(weights)
        self._woken, self._waker = self._context.Pipe(duplex=False)
        self.replicas: list[_ProcessLink] = []
        self.workers: list[_ProcessLink] = []
        self._engines: list[_Engine] = []
        try:
            for index, (actor, to) in enumerate(actors):
                replica = _Engine(serve_replica, index, actor, to, timeout_s)
                self.replicas.append(
                    self._obtain(f"replica {index}", replica, stream, actor, stream, to, self._weights)
                )
            for index, (scorer, to) in enumerate(scorers):
                worker = _Engine(serve_scorer, index, scorer, to, timeout_s)
                most = max_scoring_tokens
                self.workers.append(self._obtain(f"scoring worker {index}", worker, most, scorer, most, to))
        except BaseException:
            self.close()
            raise

    def _obtain(self, name: str, engine: _Engine, asked: Any, *arguments: Any) -> _ProcessLink:
        """A kept process, told what this run asks, or a new one with ``arguments``."""
        link = None if self._kept is None else self._kept.take(engine)
        if link is None or not link.serve(asked):
            link = self._start(name, engine, *arguments)
        self._engines.append(engine)
        return link

    def _start(self, name: str, engine: _Engine, *arguments: Any) -> _ProcessLink:
        ours, theirs = self._context.Pipe()
        # Daemons may not have children, which an engine over several devices has.
        daemon = parallel_size(engine.spec) == 1
        process = new_process(
            self._context,
            engine.serve,
            theirs,
            engine.index,
            *arguments,
            name=f"oppo {name}",
            daemon=daemon,
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
        left = []
        for engine, link in zip(self._engines, [*self.replicas, *self.workers], strict=True):
            if self._kept is not None and link.keep():
                self._kept.put(engine, link)
            else:
                left.append(link)
        self.replicas, self.workers, self._engines = [], [], []
        _end(left)


def _end(links: Sequence[_ProcessLink]) -> None:
    """End processes: as told, or else by force."""
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
