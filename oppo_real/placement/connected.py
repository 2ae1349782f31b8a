"""The driver's side of engines that run elsewhere and are reached by messages, whatever carries those."""

import os
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from oppo_real.placement.clock import Alarms, LockStep
from oppo_real.placement.events import Event, Job, QueuedPiece, Rested, Scored
from oppo_sim.errors import OppoError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    import torch

PATIENCE_S = 10.0  # for a worker to end after it was told to
WORKER_TIMEOUT_S = 900.0
"""How long a worker that has something to do may say nothing, where nobody says otherwise."""


class Link(Protocol):
    """The driver's end of the way to one worker. Messages keep their order."""

    @property
    def name(self) -> str:
        """What errors call the worker."""

    @property
    def clock_offset(self) -> float:
        """What time.monotonic shows there less what it shows here, seconds."""

    @property
    def about(self) -> Mapping[str, Any]:
        """Where it runs, as far as its engine does not know."""

    def send(self, *message: Any) -> None:
        """Raises OppoError if the worker is known to be gone, with its own words where it left some."""

    def receive(self) -> tuple[Any, ...]:
        """The next message, waiting for it. Raises OppoError if the worker failed, is gone, or says nothing
        for too long."""

    def hung(self) -> OppoError:
        """End a worker that says nothing any more; the sentence for it."""


class Transport(Protocol):
    """Started workers, and how messages and weights reach them."""

    @property
    def timeout_s(self) -> float | None:
        """How long a worker that has something to do may say nothing; None: for ever."""

    @property
    def replicas(self) -> Sequence[Link]: ...

    @property
    def workers(self) -> Sequence[Link]: ...

    def ready(self, timeout: float | None) -> Sequence[Link]:
        """Links with something to receive, waiting for one at most ``timeout`` seconds (None: for ever).
        Empty earlier after ``wake``."""

    def wake(self) -> None:
        """Let ``ready`` return, which waits with a timeout in another thread."""

    def publish(self, weights: "Mapping[str, torch.Tensor]") -> Any:
        """Put weights where the replicas can read them; what the message ``load`` carries for it."""

    def close(self) -> None:
        """End the workers."""


def receiver(name: str, message: tuple[Any, ...]) -> tuple[Any, ...]:
    """A message that came from ``name``. Raises OppoError if it is the worker's last words."""
    if message[0] == "failed":
        raise OppoError(f"{name}: {message[1]}")
    return message


class PipeLink:
    """A pipe to a process of this machine; a subclass says what to say when that has ended."""

    name: str
    clock_offset = 0.0  # time.monotonic is one clock for all processes of a machine
    about: Mapping[str, Any] = {}
    connection: "Connection[Any, Any]"

    def send(self, *message: Any) -> None:
        try:
            self.connection.send(message)
        except BlockingIOError:  # the pipe is full of what it does not read
            raise self.hung() from None
        except OSError:
            while self.connection.poll(0):
                self.receive()
            raise self.ended() from None

    def receive(self) -> tuple[Any, ...]:
        try:
            return receiver(self.name, self.connection.recv())
        except BlockingIOError:
            raise self.hung() from None
        except (EOFError, OSError):
            raise self.ended() from None

    def ended(self) -> OppoError:
        """How its process ended."""
        raise NotImplementedError

    def hung(self) -> OppoError:
        raise NotImplementedError


def start_timeout(timeout_s: float | None) -> float | None:
    """How long a worker may take to build its engine, where it may be silent for so long afterwards."""
    return None if timeout_s is None else max(timeout_s, WORKER_TIMEOUT_S)


def limit_waiting(connection: "Connection[Any, Any]", timeout_s: float | None) -> None:
    """Sending and receiving over a pipe of both ways raise BlockingIOError after so many seconds in which
    nothing moved; None: never."""
    if timeout_s is None:
        return
    seconds, rest = divmod(timeout_s, 1)
    # Also in the middle of a message, which poll() does not see.
    limit = struct.pack("ll", int(seconds), int(rest * 1e6))
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def gone(name: str, how: str) -> OppoError:
    """The sentence for a worker that is not there any more."""
    return OppoError(f"{name} {how}: mend the cause, then go on from the last checkpoint with --resume")


def silent(timeout_s: float | None) -> str:
    """How a worker is gone that was ended because it hung."""
    return (
        f"had something to do, said nothing for {timeout_s or 0:g} s (real.placement.worker_timeout_s) and"
        " was ended"
    )


class ConnectedWorkerGroup:
    """A ``WorkerGroup`` of workers that decode and score by themselves (in lock-step: when told to)."""

    concurrent = True

    def __init__(self, transport: Transport, *, lock_step: bool, elapsed: float = 0.0) -> None:
        """Wait until every engine is built. Raises OppoError, with the workers ended, when one cannot be."""
        self._transport = transport
        self._replicas, self._workers = transport.replicas, transport.workers
        self._lock_step = lock_step
        self._clock = LockStep(elapsed)
        self._alarms = Alarms()
        self.set_alarm, self.cancel_alarm = self._alarms.set, self._alarms.cancel
        self._origin = 0.0
        self._decoding: set[int] = set()
        self._told = [0] * len(self._replicas)
        """How often each was told to decode."""
        self._idle: set[int] = set()
        """Lock-step: replicas that have nothing to do."""
        self._unscored = [0] * len(self._workers)
        self._heard = {link: monotonic() for link in (*self._replicas, *self._workers)}
        """When each said something last, or was given something to do after it had nothing."""
        self._early: list[Event] = []
        self._woken = False
        try:
            self._resolved = {
                "actors": [_described(link) for link in self._replicas],
                "scorers": [_described(link) for link in self._workers],
            }
            self._origin = monotonic() - elapsed
            timeout = transport.timeout_s
            # A replica that decodes says at least so often that it does.
            alive = inf if timeout is None else timeout / 3
            for link in (*self._replicas, *self._workers):
                link.send("clock", None if lock_step else self._origin + link.clock_offset, alive)
        except BaseException:
            self.close()
            raise

    def now(self) -> float:
        return self._clock.now if self._lock_step else monotonic() - self._origin

    def submit(self, replica: int, jobs: Sequence[Job]) -> None:
        self._replicas[replica].send("submit", list(jobs))

    def join(self, replica: int, jobs: Sequence[Job]) -> None:
        if not self._lock_step or self._clock.join(replica, jobs):
            self._told[replica] += 1
            if replica not in self._decoding:
                self._heard[self._replicas[replica]] = monotonic()
            self._decoding.add(replica)
            self._idle.discard(replica)
            self._replicas[replica].send("join", self.now(), list(jobs))

    def abort(self, replica: int, rollout_ids: Sequence[int]) -> None:
        self._replicas[replica].send("abort", list(rollout_ids))

    def generate(self, chunk_size: int, round_size: int | None) -> None:
        for replica in self._replicas:
            replica.send("generate", self.now(), chunk_size, round_size)
            self._heard[replica] = monotonic()
        self._decoding = set(range(len(self._replicas)))
        self._told = [told + 1 for told in self._told]
        self._idle.clear()
        self._clock.generate(self._decoding)
        if self._lock_step:
            self._replies(self._decoding)

    def stop(self) -> list[Event]:
        if self._lock_step:
            return self._rest(self._clock.stop())
        for index in sorted(self._decoding):
            self._replicas[index].send("stop")
        return []

    def rests(self, event: Rested) -> bool:
        return event.told == self._told[event.replica]

    def score(self, worker: int, pieces: Sequence[QueuedPiece]) -> None:
        if not self._unscored[worker]:
            self._heard[self._workers[worker]] = monotonic()
        self._unscored[worker] += len(pieces)
        self._workers[worker].send("score", self.now(), list(pieces))

    def forget(self, worker: int, keys: Sequence[int]) -> None:
        self._workers[worker].send("forget", list(keys))

    def load_weights(self, weights: "Mapping[str, torch.Tensor]", version: int, keep_kv: bool) -> None:
        published = self._transport.publish(weights)
        for replica in self._replicas:
            replica.send("load", published, version, keep_kv)
        for replica in self._replicas:
            while (message := self._hear(replica))[0] != "loaded":
                self._early.extend(message[1])

    def wake(self) -> None:
        self._woken = True
        self._transport.wake()

    def events(self, timeout: float | None = None) -> list[Event]:
        early, self._early = self._early, []
        events = [*self._noted(early)]
        if self._lock_step:
            while not events and (self._decoding or any(self._unscored) or self._alarms.next() is not None):
                events = self._next_instant()
            return events
        until = None if timeout is None else self.now() + timeout
        while True:
            events += self._alarms.due(self.now())
            waited = [at for at in (until, self._alarms.next()) if at is not None]
            waits = [max(0.0, min(waited) - self.now())] if waited else []
            ready = self._transport.ready(0 if events else min([*waits, *self._patience()], default=None))
            if not ready:
                self._refuse_silence()
            if not ready and (events or (until is not None and (self._woken or self.now() >= until))):
                self._woken = False
                return events
            for link in ready:
                self._receive(link, events)

    def _receive(self, link: Link, events: list[Event]) -> None:
        kind, told, *_ = self._hear(link)
        if kind == "forgot":
            self._unscored[self._workers.index(link)] -= told
        else:
            events += self._noted(told)

    def _hear(self, link: Link) -> tuple[Any, ...]:
        message = link.receive()
        self._heard[link] = monotonic()
        return message

    def _busy(self) -> list[Link]:
        """Who has something to do, and so something to say."""
        scoring = [link for link, count in zip(self._workers, self._unscored, strict=True) if count]
        return [*(self._replicas[index] for index in self._decoding), *scoring]

    def _patience(self) -> list[float]:
        """Seconds until each of them has been silent for too long; none where they may be for ever."""
        timeout, now = self._transport.timeout_s, monotonic()
        return [] if timeout is None else [max(0.0, self._heard[x] + timeout - now) for x in self._busy()]

    def _refuse_silence(self) -> None:
        """Nobody has said anything that was not received. Raises OppoError for who hangs."""
        timeout = self._transport.timeout_s
        if timeout is None:
            return
        for link in self._busy():
            if monotonic() - self._heard[link] >= timeout:
                raise link.hung()

    def _replies(self, replicas: Iterable[int]) -> list[Event]:
        """Of lock-step: what each says to what it was told, and whether it has nothing to do."""
        events: list[Event] = []
        for index in sorted(replicas):
            _, told, *idle = self._hear(self._replicas[index])
            events += self._noted(told)
            if any(idle):
                self._idle.add(index)
        return events

    def _rest(self, replicas: Sequence[int]) -> list[Event]:
        for index in replicas:
            self._replicas[index].send("stop")
        return self._replies(replicas)

    def _noted(self, events: Sequence[Event]) -> Sequence[Event]:
        for event in events:
            if isinstance(event, Rested) and self.rests(event):
                self._decoding.discard(event.replica)
                self._clock.rest(event.replica)
            elif isinstance(event, Scored):
                self._unscored[event.worker] -= event.pieces
        return events

    def _next_instant(self) -> list[Event]:
        """Scores of this instant; when there are none to come, the next iterations that end, or alarms."""
        events: list[Event] = []
        if any(self._unscored):
            for index, worker in enumerate(self._workers):
                while self._unscored[index]:
                    self._receive(worker, events)
            return events
        if self._idle:
            idle, self._idle = sorted(self._idle & self._decoding), set()
            return self._rest(idle)
        clock = self._clock
        if not clock.advance([self._alarms.next()]):
            return events
        ending = clock.ending()
        for index, began, _ in ending:
            self._replicas[index].send("iterate", began, clock.now, clock.joining(index))
        events += self._replies([index for index, _, _ in ending])
        events += self._rest([index for index, _, stops in ending if stops and index in self._decoding])
        return [*events, *self._alarms.due(clock.now)]

    def resolved_configs(self) -> dict[str, Any]:
        return self._resolved

    def close(self) -> None:
        self._transport.close()


def _described(link: Link) -> dict[str, Any]:
    """The first message of a worker says what its engine runs with."""
    return {**link.receive()[1], **link.about}
