"""How far a run, and the model, may move away from the steps that were fitted.

Seconds of a metric, in logarithms, are the model's, noise of each step, and a random walk: neighbours on a
shared host, clocks, fragmented memory (a local level model: Harvey 1989). How large the walk's innovations
are beside the noise is learned from the residuals of the fitted steps, under a prior: fifteen steps say
little of it, a hundred much; a change in the fitted steps widens what follows, and the walk is followed from
where it was at the last of them. Outside the lengths that were fitted the model itself may be wrong, by more
the further away.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from oppo_sim.fit.features import Features

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Ratio(NamedTuple):
    """A log-normal belief of the variance of an innovation, a step, over that of the noise."""

    median: float
    sigma: float


GEN: Final = Ratio(0.02, 1.5)
TRAINING: Final = Ratio(0.05, 1.5)
"""Of windows of 15 steps of verl runs against what followed: after 5, 20, 45 and 80 steps metrics were 0.6,
0.9, 1 and 1.2 times their step noise off as a rule; update_actor of one run 8 times, generation of another 29
times (jianghoucheng/Agent_On_Policy_Distillation, develop runs; diqiuzhuanzhuan/verldata, both logs)."""
BEYOND_GEN: Final = 0.05
BEYOND_TRAINING: Final = 0.025
"""Relative error of the model for a step a factor of e outside those that were fitted; it grows as the root
of the logarithm. Of the same runs: generation 4 to 25 %, training 0.5 to 9 %, mostly about 1 %."""
_RATIOS: Final = np.exp(np.linspace(np.log(1e-4), np.log(30.0), 33))
_FEWEST: Final = 5
"""Residuals below which nothing is learned."""
_LEAST_NOISE: Final = 1e-3
_STALL: Final = 4.0
"""Noises from its neighbours at which a step stalled, and tells nothing of the walk."""


class Ahead(NamedTuple):
    """How far steps lie from what was fitted, one entry a step."""

    after: Floats
    """Steps since the last fitted one of the same run; 0 in a run that was not fitted."""
    beyond: Floats
    """Natural logarithm by which the step's lengths lie outside those that were fitted."""


class Walk(NamedTuple):
    """The random walk of a metric at the last fitted step; one entry a ratio of ``_RATIOS``."""

    weight: Floats
    """How probable the ratio is."""
    level: Floats
    """Mean of the walk there, and its variance."""
    variance: Floats
    noise: float
    """Standard deviation of a step's noise."""

    @property
    def centre(self) -> float:
        """Where the walk is believed to be."""
        return float(self.weight @ self.level)


def ahead_of(fitted: Sequence[Features], held: Features, last_step: int | None) -> Ahead:
    """``last_step``: the last fitted step of the same run; None: the run was not fitted."""
    after = np.zeros(len(held)) if last_step is None else np.maximum(held.steps - last_step, 0.0)
    return Ahead(np.asarray(after, dtype=np.float64), distance_beyond(fitted, held))


def distance_beyond(fitted: Sequence[Features], held: Features) -> Floats:
    """Natural logarithms by which a step's longest response, rollouts × iterations and tokens lie outside
    those of the fitted steps, the largest of them."""
    found = np.zeros(len(held))
    known, here = [np.log(_extent(each) + 1.0) for each in fitted], np.log(_extent(held) + 1.0)
    every = np.concatenate(known, axis=1)
    for row, seen in zip(here, every, strict=True):
        found = np.maximum(found, np.maximum(row - seen.max(), seen.min() - row))
    return found


def walk_of(residuals: Floats, steps: Ints, noise: float, *, generation: bool) -> Walk:
    """What residuals of the fitted steps (logarithms of measured over predicted; NaN: not measured) say of
    the walk: a Kalman filter a ratio.

    ``noise``: of a step, where there are too few residuals to tell it.
    """
    prior = GEN if generation else TRAINING
    weights = -0.5 * (np.log(_RATIOS / prior.median) / prior.sigma) ** 2
    residuals, steps, noise = _steady(residuals, steps, noise)
    level, variance = np.zeros(len(_RATIOS)), np.full(len(_RATIOS), noise**2)
    if len(residuals):
        level += residuals[0]
    for residual, apart in zip(residuals[1:], np.diff(steps), strict=True):
        variance = variance + _RATIOS * noise**2 * apart
        spread, off = variance + noise**2, residual - level
        weights = weights - 0.5 * (np.log(spread) + off**2 / spread)
        level = level + variance / spread * off
        variance = variance * noise**2 / spread
    weights = np.exp(weights - weights.max())
    return Walk(weights / weights.sum(), level, variance, noise)


def _steady(residuals: Floats, steps: Ints, noise: float) -> tuple[Floats, Ints, float]:
    """Without steps that stalled; and the noise, from how neighbours differ."""
    known = np.isfinite(residuals)
    residuals, steps = residuals[known], steps[known]
    if len(residuals) < _FEWEST:
        return residuals[:0], steps[:0], max(noise, _LEAST_NOISE)
    noise = max(float(np.median(np.abs(np.diff(residuals)))) / 0.6745 / np.sqrt(2.0), _LEAST_NOISE)
    around = np.lib.stride_tricks.sliding_window_view(np.pad(residuals, 2, mode="edge"), 5)
    steady = np.abs(residuals - np.median(around, axis=1)) <= _STALL * noise
    return residuals[steady], steps[steady], noise


def drawn_drift(
    ahead: Ahead, walk: Walk | None, *, generation: bool, draws: int, generator: np.random.Generator
) -> Floats:
    """Of the logarithm of seconds, draws × steps. ``walk`` None: of a run that was not fitted, which differs
    as runs do; that is not in here."""
    error = BEYOND_GEN if generation else BEYOND_TRAINING
    found: Floats = error * np.sqrt(ahead.beyond) * generator.standard_normal((draws, 1))
    if walk is None:
        return found
    chosen = generator.choice(len(walk.weight), size=draws, p=walk.weight)
    order = np.argsort(ahead.after, kind="stable")
    apart = np.diff(ahead.after[order], prepend=0.0)
    path = np.empty((draws, len(apart)))
    path[:, order] = np.cumsum(np.sqrt(apart) * generator.standard_normal((draws, len(apart))), axis=1)
    start = walk.level[chosen] + np.sqrt(walk.variance[chosen]) * generator.standard_normal(draws)
    return found + start[:, None] + (walk.noise * np.sqrt(_RATIOS[chosen]))[:, None] * path


def _extent(features: Features) -> Floats:
    return np.array([features.iterations[0], features.area[0], features.tokens])
