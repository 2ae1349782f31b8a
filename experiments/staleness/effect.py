"""The effect of staleness and of a selection of lengths on progress, from the finished runs.

The model is that of `oppo_sim.learning`: a step is worth Σ_s share_s · exp(−a·s) · exp(−b·|bias|) of an
on-policy one, its worth adds up to x, and the reward is R₀ + G·(1 − exp(−x/τ)). R₀ is measured; G and τ are
those of a task and seed, shared by all its runs; a and b are shared by all. Least squares on a grid; what is
unknown about a and b comes from resampling whole (task, seed) pairs, since runs of one pair are alike.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from cells import DEFAULT_TREATMENT, STALE, Cell
from numpy.typing import NDArray

from oppo_sim.learning import Strength, progress

Floats = NDArray[np.float64]

STALENESS: Final = np.concatenate([[0.0], np.geomspace(0.01, 3.0, 40)])
LENGTH_BIAS: Final = np.concatenate([[0.0], np.geomspace(0.02, 3.0, 16)])
TIMES: Final = np.geomspace(2.0, 400.0, 60)
"""Candidates of a, b and τ."""
DRAWS: Final = 200
SEED: Final = 11

Runs = Mapping[Cell, Mapping[str, Any]]


@dataclass(frozen=True)
class Fitted:
    """Of a set of runs."""

    strength: Strength
    draws: tuple[Strength, ...]
    runs: int
    pairs: int
    """Of task and seed."""
    error: float
    """Root mean square of the rewards' residuals."""

    def interval(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """95 % of a and of b."""
        columns = np.array(self.draws).T
        low, high = np.quantile(columns, [0.025, 0.975], axis=1)
        return (float(low[0]), float(high[0])), (float(low[1]), float(high[1]))


def fitted(runs: Runs) -> Fitted:
    """Of runs that hold, for every pair of task and seed in them, the sequential one."""
    pairs = sorted({(cell.task, cell.seed) for cell in runs})
    tables = np.array(
        [_errors([runs[cell] for cell in runs if (cell.task, cell.seed) == pair]) for pair in pairs]
    )
    generator = np.random.default_rng(SEED)
    draws = [
        _least(tables[generator.integers(len(pairs), size=len(pairs))].sum(axis=0)) for _ in range(DRAWS)
    ]
    whole = tables.sum(axis=0)
    points = sum(len(run["curve"]) - 1 for run in runs.values())
    return Fitted(_least(whole), tuple(draws), len(runs), len(pairs), float(np.sqrt(whole.min() / points)))


def chosen(
    runs: Runs, treatment: str = DEFAULT_TREATMENT, task: str | None = None
) -> dict[Cell, Mapping[str, Any]]:
    """The runs of a treatment with the on-policy ones beside them, of pairs of which all runs are done."""
    own = {
        cell: run
        for cell, run in runs.items()
        if task in (None, cell.task) and (cell.treatment == treatment if cell.arm in STALE else True)
    }
    arms: dict[tuple[str, int], set[str]] = {}
    for cell in own:
        arms.setdefault((cell.task, cell.seed), set()).add(cell.arm)
    wanted = {"sequential", *(STALE if treatment == DEFAULT_TREATMENT else ("async 4", "oppo B"))}
    return {cell: run for cell, run in own.items() if wanted <= arms[cell.task, cell.seed]}


def worth(run: Mapping[str, Any], strength: Strength) -> Floats:
    """Of each step of a run; the bias is that of the whole run, since single batches scatter."""
    bias = _mean_bias(run)
    found = [
        progress([count / sum(counts) for count in counts], bias, strength)
        for counts in run["steps"]["staleness"]
    ]
    return np.array(found)


def _errors(runs: Iterable[Mapping[str, Any]]) -> Floats:
    """Squared errors of a pair's runs at the best G and τ, by (a, b)."""
    runs = list(runs)
    found = np.empty((len(STALENESS), len(LENGTH_BIAS)))
    biases = [_mean_bias(run) for run in runs]
    for row, a in enumerate(STALENESS):
        fresh = [worth(run, Strength(float(a), 0.0)).cumsum() for run in runs]
        for column, b in enumerate(LENGTH_BIAS):
            x, risen = [], []
            for run, own, bias in zip(runs, fresh, biases, strict=True):
                start = run["curve"][0][1]
                for updates, reward in run["curve"][1:]:
                    x.append(own[updates - 1] * np.exp(-b * abs(bias)))
                    risen.append(reward - start)
            found[row, column] = _least_error(np.array(x), np.array(risen))
    return found


def _mean_bias(run: Mapping[str, Any]) -> float:
    return float(np.mean(run["steps"]["bias"]))


def _least_error(x: Floats, risen: Floats) -> float:
    shapes = 1.0 - np.exp(-x[None, :] / TIMES[:, None])
    # G is linear given τ; a reward above 1 there is not.
    gains = np.clip((shapes @ risen) / (shapes**2).sum(axis=1), 0.0, 1.0)
    return float(((risen[None, :] - gains[:, None] * shapes) ** 2).sum(axis=1).min())


def _least(table: Floats) -> Strength:
    row, column = np.unravel_index(int(table.argmin()), table.shape)
    return Strength(float(STALENESS[row]), float(LENGTH_BIAS[column]))
