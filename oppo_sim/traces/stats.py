"""What a trace looks like: counts, quantiles, weight of the tail, drift over steps."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from oppo_sim.columns import (
    FINISH_REASON,
    PROMPT_ID,
    PROMPT_LENGTH,
    RESPONSE_LENGTH,
    REWARD,
    SOURCE,
    STEP,
    TOOL_SECONDS,
    TOOL_TOKENS,
    TURN_LENGTHS,
)
from oppo_sim.errors import OppoError
from oppo_sim.traces.replay import prompt_codes

REFERENCE_BATCH: Final = 112
"""Rollouts of a batch for which the expected longest is told: the batch size of the OPPO paper."""

MIN_SAMPLES: Final = 3
"""Samples that a prompt needs to say something about the spread within prompts."""


@dataclass(frozen=True)
class TraceStats:
    """Summary of a trace's responses, tokens, None: unknown. Aborted rows are left out, 0 counts as 1."""

    rows: int
    """Rows used for the statistics."""
    aborted: int
    zero_length: int
    sources: int
    steps: int
    prompts: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: int
    cv: float
    """Standard deviation / mean."""
    p99_over_p50: float
    max_over_mean: float
    top_1_percent_share: float
    """Share of all response tokens in the longest 1 % of the responses (at least one)."""
    clip_ratio: float | None
    """Share of rows with finish_reason length; None if no row has a reason."""
    finish_reason_known: float
    """Share of rows with a finish reason."""
    at_max_share: float
    """Share of rows exactly as long as the longest: many of them hint at a cut."""
    group_cv: float | None
    """Median CV among the samples of a prompt (same source and step), prompts with at least three samples."""
    group_samples: float | None
    """Median number of samples of those prompts."""
    longest_of_batch: float
    """Expected longest of ``REFERENCE_BATCH`` responses drawn at random, divided by the mean."""
    prompt_known: float
    """Share of rows with a prompt length."""
    prompt_mean: float | None
    prompt_max: int | None
    reward_mean: float | None
    turns_mean: float | None = None
    """Turns of a rollout; None, likewise below: no row waits for a tool."""
    turns_max: int | None = None
    tool_seconds_mean: float | None = None
    """Of a rollout, all its calls."""
    tool_seconds_p99: float | None = None
    tool_seconds_max: float | None = None
    tool_tokens_mean: float | None = None
    """Of a rollout, all answers."""


def trace_stats(frame: pd.DataFrame) -> TraceStats:
    """Statistics of a checked frame. Raises OppoError if nothing is left without aborted rows."""
    aborted = (frame[FINISH_REASON] == "abort").to_numpy(dtype=bool)
    used = frame[~aborted]
    if used.empty:
        raise OppoError("the trace has no finished rollouts: nothing to describe")
    raw = used[RESPONSE_LENGTH].to_numpy(dtype=np.int64)
    lengths = np.maximum(raw, 1)
    ascending = np.sort(lengths)
    n, mean = len(lengths), float(lengths.mean())
    p50, p90, p99 = (float(value) for value in np.percentile(ascending, (50, 90, 99)))
    top = max(1, n // 100)
    known = used[FINISH_REASON].notna().to_numpy(dtype=bool)
    prompts = used[PROMPT_LENGTH].dropna()
    group_cv, group_samples = _group_cv(used, lengths)
    return TraceStats(
        rows=n,
        aborted=int(aborted.sum()),
        zero_length=int((raw == 0).sum()),
        sources=int(used[SOURCE].nunique()),
        steps=int(used[STEP].nunique()),
        prompts=len(np.unique(prompt_codes(used))) if used[PROMPT_ID].notna().any() else 0,
        mean=mean,
        p50=p50,
        p90=p90,
        p99=p99,
        max=int(ascending[-1]),
        cv=float(lengths.std() / mean),
        p99_over_p50=p99 / p50,
        max_over_mean=float(ascending[-1]) / mean,
        top_1_percent_share=float(ascending[-top:].sum() / ascending.sum()),
        clip_ratio=float((used[FINISH_REASON] == "length").mean()) if known.any() else None,
        finish_reason_known=float(known.mean()),
        at_max_share=float((ascending == ascending[-1]).mean()),
        group_cv=group_cv,
        group_samples=group_samples,
        longest_of_batch=expected_longest(ascending, REFERENCE_BATCH) / mean,
        prompt_known=len(prompts) / n,
        prompt_mean=float(prompts.mean()) if len(prompts) else None,
        prompt_max=int(prompts.max()) if len(prompts) else None,
        reward_mean=float(used[REWARD].mean()) if used[REWARD].notna().any() else None,
        **_turns(used),
    )


def _turns(used: pd.DataFrame) -> dict[str, Any]:
    if TURN_LENGTHS not in used.columns:
        return {}
    turns = used[TURN_LENGTHS].map(len).to_numpy()
    if turns.max() < 2:
        return {}
    seconds = np.array([float(part.sum()) for part in used[TOOL_SECONDS]])
    return {
        "turns_mean": float(turns.mean()),
        "turns_max": int(turns.max()),
        "tool_seconds_mean": float(seconds.mean()),
        "tool_seconds_p99": float(np.percentile(seconds, 99)),
        "tool_seconds_max": float(seconds.max()),
        "tool_tokens_mean": float(np.mean([int(part.sum()) for part in used[TOOL_TOKENS]])),
    }


def expected_longest(ascending: npt.NDArray[Any], batch: int) -> float:
    """E[max of ``batch`` draws with replacement]: Σ x_i · ((i/n)^batch − ((i−1)/n)^batch)."""
    n = len(ascending)
    reached = (np.arange(n + 1) / n) ** batch
    return float((ascending * np.diff(reached)).sum())


def drift_by_step(frame: pd.DataFrame, bins: int | None = 10) -> pd.DataFrame:
    """Lengths over the steps: the distinct steps in at most ``bins`` runs of nearly equal numbers of steps
    (None: each on its own).

    Columns ``first_step``, ``last_step``, ``rows``, ``mean``, ``p50``, ``p90`` (tokens), ``clip_ratio`` (NaN
    if no reason is known). No rows if the trace has no steps. Aborted rows and rows without a step are left
    out.
    """
    used = frame[
        (frame[FINISH_REASON] != "abort").fillna(True).to_numpy(dtype=bool)
        & frame[STEP].notna().to_numpy(dtype=bool)
    ]
    names = ["first_step", "last_step", "rows", "mean", "p50", "p90", "clip_ratio"]
    if used.empty:
        return pd.DataFrame({name: np.array([], dtype=float) for name in names})
    steps, rank = np.unique(used[STEP].to_numpy(dtype=np.int64), return_inverse=True)
    count = len(steps) if bins is None else min(bins, len(steps))
    bin_of_row = rank * count // len(steps)
    grouped = pd.DataFrame(
        {STEP: steps[rank], "cut": (used[FINISH_REASON] == "length").to_numpy(dtype=float)}
    ).groupby(bin_of_row)
    lengths = pd.Series(np.maximum(used[RESPONSE_LENGTH].to_numpy(dtype=np.int64), 1)).groupby(bin_of_row)
    return pd.DataFrame(
        {
            "first_step": grouped[STEP].min(),
            "last_step": grouped[STEP].max(),
            "rows": grouped.size(),
            "mean": lengths.mean(),
            "p50": lengths.quantile(0.5),
            "p90": lengths.quantile(0.9),
            "clip_ratio": grouped["cut"].mean() if used[FINISH_REASON].notna().any() else np.nan,
        }
    ).reset_index(drop=True)


def _group_cv(used: pd.DataFrame, lengths: npt.NDArray[np.int64]) -> tuple[float | None, float | None]:
    """(median CV, median samples) of prompts with enough samples; (None, None) if there are none."""
    named = used[PROMPT_ID].notna().to_numpy(dtype=bool)
    if not named.any():
        return None, None
    codes, values = prompt_codes(used[named]), lengths[named].astype(float)
    counts = np.bincount(codes)
    means = np.bincount(codes, values) / counts
    # Deviations from the mean first: the difference of large squares would lose the small ones.
    spread = np.sqrt(np.bincount(codes, (values - means[codes]) ** 2) / counts)
    enough = counts >= MIN_SAMPLES
    if not enough.any():
        return None, None
    return float(np.median(spread[enough] / means[enough])), float(np.median(counts[enough]))
