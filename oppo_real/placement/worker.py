"""What a worker does: build its engine, then obey and report. A replica decodes and a scorer scores without
being asked again."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol

from oppo_real.engines.interface import Actor, Scorer
from oppo_real.placement.cores import bind
from oppo_real.placement.engines import ActorSpec, ScorerSpec, build_actor, build_scorer, in_own_process
from oppo_real.placement.events import Event
from oppo_real.placement.host import ReplicaHost, ScorerHost
from oppo_sim.errors import OppoError

if TYPE_CHECKING:
    import torch


class Channel(Protocol):
    """The worker's end of the way to the driver; a ``multiprocessing`` connection is one."""

    def poll(self, timeout: float, /) -> bool:
        """A message is there to receive."""

    def recv(self) -> Any:
        """The next message, waiting for it. Raises EOFError if the driver is gone."""

    def send(self, message: Any, /) -> None:
        """Send one message. Raises OSError if the driver is gone."""


@dataclass(frozen=True)
class Pin:
    """Where a worker computes."""

    cores: tuple[int, ...] | None
    """CPU cores; None: any."""
    threads: int
    """Of torch."""


_ENDS: Final = {"close": False, "keep": True}
"""Of a run: messages, and whether the engine is kept for another."""

Published = Callable[[Any], "Mapping[str, torch.Tensor]"]
"""From what the message ``load`` carries to the weights."""


class Clock:
    """Seconds since the run began, by this machine's time.monotonic. In lock-step, what the driver says."""

    def __init__(self) -> None:
        self.origin: float | None = monotonic()
        self.told = 0.0

    def __call__(self) -> float:
        return self.told if self.origin is None else monotonic() - self.origin


def serve_replica(
    channel: Channel, index: int, spec: ActorSpec, stream: bool, to: Pin, published: Published
) -> None:
    """Be a replica of one run after the other, until told to close. What goes wrong is the last message."""

    def body() -> None:
        bind(to.cores, to.threads)
        actor = build_actor(in_own_process(spec))
        try:
            streams: bool | None = stream
            while streams is not None:
                channel.send(("ready", actor.resolved_config()))
                again = _obey_as_replica(channel, ReplicaHost(index, actor, streams), published)
                streams = _next_run(channel, actor) if again else None
        finally:
            actor.close()

    _guarded(channel, body)


def serve_scorer(channel: Channel, index: int, spec: ScorerSpec, max_scoring_tokens: int, to: Pin) -> None:
    """Be a scoring worker until told to close. What goes wrong is the last message."""

    def build() -> Scorer:
        bind(to.cores, to.threads)
        return build_scorer(in_own_process(spec))

    serve_built_scorer(channel, index, build, max_scoring_tokens)


def serve_built_scorer(
    channel: Channel, index: int, build: Callable[[], Scorer], max_scoring_tokens: int
) -> None:
    """As ``serve_scorer``, of what ``build`` builds."""

    def body() -> None:
        scorer = build()
        try:
            most: int | None = max_scoring_tokens
            while most is not None:
                channel.send(("ready", scorer.resolved_config()))
                again = _obey_as_scorer(channel, ScorerHost(index, scorer, most))
                most = _next_run(channel, scorer) if again else None
        finally:
            scorer.close()

    _guarded(channel, body)


def obey_replica(channel: Channel, host: ReplicaHost, published: Published) -> None:
    """Be a replica whose engine is built, until told to close."""
    _guarded(channel, lambda: _obey_as_replica(channel, host, published))


def obey_scorer(channel: Channel, host: ScorerHost) -> None:
    """Be a scoring worker whose engine is built, until told to close."""
    _guarded(channel, lambda: _obey_as_scorer(channel, host))


def _guarded(channel: Channel, body: Callable[[], object]) -> None:
    try:
        body()
    except (EOFError, BrokenPipeError):
        pass  # the driver is gone
    except OppoError as error:
        _last_words(channel, str(error))
    except (Exception, SystemExit) as error:
        _last_words(channel, f"{type(error).__name__}: {error}")


def _next_run(channel: Channel, engine: Actor | Scorer) -> Any:
    """Keep the engine, as new, until a run needs it: what that asks of it. None: it is to close."""
    engine.reset()
    channel.send(("kept",))
    name, *asked = channel.recv()
    return asked[0] if name == "serve" else None


def _last_words(channel: Channel, sentence: str) -> None:
    with suppress(OSError):
        channel.send(("failed", " ".join(sentence.split())))


def _obey_as_replica(channel: Channel, host: ReplicaHost, published: Published) -> bool:
    """Until the run is over. True: the engine is to be kept."""
    clock = Clock()
    stepwise = False
    said, alive_s = monotonic(), inf
    while True:
        while channel.poll(0) or not host.active or stepwise:
            name, *arguments = channel.recv()
            if name in _ENDS:
                return _ENDS[name]
            if name == "clock":
                clock.origin, alive_s = arguments
                stepwise = clock.origin is None
            elif name == "submit":
                host.submit(*arguments)
            elif name == "join":
                clock.told = arguments[0]
                host.join(arguments[1], clock())
            elif name == "abort":
                host.abort(*arguments)
            elif name == "load":
                host.load_weights(published(arguments[0]), *arguments[1:])
                channel.send(("loaded",))
            elif name == "generate":
                clock.told = arguments[0]
                host.begin(clock(), *arguments[1:])
                if stepwise:
                    _reply(channel, host, ())
            elif name == "stop":
                _send(channel, host.rest() if host.active else ())
            elif name == "iterate":
                began, clock.told, joining = arguments
                events = host.turn(began, clock)
                host.submit(joining)
                _reply(channel, host, events)
        events = host.turn(clock(), clock)
        if events or monotonic() - said > alive_s:
            said = monotonic()
            channel.send(("events", tuple(events)))


def _obey_as_scorer(channel: Channel, host: ScorerHost) -> bool:
    """As ``_obey_as_replica``."""
    clock = Clock()
    while True:
        while channel.poll(0) or not host.waiting:
            name, *arguments = channel.recv()
            if name in _ENDS:
                return _ENDS[name]
            if name == "clock":
                clock.origin = arguments[0]
            elif name == "score":
                clock.told = arguments[0]
                host.queue(arguments[1])
            elif name == "forget" and (forgotten := host.forget(*arguments)):
                channel.send(("forgot", forgotten))
        _send(channel, (host.take(),))
        _send(channel, (host.score(clock),))


def _reply(channel: Channel, host: ReplicaHost, events: Sequence[Event]) -> None:
    """Of lock-step, with whether there is anything to do."""
    channel.send(("events", tuple(events), host.active and host.idle))


def _send(channel: Channel, events: Sequence[Event]) -> None:
    if events:
        channel.send(("events", tuple(events)))
