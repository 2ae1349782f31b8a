"""Compare predicted with measured runs: seconds by stage and step, speed-ups with intervals, decisions. Knows
views only."""

from collections.abc import Mapping, Sequence
from itertools import combinations, zip_longest
from math import isfinite, nan
from statistics import fmean, median
from typing import Final

import numpy as np
import numpy.typing as npt

from oppo_real.calibrate.fit import middle
from oppo_real.validate.accuracy import (
    Agreement,
    Distribution,
    Pair,
    Prediction,
    PredictionAccuracy,
    Speedup,
)
from oppo_real.validate.views import STAGES, WORK, StepView, Views
from oppo_sim.columns import DISTRIBUTIONS
from oppo_sim.draws import stream_key
from oppo_sim.errors import OppoError

RESAMPLES: Final = 2000
CONFIDENCE: Final = 0.95


def compare_predictions(
    predicted: Mapping[str, Sequence[Views]],
    measured: Mapping[str, Sequence[Views]],
    warmup_steps: int,
    alternatives: Sequence[Mapping[str, Views]] = (),
    seed: int = 0,
    run_spread: float = 0.0,
) -> PredictionAccuracy:
    """Compare runs of each policy with their predictions.

    Args:
        predicted: by policy, one run, or one for each repeat where lengths are not known before.
        measured: by policy, one run a repeat; repeat r of all policies lies in round r.
        warmup_steps: first steps, left out of means.
        alternatives: predictions from resampled calibrations, for the intervals of predicted speed-ups.
        run_spread: standard deviation of the logarithm of a run's seconds, from one run to the next; part of
            the intervals of predicted speed-ups, which are of what as many repeats would measure.

    A step's number is the median over repeats; a mean of steps is the middle of the repeats' (``middle``), a
    measured speed-up that of the rounds'. Raises OppoError for runs of unlike length or number.
    """
    if len({len(runs) for runs in measured.values()}) != 1:
        raise OppoError("the policies have unlike numbers of repeats: validate anew")
    for policy, runs in measured.items():
        counts = {len(views) for views in (*runs, *predicted[policy])}
        if len(counts) != 1 or counts.pop() <= warmup_steps:
            raise OppoError(
                f"runs of policy '{policy}' have unlike numbers of steps, or none after the warm-up: validate"
                " anew"
            )
    return PredictionAccuracy(
        stages={policy: _means(predicted[policy], measured[policy], warmup_steps) for policy in measured},
        steps={policy: _by_step(predicted[policy], measured[policy]) for policy in measured},
        work={policy: _work(predicted[policy], measured[policy], warmup_steps) for policy in measured},
        speedups=_speedups(predicted, measured, warmup_steps, alternatives, seed, run_spread),
        agreements=[
            agreement(policy, repeat, predicted[policy][min(repeat, len(predicted[policy]) - 1)], views)
            for policy, runs in measured.items()
            for repeat, views in enumerate(runs)
        ],
        warmup_steps=warmup_steps,
        shares={policy: _shares(predicted[policy], measured[policy], warmup_steps) for policy in measured},
        pairs=_pairs(predicted, measured, warmup_steps, seed),
    )


def mean_seconds(runs: Sequence[Views], stage: str, warmup_steps: int) -> float:
    """The mean of the steps after the warm-up of each run, and the middle of the runs."""
    return float(middle([fmean(step.seconds[stage] for step in views[warmup_steps:]) for views in runs]))


def measured_speedup(baseline: Sequence[Views], policy: Sequence[Views], warmup_steps: int) -> float:
    """The middle of the rounds' speed-ups, in logarithms: how fast the machine was in a round cancels."""
    return float(
        np.exp(middle(_log_ratios(_seconds(baseline, warmup_steps), _seconds(policy, warmup_steps))))
    )


def _log_ratios(
    baseline: Sequence[Sequence[float]], policy: Sequence[Sequence[float]]
) -> npt.NDArray[np.float64]:
    there, here = (np.log(np.array(seconds).mean(axis=1)) for seconds in (baseline, policy))
    return np.asarray(there - here)


def _kept(runs: Sequence[Views], warmup_steps: int) -> list[tuple[StepView, ...]]:
    return list(zip(*(views[warmup_steps:] for views in runs), strict=True))


def _means(predicted: Sequence[Views], measured: Sequence[Views], warmup: int) -> dict[str, Prediction]:
    cells = {}
    for stage in STAGES:
        alone = [mean_seconds([views], stage, warmup) for views in measured]
        cells[stage] = Prediction(
            mean_seconds(predicted, stage, warmup),
            mean_seconds(measured, stage, warmup),
            min(alone),
            max(alone),
        )
    return cells


def _by_step(predicted: Sequence[Views], measured: Sequence[Views]) -> list[dict[str, Prediction]]:
    rows = []
    for there, here in zip(_kept(predicted, 0), _kept(measured, 0), strict=True):
        row = {}
        for stage in STAGES:
            repeats = [step.seconds[stage] for step in here]
            row[stage] = Prediction(
                median(step.seconds[stage] for step in there), median(repeats), min(repeats), max(repeats)
            )
        rows.append(row)
    return rows


def _work(predicted: Sequence[Views], measured: Sequence[Views], warmup: int) -> dict[str, Prediction]:
    def mean(views: Views, name: str) -> float:
        return fmean(step.work[name] for step in views[warmup:])

    cells = {}
    for name in WORK:
        repeats = [mean(views, name) for views in measured]
        cells[name] = Prediction(
            median(mean(views, name) for views in predicted), median(repeats), min(repeats), max(repeats)
        )
    return cells


def _shares(predicted: Sequence[Views], measured: Sequence[Views], warmup: int) -> dict[str, Distribution]:
    found = {}
    for name in DISTRIBUTIONS:
        sides = [_counts(runs, name, warmup) for runs in (predicted, measured)]
        if all(sides):  # runs of earlier versions have none
            longest = max(map(len, sides))
            parts = [[count / sum(side) for count in side] for side in sides]
            found[name] = Distribution(*(tuple(part + [0.0] * (longest - len(part))) for part in parts))
    return found


def _counts(runs: Sequence[Views], name: str, warmup: int) -> list[int]:
    rows = [step.histograms.get(name, ()) for views in runs for step in views[warmup:]]
    counts = [sum(column) for column in zip_longest(*rows, fillvalue=0)]
    while counts and not counts[-1]:
        counts.pop()
    return counts


# ---- speed-ups ---------------------------------------------------------------------------------------------


def _speedups(
    predicted: Mapping[str, Sequence[Views]],
    measured: Mapping[str, Sequence[Views]],
    warmup: int,
    alternatives: Sequence[Mapping[str, Views]],
    seed: int,
    run_spread: float,
) -> list[Speedup]:
    baseline = next(iter(measured))
    found = []
    for policy in measured:
        if policy == baseline:
            continue
        there = mean_seconds(predicted[baseline], "step", warmup) / mean_seconds(
            predicted[policy], "step", warmup
        )
        here = measured_speedup(measured[baseline], measured[policy], warmup)
        others = np.array(
            [
                mean_seconds([runs[baseline]], "step", warmup) / mean_seconds([runs[policy]], "step", warmup)
                for runs in alternatives
            ]
        )
        key = stream_key(seed, f"validate/moments/{policy}")
        noise = np.random.default_rng(key).normal(size=(2, len(others), len(measured[policy]))) * run_spread
        low, high = percentile_interval((others * np.exp(middle(noise[0] - noise[1]))).tolist())
        measured_low, measured_high = bootstrap_speedup(
            _seconds(measured[baseline], warmup),
            _seconds(measured[policy], warmup),
            stream_key(seed, f"validate/bootstrap/{policy}"),
        )
        calibrated = percentile_interval(others.tolist())
        found.append(Speedup(policy, there, low, high, here, measured_low, measured_high, calibrated))
    return found


def _pairs(
    predicted: Mapping[str, Sequence[Views]], measured: Mapping[str, Sequence[Views]], warmup: int, seed: int
) -> list[Pair]:
    found = []
    for first, second in combinations(measured, 2):
        there = mean_seconds(predicted[first], "step", warmup) / mean_seconds(
            predicted[second], "step", warmup
        )
        low, high = bootstrap_speedup(
            _seconds(measured[first], warmup),
            _seconds(measured[second], warmup),
            stream_key(seed, f"validate/swap/{first}/{second}"),
        )
        here = measured_speedup(measured[first], measured[second], warmup)
        found.append(Pair(first, second, there, here, low, high))
    return found


def _seconds(runs: Sequence[Views], warmup: int) -> list[list[float]]:
    return [[step.seconds["step"] for step in views[warmup:]] for views in runs]


def bootstrap_speedup(
    baseline: Sequence[Sequence[float]], policy: Sequence[Sequence[float]], key: int
) -> tuple[float, float]:
    """95 % percentile interval of the speed-up: whole rounds are drawn anew, so that what a round's runs
    share stays shared.

    Args:
        baseline, policy: step seconds, one row a repeat, shape (repeats, steps).
        key: of the draws.

    NaN for fewer than two repeats.
    """
    if len(baseline) < 2:
        return nan, nan
    ratios = _log_ratios(baseline, policy)
    rounds = np.random.default_rng(key).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    return percentile_interval(np.exp(middle(ratios[rounds])).tolist())


def percentile_interval(values: Sequence[float]) -> tuple[float, float]:
    """The middle 95 %; NaN for fewer than two values, or where one is not finite."""
    if len(values) < 2 or not all(map(isfinite, values)):
        return nan, nan
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(np.array(values), [tail, 1.0 - tail])
    return float(low), float(high)


# ---- decisions ---------------------------------------------------------------------------------------------


def agreement(policy: str, repeat: int, predicted: Views, measured: Views) -> Agreement:
    """Which steps made the same decisions, and what the first other one did."""
    reasons = [difference(there, here) for there, here in zip(predicted, measured, strict=True)]
    first = next((step for step, reason in enumerate(reasons) if reason), None)
    same = sum(
        [len(set(there.trained) & set(here.trained)) for there, here in zip(predicted, measured, strict=True)]
    )
    return Agreement(
        policy=policy,
        repeat=repeat,
        steps=len(reasons),
        alike=reasons.count(""),
        first_difference=first,
        why="" if first is None else reasons[first],
        trained_alike=same / sum([len(here.trained) for here in measured]),
    )


def difference(predicted: StepView, measured: StepView) -> str:
    """What a step decided otherwise, the cause before its consequences; empty where it decided alike (order
    of selection left out)."""
    for name, there, here in (
        ("overcommit", predicted.overcommit, measured.overcommit),
        ("chunk size", predicted.chunk_size, measured.chunk_size),
    ):
        if there != here:
            return f"{name} {here} instead of {there}"
    added = sorted(set(measured.trained) - set(predicted.trained))
    missing = sorted(set(predicted.trained) - set(measured.trained))
    if added or missing:
        return f"trained {_ids(added)} instead of {_ids(missing)}"
    if (predicted.deferred, predicted.surplus) != (measured.deferred, measured.surplus):
        return (
            f"{measured.deferred} deferred and {measured.surplus} surplus instead of {predicted.deferred} and"
            f" {predicted.surplus}"
            + (
                ": rollouts finished while generation was being stopped"
                if measured.surplus > predicted.surplus
                else ""
            )
        )
    return ""


def _ids(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:4]))
    return f"rollout{'s' if len(ids) != 1 else ''} {shown}{' …' if len(ids) > 4 else ''}"
