"""What the tables of a validation come to, in sentences."""

from collections.abc import Iterator
from math import isfinite
from typing import Final

from oppo_real.validate.accuracy import PredictionAccuracy, Speedup
from oppo_real.validate.session import Validated
from oppo_sim.columns import TOKENS_SCORED
from oppo_sim.report.labels import NOTHING, format_percent, format_signed, significant

_SCORED_AGAIN: Final = (
    "; a vLLM scorer whose KV cache is too small computes again what other pieces drove out of it, and which"
    " those are hangs on moments: raise kv_cache_memory_bytes in real.scorer_args, or lower policy.overcommit"
)


def sentences(validated: Validated) -> Iterator[str]:
    """How well the order, the speed-ups and the stages were predicted, and on how quiet a machine."""
    found = validated.comparison
    yield from _unsettled(found)
    if not found.unsettled:
        yield from _order(found)
    yield from _speedups(found)
    if validated.profile is not None:
        yield from _stages(found)
    yield from _work(found)
    if validated.profile is not None:
        yield from _interference(validated)
    yield from _quiet(validated)


def interval(low: float, high: float) -> str:
    """``low`` to ``high``; a dash where there is none."""
    return f"{significant(low)} to {significant(high)}" if isfinite(low) and isfinite(high) else NOTHING


# ---- inside ------------------------------------------------------------------------------------------------


def _unsettled(found: PredictionAccuracy) -> Iterator[str]:
    for one in found.unsettled:
        low, high = one.calibrated
        yield (
            f"{one.policy}: the calibration disagrees with itself: drawn anew it gives a speed-up from"
            f" {low:.2f} to {high:.2f}, so nothing is predicted; measure on a"
            " quieter machine, or with more --budget-s and --repeats"
        )


def _order(found: PredictionAccuracy) -> Iterator[str]:
    tau, regret = significant(found.rank_agreement), format_percent(found.regret)
    yield f"rank agreement of the policies by step time (Kendall's tau): {tau}"
    if apart := found.told_apart:
        ordered = sum(not pair.swapped for pair in apart)
        yield f"pairs that the repeats tell apart, in the predicted order: {ordered} of {len(apart)}"
    for pair in found.swaps:
        verdict = "" if pair.told_apart else "; the repeats do not tell them apart"
        yield (
            f"in the other order: a step of {pair.first} over one of {pair.second} is"
            f" {pair.predicted:.3f} as predicted, {pair.measured:.3f}"
            f" ({interval(pair.low, pair.high)}) as measured{verdict}"
        )
    lost = found.lost_to
    unsure = lost is not None and not lost.told_apart
    yield f"regret of the policy that is predicted fastest: {regret} of the best step" + (
        "; the repeats do not tell the two apart" if unsure else ""
    )


def _speedups(found: PredictionAccuracy) -> Iterator[str]:
    settled = [one for one in found.speedups if one.settled]
    if not settled:
        return
    worst: Speedup = max(settled, key=lambda one: abs(one.error))
    yield f"largest error of a predicted speed-up: {format_signed(worst.error)} ({worst.policy})"
    if all(isfinite(one.predicted_low) for one in settled):
        held = sum(one.predicted_low <= one.measured <= one.predicted_high for one in settled)
        yield f"predicted intervals that hold the measured speed-up: {held} of {len(settled)}"


def _stages(found: PredictionAccuracy) -> Iterator[str]:
    for policy in found.stages:
        stage, share = found.largest_error(policy)
        yield f"{policy}: the error of {stage} moves the step most, by {format_signed(share)} of it"


def _work(found: PredictionAccuracy) -> Iterator[str]:
    for policy, name, cell in found.unlike_work:
        yield (
            f"{policy}: {name} is {significant(cell.predicted)} a step as predicted,"
            f" {significant(cell.measured)} as measured: the prediction is of different work"
        ) + (_SCORED_AGAIN if name == TOKENS_SCORED and cell.measured > cell.predicted else "")


def _interference(validated: Validated) -> Iterator[str]:
    assert validated.profile is not None
    placement = validated.request.scenario.placement
    factor = validated.profile.contention_factor
    # The factors of a calibration between the runs hold what other processes took, which the runs met, too.
    with_others = ", with what other processes took" if factor and validated.request.profile is None else ""
    told = significant(factor) if factor else "not known"
    yield f"interference of decoding beside scoring{with_others}: {told}"
    slices, slowed = validated.profile.time_slices, validated.profile.slowdowns
    if slowed is not None and placement.scoring == "separate":
        yield (
            f"on cores of their own: decoding takes {significant(slowed.decode)} times as long beside"
            f" scoring, scoring {significant(slowed.score)} times beside decoding"
        )
    if slices is not None and placement.takes_turns:
        yield (
            f"in turns on one device: {significant(slices.interference)}, and"
            f" {significant(1e3 * slices.turn_s)} ms more an iteration of decoding"
        )


def _quiet(validated: Validated) -> Iterator[str]:
    loads = [run.load for run in validated.runs if run.load is not None]
    if loads:
        yield (
            f"load of the machine when the runs began: {significant(min(loads))} to {significant(max(loads))}"
            " processes"
        )
    shares = [run.core_share for run in validated.runs if run.core_share is not None]
    if shares:
        span = f"{format_percent(min(shares))} to {format_percent(max(shares))}"
        yield (
            f"share of its core that a busy process got just before a run: {span} (100 % on a quiet machine)"
        )
