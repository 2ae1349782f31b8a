"""Synthetic traces: drawn from a distribution, with drift and alike samples, or from another trace's rows."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import ndtr, ndtri

from oppo_sim.columns import FINISH_REASON, PROMPT_ID, PROMPT_LENGTH, RESPONSE_LENGTH, SAMPLE_ID, SOURCE, STEP
from oppo_sim.draws import hashes, indices, stream_key, uniforms
from oppo_sim.errors import OppoError
from oppo_sim.traces.catalog import length_factors
from oppo_sim.traces.config import MAX_LENGTH, DriftConfig, SynthConfig
from oppo_sim.traces.schema import check_frame
from oppo_sim.traces.synth_tools import tool_calls
from oppo_sim.traces.targets import solve, solve_two

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


def synthesise(config: SynthConfig) -> pd.DataFrame:
    """A checked frame of ``config.rows`` rollouts, columns as ``schema.checked_frame``; the same for the same
    config on every machine.

    Draws are stratified within each step (one in each of n equally likely slices), so that even few rows keep
    to the targets.
    Raises OppoError if the targets contradict each other.
    """
    distribution = solve(config)
    prompt = np.arange(config.rows) // config.samples_per_prompt
    prompts = int(prompt[-1]) + 1
    step_of_prompt = np.arange(prompts) * (config.steps or 1) // prompts
    step = step_of_prompt[prompt]
    drawn = distribution.quantile(_chances(config, prompt, step_of_prompt))
    drawn = np.minimum(drawn, float(MAX_LENGTH))
    if config.drift is not None and config.steps is not None:
        drawn = drawn * drift_factors(config.drift, config.steps)[step]
    cut = config.max_response_length or MAX_LENGTH
    clipped = drawn > cut
    columns: dict[str, Any] = {
        SOURCE: np.full(config.rows, "synth", dtype=object),
        PROMPT_ID: np.char.add("p", prompt.astype(str)) if config.samples_per_prompt > 1 else None,
        SAMPLE_ID: (
            (np.arange(config.rows) % config.samples_per_prompt) if config.samples_per_prompt > 1 else None
        ),
        STEP: step if config.steps is not None else None,
        PROMPT_LENGTH: _prompt_lengths(config, prompts)[prompt] if config.prompt_mean is not None else None,
        RESPONSE_LENGTH: np.clip(np.rint(drawn), 1, cut).astype(np.int64),
        FINISH_REASON: np.where(clipped, "length", "stop").astype(object),
    }
    if config.tools is not None:
        columns |= tool_calls(config.tools, columns[RESPONSE_LENGTH], config.seed)
    return check_frame(
        pd.DataFrame({name: values for name, values in columns.items() if values is not None}),
        "the synthetic trace",
    )


def drift_factors(drift: DriftConfig, steps: int) -> Floats:
    """Factor on each step's lengths, shape (steps,); the first is 1. Raises OppoError."""
    if drift.kind == "table":
        assert drift.table is not None
        return length_factors(drift.table, drift.source, steps, drift.smooth_steps)
    assert drift.last_factor is not None
    way = np.arange(steps) / (steps - 1)
    result: Floats = 1 + (drift.last_factor - 1) * way if drift.kind == "linear" else drift.last_factor**way
    return result


def _chances(config: SynthConfig, prompt: Indices, step_of_prompt: Indices) -> Floats:
    """Uniform draws, shape (rows,), correlated among the samples of a prompt through their normal scores."""
    own = _stratified(config.seed, "synth/response", step_of_prompt[prompt])
    share = config.prompt_correlation
    if not share:
        return own
    common = ndtri(_stratified(config.seed, "synth/prompt", step_of_prompt))[prompt]
    result: Floats = ndtr(np.sqrt(share) * common + np.sqrt(1 - share) * ndtri(own))
    return result


def _stratified(seed: int, purpose: str, block: Indices) -> Floats:
    """One draw in each of n equal slices of (0, 1), shuffled, per block of n; ``block`` ascends from 0."""
    count = len(block)
    order = np.lexsort((hashes(stream_key(seed, f"{purpose}/order"), count), block))
    sizes = np.bincount(block)
    starts = np.cumsum(sizes) - sizes
    rank = np.empty(count, dtype=np.int64)
    rank[order] = np.arange(count) - np.repeat(starts, sizes)
    result: Floats = (rank + uniforms(stream_key(seed, f"{purpose}/within"), count)) / sizes[block]
    # Rounding may reach the ends, which have no quantile.
    return np.clip(result, 2.0**-54, 1 - 2.0**-53)


def _prompt_lengths(config: SynthConfig, prompts: int) -> Indices:
    assert config.prompt_mean is not None
    if config.prompt_p99 is None:
        return np.full(prompts, max(1, round(config.prompt_mean)), dtype=np.int64)
    try:
        distribution = solve_two("lognormal", {"mean": config.prompt_mean, "p99": config.prompt_p99})
    except OppoError as error:
        raise OppoError(f"prompt lengths: {error}") from None
    drawn = distribution.quantile(
        _stratified(config.seed, "synth/prompt_length", np.zeros(prompts, dtype=np.int64))
    )
    return np.clip(np.rint(drawn), 1, MAX_LENGTH).astype(np.int64)


def resample(frame: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """``rows`` rows of ``frame`` drawn with replacement, each by the hash of (seed, its number); all columns
    are kept.

    More rows with the same seed begin with the same rows. Raises OppoError for rows below 1 or an empty
    frame.
    """
    if rows < 1:
        raise OppoError(f"cannot draw {rows} rows: ask for at least 1")
    if frame.empty:
        raise OppoError("cannot draw from a trace without rows: give one with rows")
    return frame.iloc[indices(stream_key(seed, "resample"), rows, len(frame))].reset_index(drop=True)
