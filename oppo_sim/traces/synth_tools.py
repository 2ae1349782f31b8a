"""Calls of tools in a synthetic trace: how many, after which tokens, how long, with how long an answer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from oppo_sim.columns import TOOL_SECONDS, TOOL_TOKENS, TURN_LENGTHS
from oppo_sim.draws import stream_key, uniforms
from oppo_sim.errors import OppoError
from oppo_sim.traces.config import MAX_LENGTH, ToolsConfig
from oppo_sim.traces.targets import solve_two

Floats = npt.NDArray[np.float64]


def tool_calls(tools: ToolsConfig, response_lengths: npt.NDArray[np.int64], seed: int) -> dict[str, Any]:
    """The columns of turns, one list a row; the turns of a row add up to its response length (tokens). A
    response of n tokens has at most n − 1 calls. Raises OppoError for targets that contradict each other."""
    rows = len(response_lengths)
    from scipy.stats import binom  # takes a second to import

    wanted = binom.ppf(_uniform(seed, "calls", rows), tools.max_calls, tools.mean_calls / tools.max_calls)
    calls = np.minimum(wanted.astype(np.int64), response_lengths - 1)
    total = int(calls.sum())
    seconds = _seconds(tools)(_uniform(seed, "seconds", total))
    if tools.timeout_s is not None:
        seconds = np.minimum(seconds, tools.timeout_s)
    tokens = np.rint(_tokens(tools)(_uniform(seed, "tokens", total)))
    answers = np.clip(tokens, 1, MAX_LENGTH).astype(np.int64)
    ends = np.cumsum(calls)[:-1]
    places = np.split(-np.log(_uniform(seed, "turns", total + rows)), np.cumsum(calls + 1)[:-1])
    return {
        TURN_LENGTHS: _objects(_shares(int(n), at) for n, at in zip(response_lengths, places, strict=True)),
        TOOL_SECONDS: _objects(np.split(np.round(seconds, 6), ends)),
        TOOL_TOKENS: _objects(np.split(answers, ends)),
    }


def _shares(total: int, weights: Floats) -> npt.NDArray[np.int64]:
    """``total`` tokens among turns by their weights, at least one each."""
    free = total - len(weights)
    reached = np.rint(free * np.cumsum(weights) / weights.sum()).astype(np.int64)
    shares: npt.NDArray[np.int64] = np.diff(reached, prepend=0) + 1
    return shares


def _seconds(tools: ToolsConfig) -> Callable[[Floats], Floats]:
    if tools.p99_s is None:
        return lambda chances: -tools.mean_s * np.log1p(-chances)
    return _lognormal(tools.mean_s, tools.p99_s, "seconds of tools")


def _tokens(tools: ToolsConfig) -> Callable[[Floats], Floats]:
    if tools.p99_tokens is None:
        return lambda chances: np.full(len(chances), tools.mean_tokens)
    return _lognormal(tools.mean_tokens, tools.p99_tokens, "tokens of answers")


def _lognormal(mean: float, p99: float, what: str) -> Callable[[Floats], Floats]:
    try:
        return solve_two("lognormal", {"mean": mean, "p99": p99}).quantile
    except OppoError as error:
        raise OppoError(f"{what}: {error}") from None


def _uniform(seed: int, purpose: str, count: int) -> Floats:
    # Rounding may reach the ends, which have no quantile.
    return np.clip(uniforms(stream_key(seed, f"synth/tools/{purpose}"), count), 2.0**-54, 1 - 2.0**-53)


def _objects(parts: Any) -> npt.NDArray[np.object_]:
    """One array a row, of whatever lengths."""
    listed = list(parts)
    found = np.empty(len(listed), dtype=object)
    for row, part in enumerate(listed):  # an assignment of all at once would stack equal ones
        found[row] = part
    return found
