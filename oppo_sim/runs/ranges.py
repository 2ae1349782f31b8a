"""What is unknown about the machine, as intervals: results over draws of the costs' terms, the same draws for
everything that is compared, so that what all of it shares cancels."""

from collections.abc import Mapping, Sequence
from math import exp, isfinite, log, nan
from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from oppo_sim import columns as c
from oppo_sim.runs.statistics import ratio_interval

if TYPE_CHECKING:
    import pandas as pd

FEWEST_TO_EXPLAIN: Final = 8
"""Draws below which several terms cannot be told apart."""
FULL_DRAWS: Final = 39
"""Draws from which on a range holds 95 %."""
_TAIL: Final = 0.025
_EQUAL: Final = 1e-12

SPEEDUP_ENDS: Final = (
    c.SPEEDUP_MACHINE_LOW, c.SPEEDUP_MACHINE_HIGH, c.SPEEDUP_BOTH_LOW, c.SPEEDUP_BOTH_HIGH,
)  # fmt: skip
SPEEDUP_PER_TOKEN_ENDS: Final = (
    c.SPEEDUP_PER_TOKEN_MACHINE_LOW, c.SPEEDUP_PER_TOKEN_MACHINE_HIGH,
    c.SPEEDUP_PER_TOKEN_BOTH_LOW, c.SPEEDUP_PER_TOKEN_BOTH_HIGH,
)  # fmt: skip
"""Of the machine, then of rollouts and machine together."""

_Name = TypeVar("_Name", str, int)

Ends = tuple[float, float]
"""Low and high; NaN: there is no interval."""


def machine_interval(values: Sequence[float], independent: float | None = None) -> Ends:
    """95 % of what another draw would give: of n positive values, one a draw, the one at place 0.025 (n + 1)
    in order, counted from 1, and that at 0.975 (n + 1); linear between neighbours on the log scale.

    Another draw is as likely to fall into each of the n + 1 gaps, so this holds 95 % of them (Weibull's
    positions; those of numpy's default hold 89 % with 32 draws). Below ``FULL_DRAWS`` it is the least and the
    largest, which hold (n − 1)/(n + 1). NaN below two draws, or where one is not finite.

    ``independent``: effective sample size of the values, n unless given. Of m draws another lies
    beyond an end with the values' own share beyond it, times m/(m + 1), and 1/(m + 1) more (conformal
    prediction with weights), so at least 95 % are held; below ``FULL_DRAWS`` of them it is again the least
    and the largest."""
    if len(values) < 2 or not all(isfinite(value) and value > 0 for value in values):
        return nan, nan
    logs = sorted(map(log, values))
    size = min(independent or len(logs), len(logs))
    beyond = max(0.0, (_TAIL * (size + 1) - 1) / size) * len(logs)
    return exp(_at(logs, beyond)), exp(_at(logs, len(logs) - 1 - beyond))


def both(point: float, rollouts: Ends, machine: Ends) -> Ends:
    """The interval of rollouts and machine together around ``point`` (> 0): on the log scale the distance of
    each end is the root of the sum of the squares. An interval that there is not adds nothing; NaN without
    either."""
    known = [ends for ends in (rollouts, machine) if all(map(isfinite, ends))]
    if not known or not point > 0:
        return nan, nan
    # The point may lie beside the draws: then it is an end itself.
    below = sum(max(0.0, log(point / low)) ** 2 for low, _ in known) ** 0.5
    above = sum(max(0.0, log(high / point)) ** 2 for _, high in known) ** 0.5
    return point * exp(-below), point * exp(above)


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive values."""
    return exp(fmean(map(log, values)))


def speedups(base: Sequence[Sequence[float]], here: Sequence[Sequence[float]]) -> list[float]:
    """Draw by draw: how many times as fast, geometric mean over the seeds. ``base`` and ``here``: seconds,
    one row a draw, one value a seed."""
    return [
        geometric_mean([there / own for there, own in zip(left, right, strict=True)])
        for left, right in zip(base, here, strict=True)
    ]


def freed(drawn: Sequence[float], point: Sequence[float]) -> list[float]:
    """Ratios by draw, each with one of the seeds in turn, freed of what that seed does: over the ratio of the
    seed at the point, times the mean (geometric) over the seeds there."""
    mean = geometric_mean(point)
    return [ratio / point[number % len(point)] * mean for number, ratio in enumerate(drawn)]


def told_apart(point: Sequence[float], drawn: Sequence[float]) -> bool:
    """The ratios of two results, by seed at the point and by draw, differ from 1 by more than the 95 %
    interval of seeds and draws together."""
    if all(abs(ratio - 1.0) <= _EQUAL for ratio in (*point, *drawn)):
        return False
    mean, *ends = ratio_interval(point)
    low, high = both(mean, (ends[0], ends[1]), machine_interval(drawn))
    return low > 1.0 or high < 1.0


def best_shares(seconds: Mapping[_Name, Sequence[Sequence[float]]]) -> dict[_Name, float]:
    """Probability of each to be the best: the share of draws × seeds in which it takes the least; equal ones
    share. ``seconds``: by name, one row a draw, one value a seed."""
    won = dict.fromkeys(seconds, 0.0)
    cells = 0
    for rows in zip(*seconds.values(), strict=True):
        for values in zip(*rows, strict=True):
            cells += 1
            least = min(values)
            best = [
                name for name, value in zip(seconds, values, strict=True) if value <= least * (1.0 + _EQUAL)
            ]
            for name in best:
                won[name] += 1.0 / len(best)
    return {name: count / cells for name, count in won.items()} if cells else dict.fromkeys(seconds, nan)


def explained(terms: "pd.DataFrame", values: Sequence[float]) -> dict[str, float]:
    """Share of the variance of ``values`` (positive, one a draw) that each term explains alone: the square of
    Spearman's rank correlation, the largest first.

    ``terms``: one row a draw, one column a term; those that do not vary are left out. Empty where nothing
    varies, and where there are several terms but fewer than ``FEWEST_TO_EXPLAIN`` draws.
    """
    import pandas as pd

    varied = terms.loc[:, terms.nunique() > 1]
    if len(values) < 2 or max(values) <= min(values) * (1.0 + 1e-9):
        return {}
    if len(varied.columns) > 1 and len(values) < FEWEST_TO_EXPLAIN:
        return {}
    ranks = pd.Series(list(values), index=varied.index).rank()
    shares = varied.rank().corrwith(ranks) ** 2
    ordered = shares.sort_values(ascending=False, kind="stable")
    return {str(name): float(share) for name, share in ordered.items()}


class Gain(NamedTuple):
    """How many times as fast as the baseline."""

    point: float
    """On the machine as given, mean over the seeds."""
    rollouts: Ends
    """Its interval of the seeds."""
    drawn: Sequence[float]
    """By draw."""

    @property
    def ends(self) -> tuple[float, float, float, float]:
        """Of the machine, then of rollouts and machine together."""
        machine = machine_interval(self.drawn)
        return *machine, *both(self.point, self.rollouts, machine)


def range_columns(
    per_rollout: Gain, per_token: Gain, steps: Sequence[float], shares: Mapping[str, float]
) -> dict[str, float | str | None]:
    """Columns of a row that rest on draws of the machine, but for who is the best.

    ``steps``: seconds a step by draw; ``shares``: as ``explained``.
    """
    step_ends = machine_interval(steps)
    widest = next(iter(shares), None)
    return {
        c.STEP_S_MACHINE_LOW: step_ends[0],
        c.STEP_S_MACHINE_HIGH: step_ends[1],
        **dict(zip(SPEEDUP_ENDS, per_rollout.ends, strict=True)),
        **dict(zip(SPEEDUP_PER_TOKEN_ENDS, per_token.ends, strict=True)),
        c.MACHINE_WIDEST: widest,
        c.MACHINE_WIDEST_SHARE: nan if widest is None else shares[widest],
    }


def between_columns(shares: Mapping[str, float]) -> dict[str, float | str | None]:
    """Columns of a row beside the best one; ``shares``: as ``explained``, of its difference."""
    widest = next(iter(shares), None)
    return {
        c.DIFFERENCE_WIDEST: widest,
        c.DIFFERENCE_WIDEST_SHARE: nan if widest is None else shares[widest],
    }


def _at(ordered: Sequence[float], place: float) -> float:
    """Counted from 0."""
    low = min(int(place), len(ordered) - 2)
    return ordered[low] + (place - low) * (ordered[low + 1] - ordered[low])
