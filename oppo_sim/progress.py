"""How far a long call is: what every ``progress=`` is told, ``progress=print`` included."""

from collections.abc import Callable
from dataclasses import dataclass


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


def unheard(_at: Progress) -> None:
    """Of a caller who gave nothing."""
