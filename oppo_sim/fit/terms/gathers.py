"""Seconds in which ranks of a fully sharded model gather its weights, beside the arithmetic.

The slower of the two counts. How much of a link gathers reach is known least: a third to three quarters of
PCIe. Where gathers are, or could well be, the slower, their rate is an unknown of its own: a factor on the
stage would slow its arithmetic too, and predict longer steps wrongly.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from oppo_sim.columns import TRAINING_STAGES
from oppo_sim.costs.interface import TrainingCost
from oppo_sim.costs.priors import Prior
from oppo_sim.costs.roofline_training import RooflineTraining

Floats = npt.NDArray[np.float64]
Seconds = Mapping[str, Floats]
"""By training stage, one entry a step."""

GATHER: Final = "gather"
"""Factor on the seconds of gathers; no term of costs."""
PRIOR: Final = Prior(
    GATHER,
    1.0,
    0.5,
    "shares of a link that gathers reach: 0.68 to 0.74 over NVLink, 0.36 to 0.74 over PCIe, 0.44 between"
    " eight cards of PCIe Gen5 (docs/costs.md; NVIDIA/nccl#1639); 0.70 assumed",
)
BETWEEN_NODES: Final = Prior(
    GATHER,
    1.0,
    1.2,
    "links between nodes are 25 Gb/s (Ethernet) to 400 Gb/s (InfiniBand) a GPU, and a scenario hardly knows"
    " them: on 64 H20 in eight nodes weights came at 3 GB/s a GPU (docs/fit.md)",
)
_REACH: Final = 1.96
"""How many standard deviations of the prior a factor may well be above its median."""
_COUNTS: Final = 0.01
"""Of a stage's seconds."""
_DEAR: Final = 1e6
"""A factor with which gathers are all of a stage."""


class Gathers(NamedTuple):
    """A training stage under a factor f on its gathers: max(alone, beside + f · gathered) seconds a step."""

    alone: Floats
    beside: Floats
    gathered: Floats

    def seconds(self, stage: Floats, gathers: Floats) -> Floats:
        """Under factors on what is no gather, and on gathers; both broadcast with the steps."""
        found: Floats = np.maximum(stage * self.alone, stage * self.beside + gathers * self.gathered)
        return found

    def as_terms(self, stage: Floats, gathers: Floats) -> tuple[Floats, Floats]:
        """A factor on the stage as the scenario says it, and seconds, that give the same seconds as nearly as
        they can over these steps; ``stage`` and ``gathers`` one entry a draw."""
        said = self.seconds(np.ones(1), np.ones(1))
        wanted = self.seconds(stage[:, None], gathers[:, None])
        apart, mean = said - said.mean(), wanted.mean(axis=1)
        most = mean / said.mean()
        if said.std() <= _COUNTS * said.mean():
            return most, np.zeros_like(most)
        # Where gathers are all of it no length changes a stage; a factor is never 0.
        factor = np.clip((wanted * apart).mean(axis=1) / (apart**2).mean(), _COUNTS * most, most)
        return factor, mean - factor * said.mean()

    def taken(self, rows: npt.NDArray[np.bool_] | slice) -> "Gathers":
        """Some of the steps."""
        return Gathers(*(each[rows] for each in self))


def prior_of(between_nodes: bool) -> Prior:
    """What is believed of the factor."""
    return BETWEEN_NODES if between_nodes else PRIOR


def gathers_of(training: TrainingCost, seconds: Callable[[TrainingCost], Seconds]) -> dict[str, Gathers]:
    """By training stage whose seconds depend on the rate of gathers. ``seconds``: of every step under some
    costs. Empty where nothing is sharded so, or gathers hide behind the arithmetic."""
    if not isinstance(training, RooflineTraining) or training.training.sharding != "full":
        return {}
    at = [seconds(replace(training, gather_factor=factor)) for factor in (0.0, _DEAR, 2.0 * _DEAR)]
    prior = prior_of(training.gather_link_bytes_per_s is not None)
    reach = prior.median * np.exp(_REACH * prior.sigma)
    found = {}
    for stage in (name for name in TRAINING_STAGES if name != "update_weights"):
        none, dear, dearer = (each[stage] for each in at)
        gathered = (dearer - dear) / _DEAR
        gathers = Gathers(none, dear - _DEAR * gathered, gathered)
        if np.any(gathers.seconds(np.ones(1), np.full(1, reach)) > (1.0 + _COUNTS) * none):
            found[stage] = gathers
    return found
