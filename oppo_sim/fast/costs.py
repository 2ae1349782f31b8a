"""Seconds, work and demands of the cost models, compiled (``oppo_sim/costs``)."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment"

from typing import Any

from oppo_sim.costs import formulas
from oppo_sim.fast.arrays import extrapolated_in, parts_in, stage_s_in, stages_in, tables_in, terms_in
from oppo_sim.fast.codes import ASK_MODEL, LINEAR, ROOFLINE, STAGES, SYNC, TABLE, TRAINING_RANGE
from oppo_sim.fast.compiled import compiled, rule
from oppo_sim.fast.records import Array, State

Forward = tuple[float, float, float, float, float]
roofline_forward = rule(formulas.roofline_forward)
micro_batches = rule(formulas.micro_batches)
slowest_rank = rule(formulas.slowest_rank)
stage_seconds = rule(formulas.stage_seconds)
interpolated = rule(formulas.interpolated)
inside = rule(formulas.inside)
above_noise = rule(formulas.above_noise)


@compiled
def note_range(s: State, table: int, first: float, second: float) -> None:
    """``RangeCounter.note``."""
    if extrapolated_in(s)[table, 0] == 0:
        extrapolated_in(s)[table, 1], extrapolated_in(s)[table, 2] = first, second
    extrapolated_in(s)[table, 0] += 1


@compiled
def segment(tables: Array, at: int, count: int, x: float) -> int:
    """``interpolate.segment`` of the grid that begins at ``at``."""
    low, high = 0, count  # the first knot that is not below x is in [low, high]
    while low < high:
        middle = (low + high) // 2
        if tables[at + middle] < x:
            low = middle + 1
        else:
            high = middle
    return min(max(low - 1, 0), count - 2)


@compiled
def on_segment(tables: Array, at: int, values_at: int, x: float) -> float:
    """``interpolate.linear`` on the segment that begins at ``at``, with the values from ``values_at`` on."""
    return interpolated(x, tables[at], tables[at + 1], tables[values_at], tables[values_at + 1])


@compiled
def table_seconds(s: State, part: Any, tokens: float, pairs: float) -> float:
    """``ProfilePrefill.prefill_time`` and ``ComposedPrefill.prefill_time``."""
    tables, at, count = tables_in(s), part.tokens_at, part.tokens_count
    inner, inner_count = part.context_at, part.context_count
    context = pairs / tokens
    if not (
        inside(tables[at], tables[at + count - 1], tokens)
        and inside(tables[inner], tables[inner + inner_count - 1], context)
    ):
        note_range(s, part.range, tokens, context)
    i = segment(tables, at, count, tokens)
    j = segment(tables, inner, inner_count, context)
    row = part.seconds_at + i * inner_count + j
    low = on_segment(tables, inner + j, row, context)
    high = on_segment(tables, inner + j, row + inner_count, context)
    seconds = interpolated(tokens, tables[at + i], tables[at + i + 1], low, high)
    if seconds <= 0:
        s.error = ASK_MODEL
    return max(seconds, part.least_s) + part.host_s


@compiled
def roofline_part(s: State, part: Any, tokens: float, pairs: float) -> Forward:
    """``ForwardTerms.at``."""
    return roofline_forward(
        terms_in(s),
        part.first_term,
        part.last_term,
        part.experts,
        part.missed,
        part.latency_s,
        part.per_token,
        part.least_s,
        part.host_s,
        tokens,
        pairs,
    )


@compiled
def forward(s: State, index: int, tokens: float, pairs: float) -> Forward:
    """``EngineCost.prefill_time``, ``prefill_work`` and ``prefill_demand``: seconds, operations and bytes of
    all devices, shares of memory traffic and arithmetic."""
    part = parts_in(s)[index]
    if part.last_term:
        seconds, arithmetic, memory, flops, traffic = roofline_part(s, part, tokens, pairs)
        if part.kind == TABLE:
            seconds = table_seconds(s, part, tokens, pairs)
        return (
            seconds,
            flops * part.devices,
            traffic * part.devices,
            min(1.0, memory / seconds),
            min(1.0, arithmetic / seconds),
        )
    linear_s = part.fixed + part.per_token * tokens + part.per_pair * pairs
    if part.kind == LINEAR:
        return linear_s, 0.0, 0.0, part.memory, part.arithmetic
    seconds = table_seconds(s, part, tokens, pairs)
    # Of a table these are seconds in which the device has a kernel; 0: in all.
    share = min(1.0, linear_s / seconds) if linear_s > 0.0 else 1.0
    return seconds, 0.0, 0.0, share * part.memory, share * part.arithmetic


@compiled
def score_forward(s: State, tokens: float, pairs: float) -> Forward:
    """``forward`` of all models of a scoring worker; demands are means weighted by time. ``AdjustedScorer``:
    in the seconds added the device does nothing."""
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
    device = s.score_factor * seconds
    seconds = device + s.score_added_s
    if s.score_added_s > 0.0:
        memory *= device / seconds
        arithmetic *= device / seconds
    return seconds, flops, traffic, memory, arithmetic


@compiled
def roofline_stage(s: State, stage: Any, tokens: float, pairs: float, rollouts: float) -> tuple[float, float]:
    """``RooflineTraining._part``: seconds, and operations of one device."""
    ranks = s.data_parallel
    tokens = tokens / ranks / stage.mini_batches
    pairs = pairs / ranks / stage.mini_batches
    rollouts = rollouts / ranks / stage.mini_batches
    run = stage.padded_tokens * rollouts if stage.padded_tokens > 0.0 else tokens
    count = micro_batches(run, rollouts, stage.micro_batch, stage.micro_batch_rollouts)
    one, _, _, flops, _ = roofline_part(s, parts_in(s)[stage.part], run / count, pairs / count)
    if stage.padded_tokens > 0.0:
        _, _, _, flops, _ = roofline_part(s, parts_in(s)[stage.part], tokens / count, pairs / count)
    slowest = slowest_rank(tokens, pairs, rollouts, count, stage.mini_batches, stage.spread)
    seconds = stage_seconds(
        slowest * one,
        count,
        stage.passes,
        stage.speed,
        stage.longest_stage,
        stage.filling,
        stage.beside_s,
        stage.overhead_s,
        stage.steps,
        stage.reduction_s,
        stage.optimizer_s,
        stage.offload_s,
    )
    return seconds, stage.passes * count * stage.steps / stage.pipeline * flops


@compiled
def stage_times(s: State, tokens: float, pairs: float, rollouts: float) -> None:
    """``TrainingCost.stage_times`` and ``work``."""
    flops = 0.0
    noted = False
    for i in range(STAGES - 1):
        stage = stages_in(s)[i]
        seconds = 0.0
        if stage.kind == LINEAR:
            seconds = stage.fixed + stage.per_token * tokens + stage.per_pair * pairs
        elif stage.kind == ROOFLINE:
            seconds, added = roofline_stage(s, stage, tokens, pairs, rollouts)
            flops += added
        elif stage.kind == TABLE:
            at, count = stage.grid_at, stage.grid_count
            if not noted and not inside(tables_in(s)[at], tables_in(s)[at + count - 1], tokens):
                note_range(s, TRAINING_RANGE, tokens, 0.0)
            noted = True
            j = segment(tables_in(s), at, count, tokens)
            seconds = above_noise(on_segment(tables_in(s), at + j, stage.values_at + j, tokens))
            if seconds < 0:
                s.error = ASK_MODEL
        stage_s_in(s)[i] = stage.factor * seconds + stage.added_s
    stage_s_in(s)[SYNC] = s.update_weights
    s.batch_flops = flops * s.gpus
