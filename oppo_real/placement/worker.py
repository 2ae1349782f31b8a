"""What a worker process does: build its engine, then obey and report. A replica decodes and a scorer scores without being asked again."""

import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

from oppo_real.placement.cores import bind
from oppo_real.placement.engines import ActorSpec, ScorerSpec, build_actor, build_scorer
from oppo_real.placement.events import Event
from oppo_real.placement.host import ReplicaHost, ScorerHost
from oppo_sim.errors import OppoError


@dataclass(frozen=True)
class Pin:
    """Where a worker computes."""

    cores: tuple[int, ...] | None
    """CPU cores; None: any."""
    threads: int
    """Of torch."""


class Clock:
    """Seconds since the run began: time.monotonic, which all processes of a machine share. In lock-step, what the driver says."""

    def __init__(self) -> None:
        self.origin: float | None = monotonic()
        self.told = 0.0

    def __call__(self) -> float:
        return self.told if self.origin is None else monotonic() - self.origin


def replica_main(connection: Connection, index: int, spec: ActorSpec, stream: bool, to: Pin, weights: Any) -> None:
    """Entry of a replica's process; ``weights`` are ``SharedWeights``."""

    def body() -> None:
        bind(to.cores, to.threads)
        actor = build_actor(spec)
        connection.send(("ready", actor.resolved_config()))
        try:
            _serve_replica(connection, ReplicaHost(index, actor, stream), weights.views())
        finally:
            actor.close()

    _guarded(connection, body)


def scorer_main(connection: Connection, index: int, spec: ScorerSpec, max_scoring_tokens: int, to: Pin) -> None:
    """Entry of a scoring worker's process."""

    def body() -> None:
        bind(to.cores, to.threads)
        scorer = build_scorer(spec)
        connection.send(("ready", scorer.resolved_config()))
        try:
            _serve_scorer(connection, ScorerHost(index, scorer, max_scoring_tokens))
        finally:
            scorer.close()

    _guarded(connection, body)


def _guarded(connection: Connection, body: Any) -> None:
    # The driver decides what an interruption means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        body()
    except (EOFError, BrokenPipeError):
        pass  # the driver is gone
    except OppoError as error:
        _last_words(connection, str(error))
    except Exception as error:
        _last_words(connection, f"{type(error).__name__}: {error}")


def _last_words(connection: Connection, sentence: str) -> None:
    with suppress(OSError):
        connection.send(("failed", " ".join(sentence.split())))


def _serve_replica(connection: Connection, host: ReplicaHost, weights: Any) -> None:
    clock = Clock()
    stepwise = False
    while True:
        while connection.poll(0) or not host.active or stepwise:
            name, *arguments = connection.recv()
            if name == "close":
                return
            if name == "clock":
                clock.origin = arguments[0]
                stepwise = clock.origin is None
            elif name == "submit":
                host.submit(*arguments)
            elif name == "abort":
                host.abort(*arguments)
            elif name == "load":
                host.load_weights(weights, *arguments)
                connection.send(("loaded",))
            elif name == "generate":
                clock.told = arguments[0]
                host.begin(clock(), *arguments[1:])
            elif name == "stop":
                _send(connection, host.rest() if host.active else ())
            elif name == "iterate":
                began, clock.told = clock.told, arguments[0]
                _send(connection, _iterate(host, began, clock), always=True)
        _send(connection, _iterate(host, clock(), clock))


def _iterate(host: ReplicaHost, began: float, clock: Clock) -> Sequence[Event]:
    if not host.iterate(began, clock):
        return host.rest()
    delivered = host.delivered()
    return () if delivered is None else (delivered,)


def _serve_scorer(connection: Connection, host: ScorerHost) -> None:
    clock = Clock()
    while True:
        while connection.poll(0) or not host.waiting:
            name, *arguments = connection.recv()
            if name == "close":
                return
            if name == "clock":
                clock.origin = arguments[0]
            elif name == "score":
                clock.told = arguments[0]
                host.queue(arguments[1])
            elif name == "forget":
                host.forget(*arguments)
        _send(connection, (host.serve(clock),))


def _send(connection: Connection, events: Sequence[Event], always: bool = False) -> None:
    if events or always:
        connection.send(("events", tuple(events)))
