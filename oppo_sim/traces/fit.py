"""Fit distributions to the lengths of a trace, knowing that cut responses would have been longer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from oppo_sim.columns import FINISH_REASON, RESPONSE_LENGTH
from oppo_sim.errors import OppoError
from oppo_sim.traces.distributions import LengthDistribution, Lognormal, Mixture, Weibull, parameters_of

Floats = npt.NDArray[np.float64]


MIN_ROWS: Final = 10
_SIGMA_BOUNDS: Final = (math.log(0.005), math.log(20.0))
"""Of ln σ: narrower than the grid of whole tokens would let a mixture sit on a single length."""

_MIXTURE_SIGMA_BOUNDS: Final = (math.log(0.005), math.log(2.5))
"""Wider would explain one-token answers and cut ones at once, the cut ones at absurd lengths."""


@dataclass(frozen=True)
class Fit:
    """One distribution fitted to a trace."""

    distribution: str
    parameters: dict[str, float]
    """As in ``config.PARAMETERS``; what ``oppo trace synth`` and ``SynthConfig.parameters`` take."""
    log_likelihood: float
    aic: float
    """2 · parameters − 2 · log-likelihood: lower is better, and differences count."""
    ks_distance: float
    """Largest gap between the fitted and the observed (Kaplan–Meier) distribution at lengths not cut."""
    mean_to_longest: float
    """E[min(X, longest response of the trace)], tokens: to be compared with the trace's own mean."""
    mean: float
    """Of the fitted distribution without any cut, tokens, an extrapolation; so are the quantiles."""
    p50: float
    p99: float


@dataclass(frozen=True)
class TraceFit:
    """All fits of a trace, best first."""

    rows: int
    cut_rows: int
    """Responses cut at a maximum: right-censored."""
    longest: int
    warnings: tuple[str, ...]
    fits: tuple[Fit, ...]

    @property
    def best(self) -> Fit:
        """The fit with the lowest AIC."""
        return self.fits[0]


@dataclass(frozen=True)
class _Counts:
    """Distinct lengths and how often each was seen, finished and cut."""

    lengths: Floats
    finished: Floats
    cut: Floats


def fit_trace(frame: pd.DataFrame) -> TraceFit:
    """Fit lognormal, Weibull and a mixture of two lognormals by maximum likelihood; the lowest AIC comes
    first.

    A length n of whole tokens stands for (n − ½, n + ½], 0 and 1 for everything up to 1½; rows with
    ``finish_reason`` length are right-censored (longer than n − ½). Aborted rows are left out. Raises
    OppoError for fewer than 10 rows or if all were cut.
    """
    used = frame[(frame[FINISH_REASON] != "abort").fillna(True).to_numpy(dtype=bool)]
    lengths = np.maximum(used[RESPONSE_LENGTH].to_numpy(dtype=np.int64), 1)
    cut = (used[FINISH_REASON] == "length").to_numpy(dtype=bool)
    if len(lengths) < MIN_ROWS:
        raise OppoError(
            f"the trace has {len(lengths)} finished rollouts, too few to fit: give at least {MIN_ROWS}"
        )
    if cut.all():
        raise OppoError(
            "every response of the trace was cut at the maximum: there is no length to fit, give a trace with"
            " finished responses"
        )
    values, where = np.unique(lengths, return_inverse=True)
    counts = _Counts(
        values.astype(float), np.bincount(where, ~cut).astype(float), np.bincount(where, cut).astype(float)
    )
    found: list[Lognormal | Weibull | Mixture] = [
        _fit_lognormal(counts),
        _fit_weibull(counts),
        _fit_mixture(counts),
    ]
    fits = sorted((_judged(distribution, counts) for distribution in found), key=lambda fit: fit.aic)
    return TraceFit(
        len(lengths), int(cut.sum()), int(lengths.max()), tuple(_warnings(used, lengths)), tuple(fits)
    )


def _warnings(used: pd.DataFrame, lengths: npt.NDArray[np.int64]) -> list[str]:
    reasons = used[FINISH_REASON]
    at_max = lengths == lengths.max()
    suspicious = int((at_max & reasons.isna().to_numpy(dtype=bool)).sum())
    if suspicious >= max(5, 0.005 * len(lengths)):
        return [
            f"{suspicious} responses are exactly {lengths.max()} tokens long and have no finish_reason: if"
            " they were cut there, say so in finish_reason, and the tail will come out longer"
        ]
    return []


def _log_likelihood(distribution: LengthDistribution, counts: _Counts) -> float:
    low, high = counts.lengths - 0.5, counts.lengths + 0.5
    low = np.where(counts.lengths <= 1, 0.0, low)
    below, above = distribution.cdf(low), distribution.sf(low)
    # The smaller tail keeps the digits of a small difference.
    mass = np.where(below < 0.5, distribution.cdf(high) - below, above - distribution.sf(high))
    logs = np.log(np.maximum(mass, 1e-300))
    return float(counts.finished @ logs + counts.cut @ np.log(np.maximum(above, 1e-300)))


def _maximise(
    build: Callable[[Floats], LengthDistribution],
    starts: Sequence[Sequence[float]],
    bounds: Sequence[tuple[float, float]],
    counts: _Counts,
) -> Floats:
    """Free parameters of the highest likelihood found from ``starts``."""
    from scipy.optimize import minimize

    total = float(counts.finished.sum() + counts.cut.sum())
    best: Any = None
    for start in starts:
        inside = [min(max(value, low), high) for value, (low, high) in zip(start, bounds, strict=True)]
        found = minimize(
            lambda free: -_log_likelihood(build(free), counts) / total,
            np.array(inside),
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": 500, "ftol": 1e-13, "gtol": 1e-8},
        )
        if best is None or found.fun < best.fun:
            best = found
    result: Floats = best.x
    return result


def _fit_lognormal(counts: _Counts) -> Lognormal:
    def build(free: Floats) -> Lognormal:
        return Lognormal(float(free[0]), math.exp(free[1]))

    mu, sigma = _log_moments(counts.lengths, counts.finished + counts.cut)
    return build(
        _maximise(
            build, [(mu, math.log(sigma)), (mu + 1, math.log(sigma) + 0.5)], [(-5, 25), _SIGMA_BOUNDS], counts
        )
    )


def _fit_weibull(counts: _Counts) -> Weibull:
    def build(free: Floats) -> Weibull:
        return Weibull(math.exp(free[1]), math.exp(free[0]))

    mu, sigma = _log_moments(counts.lengths, counts.finished + counts.cut)
    # ln of a Weibull has standard deviation π / (√6 · shape).
    shape = math.pi / (math.sqrt(6) * sigma)
    bounds = [(-5.0, 25.0), (math.log(0.05), math.log(500.0))]
    return build(_maximise(build, [(mu + 0.5772 / shape, math.log(shape)), (mu + 1, 0.0)], bounds, counts))


def _fit_mixture(counts: _Counts) -> Mixture:
    def build(free: Floats) -> Mixture:
        return Mixture(
            float(free[0]), math.exp(free[1]), float(free[2]), math.exp(free[3]), 1 / (1 + math.exp(-free[4]))
        )

    # One start for each way to split the sorted lengths into a short and a long part.
    weights = counts.finished + counts.cut
    reached = np.cumsum(weights) / weights.sum()
    starts = []
    for share in (0.2, 0.5, 0.8, 0.95):
        short = reached <= max(share, reached[0])
        if short.all():
            continue
        mu_1, sigma_1 = _log_moments(counts.lengths[short], weights[short])
        mu_2, sigma_2 = _log_moments(counts.lengths[~short], weights[~short])
        weight = float(weights[~short].sum() / weights.sum())
        starts.append((mu_1, math.log(sigma_1), mu_2, math.log(sigma_2), math.log(weight / (1 - weight))))
    mu, sigma = _log_moments(counts.lengths, weights)
    starts.append((mu - sigma / 2, math.log(sigma), mu + sigma / 2, math.log(sigma), 0.0))
    mu_bounds = (0.0, math.log(counts.lengths[-1]) + 3)
    found = build(
        _maximise(
            build,
            starts,
            [mu_bounds, _MIXTURE_SIGMA_BOUNDS, mu_bounds, _MIXTURE_SIGMA_BOUNDS, (-12, 12)],
            counts,
        )
    )
    if found.mu_1 <= found.mu_2:
        return found
    return Mixture(found.mu_2, found.sigma_2, found.mu_1, found.sigma_1, 1 - found.weight_2)


def _log_moments(lengths: Floats, weights: Floats) -> tuple[float, float]:
    """Mean and standard deviation (at least 0.05) of ln(tokens)."""
    logs = np.log(lengths)
    mean = float(np.average(logs, weights=weights))
    return mean, max(0.05, math.sqrt(float(np.average((logs - mean) ** 2, weights=weights))))


def _judged(distribution: Lognormal | Weibull | Mixture, counts: _Counts) -> Fit:
    parameters = parameters_of(distribution)
    likelihood = _log_likelihood(distribution, counts)
    return Fit(
        distribution.name,
        parameters,
        likelihood,
        2 * len(parameters) - 2 * likelihood,
        _ks_distance(distribution, counts),
        distribution.mean(float(counts.lengths[-1])),
        distribution.mean(),
        float(distribution.quantile(0.5)),
        float(distribution.quantile(0.99)),
    )


def _ks_distance(distribution: LengthDistribution, counts: _Counts) -> float:
    at_risk = np.cumsum((counts.finished + counts.cut)[::-1])[::-1]
    survival = np.cumprod(1 - counts.finished / at_risk)
    seen = counts.finished > 0
    return float(np.abs((1 - survival) - distribution.cdf(counts.lengths + 0.5))[seen].max())
