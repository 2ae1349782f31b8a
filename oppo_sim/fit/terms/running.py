"""Who runs when in one phase of one replica, in decode iterations: stretches with the same rollouts running.

A rollout of n response tokens runs for n iterations, as in the simulator. Where at most ``slots`` run at
once, the next in order joins when one leaves. Preemption is not followed: a KV cache that cannot hold all
limits how many run at once.
"""

from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Stretches(NamedTuple):
    """Stretches of constant running count; arrays of one length."""

    running: Ints
    iterations: Ints
    kv_start: Floats
    """KV tokens before the first iteration of the stretch; it grows by ``growth`` an iteration."""
    growth: Ints

    @property
    def total_iterations(self) -> float:
        return float(self.iterations.sum())

    @property
    def area(self) -> float:
        """Rollouts × iterations."""
        return float((self.running * self.iterations).sum())


def all_at_once(prompts: Ints, responses: Ints) -> Stretches:
    """Every rollout from the first iteration on."""
    order = np.argsort(responses, kind="stable")
    lengths, before = responses[order], np.concatenate(([0], responses[order][:-1]))
    running = np.arange(len(lengths), 0, -1)
    held = np.cumsum(prompts[order][::-1])[::-1]
    keep = lengths > before
    return Stretches(
        running[keep],
        (lengths - before)[keep],
        (held + running * before)[keep].astype(np.float64),
        running[keep],
    )


def padded_batch(prompts: Ints, responses: Ints) -> Stretches:
    """One padded batch (a plain ``generate()``): every row for as long as the longest."""
    rows, longest = len(responses), int(responses.max())
    start = float(rows * int(prompts.max()))
    return Stretches(np.array([rows]), np.array([longest]), np.array([start]), np.array([rows]))


def in_slots(prompts: Ints, responses: Ints, slots: int) -> tuple[Stretches, Ints]:
    """At most ``slots`` at once, in order; and the iterations before which each rollout joins."""
    if slots >= len(responses):
        return all_at_once(prompts, responses), np.zeros(len(responses), dtype=np.int64)
    ends = [int(length) for length in responses[:slots]]
    heapify(ends)
    starts = np.zeros(len(responses), dtype=np.int64)
    for index in range(slots, len(responses)):
        free = heappop(ends)
        starts[index] = free
        heappush(ends, free + int(responses[index]))
    finish = starts + responses
    instants = np.unique(np.concatenate((starts, finish)))
    joins = np.searchsorted(instants, starts)
    leaves = np.searchsorted(instants, finish)
    change, kv_jump = np.zeros(len(instants)), np.zeros(len(instants))
    np.add.at(change, joins, 1.0)
    np.add.at(change, leaves, -1.0)
    np.add.at(kv_jump, joins, prompts.astype(np.float64))
    np.add.at(kv_jump, leaves, -(prompts + responses).astype(np.float64))
    running = np.cumsum(change)[:-1].astype(np.int64)
    iterations = np.diff(instants)
    grown = np.concatenate(([0.0], np.cumsum(running * iterations)[:-1].astype(np.float64)))
    kv = np.cumsum(kv_jump)[:-1] + grown
    return Stretches(running, iterations, kv, running), starts


def cut_at(phase: Stretches, size: int) -> list[Stretches]:
    """A phase in rounds of ``size`` iterations, the last one shorter."""
    ends = np.cumsum(phase.iterations)
    marks = np.unique(np.concatenate((ends, np.arange(size, ends[-1], size))))
    begins = np.concatenate(([0], marks[:-1]))
    place = np.searchsorted(ends, begins, side="right")
    before = ends[place] - phase.iterations[place]
    kv = phase.kv_start[place] + phase.growth[place] * (begins - before)
    pieces = Stretches(phase.running[place], marks - begins, kv, phase.growth[place])
    rounds = begins // size
    return [Stretches(*(part[rounds == number] for part in pieces)) for number in range(int(rounds[-1]) + 1)]


def slots_of_kv(prompts: Ints, responses: Ints, capacity: int) -> int | None:
    """How many rollouts fit at once on average, where not all do; None where all fit to their ends."""
    if int((prompts + responses).sum()) <= capacity:
        return None
    # A running rollout is met at a uniform point of its life, longer ones more often.
    held = float((responses * (prompts + responses / 2.0)).sum() / responses.sum())
    return max(1, int(capacity / held))
