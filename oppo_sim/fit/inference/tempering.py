"""Draws of a posterior that may have several modes: sequential Monte Carlo (Del Moral, Doucet and Jasra,
JRSS B 2006) over standard-normal coordinates.

A sum of few seconds that are each known to a factor of four is long because one of them is, and each of them
is a mode. A chain from one mode does not find the others; a population of the prior that the likelihood
narrows little by little keeps them all, in their proportions.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from oppo_sim.fit.inference.sampling import LogDensity, moved

Floats = npt.NDArray[np.float64]

_POPULATION: Final = 2000
_KEPT: Final = 0.5
"""Effective sample size after each narrowing, over the size of the population."""
_SWEEPS: Final = 25
"""Moves of the whole population after each narrowing."""
_LEAST_STEP: Final = 1e-6


def tempered(log_likelihood: LogDensity, size: int, draws: int, generator: np.random.Generator) -> Floats:
    """``draws`` × ``size``, of standard normals in proportion to the likelihood, in random order."""
    count = max(_POPULATION, 2 * draws)
    z = generator.standard_normal((count, size))
    power = 0.0
    while power < 1.0:
        logs = log_likelihood(z)
        step = _next_step(logs, 1.0 - power)
        power += step
        z = z[resampled(weights_of(step * logs), count, generator)]
        z = moved(_raised(log_likelihood, power), z, _SWEEPS, generator)
    chosen: Floats = z[generator.choice(count, size=draws, replace=False)]
    return chosen


def weights_of(logs: Floats) -> Floats:
    """That sum to 1, from logarithms."""
    weights = np.exp(logs - logs.max())
    found: Floats = weights / weights.sum()
    return found


def worth(weights: Floats) -> float:
    """Effective sample size (Kish): independent draws of the same variance as the weighted ones."""
    return float(weights.sum() ** 2 / (weights**2).sum())


def resampled(weights: Floats, draws: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Places of ``draws`` points in proportion to their weights, which sum to 1, in random order. Systematic:
    a point of weight w is there ⌊w·draws⌋ or ⌈w·draws⌉ times, so equal ones are not there twice."""
    marks = (np.arange(draws) + generator.random()) / draws
    places = np.minimum(np.searchsorted(np.cumsum(weights), marks), len(weights) - 1)
    return generator.permutation(places)


def _raised(log_likelihood: LogDensity, power: float) -> LogDensity:
    def log_density(z: Floats) -> Floats:
        total: Floats = -0.5 * (z * z).sum(axis=1) + power * log_likelihood(z)
        return total

    return log_density


def _next_step(logs: Floats, rest: float) -> float:
    """By how much the likelihood is raised, at most ``rest``: what leaves ``_KEPT`` of the population."""

    def beyond(step: float) -> float:
        return worth(weights_of(step * logs)) / len(logs) - _KEPT

    if beyond(rest) >= 0.0:
        return rest
    return max(float(brentq(beyond, 0.0, rest, xtol=1e-9)), min(_LEAST_STEP, rest))
