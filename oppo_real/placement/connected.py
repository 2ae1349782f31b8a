"""The driver's side of engines that run elsewhere and are reached by messages, whatever carries those."""

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from oppo_real.placement.events import Event, Job, QueuedPiece, Rested, Scored
from oppo_sim.errors import OppoError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    import torch

PATIENCE_S = 10.0  # for a worker to end after it was told to


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
        """The next message, waiting for it. Raises OppoError if the worker failed or is gone."""


class Transport(Protocol):
    """Started workers, and how messages and weights reach them."""

    @property
    def replicas(self) -> Sequence[Link]: ...

    @property
    def workers(self) -> Sequence[Link]: ...

    def ready(self, timeout: float | None) -> Sequence[Link]:
        """Links with something to receive, waiting for one at most ``timeout`` seconds (None: for ever)."""

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
        except OSError:
            while self.connection.poll(0):
                self.receive()
            raise self.ended() from None

    def receive(self) -> tuple[Any, ...]:
        try:
            return receiver(self.name, self.connection.recv())
        except (EOFError, OSError):
            raise self.ended() from None

    def ended(self) -> OppoError:
        """How its process ended."""
        raise NotImplementedError


def gone(name: str, how: str) -> OppoError:
    """The sentence for a worker that is not there any more."""
    return OppoError(f"{name} {how}: mend the cause, then go on from the last checkpoint with --resume")


class ConnectedWorkerGroup:
    """A ``WorkerGroup`` of workers that decode and score by themselves (in lock-step: when told to)."""

    concurrent = True

    def __init__(self, transport: Transport, *, lock_step: bool, elapsed: float = 0.0) -> None:
        """Wait until every engine is built. Raises OppoError, with the workers ended, when one cannot be."""
        self._transport = transport
        self._replicas, self._workers = transport.replicas, transport.workers
        self._lock_step = lock_step
        self._iterations = elapsed
        self._origin = 0.0
        self._decoding: set[int] = set()
        self._unscored = [0] * len(self._workers)
        self._early: list[Event] = []
        try:
            self._resolved = {
                "actors": [_described(link) for link in self._replicas],
                "scorers": [_described(link) for link in self._workers],
            }
            self._origin = monotonic() - elapsed
            for link in (*self._replicas, *self._workers):
                link.send("clock", None if lock_step else self._origin + link.clock_offset)
        except BaseException:
            self.close()
            raise

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

    def stop(self) -> list[Event]:
        stopping = sorted(self._decoding)
        for index in stopping:
            self._replicas[index].send("stop")
        events: list[Event] = []
        if self._lock_step:
            for index in stopping:
                self._receive(self._replicas[index], events)
        return events

    def score(self, worker: int, pieces: Sequence[QueuedPiece]) -> None:
        self._unscored[worker] += len(pieces)
        self._workers[worker].send("score", self.now(), list(pieces))

    def forget(self, worker: int, keys: Sequence[int]) -> None:
        self._workers[worker].send("forget", list(keys))

    def load_weights(self, weights: "Mapping[str, torch.Tensor]", version: int, keep_kv: bool) -> None:
        published = self._transport.publish(weights)
        for replica in self._replicas:
            replica.send("load", published, version, keep_kv)
        for replica in self._replicas:
            while (message := replica.receive())[0] != "loaded":
                self._early.extend(message[1])

    def events(self, timeout: float | None = None) -> list[Event]:
        events, self._early = self._early, []
        for event in events:
            self._note(event)
        if self._lock_step:
            while not events and (self._decoding or any(self._unscored)):
                events = self._next_instant()
            return events
        while True:
            ready = self._transport.ready(0 if events else timeout)
            if not ready:
                return events
            for link in ready:
                self._receive(link, events)

    def _receive(self, link: Link, events: list[Event]) -> None:
        for event in link.receive()[1]:
            self._note(event)
            events.append(event)

    def _note(self, event: Event) -> None:
        if isinstance(event, Rested):
            self._decoding.discard(event.replica)
        elif isinstance(event, Scored):
            self._unscored[event.worker] -= event.pieces

    def _next_instant(self) -> list[Event]:
        """Scores of this instant; when there are none to come, one iteration of every replica that
        decodes."""
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
        return self._resolved

    def close(self) -> None:
        self._transport.close()


def _described(link: Link) -> dict[str, Any]:
    """The first message of a worker says what its engine runs with."""
    return {**link.receive()[1], **link.about}
