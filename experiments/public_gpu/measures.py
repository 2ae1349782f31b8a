"""Errors of predicted against measured seconds, and the two naive predictors that stand beside them."""

from dataclasses import dataclass
from math import nan

import numpy as np
import numpy.typing as npt
import pandas as pd

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Errors:
    """Relative errors |predicted / measured − 1| of n measurements. ``sign``: median of predicted / measured
    − 1, below 0 where the prediction is too fast. Shares, not percent."""

    n: int
    median: float
    p90: float
    worst: float
    sign: float


def errors_of(predicted: Numbers, measured: Numbers) -> Errors:
    """Errors over pairs; NaN where there are none."""
    relative = np.asarray(predicted, float) / np.asarray(measured, float) - 1.0
    if not len(relative):
        return Errors(0, nan, nan, nan, nan)
    size = np.abs(relative)
    return Errors(
        len(size),
        float(np.median(size)),
        float(np.quantile(size, 0.9)),
        float(size.max()),
        float(np.median(relative)),
    )


def mean_predictor(known: pd.DataFrame, asked: pd.DataFrame, target: str) -> Numbers:
    """The mean of what was measured, for every step asked."""
    return np.full(len(asked), known[target].mean())


def line_predictor(known: pd.DataFrame, asked: pd.DataFrame, target: str) -> Numbers:
    """Least squares of the seconds on a constant, the longest response and the tokens of a step (scaled to
    their means); never below a tenth of the mean."""
    columns = ["response_max", "tokens"]
    scale = known[columns].mean()

    def features(steps: pd.DataFrame) -> Numbers:
        return np.column_stack([np.ones(len(steps)), steps[columns] / scale])

    weights, *_ = np.linalg.lstsq(features(known), known[target].to_numpy(float), rcond=None)
    return np.maximum(features(asked) @ weights, known[target].mean() / 10)


def coverage_of(low: Numbers, high: Numbers, measured: Numbers) -> float:
    """Share of measurements within [low, high]."""
    return float(np.mean((low <= measured) & (measured <= high))) if len(measured) else nan
