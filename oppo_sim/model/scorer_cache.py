"""Prefixes that a serving engine's scorer keeps from piece to piece (docs/model.md, C9c)."""

from collections import OrderedDict

ALL_AT_ONCE = 1 << 62
"""Tokens of an iteration that has no bound."""


class PrefixCache:
    """Of one worker: whole blocks of rollouts' prefixes, until something newer needs their room. What was
    used least recently goes first, a prefix from its end."""

    def __init__(self, capacity: int, block_tokens: int, iteration_tokens: int | None) -> None:
        """``capacity`` in blocks. The engine prefills ``iteration_tokens`` in one iteration at most (None: a
        whole batch); what an iteration uses stays until it ends."""
        self._capacity = capacity
        self._block = block_tokens
        self._most = iteration_tokens or ALL_AT_ONCE
        self._left = self._most
        self._free = capacity
        self._open = 0
        """Blocks of this iteration that are not full, which nobody finds again."""
        self._idle: OrderedDict[int, int] = OrderedDict()
        """Blocks by rollout, the least recently used first."""
        self._idle_blocks = 0
        self._in_use: dict[int, int] = {}
        """The same of this iteration."""

    def prefill(self, key: int, upto: int) -> int:
        """A piece lets its rollout ``key`` have ``upto`` tokens. Returns how many of them were there."""
        if self._left == 0:
            self.end_iteration()
        held = self._idle.pop(key, 0)
        self._idle_blocks -= held
        held += self._in_use.pop(key, 0)
        blocks = min(-(-upto // self._block), self._capacity)
        if self._free + self._idle_blocks < blocks - held:
            self.end_iteration()
        done, taken = held * self._block, held
        while done < upto:
            if self._left == 0:
                self.end_iteration()
            new = min(upto - done, self._left)
            done += new
            self._left -= new
            need = min(-(-done // self._block), blocks) - taken
            self._take(need)
            taken += need
        whole = min(upto // self._block, blocks)
        self._open += blocks - whole
        if whole:
            self._in_use[key] = whole
        return held * self._block

    def end_iteration(self) -> None:
        """What was in use may go, what is not full is free."""
        self._free += self._open
        self._open = 0
        self._idle.update(self._in_use)
        self._idle_blocks += sum(self._in_use.values())
        self._in_use.clear()
        self._left = self._most

    def _take(self, blocks: int) -> None:
        while self._free < blocks:
            oldest, held = next(iter(self._idle.items()))
            gone = min(held, blocks - self._free)
            if gone == held:
                del self._idle[oldest]
            else:
                self._idle[oldest] = held - gone
            self._idle_blocks -= gone
            self._free += gone
        self._free -= blocks
