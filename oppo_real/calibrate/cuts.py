"""What an engine costs that is told by messages: rounds of different sizes over the same tokens, one batch in
different numbers of pieces, new weights.

The engine works in a thread of its own and is told by messages through a pipe, as a worker process of a run
is; what the messages cost is measured with it. Inline there are no messages.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Thread
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

from oppo_real.calibrate.plan import WARM_ITERATIONS
from oppo_real.calibrate.point import Point
from oppo_real.engines.interface import Request, ScorePiece
from oppo_real.placement.connected import receiver
from oppo_real.placement.events import Event, Job, QueuedPiece, Rested, Scored
from oppo_real.placement.host import ReplicaHost, ScorerHost
from oppo_real.placement.worker import Channel, obey_replica, obey_scorer

if TYPE_CHECKING:
    from oppo_real.calibrate.bench import Bench

_REPEATS: Final = 3
"""Of a visit: what a cut costs is short beside an iteration."""


def time_rounds(bench: "Bench", point: Point) -> list[float]:
    """Seconds of all rounds of a ``round`` point together, some times over."""
    assert point.cell is not None
    rounds, size = int(point.cell[0]), int(point.cell[1])
    return [_rounds_once(bench, point, rounds, size) for _ in range(_REPEATS)]


def _rounds_once(bench: "Bench", point: Point, rounds: int, size: int) -> float:
    ids = bench.take_ids(point.n)
    jobs = []
    for i, (context, _) in zip(ids, point.rows, strict=True):
        prompt = max(1, context - rounds * size // 2)
        left = bench.max_length - prompt
        jobs.append(Job(Request(i, bench.tokens(i, prompt), left, left), 0))
    host = ReplicaHost(0, bench.actor, False)
    with _replica(bench, host) as link:
        link.submit(jobs)
        link.run_round(1 + WARM_ITERATIONS)
        bench.synchronize()
        start = perf_counter()
        for _ in range(rounds):
            link.run_round(size)
        bench.synchronize()
        seconds = perf_counter() - start
    host.abort(ids)
    return seconds


def time_pieces(bench: "Bench", point: Point) -> tuple[list[float], list[float]]:
    """Seconds of the batch of a ``piece`` point at the worker, and from the driver to the worker (none
    inline), some times over."""
    scoring, sending = [], []
    for _ in range(_REPEATS):
        ids = bench.take_ids(point.n)
        rows = list(zip(ids, point.rows, strict=True))
        whole = {i: bench.tokens(i, past + new) for i, (past, new) in rows}
        given = {i: bench.given_before(bench.scorer, past) for i, (past, _) in rows}
        held = [ScorePiece(i, whole[i][:before], False) for i, before in given.items() if before]
        if held:
            bench.scorer.append(held)
        bench.synchronize()
        host = ScorerHost(0, bench.scorer, point.tokens)
        pieces = [
            QueuedPiece(ScorePiece(i, whole[i][before:], True), max(1, before)) for i, before in given.items()
        ]
        with _served(bench, lambda channel, host=host: obey_scorer(channel, host)) as link:  # type: ignore[misc]
            link.tell("clock", 0.0)
            sent = monotonic()
            link.tell("score", 0.0, pieces)
            scored = cast(Scored, link.events_until(lambda event: isinstance(event, Scored)))
        bench.synchronize()
        bench.scorer.release(list(ids))
        scoring.append(scored.at - scored.began)
        if not bench.inline:
            sending.append(scored.began - sent)
    return scoring, sending


def time_weights(bench: "Bench") -> list[float]:
    """Seconds until a replica has new weights, some times over: through a block of memory that processes
    share, as a run's; inline at once."""
    seconds = []
    if bench.inline:
        for _ in range(_REPEATS):
            start = perf_counter()
            bench.actor.load_weights(bench.weights(), bench.version, keep_kv=True)
            bench.synchronize()
            seconds.append(perf_counter() - start)
        return seconds
    from oppo_real.placement.shared_weights import shared_weights

    shared = shared_weights(bench.weights())
    host = ReplicaHost(0, bench.actor, False)
    with _served(bench, lambda channel: obey_replica(channel, host, shared)) as link:
        for _ in range(_REPEATS):
            start = perf_counter()
            shared.write(bench.weights())
            link.tell("load", None, bench.version, True)
            link.wait_for("loaded")
            bench.synchronize()
            seconds.append(perf_counter() - start)
    return seconds


class _Told:
    """The driver's side of an engine that is told by messages."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection

    def tell(self, *message: Any) -> None:
        self._connection.send(message)

    def events_until(self, last: Callable[[Event], bool]) -> Event:
        """The first event for which ``last`` holds. Raises OppoError if the engine failed."""
        while True:
            for event in receiver("the engine under measurement", self._connection.recv())[1]:
                if last(event):
                    return cast(Event, event)

    def wait_for(self, kind: str) -> None:
        """A message of this kind. Raises OppoError if the engine failed."""
        while receiver("the engine under measurement", self._connection.recv())[0] != kind:
            pass

    def submit(self, jobs: Sequence[Job]) -> None:
        self.tell("submit", list(jobs))

    def run_round(self, size: int) -> None:
        self.tell("generate", 0.0, size, size)
        self.events_until(lambda event: isinstance(event, Rested))


class _Asked:
    """A replica in the driver's process."""

    def __init__(self, host: ReplicaHost) -> None:
        self._host = host
        self.submit = host.submit

    def run_round(self, size: int) -> None:
        self._host.begin(monotonic(), size, size)
        while not any(isinstance(event, Rested) for event in self._host.turn(monotonic(), monotonic)):
            pass


@contextmanager
def _replica(bench: "Bench", host: ReplicaHost) -> Iterator[_Told | _Asked]:
    if bench.inline:
        yield _Asked(host)
        return
    with _served(bench, lambda channel: obey_replica(channel, host, _no_weights)) as link:
        yield link


@contextmanager
def _served(bench: "Bench", obey: Callable[[Channel], None]) -> Iterator[_Told]:
    ours, theirs = Pipe()

    def body() -> None:
        bench.enter_thread()
        obey(theirs)

    thread = Thread(target=body, name="oppo engine", daemon=True)
    thread.start()
    try:
        yield _Told(ours)
    finally:
        ours.send(("close",))
        thread.join()
        ours.close()
        theirs.close()


def _no_weights(published: Any) -> Any:
    raise AssertionError("no weights are loaded here")
