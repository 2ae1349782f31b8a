"""Turns of a rollout from the mask of tokens that frameworks keep: 1 where the actor made the token, 0 where
a tool or an environment did."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple

from oppo_sim.columns import TOOL_SECONDS, TOOL_TOKENS, TURN_LENGTHS


class Turns(NamedTuple):
    """In tokens."""

    lengths: list[int]
    """Of each turn."""
    answers: list[int]
    """Between a turn and the next one. What stands behind the last turn is left out: nothing continued."""
    before: int
    """Before the first turn: the prompt, where the mask holds it."""

    def columns(self, seconds: float) -> dict[str, Any]:
        """The three columns of a trace for a rollout that waited ``seconds`` in all, in equal shares; none
        where it did not wait."""
        waits = len(self.answers)
        if not waits:
            return {}
        shares = [seconds / waits] * waits
        return {TURN_LENGTHS: self.lengths, TOOL_SECONDS: shares, TOOL_TOKENS: self.answers}


def turns_of_mask(mask: Iterable[object]) -> Turns:
    """The turns are the runs of made tokens; two without a token between them count as one."""
    runs = [(made, sum(1 for _ in run)) for made, run in groupby(mask, bool)]
    before = runs.pop(0)[1] if runs and not runs[0][0] else 0
    if runs and not runs[-1][0]:
        runs.pop()
    return Turns([tokens for made, tokens in runs if made], [n for made, n in runs if not made], before)
