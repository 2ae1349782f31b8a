"""Formulas of the cost models: plain functions of numbers, which the compiled path compiles as they stand
here, so that both engines give the same digits."""

from collections.abc import Iterable
from math import ceil, sqrt
from typing import Any


def roofline_forward(
    groups: Any,
    first: int,
    last: int,
    experts: int,
    missed: float,
    latency_s: float,
    token_s: float,
    least_s: float,
    host_s: float,
    tokens: float,
    pairs: float,
) -> tuple[float, float, float, float, float]:
    """A forward over ``tokens`` new tokens and ``pairs`` query-key pairs: its seconds, and of one device the
    seconds of arithmetic and of memory traffic, operations and bytes (``operators.ForwardTerms``).

    Its operator groups are ``groups[first]`` to before ``groups[last]``, of twelve numbers each; attention
    comes first.
    """
    touched = experts * (1.0 - missed**tokens) if experts else 0.0
    row = groups[first]
    arithmetic = row[0] * tokens + row[4] * pairs
    memory = row[1] * tokens + row[5] * pairs
    flops = row[2] * tokens + row[6] * pairs
    traffic = row[3] * tokens + row[7] * pairs
    seconds = arithmetic if arithmetic > memory else memory
    for i in range(first + 1, last):
        row = groups[i]
        more = row[0] + row[4] * tokens + row[8] * touched
        moved = row[1] + row[5] * tokens + row[9] * touched
        seconds += more if more > moved else moved
        arithmetic += more
        memory += moved
        flops += row[2] + row[6] * tokens + row[10] * touched
        traffic += row[3] + row[7] * tokens + row[11] * touched
    seconds += latency_s + token_s * tokens
    return max(seconds, least_s) + host_s, arithmetic, memory, flops, traffic


def micro_batches(tokens: float, rollouts: float, most_tokens: int, most_rollouts: float) -> int:
    """Micro-batches of at most ``most_tokens``; or, where that is not 0, of ``most_rollouts``."""
    whole = rollouts / most_rollouts if most_rollouts > 0.0 else tokens / most_tokens
    return max(1, ceil(whole))


def slowest_rank(
    tokens: float, pairs: float, rollouts: float, count: int, mini_batches: int, spread: float
) -> float:
    """The longest of what ranks bring to a micro-batch, over their mean; 1 where ``spread`` is 0.

    Ranks that gather weights layer by layer wait for each other in every micro-batch. Each has ``tokens``,
    ``pairs`` (Σ n²/2) and ``rollouts`` in a mini-batch, in ``count`` micro-batches; all ranks have as many
    tokens in a whole batch. A micro-batch is then a sum of rollouts drawn without replacement, and ``spread``
    (``StagePlan``) of its standard deviations above the mean is the longest.
    """
    if spread <= 0.0:
        return 1.0
    mean = tokens / rollouts
    variance = 2.0 * pairs / rollouts - mean * mean
    if variance <= 0.0:
        return 1.0
    drawn = 1.0 - 1.0 / (count * mini_batches)
    return 1.0 + spread * sqrt(variance * drawn * count / rollouts) / mean


def stage_seconds(
    forward_s: float,
    count: int,
    passes: float,
    speed: float,
    longest_stage: float,
    filling: float,
    beside_s: float,
    overhead_s: float,
    steps: int,
    reduction_s: float,
    optimizer_s: float,
    offload_s: float,
) -> float:
    """Seconds of a training stage of ``steps`` mini-batches, each of ``count`` micro-batches
    (``lowering.StagePlan``). In a pipeline the first fills it and the others follow by its longest stage
    (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
    2021, §2.2: with even stages a bubble of (p − 1)/count, over the interleaved chunks of a stage)."""
    micro = max(passes * forward_s / speed, beside_s) + overhead_s
    piped = count * longest_stage + filling
    return steps * (piped * micro + reduction_s + optimizer_s) + offload_s


def interpolated(x: float, before: float, after: float, low: float, high: float) -> float:
    """The line through (before, low) and (after, high) at x; its ends to the last digit."""
    weight = (x - before) / (after - before)
    return low * (1.0 - weight) + high * weight


def above_noise(seconds: float) -> float:
    """Seconds on a measured line beyond its end: none where it falls below zero by less than a millisecond. A
    stage that does nothing takes microseconds, whose line is the noise of a clock."""
    return 0.0 if -1e-3 < seconds < 0.0 else seconds


def inside(low: float, high: float, x: float) -> bool:
    """True for low <= x <= high up to rounding: grids that are scaled, and means of lengths, meet the ends of
    a range only up to that."""
    return low - 1e-9 * abs(low) <= x <= high + 1e-9 * abs(high)


def added(numbers: Iterable[float]) -> float:
    """Their sum in order, as a loop adds; ``sum`` rounds otherwise from Python 3.12 on."""
    total = 0.0
    for number in numbers:
        total += number
    return total
