"""Which differences between points are real: everything is paired by seed (common random numbers)."""

from collections.abc import Mapping, Sequence
from typing import Final

from oppo_sim import columns as c
from oppo_sim.comparison import ratio_interval

FIRST_LOOK: Final = 3
"""Seeds that every point gets before any is stopped."""
LEVEL: Final = 0.05
_EQUAL = 1e-12

Totals = Mapping[str, float]


def loss(run: Totals, baseline: Totals | None, objective: str) -> float:
    """What a run is ranked by, less is better: seconds a trained rollout, or its share of the baseline's
    under the same seed."""
    seconds = run[c.S_PER_ROLLOUT]
    if objective == "time":
        return seconds
    return seconds / baseline[c.S_PER_ROLLOUT] if baseline is not None else float("nan")


def paired(losses: Sequence[float], best: Sequence[float]) -> tuple[float, float, float]:
    """Relative difference from the best point with its 95 % interval (Student-t of the log ratios by seed):
    0.02 is 2 % worse.

    NaN ends of the interval below two common seeds.
    """
    mean, low, high = ratio_interval([here / there for here, there in zip(losses, best, strict=False)])
    return mean - 1.0, low - 1.0, high - 1.0


def alike(losses: Sequence[float], best: Sequence[float]) -> bool:
    """The paired difference from the best is not significant at 5 %, two-sided; below two seeds: there is
    none."""
    ratios = [here / there for here, there in zip(losses, best, strict=False)]
    if all(abs(ratio - 1.0) <= _EQUAL for ratio in ratios):
        return True
    _, low, high = ratio_interval(ratios)
    return low <= 1.0 <= high


def dominated(losses: Sequence[float], best: Sequence[float], looks: int) -> bool:
    """The point is significantly worse than the best so far: a one-sided paired t-test of the log ratios, at
    5 % over all ``looks`` together (Bonferroni: each look tests at 5 % / looks)."""
    ratios = [here / there for here, there in zip(losses, best, strict=True)]
    return len(ratios) >= 2 and ratio_interval(ratios, 1.0 - 2.0 * LEVEL / looks)[1] > 1.0 + _EQUAL


def looks_of(seeds: int) -> int:
    """How often points are looked at: after FIRST_LOOK seeds and after each further one but the last, when
    nothing is left to save."""
    return max(1, seeds - FIRST_LOOK)
