"""How far a setting is from the best of each world, and one number for all worlds."""

from collections.abc import Sequence
from math import ceil, floor, inf
from statistics import fmean

from oppo_sim.tune.request import Robust
from oppo_sim.tune.store import Trial

QUANTILE = 0.9


def mean_cost(trial: Trial, world: int) -> float:
    """Seconds per unit of the objective in a world, over the seeds that the trial has."""
    return fmean(trial.costs[world])


def best_in(trials: Sequence[Trial], world: int) -> Trial | None:
    """The best trial of a world that keeps all bounds; the earlier of two equal ones. None: no trial does."""
    kept = [trial for trial in trials if trial.status == "ok"]
    return min(kept, key=lambda trial: (mean_cost(trial, world), trial.number), default=None)


def least_costs(trials: Sequence[Trial], worlds: int) -> list[float]:
    """The least cost known in each world: of trials that keep all bounds, else of any; NaN-free only if some
    trial ran."""
    found = []
    for world in range(worlds):
        best = best_in(trials, world)
        ran = [mean_cost(trial, world) for trial in trials if trial.costs]
        found.append(mean_cost(best, world) if best is not None else min(ran, default=inf))
    return found


def regrets(trial: Trial, least: Sequence[float]) -> list[float]:
    """World by world, a share: 0.02 is 2 % slower than the best known there."""
    return [mean_cost(trial, world) / cost - 1.0 for world, cost in enumerate(least)]


def together(values: Sequence[float], how: Robust) -> float:
    """Regrets of all worlds as one number."""
    if how == "mean":
        return fmean(values)
    if how == "worst":
        return max(values)
    ordered = sorted(values)
    place = QUANTILE * (len(ordered) - 1)
    below, above = ordered[floor(place)], ordered[ceil(place)]
    return below + (above - below) * (place - floor(place))


def ranked(trials: Sequence[Trial], worlds: int, how: Robust) -> list[Trial]:
    """Trials that keep all bounds, the best first."""
    least = least_costs(trials, worlds)
    kept = [trial for trial in trials if trial.status == "ok"]
    return sorted(kept, key=lambda trial: (together(regrets(trial, least), how), trial.number))
