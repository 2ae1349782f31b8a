"""What the driver hands to replicas and scoring workers, and what it hears from them. Plain data: it crosses
process boundaries."""

from dataclasses import dataclass

from oppo_real.engines.interface import ActorCounts, FinishReason, Request, ScorePiece, ScorerCounts


@dataclass(frozen=True)
class Job:
    """A rollout to decode."""

    request: Request
    next_cut: int
    """Response tokens at its next cut; 0 if it has never been prefilled."""


@dataclass(frozen=True)
class TokenDelta:
    """Tokens of one rollout since its last ``TokenDelta``, all of one weight version."""

    rollout_id: int
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    weight_version: int
    finish_reason: FinishReason | None
    cut: bool
    """They end at a cut, or at the finish."""
    next_cut: int
    at: float
    """When the last of them was made, seconds (lock-step: iterations) since the run began."""
    calls_tool: bool = False
    """The rollout has left its replica, to come back with the answer of a tool."""


@dataclass(frozen=True)
class DecodeInterval:
    """Iterations with the same number of running rollouts, one after the other."""

    start: float
    end: float
    running: int
    iterations: int
    kv_tokens: int
    """Tokens of context of the running rollouts at its end, the highest point."""


@dataclass(frozen=True)
class Delivered:
    """A replica has cut or finished rollouts, or stops and hands over all it has."""

    replica: int
    deltas: tuple[TokenDelta, ...]
    intervals: tuple[DecodeInterval, ...]


@dataclass(frozen=True)
class Rested:
    """A replica decodes no more: it was stopped, its round is over, or it has nothing to decode. All its
    tokens were delivered before."""

    replica: int
    at: float
    counts: ActorCounts
    told: int = 0
    """How often it had been told to decode."""


@dataclass(frozen=True)
class Taken:
    """A scoring worker begins a batch."""

    worker: int
    keys: tuple[int, ...]
    """Of each piece, in the order in which they were queued."""


@dataclass(frozen=True)
class Scored:
    """A scoring worker has finished a batch."""

    worker: int
    began: float
    at: float
    pieces: int
    tokens: int
    scores: dict[int, float]
    """By key."""
    ref_log_probs: dict[int, tuple[float, ...]]
    """By key, where the worker runs the reference model too."""
    counts: ScorerCounts


@dataclass(frozen=True)
class Answered:
    """The alarm of a rollout that waits for its tool."""

    rollout_id: int
    at: float


Event = Delivered | Rested | Taken | Scored | Answered


@dataclass(frozen=True)
class QueuedPiece:
    """A piece for a scoring worker. ``piece.rollout_id`` is a key of the driver's."""

    piece: ScorePiece
    prompt_length: int
