"""Find the distribution that has a given mean, median, 99th percentile or share of cut responses."""

import math
from collections.abc import Callable, Mapping
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit, ndtri

from oppo_sim.errors import OppoError
from oppo_sim.traces.config import SynthConfig
from oppo_sim.traces.distributions import Lognormal, Mixture, Weibull, make_distribution

SPREADS: Final = (1e-3, 12.0)
"""Range searched: standard deviation of ln(tokens), or 1/shape of a Weibull."""

TAIL_WEIGHTS: Final = (0.1, 0.05, 0.2, 0.02, 0.3, 0.5)
"""Tried in this order for a mixture with three targets."""

_QUANTILES: Final = {"p50": 0.5, "p99": 0.99}
_TOLERANCE: Final = 0.005


def solve(config: SynthConfig) -> Lognormal | Weibull | Mixture:
    """The distribution before the cut whose lengths after the cut meet the targets of ``config`` (or the one
    its parameters name).

    Two targets determine a lognormal or a Weibull; three or four a mixture whose components share their
    ``sigma``.
    Raises OppoError if the targets contradict each other.
    """
    if config.parameters is not None:
        return make_distribution(config.distribution, config.parameters)
    cut = float(config.max_response_length or math.inf)
    if config.distribution == "mixture":
        return _mixture(config.targets, cut, config.tail_weight)
    return solve_two(config.distribution, config.targets, cut)


def solve_two(name: str, targets: Mapping[str, float], cut: float = math.inf) -> Lognormal | Weibull:
    """From exactly two of ``mean``, ``p50``, ``p99`` (tokens), ``clip_ratio`` (a share at ``cut``)."""
    points = _points(targets, cut)
    make: Callable[[float, float], Lognormal | Weibull] = Lognormal if name == "lognormal" else _weibull
    score = _normal_score if name == "lognormal" else _weibull_score
    if len(points) == 2:
        # ln of a quantile is location + spread · score in both families.
        (q_1, x_1), (q_2, x_2) = points
        spread = (math.log(x_2) - math.log(x_1)) / (score(q_2) - score(q_1))
        return make(math.log(x_1) - spread * score(q_1), spread)
    quantile, at = points[0]
    mean = targets["mean"]

    def at_spread(spread: float) -> Lognormal | Weibull:
        return make(math.log(at) - spread * score(quantile), spread)

    return at_spread(_spread_for_mean(name, targets, mean, lambda spread: at_spread(spread).mean(cut)))


def _points(targets: Mapping[str, float], cut: float) -> list[tuple[float, float]]:
    """(probability, tokens) pairs through which the distribution must pass, ascending."""
    points = [(q, targets[name]) for name, q in _QUANTILES.items() if name in targets]
    if "clip_ratio" in targets:
        points.append((1.0 - targets["clip_ratio"], cut))
    return sorted(points)


def _spread_for_mean(
    name: str, targets: Mapping[str, float], mean: float, mean_at: Callable[[float], float]
) -> float:
    """The smallest spread with that mean; along it the mean may rise and then fall again, or the reverse."""
    from scipy.optimize import brentq

    grid = np.geomspace(*SPREADS, 600)
    means = np.array([mean_at(float(spread)) for spread in grid])
    above = means > mean
    crossing = np.flatnonzero(above[1:] != above[:-1])
    if not len(crossing):
        other = next(f"{key} {value:g}" for key, value in targets.items() if key != "mean")
        bound = f"at most {means.max():.4g}" if mean > means.max() else f"at least {means.min():.4g}"
        raise OppoError(
            f"no {name} has both mean {mean:g} and {other}: with that {other.split()[0]} its mean is {bound};"
            " change one of them"
        )
    first = int(crossing[0])
    return float(
        brentq(lambda spread: mean_at(spread) - mean, float(grid[first]), float(grid[first + 1]), xtol=1e-12)
    )


def _mixture(targets: Mapping[str, float], cut: float, tail_weight: float | None) -> Mixture:
    """The first tail weight that meets the targets; with four targets the weight is solved for as well."""
    weights: tuple[float | None, ...] = (
        (None,) if len(targets) == 4 else (tail_weight,) if tail_weight else TAIL_WEIGHTS
    )
    tried = []
    for weight in weights:
        nearest, miss = _nearest_mixture(targets, cut, weight)
        if miss <= _TOLERANCE:
            return nearest
        tried.append((miss, nearest))
    nearest = min(tried, key=lambda pair: pair[0])[1]
    reached = {
        "mean": nearest.mean(cut),
        "p50": float(nearest.quantile(0.5)),
        "p99": min(cut, float(nearest.quantile(0.99))),
        "clip_ratio": float(nearest.sf(cut)),
    }
    wanted = ", ".join(f"{key} {value:g}" for key, value in targets.items())
    shown = ", ".join(f"{key} {reached[key]:.4g}" for key in targets)
    given = f" with tail_weight {tail_weight:g}" if tail_weight else ""
    raise OppoError(f"no mixture has {wanted}{given}: the nearest has {shown}; change one of them")


def _nearest_mixture(targets: Mapping[str, float], cut: float, weight: float | None) -> tuple[Mixture, float]:
    """The closest mixture and its worst miss (normal scores, ln of the mean); weight None: free."""
    from scipy.optimize import least_squares

    points = _points(targets, cut)

    def unpack(free: npt.NDArray[np.float64]) -> Mixture:
        sigma = math.exp(free[1])
        share = float(expit(free[3])) if weight is None else weight
        return Mixture(float(free[0]), sigma, float(free[0] + math.exp(free[2])), sigma, share)

    def misses(free: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        candidate = unpack(free)
        gaps = [_score_at(candidate, x) - float(ndtri(q)) for q, x in points]
        if "mean" in targets:
            gaps.append(math.log(candidate.mean(cut) / targets["mean"]))
        return np.array(gaps)

    centre = math.log(targets.get("p50") or targets.get("mean") or cut / 2)
    start_weight = [] if weight is not None else [float(logit(TAIL_WEIGHTS[0]))]
    low = [-5.0, math.log(0.01), -12.0] + [-9.0 for _ in start_weight]
    high = [25.0, math.log(3.0), math.log(12.0)] + [5.0 for _ in start_weight]
    best, least = unpack(np.array([centre, 0.0, 0.0, *start_weight])), math.inf
    for sigma, gap in product((0.2, 0.5, 1.0), (0.3, 1.0, 2.5)):
        start = [centre, math.log(sigma), math.log(gap), *start_weight]
        found = least_squares(misses, start, bounds=(low, high), max_nfev=300)
        miss = float(np.abs(found.fun).max())
        if miss < least:
            best, least = unpack(found.x), miss
        if least < 1e-6:
            break
    return best, least


def _score_at(distribution: Mixture, x: float) -> float:
    below = float(distribution.cdf(x))
    if below < 0.5:
        return float(ndtri(max(below, 1e-300)))
    return float(-ndtri(max(float(distribution.sf(x)), 1e-300)))


def _weibull(location: float, spread: float) -> Weibull:
    return Weibull(1 / spread, math.exp(location))


def _normal_score(q: float) -> float:
    return float(ndtri(q))


def _weibull_score(q: float) -> float:
    return math.log(-math.log1p(-q))
