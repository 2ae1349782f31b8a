"""Response lengths of a step rebuilt from its mean, maximum, minimum and share of cut responses.

A step's figures leave freedom: several draws, each meeting all of them, let it enter the interval. A draw
takes a shape (lognormal or Weibull, its spread from where the longest of n stands among all longest ones, or
from the share of cut responses), and is bent within the extremes until its mean is the logged one.
"""

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import gammaln, ndtr, ndtri

from oppo_sim.errors import OppoError

Lengths = npt.NDArray[np.int64]

_LEAST_SPREAD: Final = 0.05
_MOST_SPREAD: Final = 2.5
_SLACK: Final = 0.05
"""By which cut responses alone may be longer than all: shares and means of few digits."""


class LengthFigures(NamedTuple):
    """What is known of the ``rollouts`` response lengths of a step, tokens; None: not logged."""

    rollouts: int
    mean: float
    max: float | None = None
    min: float | None = None
    clip_ratio: float | None = None
    cut: int | None = None
    """``max_response_length``."""
    std: float | None = None


def rebuilt_lengths(figures: LengthFigures, draws: int, generator: np.random.Generator) -> Lengths:
    """``draws`` × ``rollouts`` lengths in a random order, each row with the logged mean (to half a token in
    all), maximum, minimum and number of cut responses.

    Where no maximum is logged it is drawn too. Raises OppoError for figures that no lengths can have.
    """
    known = _checked(figures)
    return np.stack([_one(known, number, generator) for number in range(draws)])


class _Known(NamedTuple):
    rollouts: int
    total: int
    low: int
    high: int | None
    cut: int | None
    clipped: int
    clip_known: bool
    std: float | None
    low_known: bool


def _checked(figures: LengthFigures) -> _Known:
    count, mean = figures.rollouts, figures.mean
    low = 1 if figures.min is None else max(1, round(figures.min))
    high = None if figures.max is None else max(1, round(figures.max))
    if figures.cut is not None and high is not None:
        high = min(high, figures.cut)
    if count < 1 or not math.isfinite(mean) or mean < 1:
        raise OppoError(f"a mean response length of {mean:g} over {count} rollouts cannot be")
    total = round(mean * count)
    clipped = round((figures.clip_ratio or 0.0) * count)
    if high is not None:
        least = high + (count - 1) * min(low, high) if count > 1 else high
        most = low + (count - 1) * high if count > 1 else high
        # Figures are logged with few digits, and a mean may be over fewer rollouts than there are.
        if not (low <= high and least <= total + count and total <= most + count):
            raise OppoError(
                f"{count} response lengths from {low} to {high} cannot have the mean {mean:g}: is"
                " rollout_batch_size what the run had?"
            )
        total = min(max(total, least), most)
    else:
        total = _without_a_maximum(figures, total, low, min(clipped, count))
    if high is not None and figures.cut is not None and high < figures.cut:
        clipped = 0
    return _Known(
        count,
        total,
        low,
        high,
        figures.cut,
        min(clipped, count),
        figures.clip_ratio is not None,
        figures.std,
        figures.min is not None,
    )


def _without_a_maximum(figures: LengthFigures, total: int, low: int, clipped: int) -> int:
    """The sum of the lengths, within what the others leave. Raises OppoError as ``_checked``."""
    count, cut = figures.rollouts, figures.cut
    if total + count < count * low:
        raise OppoError(f"{count} response lengths from {low} on cannot have the mean {figures.mean:g}")
    if cut is None:
        return max(total, count * low)
    if total > count * cut + count:
        raise OppoError(
            f"{count} response lengths up to {cut} cannot have the mean {figures.mean:g}: is"
            " max_response_length what the run had?"
        )
    least = clipped * cut + (count - clipped) * low
    if least > (1.0 + _SLACK) * total + count:
        raise OppoError(
            f"{count} response lengths, {clipped} of them cut at {cut}, cannot have the mean"
            f" {figures.mean:g}: is max_response_length what the run had?"
        )
    return min(max(total, count * low), count * cut)


def _one(known: _Known, number: int, generator: np.random.Generator) -> Lengths:
    count = known.rollouts
    mean = known.total / count
    chance = generator.uniform(0.05, 0.95)
    spread = _spread(known, mean, chance)
    shape = _weibull if number % 2 else _lognormal
    order = (generator.permutation(count) + generator.uniform(size=count)) / count
    raw = shape(np.clip(order, 1e-9, 1 - 1e-9), mean, spread)
    high = known.high
    if high is None:
        top = float(raw.max())
        high = max(known.low, math.ceil(mean), round(min(top, known.cut or math.inf)))
        high = max(math.ceil(mean), min(high, known.total - (count - 1) * known.low))
        if known.cut is not None and known.clipped:
            high = known.cut
    at_top = max(1, known.clipped) if known.cut is not None and high >= known.cut else 1
    return _bent(raw, known._replace(high=high), at_top, generator)


def _spread(known: _Known, mean: float, chance: float) -> float:
    """σ of the logarithms, from the standard deviation, the share of cut responses, or the maximum."""
    if known.std is not None and known.std > 0:
        return float(np.clip(math.sqrt(math.log1p((known.std / mean) ** 2)), _LEAST_SPREAD, _MOST_SPREAD))
    if known.clipped and known.cut is not None and mean < known.cut:
        share = min(0.999, (known.clipped + 2.0 * (chance - 0.5)) / known.rollouts)
        if share > 0 and (found := _spread_of_cut(mean, share, known.cut)) is not None:
            return found
    if known.high is None or known.rollouts < 2:
        return 0.4 + 0.6 * chance
    # ln(max / mean) = σ·z − σ²/2 with z the normal score of the chance-th quantile of the longest of n.
    score = float(ndtri(chance ** (1.0 / known.rollouts)))
    ratio = math.log(max(1.0, known.high / mean))
    root = score * score - 2.0 * ratio
    return float(np.clip(score - math.sqrt(max(0.0, root)), _LEAST_SPREAD, _MOST_SPREAD))


def _spread_of_cut(mean: float, share: float, cut: int) -> float | None:
    """σ of a lognormal of which ``share`` lies above ``cut`` and that has ``mean`` after the cut."""
    score = float(ndtri(1.0 - share))

    def excess(sigma: float) -> float:
        location = math.log(cut) - sigma * score
        below = math.exp(location + sigma * sigma / 2) * float(ndtr(score - sigma))
        return below + share * cut - mean

    try:
        return float(brentq(excess, _LEAST_SPREAD, _MOST_SPREAD))
    except ValueError:
        return None


def _lognormal(chances: npt.NDArray[np.float64], mean: float, sigma: float) -> npt.NDArray[np.float64]:
    drawn: npt.NDArray[np.float64] = np.exp(math.log(mean) - sigma * sigma / 2 + sigma * ndtri(chances))
    return drawn


def _weibull(chances: npt.NDArray[np.float64], mean: float, sigma: float) -> npt.NDArray[np.float64]:
    """With the same spread of the logarithms: π / (k·√6)."""
    k = math.pi / (sigma * math.sqrt(6.0))
    scale = math.log(mean) - float(gammaln(1.0 + 1.0 / k))
    drawn: npt.NDArray[np.float64] = np.exp(scale + np.log(-np.log1p(-chances)) / k)
    return drawn


def _bent(
    raw: npt.NDArray[np.float64], known: _Known, at_top: int, generator: np.random.Generator
) -> Lengths:
    """Whole lengths: the longest ``at_top`` at the maximum, one at the minimum if that is known, the rest
    between them with the mean that is left."""
    count, low, high = known.rollouts, known.low, known.high
    assert high is not None
    ranks = np.argsort(raw, kind="stable")
    lengths = np.empty(count, dtype=np.int64)
    at_top = min(at_top, count)
    lengths[ranks[count - at_top :]] = high
    bottom = 1 if known.low_known and count > at_top else 0
    lengths[ranks[:bottom]] = low
    body = ranks[bottom : count - at_top]
    if len(body):
        # What is cut is counted: nothing else may lie there.
        most = high - 1 if known.clip_known and known.cut is not None and high >= known.cut else high
        most = max(low, most)
        wanted = known.total - at_top * high - bottom * low
        wanted = min(max(wanted, low * len(body)), most * len(body))
        lengths[body] = _with_sum(raw[body], low, most, wanted)
    shuffled: Lengths = generator.permutation(lengths)
    return shuffled


def _with_sum(raw: npt.NDArray[np.float64], low: int, high: int, total: int) -> Lengths:
    """Whole numbers from ``low`` to ``high`` in the order of ``raw`` whose sum is ``total``."""
    span = float(high - low)
    if span <= 0:
        same: Lengths = np.full(len(raw), low, dtype=np.int64)
        return same
    inside = np.clip((raw - low) / span, 1e-9, 1.0 - 1e-9)
    mean = (total / len(raw) - low) / span
    logs = np.log(inside)

    def excess(bend: float) -> float:
        return float(np.exp(logs * math.exp(bend)).mean()) - mean

    if mean <= 1e-9 or mean >= 1 - 1e-9:
        values = np.full(len(raw), low + span * mean)
    else:
        edge = 30.0
        values = low + span * np.exp(logs * math.exp(brentq(excess, -edge, edge)))
    whole: Lengths = np.clip(np.floor(values), low, high).astype(np.int64)
    missing = total - int(whole.sum())
    # One token each, to those whose fraction was cut off most first.
    order = np.argsort(whole - values, kind="stable")
    while missing:
        movable = order[whole[order] < high] if missing > 0 else order[::-1][whole[order[::-1]] > low]
        if not len(movable):
            break
        chosen = movable[: abs(missing)]
        whole[chosen] += 1 if missing > 0 else -1
        missing = total - int(whole.sum())
    return whole
