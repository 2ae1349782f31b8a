"""Lognormal, Weibull and a mixture of two lognormals, over real-valued tokens before rounding and cutting."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import gammainc, ndtr, ndtri

from oppo_sim.traces.config import PARAMETERS

Floats = npt.NDArray[np.float64]


class LengthDistribution(Protocol):
    """What fitting, solving and drawing need of a distribution."""

    @property
    def name(self) -> str:
        """``lognormal``, ``weibull`` or ``mixture``."""

    def cdf(self, x: Any) -> Floats:
        """P(X ≤ x)."""

    def sf(self, x: Any) -> Floats:
        """P(X > x), exact in the far tail."""

    def quantile(self, u: Any) -> Floats:
        """The inverse of ``cdf``, u in (0, 1)."""

    def mean(self, cut: float = math.inf) -> float:
        """E[min(X, cut)], tokens."""


@dataclass(frozen=True)
class Lognormal:
    """ln X is normal with mean ``mu`` and standard deviation ``sigma``."""

    mu: float
    sigma: float
    name = "lognormal"

    def cdf(self, x: Any) -> Floats:
        return _normal_cdf(self._score(x))

    def sf(self, x: Any) -> Floats:
        return _normal_cdf(-self._score(x))

    def quantile(self, u: Any) -> Floats:
        result: Floats = np.exp(self.mu + self.sigma * ndtri(u))
        return result

    def mean(self, cut: float = math.inf) -> float:
        try:
            whole = math.exp(self.mu + self.sigma**2 / 2)
        except OverflowError:
            whole = math.inf
        if math.isinf(cut):
            return whole
        score = (math.log(cut) - self.mu) / self.sigma
        below = float(_normal_cdf(score - self.sigma))
        return (whole * below if below else 0.0) + cut * float(_normal_cdf(-score))

    def _score(self, x: Any) -> Any:
        return (_log(x) - self.mu) / self.sigma


@dataclass(frozen=True)
class Weibull:
    """P(X > x) = exp(−(x / scale)^shape)."""

    shape: float
    scale: float
    name = "weibull"

    def cdf(self, x: Any) -> Floats:
        result: Floats = -np.expm1(-self._hazard(x))
        return result

    def sf(self, x: Any) -> Floats:
        result: Floats = np.exp(-self._hazard(x))
        return result

    def quantile(self, u: Any) -> Floats:
        result: Floats = self.scale * (-np.log1p(-np.asarray(u))) ** (1 / self.shape)
        return result

    def mean(self, cut: float = math.inf) -> float:
        try:
            whole = self.scale * math.gamma(1 + 1 / self.shape)
        except OverflowError:
            whole = math.inf
        if math.isinf(cut):
            return whole
        hazard = float(self._hazard(cut))
        below = float(gammainc(1 + 1 / self.shape, hazard))
        return (whole * below if below else 0.0) + cut * math.exp(-hazard)

    def _hazard(self, x: Any) -> Any:
        with np.errstate(over="ignore"):
            return (np.asarray(x, dtype=float) / self.scale) ** self.shape


@dataclass(frozen=True)
class Mixture:
    """A lognormal with probability 1 − ``weight_2``, a longer one with ``weight_2``."""

    mu_1: float
    sigma_1: float
    mu_2: float
    sigma_2: float
    weight_2: float
    name = "mixture"

    def cdf(self, x: Any) -> Floats:
        return (1 - self.weight_2) * self._first.cdf(x) + self.weight_2 * self._second.cdf(x)

    def sf(self, x: Any) -> Floats:
        return (1 - self.weight_2) * self._first.sf(x) + self.weight_2 * self._second.sf(x)

    def quantile(self, u: Any) -> Floats:
        # No closed form: interpolated between normal scores, which are nearly straight in ln x.
        reach = np.linspace(-9.0, 9.0, 4001)
        logs = np.unique(np.concatenate([self.mu_1 + self.sigma_1 * reach, self.mu_2 + self.sigma_2 * reach]))
        points = np.exp(logs)
        below, above = self.cdf(points), self.sf(points)
        scores = np.where(below < 0.5, ndtri(below), -ndtri(above))
        rising = np.isfinite(scores) & np.concatenate([[True], np.diff(np.maximum.accumulate(scores)) > 0])
        result: Floats = np.exp(np.interp(ndtri(u), scores[rising], logs[rising]))
        return result

    def mean(self, cut: float = math.inf) -> float:
        return (1 - self.weight_2) * self._first.mean(cut) + self.weight_2 * self._second.mean(cut)

    @property
    def _first(self) -> Lognormal:
        return Lognormal(self.mu_1, self.sigma_1)

    @property
    def _second(self) -> Lognormal:
        return Lognormal(self.mu_2, self.sigma_2)


def make_distribution(name: str, parameters: Mapping[str, float]) -> Lognormal | Weibull | Mixture:
    """The distribution of that name; ``parameters`` as in ``config.PARAMETERS``."""
    kinds: dict[str, type[Lognormal | Weibull | Mixture]] = {
        "lognormal": Lognormal,
        "weibull": Weibull,
        "mixture": Mixture,
    }
    return kinds[name](**{key: parameters[key] for key in PARAMETERS[name]})


def parameters_of(distribution: Lognormal | Weibull | Mixture) -> dict[str, float]:
    """Its parameters by name."""
    return {key: float(value) for key, value in asdict(distribution).items()}


def _normal_cdf(score: Any) -> Floats:
    result: Floats = ndtr(score)
    return result


def _log(x: Any) -> Any:
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(x, dtype=float))
