"""Draws in which seconds that are the same in every step are divided among terms in every way that their
priors allow.

Of a sum of constants a log says the sum. Draws that add to it lie along thin, bent edges of the density,
round which an ensemble does not come: it stays where one of the terms is nearly all of it.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from oppo_sim.costs.priors import Prior

Floats = npt.NDArray[np.float64]

_SAMPLE: Final = 300_000
_NEAR: Final = 0.02
"""Relative, of the sums that are taken for one."""
_FEWEST: Final = 20
"""Sums near a draw's; with fewer it stays as it is, since no prior believes in it."""
_ROUNDS: Final = 4


def divided_anew(
    z: Floats,
    places: Sequence[int],
    priors: Sequence[Prior],
    counts: Sequence[float],
    log_likelihood: Callable[[Floats], Floats],
    generator: np.random.Generator,
) -> Floats:
    """``z`` (draws × standard-normal coordinates), where those at ``places`` are of terms with ``priors``
    that are taken ``counts`` times a step.

    A Metropolis step with independent proposals: another division of a draw's sum, from the priors given
    that sum. The priors cancel, so the likelihood alone accepts it; where steps tell the terms apart nothing
    moves.
    """
    at = list(places)
    sigma = np.array([prior.sigma for prior in priors])
    unit = np.array([prior.median * count for prior, count in zip(priors, counts, strict=True)])
    sample = generator.standard_normal((_SAMPLE, len(at)))
    sums = (unit * np.exp(sigma * sample)).sum(axis=1)
    order = np.argsort(sums)
    sample, sums = sample[order], sums[order]
    found, likelihood = z.copy(), log_likelihood(z)
    for _ in range(_ROUNDS):
        own = (unit * np.exp(sigma * found[:, at])).sum(axis=1)
        low, high = np.searchsorted(sums, own * (1 - _NEAR)), np.searchsorted(sums, own * (1 + _NEAR))
        enough = high - low >= _FEWEST
        chosen = low + (generator.random(len(own)) * np.maximum(high - low, 1)).astype(np.int64)
        chosen = np.minimum(chosen, _SAMPLE - 1)
        proposed = found.copy()
        proposed[:, at] = sample[chosen] + np.log(own / sums[chosen])[:, None] / sigma
        other = log_likelihood(proposed)
        taken = enough & (np.log(generator.random(len(own))) < other - likelihood)
        found[taken], likelihood[taken] = proposed[taken], other[taken]
    return found
