"""What the vLLM actor keeps of a rollout, and how it counts the work that the engine did for it."""

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from oppo_real.engines.interface import ActorCounts, NewTokens, Request


@dataclass
class Track:
    """A rollout. ``handle`` is vLLM's own request object, None while the rollout is not in the engine."""

    request: Request
    response: list[int]
    """Response tokens so far, those of earlier engines and those not yet delivered included."""
    salt: str = ""
    """Rollouts of one salt share cached blocks."""
    own_kv: bool = False
    """What is cached under its salt is its own, kept while its tool worked."""
    buffer: deque[NewTokens] = field(default_factory=deque)
    """Made and not yet delivered, a token each."""
    finished: bool = False
    """No further token will be made; some may still have to be delivered."""
    external_id: str = ""
    internal_id: str = ""
    handle: Any = None
    _target: int = 0
    _computed: int = 0
    _preemptions: int = 0
    _resident: bool = False
    _unseen: int = 0
    """Tokens of its context that no prefill has had."""
    _entered: bool = False
    """It was not prefilled since it entered."""

    def enter(self, internal_id: str, handle: Any) -> None:
        """The rollout was given to the engine."""
        self.internal_id, self.handle = internal_id, handle
        self._preemptions = handle.num_preemptions
        self.lose_kv()
        self._entered = True
        unseen = self.request.unseen
        self._unseen = self._target if unseen is None else unseen

    def leave(self) -> None:
        """The rollout is no longer in the engine."""
        self.handle = None
        self._resident = False

    def lose_kv(self) -> None:
        """KV was cleared on purpose: all is to be prefilled, and this is no preemption."""
        self._preemptions = self.handle.num_preemptions
        self._target = self.handle.num_tokens
        self._computed = 0
        self._resident = False

    def waiting(self) -> bool:
        """In the engine, and its context is not in the KV yet."""
        return self.handle is not None and not self._resident

    def look(self, counts: ActorCounts, cached: int) -> tuple[int, ActorCounts]:
        """Tokens that the engine computed for this rollout since the last look, and ``counts`` with them.

        A rollout's context counts as prefilled (again: as recomputed) in the iteration that completes it.
        That same iteration samples a token. ``cached``: tokens of it that vLLM found in its cache when the
        rollout entered.
        """
        preemptions = self.handle.num_preemptions - self._preemptions
        if preemptions:
            counts = replace(counts, preemptions=counts.preemptions + preemptions)
            self.lose_kv()
        computed = self.handle.num_computed_tokens
        new, self._computed = max(0, computed - self._computed), computed
        if not self._resident and computed >= self._target:
            self._resident = True
            # vLLM does not tell what it finds when it takes one back that it preempted.
            counts = self._count_context(counts, cached if self._entered else 0)
            self._entered = False
        return new, counts

    def _count_context(self, counts: ActorCounts, cached: int) -> ActorCounts:
        unseen, self._unseen = self._unseen, 0
        past = self._target - unseen
        if self.own_kv:
            return _more(counts, unseen, past - min(cached, past), 0)
        if past:
            return _more(counts, unseen, past - min(cached, past), cached)
        return _more(counts, unseen - cached, 0, cached)


def _more(counts: ActorCounts, prefilled: int, recomputed: int, cached: int) -> ActorCounts:
    return replace(
        counts,
        prefilled=counts.prefilled + prefilled,
        recomputed=counts.recomputed + recomputed,
        prefix_cached=counts.prefix_cached + cached,
    )
