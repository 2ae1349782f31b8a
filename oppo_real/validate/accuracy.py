"""What a comparison of predicted and measured runs says: numbers of both sides, errors, intervals, ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Final

import numpy as np

SETTLED: Final = 1.25
"""Of a predicted speed-up, the upper end of the calibration's interval over the lower, at most."""
_SAME_WORK: Final = 1.1
"""A predicted count over that of some repeat, at most, or the other way round."""


@dataclass(frozen=True)
class Prediction:
    """A number predicted and measured; seconds, lock-step iterations, or a count."""

    predicted: float
    measured: float
    lowest: float
    highest: float
    """Of the repeats."""

    @property
    def error(self) -> float:
        """predicted / measured − 1; NaN where nothing was measured."""
        return self.predicted / self.measured - 1.0 if self.measured else nan

    @property
    def spread(self) -> float:
        """(highest − lowest) / measured, over the repeats."""
        return (self.highest - self.lowest) / self.measured if self.measured else nan


@dataclass(frozen=True)
class Distribution:
    """Shares of the trained rollouts with 0, 1, … updates of staleness (or deferrals), after the warm-up; of
    all repeats together. Both of one length."""

    predicted: tuple[float, ...]
    measured: tuple[float, ...]


@dataclass(frozen=True)
class Speedup:
    """Of a policy against the baseline, by trained rollouts."""

    policy: str
    predicted: float
    predicted_low: float
    predicted_high: float
    measured: float
    measured_low: float
    measured_high: float
    calibrated: tuple[float, float]
    """The interval of the calibration alone, without the noise of runs."""

    @property
    def error(self) -> float:
        """predicted / measured − 1."""
        return self.predicted / self.measured - 1.0

    @property
    def settled(self) -> bool:
        """Visits and rounds of the calibration say alike things, as far as it can be seen; if not, nothing
        is predicted."""
        low, high = self.calibrated
        return not high > SETTLED * low


@dataclass(frozen=True)
class Pair:
    """Two policies beside each other. Ratios of step seconds, the first's over the second's."""

    first: str
    second: str
    predicted: float
    measured: float
    low: float
    high: float

    @property
    def swapped(self) -> bool:
        """Measured in the other order than predicted."""
        return (self.predicted - 1.0) * (self.measured - 1.0) < 0.0

    @property
    def turned(self) -> "Pair":
        """The second over the first."""
        return Pair(
            self.second, self.first, 1 / self.predicted, 1 / self.measured, 1 / self.high, 1 / self.low
        )

    @property
    def told_apart(self) -> bool:
        """The repeats show the measured order: their 95 % interval leaves out 1. One repeat shows nothing."""
        return self.low > 1.0 or self.high < 1.0


@dataclass(frozen=True)
class Agreement:
    """Decisions of one real run beside those of its prediction, over all steps, warm-up included."""

    policy: str
    repeat: int
    steps: int
    alike: int
    """Steps with the same decisions."""
    first_difference: int | None
    """First step that differs; None: none does."""
    why: str
    """What differs there; empty where nothing does."""
    trained_alike: float
    """Share of trained rollouts that the prediction trained in the same step."""


@dataclass(frozen=True)
class PredictionAccuracy:
    """All of it, by policy in the order of the request; the first policy is the baseline of the speed-ups."""

    stages: Mapping[str, Mapping[str, Prediction]]
    """Mean of the steps after the warm-up, by stage."""
    steps: Mapping[str, Sequence[Mapping[str, Prediction]]]
    """Every step, warm-up included."""
    work: Mapping[str, Mapping[str, Prediction]]
    """Counts a step, after the warm-up."""
    speedups: Sequence[Speedup]
    agreements: Sequence[Agreement]
    warmup_steps: int
    shares: Mapping[str, Mapping[str, Distribution]] = field(default_factory=dict)
    """By policy, of ``columns.DISTRIBUTIONS``."""
    pairs: Sequence[Pair] = ()
    """Of all policies."""

    @property
    def swaps(self) -> tuple[Pair, ...]:
        """Pairs that are measured in the other order than predicted."""
        return tuple(pair for pair in self.pairs if pair.swapped)

    @property
    def told_apart(self) -> tuple[Pair, ...]:
        """Pairs whose measured order the repeats show."""
        return tuple(pair for pair in self.pairs if pair.told_apart)

    @property
    def rank_agreement(self) -> float:
        """Kendall's tau-b of the policies by step time: 1 where no pair is in the other order, −1 where all
        are; NaN where one side tells no two apart. Of pairs, so that runs of one round stay together."""
        predicted, measured = np.sign(
            [(pair.predicted - 1.0, pair.measured - 1.0) for pair in self.pairs] or [(0.0, 0.0)]
        ).T
        ordered = float(np.sqrt((predicted**2).sum() * (measured**2).sum()))
        return float(predicted @ measured) / ordered if ordered else nan

    @property
    def unsettled(self) -> tuple[Speedup, ...]:
        """Speed-ups that the calibration disagrees with itself about."""
        return tuple(one for one in self.speedups if not one.settled)

    @property
    def lost_to(self) -> Pair | None:
        """The policy that is predicted fastest beside the one it loses most to; None: it loses to none."""
        chosen = min(self.stages, key=lambda policy: self.stages[policy]["step"].predicted)
        beside = [pair for pair in self.pairs if pair.first == chosen]
        beside += [pair.turned for pair in self.pairs if pair.second == chosen]
        worst = max(beside, key=lambda pair: pair.measured, default=None)
        return worst if worst is not None and worst.measured > 1.0 else None

    @property
    def regret(self) -> float:
        """By how much a measured step of the policy that is predicted fastest is longer than one of the
        policy it loses most to; a share of 1, 0 where it loses to none."""
        lost = self.lost_to
        return 0.0 if lost is None else lost.measured - 1.0

    @property
    def unlike_work(self) -> tuple[tuple[str, str, Prediction], ...]:
        """Policy and count where no repeat did what is predicted, within ``_SAME_WORK``: not its seconds are
        wrong, but what it does."""
        return tuple(
            (policy, name, cell)
            for policy, cells in self.work.items()
            for name, cell in cells.items()
            if not cell.lowest / _SAME_WORK <= cell.predicted <= cell.highest * _SAME_WORK
        )

    def largest_error(self, policy: str) -> tuple[str, float]:
        """The stage whose error moves the step most, and by what share of the measured step."""
        cells = self.stages[policy]
        whole = cells["step"].measured
        shares = {
            stage: (cell.predicted - cell.measured) / whole
            for stage, cell in cells.items()
            if stage != "step"
        }
        worst = max(shares, key=lambda stage: abs(shares[stage]))
        return worst, shares[worst]
