"""Draws from a log density over standard-normal coordinates, by emcee's ensemble (Foreman-Mackey et al., PASP
2013; moves of ter Braak and Vrugt, 2008)."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

Floats = npt.NDArray[np.float64]
LogDensity = Callable[[Floats], Floats]
"""Of points (points × coordinates), one value each."""

_EDGE = 6.0


def sampled(
    log_density: LogDensity, size: int, draws: int, sweeps: int, generator: np.random.Generator
) -> Floats:
    """``draws`` × ``size``, from the second half of ``sweeps`` of the ensemble."""
    import emcee

    best = most_likely(log_density, size, generator)
    walkers = max(64, 6 * size)
    start = best + 0.3 * generator.standard_normal((walkers, size))
    moves = [(emcee.moves.DEMove(), 0.8), (emcee.moves.StretchMove(), 0.2)]
    sampler = emcee.EnsembleSampler(walkers, size, log_density, vectorize=True, moves=moves)
    sampler._random = np.random.RandomState(generator.integers(2**31))
    sampler.run_mcmc(start, sweeps, skip_initial_state_check=True)
    chain: Floats = sampler.get_chain(discard=sweeps // 2, flat=True)
    chosen: Floats = chain[generator.choice(len(chain), size=draws, replace=len(chain) < draws)]
    return chosen


def most_likely(log_density: LogDensity, size: int, generator: np.random.Generator) -> Floats:
    """The mode, from the best of some starts."""

    def cost(z: Floats) -> float:
        value = float(log_density(z[None, :])[0])
        return -value if np.isfinite(value) else 1e12

    def slope(z: Floats) -> Floats:
        step = 1e-5
        found = log_density(np.concatenate((z + step * np.eye(size), z - step * np.eye(size))))
        change: Floats = -(found[:size] - found[size:]) / (2 * step)
        return change

    starts = np.concatenate((np.zeros((1, size)), generator.standard_normal((4, size))))
    bounds = [(-_EDGE, _EDGE)] * size
    found = [minimize(cost, start, jac=slope, method="L-BFGS-B", bounds=bounds) for start in starts]
    best: Floats = min(found, key=lambda each: float(each.fun)).x
    return best
