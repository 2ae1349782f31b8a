"""A run in numbers: moments of its step table after the warm-up."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oppo_sim import columns as c
from oppo_sim.results.sinks import Moments, SummarySink

if TYPE_CHECKING:
    import pandas as pd

STATISTICS = ("mean", "std", "min", "p50", "p95", "max")


def summarise(steps: "pd.DataFrame", warmup_steps: int) -> "pd.DataFrame":
    """One row a numeric column of the step table, columns ``STATISTICS``; the first ``warmup_steps`` steps
    are left out."""
    kept = steps.iloc[warmup_steps:].drop(
        columns=[c.STEP, c.WEIGHT_VERSION, c.START_S, *c.HISTOGRAMS], errors="ignore"
    )
    numbers = kept.select_dtypes("number")
    table = numbers.agg(["mean", "std", "min", "median", "max"]).T.rename(columns={"median": "p50"})
    table["p95"] = numbers.quantile(0.95)
    return table[list(STATISTICS)]


def run_totals(summary: SummarySink, rollout_batch_size: int, num_gpus: int) -> dict[str, float]:
    """What a comparison needs of a run on ``num_gpus`` GPUs, after the warm-up: seconds, rollouts, tokens,
    means."""
    columns = summary.columns

    def of(name: str) -> Moments:
        return columns.get(name, Moments())

    seconds = of(c.TIMING_STEP).total
    rollouts = summary.steps * rollout_batch_size
    tokens = of(c.TOKENS_TRAINED).total
    totals = {
        c.RUN_STEPS: float(summary.steps),
        c.RUN_SECONDS: seconds,
        c.RUN_ROLLOUTS: float(rollouts),
        c.RUN_TOKENS: tokens,
        c.S_PER_ROLLOUT: seconds / rollouts,
        c.S_PER_TOKEN: seconds / tokens,
        c.RUN_LENGTH_MEAN: of(c.LENGTH_MEAN).mean,
        c.RUN_TRACE_LENGTH_MEAN: of(c.TRACE_LENGTH_MEAN).mean,
        c.COMPARED_STALENESS_MEAN: of(c.STALENESS_MEAN).mean,
        c.COMPARED_STALENESS_MAX: of(c.STALENESS_MAX).maximum,
        c.DEFERRED: of(c.ROLLOUTS_DEFERRED).mean,
        c.FILTERED: of(c.ROLLOUTS_FILTERED).mean,
        c.RUN_TOKENS_DROPPED: of(c.TOKENS_DROPPED).total,
        c.RUN_TOKENS_RECOMPUTED: of(c.TOKENS_RECOMPUTED).total,
        c.RUN_TOKENS_PADDING: of(c.TOKENS_PADDING).total,
        c.UTILIZATION: of(c.UTILIZATION_INFERENCE).mean,
    }

    def mean(name: str) -> float:
        moments = of(name)
        return moments.mean if moments.count else float("nan")

    totals |= {
        c.TOKENS_PER_S: tokens / seconds if seconds else float("nan"),
        c.NUM_GPUS: num_gpus,
        c.TOKENS_PER_S_PER_GPU: tokens / seconds / num_gpus if seconds else float("nan"),
        c.GPU_HOURS_PER_1K_STEPS: gpu_hours(of(c.TIMING_STEP).mean, num_gpus),
        c.COMPARED_PARTIAL_RATIO: mean(c.PARTIAL_RATIO),
        c.COMPARED_TOKENS_IN_FLIGHT: mean(c.TOKENS_IN_FLIGHT),
        c.COMPARED_KV_PEAK_TOKENS: of(c.KV_PEAK_TOKENS).maximum,
        c.COMPARED_KV_PREEMPTIONS: mean(c.KV_PREEMPTIONS),
        c.COMPARED_SCORER_PIECES: mean(c.SCORER_PIECES),
        c.COMPARED_BUSY_ROLLOUT: mean(c.BUSY_ROLLOUT),
        c.COMPARED_BUSY_SCORING: mean(c.BUSY_SCORING),
        c.COMPARED_BUSY_TRAINING: mean(c.BUSY_TRAINING),
        c.RUN_OVERCOMMIT: mean(c.OVERCOMMIT),
        c.RUN_CHUNK_SIZE: mean(c.CHUNK_SIZE),
        c.RUN_REWARD_MEAN: mean(c.REWARD_MEAN),
    }
    for name, column in c.DISTRIBUTIONS.items():
        counts = summary.histograms.get(column, [])
        totals |= shares_of(name, counts)
    totals |= {c.COMPARED_DEFERRALS_MEAN: float("nan"), c.COMPARED_DEFERRALS_MAX: float("nan")}
    if deferrals := summary.histograms.get(c.DEFERRALS_HISTOGRAM):
        times = sum(value * count for value, count in enumerate(deferrals))
        totals[c.COMPARED_DEFERRALS_MEAN] = times / sum(deferrals)
        totals[c.COMPARED_DEFERRALS_MAX] = max(value for value, count in enumerate(deferrals) if count)
    totals |= {c.timing(stage): of(c.timing(stage)).mean for stage in (*c.STAGES, "step")}
    # A maximum of whole numbers is one; kept as text and read again it must be the same column.
    return {name: float(value) for name, value in totals.items()}


def gpu_hours(step_s: float, num_gpus: int) -> float:
    """Of a thousand steps of ``step_s`` seconds each."""
    return step_s * num_gpus * 1000 / 3600


def shares_of(name: str, counts: Sequence[int]) -> dict[str, float]:
    """Column → share, from counts of 0, 1, …; NaN where nothing was counted."""
    whole = sum(counts) or float("nan")
    kept = [*counts[: c.LAST_SHARE], *[0] * (c.LAST_SHARE - len(counts)), sum(counts[c.LAST_SHARE :])]
    return {c.share(name, value): count / whole for value, count in enumerate(kept)}


def summary_record(summary: "pd.DataFrame") -> dict[str, Mapping[str, Any]]:
    """The summary as plain nested values, for JSON; NaN becomes None."""
    return {
        str(name): {str(key): None if value != value else float(value) for key, value in row.items()}  # noqa: PLR0124
        for name, row in summary.to_dict(orient="index").items()
    }
