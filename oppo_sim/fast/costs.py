"""Seconds, work and demands of the cost models, compiled (``oppo_sim/costs``)."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment"

import math
from typing import Any

from oppo_sim.fast.records import (
    ASK_MODEL,
    LINEAR,
    ROOFLINE,
    STAGES,
    SYNC,
    TABLE,
    TRAINING_RANGE,
    Array,
    State,
    asked_in,
    compiled,
    parts_in,
    stage_s_in,
    stages_in,
    tables_in,
    terms_in,
)

Forward = tuple[float, float, float, float, float]


@compiled
def note_range(s: State, table: int, first: float, second: float) -> None:
    """``RangeCounter.note``."""
    if asked_in(s)[table, 0] == 0:
        asked_in(s)[table, 1], asked_in(s)[table, 2] = first, second
    asked_in(s)[table, 0] += 1


@compiled
def outside(low: float, high: float, x: float) -> bool:
    """Not ``interpolate.inside``."""
    return not (low - 1e-9 * abs(low) <= x <= high + 1e-9 * abs(high))


@compiled
def segment(tables: Array, at: int, count: int, x: float) -> int:
    """``interpolate.segment`` of the grid that begins at ``at``."""
    i = 0
    while i < count and tables[at + i] < x:
        i += 1
    return min(max(i - 1, 0), count - 2)


@compiled
def interpolated(tables: Array, grid_at: int, count: int, values_at: int, x: float) -> float:
    """``interpolate.linear``."""
    i = segment(tables, grid_at, count, x)
    weight = (x - tables[grid_at + i]) / (tables[grid_at + i + 1] - tables[grid_at + i])
    return tables[values_at + i] * (1.0 - weight) + tables[values_at + i + 1] * weight


@compiled
def table_seconds(s: State, part: Any, tokens: float, pairs: float) -> float:
    """``ProfileEngine.prefill_time``."""
    tables, at, count = tables_in(s), part.tokens_at, part.tokens_count
    inner, inner_count = part.context_at, part.context_count
    context = pairs / tokens
    if outside(tables[at], tables[at + count - 1], tokens) or outside(
        tables[inner], tables[inner + inner_count - 1], context
    ):
        note_range(s, part.range, tokens, context)
    i = segment(tables, at, count, tokens)
    weight = (tokens - tables[at + i]) / (tables[at + i + 1] - tables[at + i])
    row = part.seconds_at + i * inner_count
    low = interpolated(tables, inner, inner_count, row, context)
    high = interpolated(tables, inner, inner_count, row + inner_count, context)
    seconds = low * (1.0 - weight) + high * weight
    if seconds <= 0:
        s.error = ASK_MODEL
    return seconds + part.host_s


@compiled
def roofline_forward(s: State, part: Any, tokens: float, pairs: float) -> Forward:
    """Seconds, operations, bytes, and seconds of memory traffic and of arithmetic (of one device) of
    ``operators.ForwardTerms``."""
    terms, at = terms_in(s), part.first_term
    touched = 0.0
    if part.experts:
        touched = part.experts * (1.0 - part.miss**tokens)
    arithmetic = terms[at, 0] * tokens + terms[at, 4] * pairs
    memory = terms[at, 1] * tokens + terms[at, 5] * pairs
    flops = terms[at, 2] * tokens + terms[at, 6] * pairs
    traffic = terms[at, 3] * tokens + terms[at, 7] * pairs
    seconds = max(arithmetic, memory)
    for i in range(at + 1, at + part.terms):
        more = terms[i, 0] + terms[i, 4] * tokens + terms[i, 8] * touched
        moved = terms[i, 1] + terms[i, 5] * tokens + terms[i, 9] * touched
        seconds += max(more, moved)
        arithmetic += more
        memory += moved
        flops += terms[i, 2] + terms[i, 6] * tokens + terms[i, 10] * touched
        traffic += terms[i, 3] + terms[i, 7] * tokens + terms[i, 11] * touched
    seconds += part.latency_s + part.per_token * tokens
    return max(seconds, part.least_s) + part.host_s, flops, traffic, memory, arithmetic


@compiled
def forward(s: State, index: int, tokens: float, pairs: float) -> Forward:
    """``EngineCost.prefill_time``, ``prefill_work`` and ``prefill_demand``: seconds, operations and bytes of
    all devices, shares of memory traffic and arithmetic."""
    part = parts_in(s)[index]
    if part.kind == ROOFLINE:
        seconds, flops, traffic, memory, arithmetic = roofline_forward(s, part, tokens, pairs)
        return (
            seconds,
            flops * part.devices,
            traffic * part.devices,
            min(1.0, memory / seconds),
            min(1.0, arithmetic / seconds),
        )
    if part.kind == LINEAR:
        seconds = part.fixed + part.per_token * tokens + part.per_pair * pairs
    else:
        seconds = table_seconds(s, part, tokens, pairs)
    return seconds, 0.0, 0.0, part.memory, part.arithmetic


@compiled
def score_forward(s: State, tokens: float, pairs: float) -> Forward:
    """``forward`` of all models of a scoring worker; demands are means weighted by time."""
    seconds, flops, traffic, memory, arithmetic = forward(s, 1, tokens, pairs)
    if s.scorer_parts > 1:
        memory *= seconds
        arithmetic *= seconds
        for part in range(2, 1 + s.scorer_parts):
            more, more_flops, more_traffic, more_memory, more_arithmetic = forward(s, part, tokens, pairs)
            seconds += more
            flops += more_flops
            traffic += more_traffic
            memory += more * more_memory
            arithmetic += more * more_arithmetic
        if seconds > 0.0:
            memory /= seconds
            arithmetic /= seconds
    return seconds, flops, traffic, memory, arithmetic


@compiled
def roofline_stage(s: State, stage: Any, tokens: float, pairs: float) -> tuple[float, float]:
    """``RooflineTraining._part``: seconds, and operations of one device."""
    ranks = s.data_parallel
    tokens = tokens / ranks / stage.mini_batches
    pairs = pairs / ranks / stage.mini_batches
    count = max(1, math.ceil(tokens / stage.micro_batch))
    one, flops, _, _, _ = roofline_forward(s, parts_in(s)[stage.part], tokens / count, pairs / count)
    micro = max(stage.passes * one / stage.speed, stage.gather_s) + stage.overhead_s
    seconds = stage.steps * (count * micro + stage.reduction_s + stage.optimizer_s) + stage.offload_s
    return seconds, stage.passes * count * stage.steps * flops


@compiled
def stage_times(s: State, tokens: float, pairs: float) -> None:
    """``TrainingCost.stage_times`` and ``work``."""
    flops = 0.0
    noted = False
    for i in range(STAGES - 1):
        stage = stages_in(s)[i]
        seconds = 0.0
        if stage.kind == LINEAR:
            seconds = stage.fixed + stage.per_token * tokens + stage.per_pair * pairs
        elif stage.kind == ROOFLINE:
            seconds, added = roofline_stage(s, stage, tokens, pairs)
            flops += added
        elif stage.kind == TABLE:
            at, count = stage.grid_at, stage.grid_count
            if not noted and outside(tables_in(s)[at], tables_in(s)[at + count - 1], tokens):
                note_range(s, TRAINING_RANGE, tokens, 0.0)
            noted = True
            seconds = interpolated(tables_in(s), at, count, stage.values_at, tokens)
            if seconds < 0:
                s.error = ASK_MODEL
        stage_s_in(s)[i] = seconds
    stage_s_in(s)[SYNC] = s.update_weights
    s.batch_flops = flops * s.gpus
