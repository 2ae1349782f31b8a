"""Rollouts drawn from the per-step figures of a log that has no rollouts: one fitted distribution a step."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from oppo_sim.draws import hashes, stream_key, uniforms
from oppo_sim.errors import OppoError
from oppo_sim.traces.config import MAX_LENGTH
from oppo_sim.traces.distributions import LengthDistribution, Lognormal, Mixture, Weibull, make_distribution
from oppo_sim.traces.fit import fit_trace
from oppo_sim.traces.importers.reading import Reading, Rollout
from oppo_sim.traces.opening import open_trace
from oppo_sim.traces.targets import solve_two

NEIGHBOURS: Final = 10
"""Steps before and after whose maxima speak for a step's spread too."""

_SAME: Final = 1e-6
_CUT_TOLERANCE: Final = 0.5


@dataclass
class Account:
    """What was drawn, for the provenance."""

    steps: int = 0
    ways: dict[str, int] | None = None
    worst_mean_error: float = 0.0
    """Largest relative difference of a step's drawn mean from the logged one."""


def draw_steps(
    steps: Mapping[int, Mapping[str, float]],
    reading: Reading,
    account: Account,
    where: str,
    *,
    steps_of_a_line: int = 1,
) -> Iterator[Rollout]:
    """``rows_per_step`` rollouts of every step, in order of the steps; ``steps`` holds figures by
    ``METRIC_FIELDS``, where ``steps_of_a_line`` is above 1 their means over so many steps.

    A step's distribution is determined by what is known of it: mean and clip ratio; else mean and standard
    deviation; mean and median; mean and maximum (see ``_spreads``); else the shape of the trace ``like``.
    Raises OppoError if a step knows too little, or the number of rollouts was not given.
    """
    rows = reading.options.rows_per_step
    if rows is None:
        raise OppoError(
            f"{where} holds figures a step, not rollouts: say how many rollouts a step had with"
            " --rows-per-step (prompts a batch × samples a prompt), and lengths are drawn that fit the"
            " figures"
        )
    longest = max((figures["max"] for figures in steps.values() if "max" in figures), default=None)
    cut = _cut(steps, reading, longest, steps_of_a_line)
    if steps_of_a_line > 1:
        reading.notes[
            f"a line holds means over {steps_of_a_line} steps: its longest and shortest response are means of"
            " theirs, so drawn responses may be longer and shorter"
        ] = 1
    shape = _shape_of(reading)
    spreads = _spreads(steps, rows)
    account.ways = {}
    for step in sorted(steps):
        figures = steps[step] if steps_of_a_line > 1 else _with_the_cut_alone(steps[step], cut, reading)
        distribution, way = _fitted(figures, cut, spreads.get(step), shape, f"{where}, step {step}")
        account.steps += 1
        account.ways[way] = account.ways.get(way, 0) + 1
        drawn = _drawn(distribution, figures["mean"], rows, step)
        clipped = _clipped(drawn, {} if steps_of_a_line > 1 else figures, cut)
        yield from _rollouts(drawn, clipped, figures, cut, step)
        account.worst_mean_error = max(
            account.worst_mean_error, abs(float(clipped.mean()) / figures["mean"] - 1)
        )


def _cut(
    steps: Mapping[int, Mapping[str, float]], reading: Reading, longest: float | None, steps_of_a_line: int
) -> float | None:
    if reading.options.max_response_length is not None:
        return float(reading.options.max_response_length)
    if not any(figures.get("clip_ratio", 0.0) > 0 for figures in steps.values()):
        return None
    if longest is None:
        raise OppoError(
            "the log has a share of cut responses but not where they were cut: give --max-response-length"
        )
    longest = float(math.ceil(longest))
    what = (
        f"the largest mean of {steps_of_a_line} longest ones, though it was there or above"
        if steps_of_a_line > 1
        else "the longest that was logged"
    )
    reading.notes[
        f"responses were taken to be cut at {longest:g}, {what}: give --max-response-length to say it"
    ] += 1
    return longest


def _with_the_cut_alone(
    figures: Mapping[str, float], cut: float | None, reading: Reading
) -> Mapping[str, float]:
    """Nothing was cut where the longest response is shorter than the cut: verl of 2026 then counts the
    responses that are as long as the batch is wide."""
    if cut is None or not figures.get("clip_ratio") or figures.get("max", cut) >= cut - _CUT_TOLERANCE:
        return figures
    reading.notes[
        f"steps whose longest response is below the cut at {cut:g}, so that nothing was cut in them"
    ] += 1
    return {**figures, "clip_ratio": 0.0}


def _shape_of(reading: Reading) -> Lognormal | Weibull | Mixture | None:
    if reading.options.like is None:
        return None
    best = fit_trace(open_trace(reading.options.like).frame).best
    return make_distribution(best.distribution, best.parameters)


def _fitted(
    figures: Mapping[str, float],
    cut: float | None,
    sigma: float | None,
    shape: Lognormal | Weibull | Mixture | None,
    where: str,
) -> tuple[LengthDistribution | None, str]:
    """The distribution before the cut, None if all lengths are the same; and how it was found.

    Raises OppoError where the figures contradict one another, or say too little.
    """
    _check_figures(figures, cut, where)
    mean, clip, most = figures["mean"], figures.get("clip_ratio", 0.0), figures.get("max")
    all_cut = cut is not None and (clip >= 1 - _SAME or mean >= cut * (1 - _SAME))
    if all_cut or (most is not None and most <= mean * (1 + _SAME)):
        return None, "all equally long"
    bound = math.inf if cut is None else cut
    if clip > 0:
        found = _solved("lognormal", {"mean": mean, "clip_ratio": clip}, bound)
        found = found or _solved("weibull", {"mean": mean, "clip_ratio": clip}, bound)
        if found is not None:
            return found, "mean and clip ratio"
    if (spread := figures.get("std")) is not None and spread > 0:
        sigma_2 = math.log1p((spread / mean) ** 2)
        return Lognormal(math.log(mean) - sigma_2 / 2, math.sqrt(sigma_2)), "mean and standard deviation"
    if (middle := figures.get("median")) is not None and 1 <= middle < bound:
        family = "lognormal" if middle < mean else "weibull"
        if (found := _solved(family, {"mean": mean, "p50": middle}, bound)) is not None:
            return found, "mean and median"
    if sigma is not None:
        return Lognormal(math.log(mean) - sigma * sigma / 2, sigma), "mean and maximum"
    if shape is not None:
        return _scaled(shape, mean, bound), "mean, and the shape of another trace"
    raise OppoError(
        f"{where}: only the mean length is known, which says nothing of the tail: name a trace of the same"
        " shape with --like, or more metrics with --field, such as max=NAME"
    )


def _check_figures(figures: Mapping[str, float], cut: float | None, where: str) -> None:
    """Raise OppoError for figures that no lengths have."""
    for name in ("mean", "max", "min", "median", "std", "prompt_mean"):
        if (value := figures.get(name, 0.0)) > MAX_LENGTH:
            raise OppoError(
                f"{where}: {name} of the lengths is {value:g} but must be at most {MAX_LENGTH:,}: is it the"
                " right metric?"
            )
    mean, clip = figures["mean"], figures.get("clip_ratio", 0.0)
    if mean < 1:
        raise OppoError(
            f"{where}: the mean length is {mean:g} but must be at least 1: leave the step out with --steps"
        )
    if not 0 <= clip <= 1:
        raise OppoError(
            f"{where}: the share of cut responses is {clip:g} but must lie between 0 and 1: is it the right"
            " metric?"
        )
    if cut is not None and mean > cut + _CUT_TOLERANCE:
        raise OppoError(
            f"{where}: the mean length {mean:g} is above the cut at {cut:g}: correct --max-response-length"
        )


def _solved(family: str, targets: dict[str, float], cut: float) -> Lognormal | Weibull | None:
    try:
        return solve_two(family, targets, cut)
    except (OppoError, ValueError, OverflowError):
        return None


def _spreads(steps: Mapping[int, Mapping[str, float]], rows: int) -> dict[int, float]:
    """σ of the lognormal of a step's mean whose longest of ``rows`` draws has the median ``max``, for each
    step with both.

    With z the normal score of 0.5^(1/rows): ln(max / mean) = σ·z − σ²/2; the smaller root, or the widest
    possible (σ = z). One maximum says little, so a step takes the median over its neighbours.
    """
    if rows < 2:
        return {}
    score = float(ndtri(0.5 ** (1 / rows)))
    known = sorted(step for step, figures in steps.items() if figures.get("max", 0.0) > figures["mean"] >= 1)
    ratios = [math.log(steps[step]["max"] / steps[step]["mean"]) for step in known]
    single = [max(score - math.sqrt(max(0.0, score * score - 2 * ratio)), 1e-3) for ratio in ratios]
    return {
        step: median(single[max(0, at - NEIGHBOURS) : at + NEIGHBOURS + 1]) for at, step in enumerate(known)
    }


def _scaled(shape: Lognormal | Weibull | Mixture, mean: float, cut: float) -> Lognormal | Weibull | Mixture:
    """``shape`` stretched so that its mean after the cut is ``mean``."""
    from scipy.optimize import brentq

    def stretched(log_factor: float) -> Lognormal | Weibull | Mixture:
        if isinstance(shape, Lognormal):
            return Lognormal(shape.mu + log_factor, shape.sigma)
        if isinstance(shape, Weibull):
            return Weibull(shape.shape, shape.scale * math.exp(log_factor))
        return Mixture(
            shape.mu_1 + log_factor, shape.sigma_1, shape.mu_2 + log_factor, shape.sigma_2, shape.weight_2
        )

    centre = math.log(mean / shape.mean())
    if math.isinf(cut):
        return stretched(centre)
    high = centre
    while stretched(high).mean(cut) < mean and high < centre + 30:
        high += 0.5
    low = centre - 1
    return stretched(
        float(brentq(lambda each: stretched(each).mean(cut) - mean, low, high)) if high > centre else centre
    )


def _drawn(
    distribution: LengthDistribution | None, mean: float, rows: int, step: int
) -> npt.NDArray[np.float64]:
    """One draw in each of ``rows`` equally likely slices, in a random order that the step alone decides."""
    if distribution is None:
        return np.full(rows, mean)
    order = np.argsort(hashes(stream_key(step, "import/order"), rows), kind="stable")
    chances = (order + uniforms(stream_key(step, "import/within"), rows)) / rows
    return distribution.quantile(np.clip(chances, 2.0**-54, 1 - 2.0**-53))


def _clipped(
    drawn: npt.NDArray[np.float64], figures: Mapping[str, float], cut: float | None
) -> npt.NDArray[np.int64]:
    """Whole tokens within the logged extremes and the cut."""
    low = max(1, math.ceil(figures.get("min", 1)))
    high = max(low, math.floor(min(figures.get("max", MAX_LENGTH), cut or MAX_LENGTH, MAX_LENGTH)))
    return np.clip(np.rint(drawn), low, high).astype(np.int64)


def _rollouts(
    drawn: npt.NDArray[np.float64],
    lengths: npt.NDArray[np.int64],
    figures: Mapping[str, float],
    cut: float | None,
    step: int,
) -> Iterator[Rollout]:
    prompt, reward = figures.get("prompt_mean"), figures.get("reward_mean")
    prompt_length = None if prompt is None else max(0, round(prompt))
    known = cut is not None and "clip_ratio" in figures
    cut_rows = drawn > (cut or math.inf) if known and figures["clip_ratio"] > 0 else drawn < 0
    if known and figures["clip_ratio"] >= 1 - _SAME:
        cut_rows = drawn > 0
    for row, (length, was_cut) in enumerate(zip(lengths.tolist(), cut_rows.tolist(), strict=True)):
        reason = ("length" if was_cut else "stop") if known else None
        yield Rollout(
            row + 1, length, prompt_length, step, finish_reason=reason, reward=reward, reason_inferred=known
        )
