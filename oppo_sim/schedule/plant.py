"""What a schedule requires of the machine that generates, scores and trains, simulated or real."""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from oppo_sim.policies.interface import StepPlan
from oppo_sim.schedule.ledger import Begun
from oppo_sim.schedule.rollout import F
from oppo_sim.schedule.rules import Stages

T = TypeVar("T")

Wait = Generator[Any, Any, T]
"""Yields signals; is sent each one's value when it has come, and returns T."""


class Signal(Protocol):
    """Something that a schedule waits for; happens once."""

    def succeed(self, value: Any = None) -> Any:
        """It has happened."""


class BusyReading(NamedTuple):
    """Busy seconds of every device so far, read at one moment."""

    at: float
    rollout: tuple[float, ...]
    scoring: tuple[float, ...]
    training: tuple[float, ...]


@dataclass(frozen=True)
class StepEnd(Generic[F]):
    """What a schedule knows of a finished step. Rollouts, tokens."""

    step: int
    weight_version: int
    """Updates done before this step's."""
    stages: Stages
    """All but ``step``, seconds."""
    batch: list[F]
    plan: StepPlan
    admitted: int
    deferred: int
    surplus: int
    dropped: int
    dropped_tokens: int
    filtered: int
    filtered_tokens: int
    tokens_in_flight: int
    last_score: BusyReading | None
    """Meters at the last score; None where generation never pauses (then the whole row counts)."""


class Plant(Protocol[F]):
    """The machine. It reports to its ``Scheduler`` what happens, and settles each instant in this order: stop
    check, new iterations (or ``all_idle``), pieces to the scoring workers, ``instant_over``."""

    def now(self) -> float:
        """Seconds, counted from the begin of the run or of the row."""

    def signal(self) -> Signal:
        """A new one."""

    def admit(self, rollout_id: int, step: int) -> F:
        """The record of a new rollout."""

    def begin_row(self, step: int) -> float:
        """Start counting for the row of a step. Returns by how much its seconds are fewer than those before
        at the same moment (0 where they are counted from the begin of the run)."""

    def place(self, begun: Begun[F]) -> None:
        """Bring rollouts to the replicas where the ledger placed them."""

    def join(self, admitted: list[F]) -> None:
        """Bring rollouts that are admitted while generation goes on to their replicas."""

    def generate(self, chunk_size: int, round_size: int | None, asleep: bool, first: bool) -> None:
        """All replicas decode from now on (``round_size``: so many iterations each).

        ``asleep``: the engine slept since it last decoded, and has to be woken; ``first``: it has never
        decoded. A simulated plant takes the seconds of that, a real one what they take.
        """

    def next_round(self, round_size: int) -> None:
        """From the barrier on, another round."""

    def leave_barrier(self, then: Callable[[], None]) -> None:
        """The pieces of a round are handed over: calls ``then``, a simulated plant after the seconds that a
        round costs."""

    def end_round(self) -> Iterable[F]:
        """At the barrier: rollouts that may have made tokens in the round, ``generated`` current."""

    def stop(self) -> None:
        """Iterations in progress complete, no others begin."""

    def stopped(self) -> bool:
        """No replica decodes or prefills."""

    def rest(self) -> float:
        """Generation is over: brings ``generated`` up to date and returns when the last replica stopped
        (seconds)."""

    def hand_over(self, rollout: F, last: bool) -> None:
        """To the scorer, what the rollout has made since its last cut (``generated`` is current)."""

    def drop(self, rollout: F) -> None:
        """Take a rollout from its replica and from the scorer."""

    def read_last_score(self, batch: Sequence[F], ended: float) -> BusyReading:
        """All of ``batch`` is scored; the meters at the last of the scores, or at ``ended`` if that was
        later."""

    def train(self, step: int, batch: list[F], version: int) -> Wait[Stages]:
        """Everything from ``old_log_prob`` to ``update_actor``; seconds of each stage as they passed."""

    def update_weights(self, step: int, version: int) -> Wait[float]:
        """New weights, as ``version``, to the replicas, which rest; seconds that passed."""

    def other(self, step: int) -> Wait[float]:
        """What a step has to do outside its stages; simulated seconds that passed (0 on a real plant, where
        it is done between the steps)."""

    def mark(self, name: str, at: float, step: int) -> None:
        """A moment on the timeline."""

    def close_row(self, end: StepEnd[F]) -> None:
        """Write the row that ends now and report it to the policy."""

    def end_step(self, step: int) -> Wait[None]:
        """The step is done; what is done between two steps."""
