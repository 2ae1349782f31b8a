"""How far a long call is: what every ``progress=`` is told, ``progress=print`` included."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from oppo_sim.errors import OppoError

LINE_SECONDS: Final = 2.0
"""Between two lines of ``progress=True``."""


@dataclass(frozen=True)
class Progress:
    """How far simulating, comparing, sweeping, tuning or fitting is."""

    doing: str
    """What is being done, such as ``simulated runs``."""
    done: int
    """Of these, those found in a folder included."""
    total: int
    """How many there will be, as far as is known now."""
    best: str = ""
    """The best so far in words; empty: none is known."""
    simulated_steps: int = 0
    """Training steps simulated in this attempt (sweeps)."""
    seconds: float = 0.0
    """Since this attempt began to simulate (sweeps)."""

    def __str__(self) -> str:
        best = f", best so far: {self.best}" if self.best else ""
        return f"{self.doing}: {self.done:,} of {self.total:,}{best}"


OnProgress = Callable[[Progress], None]
"""What a caller gives: it is told now and then."""


def listener(given: OnProgress | bool | None) -> OnProgress | None:
    """Whom ``progress=`` names: True, lines on standard error; False and None, nobody. Raises OppoError for
    what cannot be called."""
    if given is None or given is False:
        return None
    if given is True:
        return _lines()
    if not callable(given):
        raise OppoError(f"progress is {given!r}: give True, or a function that takes a Progress")
    return given


def _lines() -> OnProgress:
    """Says how far it is, at most every ``LINE_SECONDS`` and at the end of each count."""
    said = monotonic()

    def say(at: Progress) -> None:
        nonlocal said
        if at.done >= at.total or monotonic() - said >= LINE_SECONDS:
            said = monotonic()
            print(at, file=sys.stderr, flush=True)

    return say


def unheard(_at: Progress) -> None:
    """Of a caller who gave nothing."""
