"""How far a run, and the model, may move away from the steps that were fitted.

Seconds of a metric, in logarithms, are the model's, noise of each step, and a random walk: neighbours on a
shared host, clocks, fragmented memory (a local level model, damped: Harvey 1989). It returns to the model in
``RETURN`` steps or so: runs do not move away for ever. How large the walk's innovations
are beside the noise is learned from the residuals of the fitted steps, under a prior: fifteen steps say
little of it, a hundred much. The metrics of a run are on one machine, so that each also says something of the
others' walks. A change in the fitted steps widens what follows, and the walk is followed from where it was at
the last of them. Beside it the level may change at once, which no step before shows: that is allowed for at
the rate at which it was seen in public runs. Outside the lengths that were fitted the model itself may be
wrong, by more the further away.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from oppo_sim.fit.terms.features import Features

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

GEN: Final = 0.02
TRAINING: Final = 0.05
"""Variance of an innovation, a step, over that of the noise: median of what is believed. Of windows of 15
steps of verl runs against what followed: after 5, 20, 45 and 80 steps metrics were 0.6, 0.9, 1 and 1.2 times
their step noise off as a rule; update_actor of one run 8 times, generation of another 29 times
(jianghoucheng/Agent_On_Policy_Distillation, develop runs; diqiuzhuanzhuan/verldata, both logs)."""
RETURN: Final = 60.0
"""Steps in which a walk returns by a factor of e. Of the same windows: for the 0.6, 0.9, 1 and 1.2 times the
noise above, it gives 0.5, 0.9, 1.1 and 1.2; without it a walk is 2 times off after 80 steps."""
_OF_RUN: Final = 1.8
_OF_METRIC: Final = 0.9
"""Spread of its logarithm between runs, and between the metrics of one; of windows of the same runs, by the
score of their intervals."""
CHANGES: Final = (0.5, 1 / 400)
"""Shape and mean of the gamma distribution of changes of level a step: three in 1,400 steps and metrics of
the develop runs, all of them in two."""
CHANGE: Final = 0.1
"""Standard deviation of the logarithm of a change."""
LASTS: Final = 100.0
"""Steps that a changed level holds, in the mean. In the develop runs they held 9 to 90, none
to the end."""
BEYOND_GEN: Final = 0.05
BEYOND_TRAINING: Final = 0.025
"""Relative error of the model for a step a factor of e outside those that were fitted; it grows as the root
of the logarithm. Of the same runs: generation 4 to 25 %, training 0.5 to 9 %, mostly about 1 %."""
_RATIOS: Final = np.exp(np.linspace(np.log(1e-4), np.log(30.0), 33))
_SHIFTS: Final = np.linspace(-3.0, 3.0, 25) * _OF_RUN
_FEWEST: Final = 5
"""Residuals below which nothing is learned."""
_LEAST_NOISE: Final = 1e-3
_STALL: Final = 4.0
"""Noises from its neighbours at which a step stalled, and says nothing of the walk."""


class Residuals(NamedTuple):
    """What the model leaves of a metric in the fitted steps."""

    off: Floats
    """Logarithms of measured over predicted seconds; NaN: not measured."""
    noise: float
    """Of a step, where there are too few of them to estimate it."""
    generation: bool


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
    steps: int
    """Fitted steps."""

    def centre(self, after: Floats) -> Floats:
        """Where the walk is believed to be so many steps after the last fitted one."""
        found: Floats = float(self.weight @ self.level) * np.exp(-after / RETURN)
        return found

    def noise_alone(self, chosen: Ints) -> Floats:
        """Of the scale that a fit without a walk gives a step, the part that is no walk; one entry a draw.
        The fitted steps lie around their mean by a sixth of their number of innovations, too."""
        found: Floats = 1.0 / np.sqrt(1.0 + _RATIOS[chosen] * self.steps / 6.0)
        return found


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


def walks_of_run(metrics: Mapping[str, Residuals], steps: Ints) -> dict[str, Walk]:
    """What the fitted ``steps`` of a run say of the walk of each of its metrics."""
    filtered = {name: _filtered(each, steps) for name, each in metrics.items()}
    evidence: dict[str, Floats] = {}
    believed: dict[str, Floats] = {}
    run = -0.5 * (_SHIFTS / _OF_RUN) ** 2
    for name, each in metrics.items():
        middle = np.log(GEN if each.generation else TRAINING) + _SHIFTS[:, None]
        belief = np.exp(-0.5 * ((np.log(_RATIOS) - middle) / _OF_METRIC) ** 2)
        # Shifts × ratios: how probable a ratio is in a run of that shift, and with the residuals.
        believed[name] = belief / belief.sum(axis=1, keepdims=True) * filtered[name].weight
        evidence[name] = np.log(believed[name].sum(axis=1))
        run = run + evidence[name]
    found = {}
    for name, walk in filtered.items():
        others = run - evidence[name]
        weight = np.exp(others - others.max()) @ believed[name]
        found[name] = walk._replace(weight=weight / weight.sum())
    return found


def _filtered(metric: Residuals, steps: Ints) -> Walk:
    """A Kalman filter a ratio; its weight is the likelihood alone."""
    residuals, kept, noise = _steady(metric.off, steps, metric.noise)
    weights = np.zeros(len(_RATIOS))
    level, variance = np.zeros(len(_RATIOS)), np.full(len(_RATIOS), noise**2)
    if len(residuals):
        level += residuals[0]
    for residual, apart in zip(residuals[1:], np.diff(kept), strict=True):
        kept_share = np.exp(-apart / RETURN)
        level = level * kept_share
        variance = variance * kept_share**2 + _RATIOS * noise**2 * _innovations(apart)
        spread, off = variance + noise**2, residual - level
        weights = weights - 0.5 * (np.log(spread) + off**2 / spread)
        level = level + variance / spread * off
        variance = variance * noise**2 / spread
    return Walk(np.exp(weights - weights.max()), level, variance, noise, len(steps))


def _innovations(apart: Floats) -> Floats:
    """Of so many steps together, in those of one."""
    found: Floats = RETURN / 2.0 * -np.expm1(-2.0 * np.asarray(apart) / RETURN)
    return found


def _steady(residuals: Floats, steps: Ints, noise: float) -> tuple[Floats, Ints, float]:
    """Without steps that stalled; and the noise, from how neighbours differ."""
    known = np.isfinite(residuals)
    residuals, steps = residuals[known], steps[known]
    if len(residuals) < _FEWEST:
        return residuals[:0], steps[:0], max(noise, _LEAST_NOISE)
    noise = max(float(np.median(np.abs(np.diff(residuals)))) / 0.6745 / np.sqrt(2.0), _LEAST_NOISE)
    around = np.lib.stride_tricks.sliding_window_view(np.pad(residuals, 2, mode="reflect"), 5)
    steady = np.abs(residuals - np.median(around, axis=1)) <= _STALL * noise
    return residuals[steady], steps[steady], noise


def drawn_drift(
    ahead: Ahead,
    walk: Walk | None,
    *,
    generation: bool,
    draws: int,
    generator: np.random.Generator,
) -> tuple[Floats, Floats]:
    """Of the logarithm of seconds, draws × steps; and ``Walk.noise_alone``, draws × 1. ``walk`` None: of a
    run that was not fitted, which differs as runs do; that is not in here."""
    error = BEYOND_GEN if generation else BEYOND_TRAINING
    found: Floats = error * np.sqrt(ahead.beyond) * generator.standard_normal((draws, 1))
    if walk is None:
        return found, np.ones((draws, 1))
    chosen = generator.choice(len(walk.weight), size=draws, p=walk.weight)
    order = np.argsort(ahead.after, kind="stable")
    apart = np.diff(ahead.after[order], prepend=0.0)
    size = (draws, len(apart))
    innovations = (walk.noise * np.sqrt(_RATIOS[chosen]))[:, None] * np.sqrt(_innovations(apart))
    shape, mean = CHANGES
    rate = generator.gamma(shape, 1.0 / (shape / mean + walk.steps), draws)
    level = walk.level[chosen] + np.sqrt(walk.variance[chosen]) * generator.standard_normal(draws)
    moved = innovations * generator.standard_normal(size)
    walked = np.empty(size)
    for place, share in enumerate(np.exp(-apart / RETURN)):
        level = level * share + moved[:, place]
        walked[:, place] = level
    path = np.empty(size)
    path[:, order] = walked + _changed_levels(ahead.after[order], rate, generator)
    return found + path, walk.noise_alone(chosen)[:, None]


def _changed_levels(after: Floats, rate: Floats, generator: np.random.Generator) -> Floats:
    """Sum of the changes of level that hold in steps, ascending, of draws of the rate a step; draws ×
    steps."""
    last = after[-1] if len(after) else 0.0
    counts = generator.poisson(rate * last)
    total = int(counts.sum())
    draw = np.repeat(np.arange(len(rate)), counts)
    begins = generator.uniform(0.0, last, total)
    ends = begins + LASTS * generator.standard_exponential(total)
    by = CHANGE * generator.standard_normal(total)
    moves = np.zeros((len(rate), len(after) + 1))
    np.add.at(moves, (draw, np.searchsorted(after, begins)), by)
    np.add.at(moves, (draw, np.searchsorted(after, ends)), -by)
    found: Floats = np.cumsum(moves, axis=1)[:, :-1]
    return found


def _extent(features: Features) -> Floats:
    return np.array([features.iterations[0], features.area[0], features.tokens])
