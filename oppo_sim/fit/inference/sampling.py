"""Draws from a log density over standard-normal coordinates, by emcee's ensemble (Foreman-Mackey et al., PASP
2013; moves of ter Braak and Vrugt, 2008)."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import chdtri
from threadpoolctl import threadpool_limits

Floats = npt.NDArray[np.float64]
LogDensity = Callable[[Floats], Floats]
"""Of points (points × coordinates), one value each."""

P = ParamSpec("P")
R = TypeVar("R")

_EDGE = 6.0
_NEVER = 1e-6


def on_one_blas_thread(function: Callable[P, R]) -> Callable[P, R]:
    """What makes thousands of products of matrices with a few rows: BLAS threads that wait for each other
    make a fit two to four times as long on busy cores."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with threadpool_limits(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited


def sampled(
    log_density: LogDensity, size: int, draws: int, sweeps: int, generator: np.random.Generator
) -> Floats:
    """``draws`` × ``size``, from the second half of ``sweeps`` of the ensemble."""
    import emcee

    best = most_likely(log_density, size, generator)
    walkers = max(64, 6 * size)
    # About as wide as the posterior: walkers far out in a narrow one do not find back.
    start = best + generator.standard_normal((walkers, size)) @ spread_at(log_density, best).T
    moves = [(emcee.moves.DEMove(), 0.8), (emcee.moves.StretchMove(), 0.2)]
    sampler = _sampler(walkers, size, log_density, moves)
    sampler._random = np.random.RandomState(generator.integers(2**31))
    sampler.run_mcmc(start, sweeps, skip_initial_state_check=True)
    chain: Floats = sampler.get_chain(discard=sweeps // 2, flat=True)
    chain = chain[_of_the_density(sampler.get_log_prob(discard=sweeps // 2, flat=True), size)]
    chosen: Floats = chain[generator.choice(len(chain), size=draws, replace=len(chain) < draws)]
    return chosen


def _of_the_density(log_prob: Floats, size: int) -> npt.NDArray[np.bool_]:
    """Not of walkers that stayed where they began, as far below the best as one of a million normal draws: a
    few made means of seconds ten times too long (Hou et al., ApJ 2012, §3.2, prune such walkers)."""
    found: npt.NDArray[np.bool_] = log_prob >= log_prob.max() - 0.5 * chdtri(size, _NEVER)
    return found


def moved(log_density: LogDensity, points: Floats, sweeps: int, generator: np.random.Generator) -> Floats:
    """The points (points × coordinates) after ``sweeps`` moves of all of them, which leave a population of
    the density one of the density."""
    import emcee

    # Differences of the full size carry a point from one mode to another.
    near, far = emcee.moves.DEMove(), emcee.moves.DEMove(gamma0=1.0)
    moves = [(near, 0.8), (far, 0.1), (emcee.moves.StretchMove(), 0.1)]
    count, size = points.shape
    sampler = _sampler(count, size, log_density, moves)
    sampler._random = np.random.RandomState(generator.integers(2**31))
    state = sampler.run_mcmc(points, sweeps, skip_initial_state_check=True, store=False)
    found: Floats = state.coords
    return found


def _sampler(walkers: int, size: int, log_density: LogDensity, moves: list[tuple[Any, float]]) -> Any:
    """emcee's, without what it does each sweep for chains that are taken up again and for densities of one
    point at a time: a third of all seconds where a density takes a fraction of a millisecond."""
    import emcee

    class Sampler(emcee.EnsembleSampler):  # type: ignore[misc]
        random_state = None

        def compute_log_prob(self, coords: Floats) -> tuple[Floats, None]:
            return log_density(coords), None

    return Sampler(walkers, size, log_density, moves=moves)


def spread_at(log_density: LogDensity, best: Floats) -> Floats:
    """A factor L of the covariance L·Lᵀ of the normal distribution that has the density's curvature at its
    mode; no direction wider than the standard normal."""
    size, step = len(best), 1e-3
    pairs = step * (np.eye(size)[:, None, :] + np.eye(size)[None, :, :]).reshape(-1, size)
    both = (log_density(best + pairs) + log_density(best - pairs)).reshape(size, size) / 2.0
    alone = (log_density(best + step * np.eye(size)) + log_density(best - step * np.eye(size))) / 2.0
    centre = float(log_density(best[None, :])[0])
    curvature = -(both - alone[:, None] - alone[None, :] + centre) / step**2
    if not np.all(np.isfinite(curvature)):
        return 0.3 * np.eye(size)
    values, vectors = np.linalg.eigh((curvature + curvature.T) / 2.0)
    factor: Floats = vectors / np.sqrt(np.maximum(values, 1.0))
    return factor


def most_likely(log_density: LogDensity, size: int, generator: np.random.Generator) -> Floats:
    """The mode, from the best of some starts."""

    step = 1e-5
    around = np.concatenate((np.zeros((1, size)), step * np.eye(size), -step * np.eye(size)))

    def cost_and_slope(z: Floats) -> tuple[float, Floats]:
        found = log_density(z + around)
        value, above, below = float(found[0]), found[1 : size + 1], found[size + 1 :]
        return -value if np.isfinite(value) else 1e12, -(above - below) / (2 * step)

    starts = np.concatenate((np.zeros((1, size)), generator.standard_normal((4, size))))
    bounds = [(-_EDGE, _EDGE)] * size
    found = [minimize(cost_and_slope, start, jac=True, method="L-BFGS-B", bounds=bounds) for start in starts]
    best: Floats = min(found, key=lambda each: float(each.fun)).x
    return best
