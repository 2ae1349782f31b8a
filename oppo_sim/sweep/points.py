"""The points of a sweep: every combination of a grid's values, each with every drawn sample."""

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from oppo_sim.errors import OppoError
from oppo_sim.sweep.axes import GridAxis, SampledAxis

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_POINTS: Final = 1_000_000
MOST_SOBOL: Final = 2**16

Values = dict[str, Any]
"""Field → value, fields in the order of the axes."""

Sampler = Literal["random", "sobol"]


def points_of(
    grid: Sequence[GridAxis],
    sampled: Sequence[SampledAxis],
    samples: int,
    sampler: Sampler = "random",
    sampler_seed: int = 0,
) -> list[Values]:
    """All points, grid fields first, the last field varying fastest; of equal points the first only.

    ``samples`` is the number of samples of the ``sampled`` fields together, which every combination of the
    grid takes. A larger number keeps the samples of a smaller one and adds to them. Raises OppoError where
    there are no points, or too many.
    """
    count = samples if sampled else 1
    for axis in grid:
        count *= len(axis.values)
        if count > MOST_POINTS:
            raise OppoError(
                f"the sweep has more than {MOST_POINTS:,} points: give fewer values, or draw samples"
            )
    if not grid and not sampled:
        raise OppoError("the sweep varies nothing: give a field with --grid or --random")
    rows = _draws(sampled, samples, sampler, sampler_seed)
    drawn = [tuple(axis.at(share) for axis, share in zip(sampled, row, strict=True)) for row in rows]
    fields = [*(axis.field for axis in grid), *(axis.field for axis in sampled)]
    combined = (
        (*fixed, *sample) for fixed in itertools.product(*(axis.values for axis in grid)) for sample in drawn
    )
    return list(_distinct(dict(zip(fields, values, strict=True)) for values in combined))


def point_key(values: Values) -> str:
    """What identifies a point: 1 (a rollout) is not 1.0 (the whole batch)."""
    return json.dumps(values, sort_keys=True, default=str)


def _draws(
    sampled: Sequence[SampledAxis], samples: int, sampler: Sampler, sampler_seed: int
) -> Sequence[Sequence[float]]:
    if not sampled:
        return [()]
    if sampler == "sobol" and samples > MOST_SOBOL:
        raise OppoError(
            f"samples {samples} are more than a Sobol sequence gives here: at most {MOST_SOBOL:,}, or draw at"
            " random"
        )
    rows: Sequence[Sequence[float]] = _shares(samples, len(sampled), sampler, sampler_seed).tolist()
    return rows


def _shares(samples: int, fields: int, sampler: Sampler, sampler_seed: int) -> "NDArray[np.float64]":
    """Shape (samples, fields), in [0, 1). The first rows do not depend on how many there are."""
    import numpy as np

    if sampler == "random":
        return np.random.default_rng(sampler_seed).random((samples, fields))
    from scipy.stats import qmc

    # Whole powers of two keep the sequence's balance; what is beyond the wanted number is left out.
    power = max(0, (samples - 1).bit_length())
    sobol = qmc.Sobol(fields, scramble=True, seed=np.random.default_rng(sampler_seed))
    drawn: NDArray[np.float64] = sobol.random_base2(power)[:samples]
    return drawn


def _distinct(points: Iterator[Values]) -> Iterator[Values]:
    seen: set[str] = set()
    for values in points:
        key = point_key(values)
        if key not in seen:
            seen.add(key)
            yield values
