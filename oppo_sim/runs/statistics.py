"""Which differences between points are real: everything is paired by seed (common random numbers)."""

import sys
from collections.abc import Mapping, Sequence
from math import exp, inf, isfinite, log
from statistics import fmean, stdev
from typing import Any, Final

from oppo_sim import columns as c

FIRST_LOOK: Final = 3
"""Seeds that every point gets before any is stopped."""
LEVEL: Final = 0.05
TO_REWARD: Final = "time_to_reward"
ROLLOUTS: Final = "rollouts"
OBJECTIVE_COLUMN: Final = {ROLLOUTS: c.S_PER_ROLLOUT, "speedup": c.SPEEDUP, TO_REWARD: c.HOURS_TO_REWARD}
"""Objective of a sweep → the column of a comparison that says it."""
_EQUAL = 1e-12
_LARGEST_LOG: Final = log(sys.float_info.max)

Totals = Mapping[str, float]

STEP_COLUMNS: Final = (c.STEP_S, c.STEP_S_LOW, c.STEP_S_HIGH)
SPEEDUP_COLUMNS: Final = (
    c.SPEEDUP, c.SPEEDUP_LOW, c.SPEEDUP_HIGH,
    c.SPEEDUP_PER_TOKEN, c.SPEEDUP_PER_TOKEN_LOW, c.SPEEDUP_PER_TOKEN_HIGH,
)  # fmt: skip


def interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student-t confidence interval of a mean; NaN for fewer than two values, or where one is not finite."""
    if len(values) < 2 or not all(map(isfinite, values)):
        return float("nan"), float("nan")
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    mean = fmean(values)
    half = float(stdtrit(len(values) - 1, 0.5 + confidence / 2)) * stdev(values) / len(values) ** 0.5
    return mean - half, mean + half


def ratio_interval(ratios: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Geometric mean of paired ratios with its Student-t interval on the log scale: (mean, low, high)."""
    logs = [log(ratio) for ratio in ratios]
    low, high = interval(logs, confidence)
    # Two seeds that are worlds apart: the upper end is beyond all numbers.
    return exp(sum(logs) / len(logs)), exp(low), inf if high > _LARGEST_LOG else exp(high)


def compared_row(actual: Sequence[Mapping[Any, Any]], base: Sequence[Mapping[Any, Any]]) -> dict[str, float]:
    """One row of a comparison: totals of the runs of a policy and of its baseline, on the same seeds in the
    same order."""

    def mean(name: str) -> float:
        return fmean([run[name] for run in actual])

    def faster(name: str) -> tuple[float, float, float]:
        return ratio_interval([there[name] / here[name] for here, there in zip(actual, base, strict=True)])

    step = (mean(c.TIMING_STEP), *interval([run[c.TIMING_STEP] for run in actual]))
    return {
        **dict(zip(STEP_COLUMNS, step, strict=True)),
        **dict(zip(SPEEDUP_COLUMNS, (*faster(c.S_PER_ROLLOUT), *faster(c.S_PER_TOKEN)), strict=True)),
        c.GEN_S: mean(c.timing("gen")),
        c.REWARD_S: mean(c.timing("reward")),
        c.TRAINING_S: sum([mean(c.timing(stage)) for stage in c.TRAINING_STAGES]),
        c.COMPARED_STALENESS_MEAN: mean(c.COMPARED_STALENESS_MEAN),
        c.COMPARED_STALENESS_MAX: max(run[c.COMPARED_STALENESS_MAX] for run in actual),
        c.LENGTH_BIAS: length_bias(actual),
        c.LENGTH_BIAS_PAIRED: paired_bias(actual, base),
        c.DEFERRED: mean(c.DEFERRED),
        c.FILTERED: mean(c.FILTERED),
        c.COMPARED_DEFERRALS_MEAN: mean(c.COMPARED_DEFERRALS_MEAN),
        c.COMPARED_DEFERRALS_MAX: max(run[c.COMPARED_DEFERRALS_MAX] for run in actual),
        c.UTILIZATION: mean(c.UTILIZATION),
        c.HOURS_PER_10K: mean(c.S_PER_ROLLOUT) * 10_000 / 3600,
        c.NUM_GPUS: mean(c.NUM_GPUS),
        c.TOKENS_PER_S_PER_GPU: mean(c.TOKENS_PER_S_PER_GPU),
        c.GPU_HOURS_PER_1K_STEPS: mean(c.GPU_HOURS_PER_1K_STEPS),
    }


def length_bias(runs: Sequence[Mapping[Any, Any]]) -> float:
    """Mean response length trained over that of the rows that it was drawn from, minus 1; mean of the
    runs."""
    return fmean([run[c.RUN_LENGTH_MEAN] / run[c.RUN_TRACE_LENGTH_MEAN] for run in runs]) - 1.0


def paired_bias(actual: Sequence[Mapping[Any, Any]], base: Sequence[Mapping[Any, Any]]) -> float:
    """Mean response length trained over that of other runs on the same seeds, minus 1; of the baseline over
    itself exactly 0."""
    pairs = zip(actual, base, strict=True)
    return fmean([run[c.RUN_LENGTH_MEAN] / other[c.RUN_LENGTH_MEAN] for run, other in pairs]) - 1.0


def loss(run: Totals, baseline: Totals | None, objective: str) -> float:
    """What a run is ranked by, less is better: seconds a trained rollout, or its share of the baseline's
    under the same seed, or seconds to the target reward."""
    if objective == TO_REWARD:
        return run[c.TIME_TO_REWARD_S]
    seconds = run[c.S_PER_ROLLOUT]
    if objective == ROLLOUTS:
        return seconds
    return seconds / baseline[c.S_PER_ROLLOUT] if baseline is not None else float("nan")


def paired(losses: Sequence[float], best: Sequence[float]) -> tuple[float, float, float]:
    """Relative difference from the best point with its 95 % interval (Student-t of the log ratios by seed):
    0.02 is 2 % worse.

    NaN ends of the interval below two common seeds.
    """
    mean, low, high = ratio_interval([here / there for here, there in zip(losses, best, strict=False)])
    return mean - 1.0, low - 1.0, high - 1.0


def alike(losses: Sequence[float], best: Sequence[float]) -> bool:
    """The paired difference from the best is not significant at 5 %, two-sided; below two seeds: there is
    none."""
    ratios = [here / there for here, there in zip(losses, best, strict=False)]
    if all(abs(ratio - 1.0) <= _EQUAL for ratio in ratios):
        return True
    _, low, high = ratio_interval(ratios)
    return low <= 1.0 <= high


def dominated(losses: Sequence[float], best: Sequence[float], looks: int) -> bool:
    """The point is significantly worse than the best so far: a one-sided paired t-test of the log ratios, at
    5 % over all ``looks`` together (Bonferroni: each look tests at 5 % / looks)."""
    ratios = [here / there for here, there in zip(losses, best, strict=True)]
    return len(ratios) >= 2 and ratio_interval(ratios, 1.0 - 2.0 * LEVEL / looks)[1] > 1.0 + _EQUAL


def looks_of(seeds: int) -> int:
    """How often points are looked at: after FIRST_LOOK seeds and after each further one but the last, when
    nothing is left to save."""
    return max(1, seeds - FIRST_LOOK)
