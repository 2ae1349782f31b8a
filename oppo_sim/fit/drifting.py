"""How far a run, and the model, may move away from the steps that were fitted.

Seconds of a stage do a random walk in their logarithm: neighbours on a shared host, clocks, fragmented
memory. Outside the lengths that were fitted the model itself may be wrong, by more the further away.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from oppo_sim.fit.features import Features

Floats = npt.NDArray[np.float64]


class Walk(NamedTuple):
    """Scale ``start`` · √(1 + steps / ``horizon``) of a Student-t."""

    start: float
    horizon: float


GEN: Final = Walk(0.025, 30.0)
TRAINING: Final = Walk(0.005, 7.0)
TAIL: Final = 3.0
"""Of windows of 15 steps of verl runs against what followed: generation 1 to 4 % off, once 40 % for 90 steps;
training 0.2 to 1.5 %, once 8 % after 90 steps (jianghoucheng/Agent_On_Policy_Distillation, develop runs;
diqiuzhuanzhuan/verldata, both logs)."""
BEYOND: Final = 0.05
"""Relative error of the model for a step a factor of e outside those that were fitted; it grows as the root
of the logarithm. Of the same runs: 2 to 9 % where lengths had doubled, 1 to 13 % where they had fallen to a
fiftieth."""


class Ahead(NamedTuple):
    """How far steps lie from what was fitted, one entry a step."""

    after: Floats
    """Steps since the last fitted one of the same run; 0 in a run that was not fitted."""
    beyond: Floats
    """Natural logarithm by which the step's lengths lie outside those that were fitted."""


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


def drawn_drift(
    ahead: Ahead, *, generation: bool, seen: bool, draws: int, generator: np.random.Generator
) -> Floats:
    """Of the logarithm of seconds, draws × steps. Runs that were not fitted differ as runs do, which is not
    in here."""
    found: Floats = BEYOND * np.sqrt(ahead.beyond) * generator.standard_normal((draws, 1))
    if not seen:
        return found
    walk = GEN if generation else TRAINING
    order = np.argsort(ahead.after, kind="stable")
    apart = np.diff(ahead.after[order], prepend=0.0)
    moved = np.sqrt(apart / walk.horizon) * generator.standard_normal((draws, len(apart)))
    path = np.empty_like(moved)
    path[:, order] = generator.standard_normal((draws, 1)) + np.cumsum(moved, axis=1)
    heavy = np.sqrt(TAIL / generator.chisquare(TAIL, size=(draws, 1)))
    return found + walk.start * heavy * path


def _extent(features: Features) -> Floats:
    return np.array([features.iterations[0], features.area[0], features.tokens])
