"""Fits of measured seconds: a roofline basis with coefficients that cannot be negative, and how far each can
be trusted.

Every term is a cost that only adds: launching an iteration, handling a rollout, reading a token of KV,
waiting for the longest rollout. So the fit is least squares with non-negative coefficients (Lawson and
Hanson, "Solving Least Squares Problems", 1974, ch. 23; ``nnls`` of scipy), weighted to relative errors.
Intervals come from a bootstrap of two levels: points within their batch-size regime, then repeats within a
point; so both the noise of the clock and what the basis cannot say widen them. Held-out errors leave out one
whole regime of batch sizes and predict it from the others: neighbours of a left-out row would give it away.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from math import log, sqrt
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oppo_real.calibrate.measure import Visit
from oppo_real.calibrate.point import Point
from oppo_sim.draws import stream_key
from oppo_sim.errors import OppoError

Floats = NDArray[np.float64]

FEATURES: Final[Mapping[str, Callable[[Point], float]]] = {
    "fixed": lambda point: 1.0,
    "per_rollout": lambda point: float(point.n),
    "per_kv_token": lambda point: float(point.kv_tokens),
    "per_longest_kv_token": lambda point: float(point.longest),
    "per_token": lambda point: float(point.tokens),
    "per_pair": lambda point: point.pairs,
    "per_piece": lambda point: float(point.n),
    "per_round": lambda point: point.cell[0] if point.cell else 0.0,
}
DECODE_BASIS: Final = ("fixed", "per_rollout", "per_kv_token", "per_longest_kv_token")
PREFILL_BASIS: Final = ("fixed", "per_token", "per_pair")
DECODE_ON_DEVICE: Final = ("fixed", "per_rollout", "per_kv_token")
SCORE_BASIS: Final = ("fixed", "per_token", "per_pair", "per_piece")

RESAMPLES: Final = 400
LEVEL: Final = 0.95
_PRIOR_REPEATS: Final = 2
"""As many repeats does the variance of all points count beside a point's own."""
REGIMES: Final = 4
_TURNS: Final = 3
LOST_BELOW: Final = 0.25
"""Of the seconds that a fit gives a point: what took less is lost in noise."""
_WORST: Final = 5


def middle(values: ArrayLike) -> Floats:
    """Of the last axis: the median of the means of all pairs, each value with itself, too (Hodges and
    Lehmann, "Estimates of Location Based on Rank Tests", 1963); of three values, which it would not save
    from one wild one, the median. Without wild values it scatters little more than the mean, where a median
    of five scatters by a fifth more."""
    array = np.asarray(values, dtype=np.float64)
    first, second = _pairs(array.shape[-1])
    return np.asarray(np.median((array[..., first] + array[..., second]) / 2.0, axis=-1))


@cache
def _pairs(count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    first, second = np.triu_indices(count) if count > 3 else (np.arange(count), np.arange(count))
    return first, second


def spread_of_repeats(points: Sequence[Sequence[float]]) -> float:
    """Standard deviation of the logarithm of one repeat's seconds around its point's, from points with more
    than one (``points``: seconds of the repeats of each); 0 where none has."""
    logs = [np.log(repeats) for repeats in points if len(repeats) > 1 and min(repeats) > 0.0]
    freedom = sum(len(one) - 1 for one in logs)
    return sqrt(sum(float(((one - one.mean()) ** 2).sum()) for one in logs) / freedom) if freedom else 0.0


class Measured(NamedTuple):
    """A point and its repeats, in seconds; each is the mean of a visit."""

    point: Point
    repeats: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The middle of the repeats."""
        return float(middle(self.repeats))


@dataclass(frozen=True)
class Coefficient:
    """Seconds a unit, with the interval of ``LEVEL``."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class HeldOut:
    """How a regime is predicted by a fit that never saw it. Relative errors, against what was measured."""

    regime: str
    points: int
    extrapolated: bool
    """The smallest or the largest regime: beyond what the fit saw."""
    median_error: float
    largest_error: float


@dataclass(frozen=True)
class Residual:
    """A point of the fit. Seconds; spread is the half range of its repeats over the measured seconds."""

    label: str
    measured: float
    fitted: float
    error: float
    spread: float


@dataclass(frozen=True)
class Fit:
    """One fitted table."""

    name: str
    coefficients: tuple[Coefficient, ...]
    points: int
    repeats: int
    """Of the point with the fewest."""
    median_error: float
    """Relative, over all points, each of which the fit saw."""
    repeat_spread: float | None
    """Median over points visited more than once of the half range of repeats, relative: no fit can be better
    than that. None: no point was."""
    held_out: tuple[HeldOut, ...]
    worst: tuple[Residual, ...]

    def predict(self, point: Point) -> float:
        """Seconds of a point."""
        return float(sum(one.value * FEATURES[one.name](point) for one in self.coefficients))

    def to_plain(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def measured_points(visits: Sequence[Visit], stage: str | None = None) -> list[Measured]:
    """Visits by point, in the order of their first one; ``stage``: of that training stage."""
    return points_of((visit, visit.mean if stage is None else visit.stages[stage]) for visit in visits)


def points_of(told: Iterable[tuple[Visit, float]]) -> list[Measured]:
    """Seconds that visits tell, by point, in the order of its first one."""
    gathered: dict[str, tuple[Point, list[float]]] = {}
    for visit, seconds in told:
        gathered.setdefault(visit.point.key, (visit.point, []))[1].append(seconds)
    return [Measured(point, tuple(repeats)) for point, repeats in gathered.values()]


def steadied(data: Sequence[Measured], fit: Fit) -> list[Measured]:
    """Each point with one number of seconds: its middle, drawn to the fit by as much as repeats disagree.

    With r = log(middle / fitted), s² the variance of a middle by chance (from its repeats, together with
    those of all points: few repeats say little alone) and τ² = max(0, mean r² − mean s²) what the basis
    cannot say, the seconds are fitted · exp(r · τ² / (τ² + s²)), the empirical Bayes mean (Efron and Morris,
    JASA 68, 1973). Where repeats agree, middles stay as they are; so do points that the fit gives no time,
    and all of them where there are fewer than twice as many as terms.
    """
    measured = np.array([one.seconds for one in data])
    fitted = np.array([fit.predict(one.point) for one in data])
    told = (measured > 0.0) & (fitted > 0.0) & np.array([min(one.repeats) > 0.0 for one in data])
    terms = sum(one.value > 0.0 for one in fit.coefficients)
    known = [one for one, use in zip(data, told, strict=True) if use]
    freedom = np.array([len(one.repeats) - 1 for one in known])
    if len(known) < 2 * max(2, terms) or not freedom.sum():
        return [Measured(one.point, (one.seconds,)) for one in data]
    squares = np.array([len(one.repeats) * float(np.var(np.log(one.repeats))) for one in known])
    pooled = squares.sum() / freedom.sum()
    variance = (_PRIOR_REPEATS * pooled + squares) / (_PRIOR_REPEATS + freedom)
    # Over that of a mean, of normal values: a median of three, and the middle of more.
    wider = np.select([freedom == 2, freedom > 2], [1.35, 1.05], 1.0)
    by_chance = variance / (freedom + 1) * wider
    off = np.log(measured[told] / fitted[told])
    real = max(0.0, float(np.sum(off**2)) / (len(known) - terms) - float(np.mean(by_chance)))
    seconds = measured.copy()
    seconds[told] = fitted[told] * np.exp(off * real / np.maximum(real + by_chance, 1e-300))
    return [Measured(one.point, (float(second),)) for one, second in zip(data, seconds, strict=True)]


def regime_size(point: Point) -> int:
    """What makes a batch large or small: rollouts for decode, tokens for forwards and training."""
    return point.n if point.kind == "decode" else point.tokens


def regimes(data: Sequence[Measured]) -> list[list[int]]:
    """Indices of the points by batch-size regime: at most four, even by ratio, rising."""
    found = regimes_of([float(max(1, regime_size(one.point))) for one in data])
    return [
        group for regime in range(REGIMES) if (group := [i for i, one in enumerate(found) if one == regime])
    ]


def regimes_of(sizes: Sequence[float]) -> list[int]:
    """The batch-size regime of each size, from 0: at most ``REGIMES``, even by ratio."""
    count, low, high = min(REGIMES, len(set(sizes))), min(sizes), max(sizes)
    shares = [log(size / low) / log(high / low) if high > low else 0.0 for size in sizes]
    return [min(count - 1, int(count * share)) for share in shares]


def fit_table(
    name: str, data: Sequence[Measured], basis: Sequence[str], seed: int = 0, resamples: int = RESAMPLES
) -> Fit:
    """Fit the repeats' middles, reproducibly. Raises OppoError for no data, or numbers not finite."""
    if not data:
        raise OppoError(
            f"nothing was measured of {name}: raise --budget-s and run again, what is measured is kept"
        )
    if not all(np.isfinite(second) for one in data for second in one.repeats):
        raise OppoError(f"a measured time of {name} is not finite: delete the folder of measured points")
    features = np.array([[FEATURES[term](one.point) for term in basis] for one in data])
    seconds = np.array([one.seconds for one in data])
    weights = _weights(data, features, seconds)
    values = _solve(features, seconds, weights)
    groups = regimes(data)
    low, high = _intervals(
        data, features, weights, groups, stream_key(seed, f"calibrate/bootstrap/{name}"), resamples
    )
    fitted = features @ values
    errors = np.abs(fitted - seconds) * weights
    again = np.array([len(one.repeats) > 1 for one in data])
    spreads = np.array([(max(one.repeats) - min(one.repeats)) / 2.0 for one in data]) * weights
    residuals = [
        Residual(one.point.label(), *map(float, row))
        for one, row in zip(data, np.column_stack((seconds, fitted, errors, spreads)), strict=True)
    ]
    return Fit(
        name,
        tuple(
            Coefficient(term, float(value), min(float(value), float(bottom)), max(float(value), float(top)))
            for term, value, bottom, top in zip(basis, values, low, high, strict=True)
        ),
        len(data),
        min(len(one.repeats) for one in data),
        float(np.median(errors)),
        float(np.median(spreads[again])) if again.any() else None,
        _held_out(data, features, seconds, weights, groups),
        tuple(sorted(residuals, key=lambda one: (-one.error, one.label))[:_WORST]),
    )


def _weights(data: Sequence[Measured], features: Floats, seconds: Floats) -> Floats:
    """1 / seconds, so that small batches count as large ones do, unless their noise is larger.

    What noise all but took away (a prefill is a difference, which can fall below 0) would count without
    bound and draw every coefficient to 0. A point of less than ``LOST_BELOW`` of what a fit gives it counts
    as one of four times those seconds, found in turns: at first each counts as one of its size's usual.
    """
    noise = np.array([(max(one.repeats) - min(one.repeats)) / 2.0 for one in data])
    floor = max(float(np.max(np.abs(seconds))) * 1e-6, 1e-12)
    taken = np.maximum(np.maximum(np.abs(seconds), noise), floor)
    weights: Floats = 1.0 / np.maximum(taken, _usual(data, features, taken))
    for _ in range(_TURNS):
        fitted = features @ _solve(features, seconds, weights)
        weights = 1.0 / np.where(taken < LOST_BELOW * fitted, 4.0 * fitted, taken)
    return weights


def _usual(data: Sequence[Measured], features: Floats, seconds: Floats) -> Floats:
    """The median of the five points nearest in size, or the largest of those with no more of anything."""
    sizes = np.log([float(max(1, regime_size(one.point))) for one in data])
    nearest = np.argsort(np.abs(sizes[:, None] - sizes[None, :]), axis=1, kind="stable")[:, :5]
    within = np.all(features[:, None, :] >= features[None, :, :], axis=2)
    usual: Floats = np.maximum(
        np.median(seconds[nearest], axis=1), np.max(np.where(within, seconds, 0.0), axis=1)
    )
    return usual


def _solve(features: Floats, seconds: Floats, weights: Floats) -> Floats:
    """Non-negative coefficients; columns are scaled to length 1 for the solver."""
    from scipy.optimize import nnls

    weighted = features * weights[:, None]
    lengths = np.linalg.norm(weighted, axis=0)
    lengths[lengths == 0] = 1.0
    found, _ = nnls(weighted / lengths, seconds * weights)
    solved: Floats = found / lengths
    return solved


def _intervals(
    data: Sequence[Measured],
    features: Floats,
    weights: Floats,
    groups: Sequence[Sequence[int]],
    key: int,
    resamples: int,
) -> tuple[Floats, Floats]:
    draws = np.random.default_rng(key)
    repeats = [np.array(one.repeats) for one in data]
    counts = np.array([len(one) for one in repeats])
    begins = np.cumsum(counts) - counts
    every = np.concatenate(repeats)
    alike = len(set(counts.tolist())) == 1
    found = []
    for _ in range(resamples):
        chosen = np.concatenate([draws.choice(group, len(group)) for group in map(np.array, groups)])
        lasts = np.repeat(counts[chosen], counts[chosen])
        again = every[np.repeat(begins[chosen], counts[chosen]) + draws.integers(lasts)]
        if alike:
            seconds = middle(again.reshape(len(chosen), -1))
        else:
            seconds = np.array([middle(one) for one in np.split(again, np.cumsum(counts[chosen])[:-1])])
        found.append(_solve(features[chosen], seconds, weights[chosen]))
    tail = (1.0 - LEVEL) / 2.0
    low, high = np.quantile(np.array(found), [tail, 1.0 - tail], axis=0)
    return low, high


def _held_out(
    data: Sequence[Measured],
    features: Floats,
    seconds: Floats,
    weights: Floats,
    groups: Sequence[Sequence[int]],
) -> tuple[HeldOut, ...]:
    if len(groups) < 2:
        return ()
    rows = []
    for place, group in enumerate(groups):
        rest = [index for index in range(len(data)) if index not in set(group)]
        values = _solve(features[rest], seconds[rest], weights[rest])
        errors = np.abs(features[list(group)] @ values - seconds[list(group)]) * weights[list(group)]
        edge = place in (0, len(groups) - 1)
        usual, worst = float(np.median(errors)), float(np.max(errors))
        rows.append(HeldOut(_regime_name(data, group), len(group), edge, usual, worst))
    return tuple(rows)


def _regime_name(data: Sequence[Measured], group: Sequence[int]) -> str:
    sizes = [regime_size(data[index].point) for index in group]
    unit = "rollouts" if data[group[0]].point.kind == "decode" else "tokens"
    return f"{min(sizes)} {unit}" if min(sizes) == max(sizes) else f"{min(sizes)}-{max(sizes)} {unit}"
