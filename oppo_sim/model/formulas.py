"""Formulas that the model calls and the compiled path compiles: plain functions of numbers."""

from collections.abc import Sequence
from math import ceil, nan, sqrt


def series_seconds(iterations: int, first: float, growth: float) -> float:
    """Seconds of so many iterations, the first of ``first`` seconds and each ``growth`` longer than the one
    before."""
    return iterations * first + growth * (iterations * (iterations - 1) * 0.5)


def iterations_until(seconds: float, most: int, first: float, growth: float) -> int:
    """The fewest whole iterations, as in ``series_seconds``, that last at least ``seconds``; at most
    ``most``."""
    if seconds <= 0.0:
        return 0
    # Root of series_seconds(k) = seconds in the form that stays exact when the growth vanishes; then mended
    # by whole steps.
    half = first - 0.5 * growth
    k = min(most, max(0, ceil(2.0 * seconds / (half + sqrt(half * half + 2.0 * growth * seconds)))))
    while k > 0 and series_seconds(k - 1, first, growth) >= seconds:
        k -= 1
    while k < most and series_seconds(k, first, growth) < seconds:
        k += 1
    return k


def iterations_that_fit(residues: Sequence[int], free_blocks: int, running: int) -> int:
    """Iterations of ``running`` rollouts before they need more KV blocks than ``free_blocks`` beside those
    that they have. A rollout needs one more each time its context fills a block.

    ``residues``: how many contexts are 0, 1, … tokens beyond whole blocks, one entry a token of a block.
    """
    block = len(residues)
    cycles = free_blocks // running
    left = free_blocks - cycles * running
    grown = 0
    for ahead in range(1, block + 1):
        grown += residues[block - ahead]
        if grown > left:
            return cycles * block + ahead
    return cycles * block + block


def prefilled_tokens(given: int, block: int) -> int:
    """Tokens that a scorer has prefilled of a rollout that goes on, when it was given so many: all, or with a
    ``block`` of several tokens the whole blocks that leave one over (docs/model.md, C9b)."""
    return given if block <= 1 else max(given - 1, 0) // block * block


def piece_seconds(pieces: int, seconds: float, piece_fixed_s: float) -> float:
    """Seconds of a scoring batch of so many pieces that takes ``seconds`` beside what each piece costs."""
    return seconds + pieces * piece_fixed_s


def send_seconds(tokens: int, piece_send_s: float, send_s_per_token: float) -> float:
    """Seconds that a piece takes on its link."""
    return piece_send_s + tokens * send_s_per_token


def time_on_device(memory: float, arithmetic: float) -> float:
    """Share of its own seconds in which an activity has a kernel on the device: the larger demand's."""
    return max(memory, arithmetic)


def device_rate(active: int, interference: float, memory: float, arithmetic: float, turns: float) -> float:
    """Own seconds that an activity makes in one second on a device with ``active`` ones, whose demands sum to
    ``memory`` and ``arithmetic`` (docs/model.md C6). In time slices ``memory`` is the sum of
    ``time_on_device`` and ``arithmetic`` 0, and ``turns`` what the activity itself takes longer by turns, a
    share of its own seconds."""
    if active < 2:
        return 1.0
    return 1.0 / (interference * max(1.0, memory, arithmetic) * (1.0 + turns))


def busy_share(busy_s: float, devices: int, seconds: float) -> float:
    """Share of ``seconds`` in which ``devices`` devices were busy, together for ``busy_s`` seconds; NaN of no
    time."""
    return busy_s / (devices * seconds) if seconds > 0.0 else nan


def kernel_share(kernel_s: float, devices: int, seconds: float) -> float:
    """Share of ``seconds`` with a kernel on a device, the mean of ``devices`` ones that together had
    ``kernel_s`` seconds of it; NaN of no time."""
    return min(1.0, kernel_s / (devices * seconds)) if seconds > 0.0 else nan
