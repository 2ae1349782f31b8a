"""Rollouts, groups, and the order of instants."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class Rollout:
    """One prompt and its response as it grows."""

    id: int
    prompt_length: int
    response_length: int
    replica: int = -1
    generated: int = 0
    in_kv: bool = False
    ever_prefilled: bool = False
    finish_time: float | None = None
    versions: list[int] = field(default_factory=list)
    decoded_in_step: bool = False
    # scoring: response tokens at the last cut, the cut threshold, tokens (prompt included) that the scorer
    # has accepted
    cut: int = 0
    threshold: int = 0
    sent: int = 0
    left: int = 0
    """tokens, prompt included, that have left the replica"""
    withheld: bool = False
    worker: int | None = None
    score_time: float | None = None
    attempt: int = 0
    # calls of tools: (response tokens before it, seconds, tokens of the answer), and how many were answered
    calls: tuple[tuple[int, float, int], ...] = ()
    answered: int = 0
    tool_tokens: int = 0
    at_tool: bool = False
    common: int = 0
    """Tokens of the prompt that it can have from another sample of it, and another from it"""
    found: int = 0
    """... and had when it joined"""
    held: int = 0
    """Tokens of KV that its replica still has of it while it is not in the batch."""
    fresh: int = 0
    """Tokens of its context that were never prefilled, nor decoded."""

    @property
    def context(self) -> int:
        return self.prompt_length + self.tool_tokens + self.generated

    @property
    def finished(self) -> bool:
        return self.finish_time is not None

    def restart(self) -> None:
        """Dropped: as if it had never run."""
        self.replica, self.generated, self.in_kv, self.ever_prefilled, self.finish_time = (
            -1,
            0,
            False,
            False,
            None,
        )
        self.versions, self.decoded_in_step = [], False
        self.cut, self.threshold, self.sent, self.withheld, self.worker, self.score_time = (
            0,
            0,
            0,
            False,
            None,
            None,
        )
        self.left = 0
        self.answered, self.tool_tokens, self.at_tool, self.held = 0, 0, False, 0
        self.fresh = self.prompt_length
        self.attempt += 1


@dataclass(eq=False)
class Group:
    """The rollouts of one prompt that finish, train and wait together (one rollout where group_size is 1)."""

    id: int
    members: list[Rollout]
    deferrals: int = 0

    @property
    def finished(self) -> bool:
        return all(member.finished for member in self.members)

    @property
    def finish_time(self) -> float:
        return max(member.finish_time for member in self.members if member.finish_time is not None)

    @property
    def scored(self) -> bool:
        return all(member.score_time is not None for member in self.members)

    @property
    def score_time(self) -> float:
        return max(member.score_time for member in self.members if member.score_time is not None)


def same_instant(seconds: float) -> float:
    """How far another time may lie from ``seconds`` (counted from the begin of the row) and be the same
    instant."""
    return 1e-9 * max(1.0, seconds)


def in_order_of_instants(
    items: Iterable[T], seconds: Callable[[T], float], identity: Callable[[T], int], row_start: float
) -> list[T]:
    """Items by (instant, id): a time is of the instant whose first time lies within the tolerance before
    it."""
    todo = sorted(items, key=lambda item: (seconds(item), identity(item)))
    ordered: list[T] = []
    while todo:
        first = seconds(todo[0])
        same = [item for item in todo if seconds(item) - first <= same_instant(seconds(item) - row_start)]
        ordered.extend(sorted(same, key=identity))
        todo = todo[len(same) :]
    return ordered


def members_of(groups: Iterable[Group]) -> list[Rollout]:
    return [member for group in groups for member in group.members]
