"""What is known of one rollout inside a vLLM engine: its tokens, those not yet delivered, and what its KV
cost."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from oppo_real.engines.interface import FinishReason, NewTokens, Request


@dataclass(frozen=True)
class UndeliveredToken:
    """One token that the engine made and the caller has not seen."""

    token: int
    log_prob: float
    weight_version: int
    finish_reason: FinishReason | None


@dataclass
class Work:
    """What one look at a rollout's state in the engine adds to the counts. Tokens."""

    computed: int = 0
    prefilled: int = 0
    recomputed: int = 0
    preemptions: int = 0


@dataclass
class Track:
    """A rollout. ``handle`` is vLLM's own request object, None while the rollout is not in the engine."""

    request: Request
    made: list[int]
    """Response tokens so far, those of earlier engines and those not yet delivered included."""
    buffer: deque[UndeliveredToken] = field(default_factory=deque)
    held: bool = False
    finished: bool = False
    """No further token will be made; some may still have to be delivered."""
    submissions: int = 0
    external_id: str = ""
    internal_id: str = ""
    handle: Any = None
    _target: int = 0
    _computed: int = 0
    _preemptions: int = 0
    _resident: bool = False
    _prefilled_before: bool = False

    def context(self) -> int:
        """Prompt plus response so far, tokens."""
        return len(self.request.prompt) + len(self.made)

    def enter(self, internal_id: str, handle: Any) -> None:
        """The rollout was given to the engine."""
        self.internal_id, self.handle = internal_id, handle
        self._preemptions = handle.num_preemptions
        self.lose_kv()

    def leave(self) -> None:
        """The rollout is no longer in the engine; its KV is gone."""
        self.handle = None
        self._resident = False

    def lose_kv(self) -> None:
        """KV was cleared on purpose: everything known so far is to be prefilled, and this is no
        preemption."""
        self._preemptions = self.handle.num_preemptions
        self._target = self.handle.num_tokens
        self._computed = 0
        self._resident = False

    def waiting(self) -> bool:
        """In the engine, and its context is not in the KV yet."""
        return self.handle is not None and not self._resident

    def look(self) -> Work:
        """What the engine did for this rollout since the last look.

        A rollout's context counts as prefilled (again: as recomputed) in the iteration that completes it.
        That same iteration samples a token.
        """
        work = Work(preemptions=self.handle.num_preemptions - self._preemptions)
        if work.preemptions:
            self.lose_kv()
        computed = self.handle.num_computed_tokens
        work.computed = max(0, computed - self._computed)
        self._computed = computed
        if not self._resident and computed >= self._target:
            self._resident = True
            if self._prefilled_before:
                work.recomputed = self._target
            else:
                work.prefilled = self._target
            self._prefilled_before = True
        return work

    def deliver(self, most: int | None) -> list[NewTokens]:
        """The next ``most`` tokens (None: all) for the caller, one ``NewTokens`` for each weight version
        among them."""
        news: list[NewTokens] = []
        left = len(self.buffer) if most is None else min(most, len(self.buffer))
        while left:
            version = self.buffer[0].weight_version
            run: list[UndeliveredToken] = []
            while left and self.buffer[0].weight_version == version:
                run.append(self.buffer.popleft())
                left -= 1
            news.append(
                NewTokens(
                    rollout_id=self.request.rollout_id,
                    tokens=tuple(one.token for one in run),
                    log_probs=tuple(one.log_prob for one in run),
                    weight_version=version,
                    finish_reason=run[-1].finish_reason,
                )
            )
        return news
