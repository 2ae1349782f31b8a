"""The synchronous schedules, compiled: the same steps, in the same order, as ``oppo_sim/model`` and
``oppo_sim/schedule``.

Every function names its counterpart there; docs/model.md says what the rules are. The state ``s`` of a run is
one record of numbers (``SETTINGS``, ``RUN``) and of places of arrays (``TABLES``): ``replicas_in(s)[r].kv``
is here what ``Replica._kv`` is there. One pointer to everything, since arrays as arguments cost compiled
calls more than what the calls do.

A *slot* is a place of a rollout in flight; the rollouts of a group lie side by side, in a *group slot*, and
the slot is used again when its rollout has been trained. Where the model has events, the kernel has one time
an actor (``fire``): replicas, then scoring workers, then the trainer, then the earliest of the *dead* ones.
Those are ends that were brought forward: they do nothing, but they are moments at which the model looks, and
they may join two instants.

Whatever the model would refuse ends the run with ``ASK_MODEL``: the caller repeats it there, where the
sentence is. A full buffer ends it with ``NO_ROOM``: the caller repeats it with larger ones. Importing this
module imports numba: ``choose`` does so when a run needs it.
"""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment"

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from oppo_sim import columns as c

F = TypeVar("F", bound=Callable[..., Any])
_numba: Any = numba  # what it says of its types differs from version to version
carray = _numba.carray
Array = Any
State = Any
"""The record of a run."""


def _compiled(function: F) -> F:
    # Called by compiled code only, so the wrappers for other callers are not compiled.
    return cast(
        F,
        _numba.njit(error_model="numpy", nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(
            function
        ),
    )


def _entry(function: F) -> F:
    """Called from Python. Only this file's time stamp tells numba that what it cached is old: use no
    constants of other files."""
    return cast(F, _numba.njit(cache=True, error_model="numpy", nogil=True)(function))


# ---- what is what ------------------------------------------------------------------------------------------

OK, ASK_MODEL, NO_ROOM = range(3)
BY_BATCH, BY_ROLLOUT, BY_CHUNK = range(3)
GRANULARITIES = ("batch", "rollout", "chunk")
IN_ORDER, RESAMPLE, BY_STEP = range(3)
SAMPLINGS = ("in_order", "resample", "by_step")
IDLE, READY, DECODE, PREFILL = range(4)
BEGIN, GENERATE, GENERATED, SCORE, TRAIN = range(5)
"""Where the process of a step is: about to begin, generating, generated, waiting for scores, training."""
LINEAR, TABLE, ROOFLINE, NOTHING = range(4)
"""Kinds of cost."""
DECODE_RANGE, PREFILL_RANGE, SCORE_RANGE, SCORE_REF_RANGE, TRAINING_RANGE = range(5)
"""Measured tables whose extrapolations are counted."""
STAGES = 7
PARALLEL_STAGES = 3
SYNC = STAGES - 1
UNBOUNDED = -1

# Columns of ``State.out``, in the order of a step's row.
NAMES = (
    c.STEP, c.WEIGHT_VERSION, c.START_S, *(c.timing(stage) for stage in c.STAGES), c.TIMING_STEP,
    c.LENGTH_MEAN, c.LENGTH_MAX, c.LENGTH_MIN, c.LENGTH_CLIP_RATIO, c.PROMPT_LENGTH_MEAN, c.TRACE_LENGTH_MEAN,
    c.ROLLOUTS_ADMITTED, c.ROLLOUTS_DEFERRED, c.ROLLOUTS_SURPLUS, c.ROLLOUTS_DROPPED, c.PARTIAL_RATIO,
    c.STALENESS_MEAN, c.STALENESS_MAX, c.STALENESS_MIN, c.SPANS_MEAN, c.SPANS_MAX, c.OVERCOMMIT,
    c.CHUNK_SIZE, c.REWARD_MEAN,
    c.TOKENS_DECODED, c.TOKENS_TRAINED, c.TOKENS_PREFILLED, c.TOKENS_RECOMPUTED, c.TOKENS_PADDING,
    c.TOKENS_DROPPED,
    c.TOKENS_IN_FLIGHT, c.TOKENS_SCORED, c.SCORER_PIECES, c.SCORER_BATCHES,
    c.BUSY_ROLLOUT, c.BUSY_SCORING, c.BUSY_TRAINING, c.UTILIZATION_INFERENCE,
    c.FLOPS_ROLLOUT, c.FLOPS_SCORING, c.FLOPS_TRAINING, c.MFU_ROLLOUT, c.MFU_SCORING, c.MFU_TRAINING,
    c.BANDWIDTH_ROLLOUT, c.BANDWIDTH_SCORING, c.MBU_ROLLOUT, c.MBU_SCORING, c.KV_PEAK_TOKENS,
    c.KV_PREEMPTIONS,
)  # fmt: skip
(
    STEP, WEIGHT_VERSION, START_S, GEN_S, REWARD_S, FIRST_STAGE_S, _1, _2, _3, _4, _5, _6, STEP_S,
    LENGTH_MEAN, LENGTH_MAX, LENGTH_MIN, LENGTH_CLIP_RATIO, PROMPT_LENGTH_MEAN, TRACE_LENGTH_MEAN,
    ROLLOUTS_ADMITTED, ROLLOUTS_DEFERRED, ROLLOUTS_SURPLUS, ROLLOUTS_DROPPED, PARTIAL_RATIO,
    STALENESS_MEAN, STALENESS_MAX, STALENESS_MIN, SPANS_MEAN, SPANS_MAX, OVERCOMMIT, CHUNK_SIZE, REWARD_MEAN,
    TOKENS_DECODED, TOKENS_TRAINED, TOKENS_PREFILLED, TOKENS_RECOMPUTED, TOKENS_PADDING, TOKENS_DROPPED,
    TOKENS_IN_FLIGHT, TOKENS_SCORED, SCORER_PIECES, SCORER_BATCHES,
    BUSY_ROLLOUT, BUSY_SCORING, BUSY_TRAINING, UTILIZATION_INFERENCE,
    FLOPS_ROLLOUT, FLOPS_SCORING, FLOPS_TRAINING, MFU_ROLLOUT, MFU_SCORING, MFU_TRAINING,
    BANDWIDTH_ROLLOUT, BANDWIDTH_SCORING, MBU_ROLLOUT, MBU_SCORING, KV_PEAK_TOKENS, KV_PREEMPTIONS,
) = range(len(NAMES))  # fmt: skip
WHOLE = frozenset({
    c.STEP, c.WEIGHT_VERSION, c.LENGTH_MAX, c.LENGTH_MIN, c.ROLLOUTS_ADMITTED, c.ROLLOUTS_DEFERRED,
    c.ROLLOUTS_SURPLUS, c.ROLLOUTS_DROPPED,
    c.STALENESS_MAX, c.STALENESS_MIN, c.SPANS_MAX, c.OVERCOMMIT, c.CHUNK_SIZE, c.TOKENS_DECODED,
    c.TOKENS_TRAINED, c.TOKENS_PREFILLED,
    c.TOKENS_RECOMPUTED, c.TOKENS_PADDING, c.TOKENS_DROPPED, c.TOKENS_IN_FLIGHT, c.TOKENS_SCORED,
    c.SCORER_PIECES, c.SCORER_BATCHES,
    c.KV_PEAK_TOKENS, c.KV_PREEMPTIONS,
})  # fmt: skip
"""Columns of whole numbers."""


def _fields(whole: str, real: str = "", small: str = "") -> list[tuple[str, Any]]:
    """Fields of a record: 64-bit whole numbers, 64-bit reals and 32-bit whole numbers, by name."""
    return [
        (name, kind) for names, kind in ((whole, "i8"), (real, "f8"), (small, "i4")) for name in names.split()
    ]


def _record(whole: str, real: str = "", small: str = "") -> np.dtype[Any]:
    return np.dtype(_fields(whole, real, small), align=True)


SETTINGS = _fields(
    "batch group_size replicas workers granularity rounds stream static free_padding clear_kv limited"
    " kv_blocks kv_block_tokens max_num_seqs max_scoring_tokens queue_length scorer_kv_capacity colocated"
    " parallel_inference free_recompute max_deferrals window sampling by_row_rewards controls_delta delta_min"
    " delta_max delta_up delta_down delta_window proportional candidates explore_every explore_steps"
    " has_lines_checked scorer_parts knows_actor knows_scorer knows_training",
    "update_weights actor_flops actor_bytes scorer_flops scorer_bytes training_flops gpus data_parallel"
    " tolerance tie",
)
"""What does not change in a run; as in ``MachineSetup``, the policy's settings and the cost models.
``UNBOUNDED``: no limit."""

RUN = _fields(
    "step until row error resume doing generating stopping finish_seen ready active dead inbox fin arrived"
    " flights free admitted admitted_in_step awaited to_score delta chunk overcommit chunk_phase chunk_kept"
    " rewards_seen row_chunk histogram deferred surplus tokens_in_flight batch_tokens activity activities"
    " trainer_active oracle_next oracle_groups new decoded prefilled recomputed padding preemptions kv_peak"
    " pieces scored scoring_batches",
    "origin now gen_ended scored_at trainer_began trainer_end training_busy training_since scored_inference "
    "rollout_flops rollout_bytes scoring_flops scoring_bytes batch_flops",
)
"""Everything that changes once, not once a rollout, replica or worker; the last row of each part is the tally
of a step's row."""

ROLLOUT = _record(
    "id final row",
    "",
    "group prompt response clipped replica generated before next_cut cut prompt_sent sent has_kv finished"
    " prefilled scored to_score worker withheld held head tail span",
)
"""``head`` −1: no token yet. ``before``: tokens at the step's begin. ``to_score``: the step waits for its
score."""
GROUP = _record("id deferrals finished_step missing awaited whole")
"""``missing``: members that have not finished; ``whole``: it is none."""
REPLICA = _record(
    "state iteration running kv rows padded_kv k round_left heap waiting load active",
    "at started end fixed slope busy busy_since",
)
WORKER = _record("running load held head served tail", "end busy busy_since")
"""``head`` to ``served`` of its queue are in service, ``served`` to ``tail`` wait."""
PART = _record(
    "kind first_term terms experts tokens_at tokens_count context_at context_count seconds_at range",
    "fixed per_token per_pair latency_s least_s host_s miss devices",
)
"""One forward: see ``cost_tables``."""
STAGE = _record(
    "kind part micro_batch mini_batches steps grid_at grid_count values_at",
    "fixed per_token per_pair passes speed gather_s overhead_s reduction_s optimizer_s optimizer_bytes"
    " offload_s",
)
"""One training stage: see ``cost_tables``."""

TABLES: dict[str, Any] = {
    "rollouts": ROLLOUT,
    "groups": GROUP,
    "replicas": REPLICA,
    "workers": WORKER,
    "fire": "f8",  # Seconds of each actor's next event; inf: none.
    "dead": "f8",  # Ends that were brought forward, as a heap.
    "heap_at": "i8",  # Of each replica, as a heap: the iteration of a running rollout's next cut or finish.
    "heap_slot": "i8",  # Its slot; −1: a cut whose rollout is no longer there.
    "waiting": "i8",  # Of each replica: slots of rollouts to be prefilled (by id where joining is limited).
    "flights": "i8",  # Group slots in flight but for the batch in training, by id.
    "free": "i8",  # Group slots that are not used, the next one last.
    "arrived": "i8",  # Group slots that finished in this phase.
    "arrived_at": "f8",
    "finished": "i8",  # Group slots that may be selected, in order.
    "batch": "i8",  # Group slots of the batch in training.
    "inbox": "i4",  # Pieces that arrived in this instant: (slot, new, past, last).
    "inbox_key": "i8",
    "queue": "i4",  # Of each worker, a ring of pieces.
    "residues": "i8",
    "keys": "i8",  # Scratch for sorting, and …
    "items": "i8",  # … what is sorted.
    "order": "i8",  # Group slots of the oracle's window, shortest first.
    "dealt": "i8",  # Scratch: response tokens dealt to each replica.
    "stage_s": "f8",  # Seconds of each stage alone.
    "passed_s": "f8",  # Seconds of each stage as they passed.
    "activity_s": "f8",
    "activity_stages": (
        "i8"
    ),  # The trainer's activities of a step: seconds, and the stages (bits) that they are.
    "candidates": "i8",
    "candidate_s": "f8",
    "candidate_tokens": "i8",
    "rewards": "f8",  # Mean reward of each step (NaN: none), or of each row of the trace.
    "rewards_seen": "f8",  # The last ``delta_window`` + 1 of them, as a ring.
    "prompts": "i4",
    "responses": "i4",
    "clipped": "i4",
    "blocks": "i8",  # (first row, groups) of each step of the trace.
    "block_means": "f8",
    "key": "u8",  # Of the stream of row draws.
    "lines": "f8",  # Decode lines (fixed, slope, kv_until), those of one batch size after those of another.
    "line_at": "i8",  # First line of a batch size.
    "line_range": "f8",  # Of each batch size: lowest and highest KV measured.
    "work": "f8",  # Of each batch size: operations at no KV, a KV token; bytes at no KV, a KV token.
    "parts": PART,
    "terms": "f8",
    "tables": "f8",
    "stages": STAGE,
    "asked": "f8",  # Of each measured table: extrapolated answers, and what was asked first (two numbers).
    "out": "f8",  # One row a step, columns ``NAMES``.
    "histogram": "i8",  # Counts of staleness 0, 1, …, of one step after those of another.
    "histogram_end": "i8",
}
"""Arrays of a run and what they hold."""
STATE = np.dtype(
    [*SETTINGS, *RUN, *((name, "i8", (len(TABLES),)) for name in ("address", "length", "width"))], align=True
)
"""``width``: entries of a row, for arrays of two dimensions."""


def _as_pointer(typingctx: Any, address: Any) -> Any:
    """An address as a pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


_pointer: Any = intrinsic(_as_pointer)


def _vector(name: str) -> Callable[[State], Array]:
    """The function that gives an array of a state."""
    i, dtype = list(TABLES).index(name), np.dtype(TABLES[name])

    @_compiled
    def array_in(s: State) -> Array:
        return carray(_pointer(s.address[i]), (s.length[i],), dtype)

    return array_in


def _matrix(name: str) -> Callable[[State], Array]:
    """The function that gives an array of two dimensions."""
    i, dtype = list(TABLES).index(name), np.dtype(TABLES[name])

    @_compiled
    def array_in(s: State) -> Array:
        return carray(_pointer(s.address[i]), (s.length[i], s.width[i]), dtype)

    return array_in


rollouts_in = _vector("rollouts")
groups_in = _vector("groups")
replicas_in = _vector("replicas")
workers_in = _vector("workers")
fire_in = _vector("fire")
dead_in = _vector("dead")
heap_at_in = _matrix("heap_at")
heap_slot_in = _matrix("heap_slot")
waiting_in = _matrix("waiting")
flights_in = _vector("flights")
free_in = _vector("free")
arrived_in = _vector("arrived")
arrived_at_in = _vector("arrived_at")
finished_in = _vector("finished")
batch_in = _vector("batch")
inbox_in = _matrix("inbox")
inbox_key_in = _vector("inbox_key")
queue_in = _matrix("queue")
residues_in = _vector("residues")
keys_in = _vector("keys")
items_in = _vector("items")
order_in = _vector("order")
dealt_in = _vector("dealt")
stage_s_in = _vector("stage_s")
passed_s_in = _vector("passed_s")
activity_s_in = _vector("activity_s")
activity_stages_in = _vector("activity_stages")
candidates_in = _vector("candidates")
candidate_s_in = _vector("candidate_s")
candidate_tokens_in = _vector("candidate_tokens")
rewards_in = _vector("rewards")
rewards_seen_in = _vector("rewards_seen")
prompts_in = _vector("prompts")
responses_in = _vector("responses")
clipped_in = _vector("clipped")
blocks_in = _matrix("blocks")
block_means_in = _vector("block_means")
key_in = _vector("key")
lines_in = _matrix("lines")
line_at_in = _vector("line_at")
line_range_in = _matrix("line_range")
work_in = _matrix("work")
parts_in = _vector("parts")
terms_in = _matrix("terms")
tables_in = _vector("tables")
stages_in = _vector("stages")
asked_in = _matrix("asked")
out_in = _matrix("out")
histogram_in = _vector("histogram")
histogram_end_in = _vector("histogram_end")


# ---- small tools -------------------------------------------------------------------------------------------


@_compiled
def tolerance(s: State, seconds: float) -> float:
    """``instants.instant_tolerance``."""
    return s.tolerance * seconds if seconds > 1.0 else s.tolerance


@_compiled
def clear(array: Array, first: int, last: int) -> None:
    """Zeros from ``first`` on, before ``last``."""
    for i in range(first, last):
        array[i] = 0


@_compiled
def mixed(state: Any) -> Any:
    """``draws._mix``."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@_compiled
def draw_index(key: Any, counter: int, size: int) -> int:
    """``draws.draw_index`` for sizes below 2^31, in two halves since the product has up to 95 bits."""
    drawn = mixed(key ^ mixed(np.uint64(counter)))
    low, high = drawn & np.uint64(0xFFFFFFFF), drawn >> np.uint64(32)
    wide = np.uint64(size)
    return np.int64((high * wide + ((low * wide) >> np.uint64(32))) >> np.uint64(32))


@_compiled
def sort_by_key(keys: Array, items: Array, count: int) -> None:
    """Sort the first ``count`` of both by rising keys (Shell's method, Knuth's gaps)."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            key, item = keys[i], items[i]
            j = i
            while j >= gap and keys[j - gap] > key:
                keys[j], items[j] = keys[j - gap], items[j - gap]
                j -= gap
            keys[j], items[j] = key, item
        gap //= 3


@_compiled
def heap_up(at: Array, slot: Array, position: int) -> None:
    """Move the entry at ``position`` up to where it belongs."""
    key, item = at[position], slot[position]
    while position > 0:
        parent = (position - 1) >> 1
        if at[parent] <= key:
            break
        at[position], slot[position] = at[parent], slot[parent]
        position = parent
    at[position], slot[position] = key, item


@_compiled
def heap_down(at: Array, slot: Array, count: int, position: int) -> None:
    """Move the entry at ``position`` down to where it belongs."""
    key, item = at[position], slot[position]
    child = 2 * position + 1
    while child < count:
        if child + 1 < count and at[child + 1] < at[child]:
            child += 1
        if at[child] >= key:
            break
        at[position], slot[position] = at[child], slot[child]
        position = child
        child = 2 * position + 1
    at[position], slot[position] = key, item


# ---- costs -------------------------------------------------------------------------------------------------


@_compiled
def note_range(s: State, table: int, first: float, second: float) -> None:
    """``RangeCounter.note``."""
    if asked_in(s)[table, 0] == 0:
        asked_in(s)[table, 1], asked_in(s)[table, 2] = first, second
    asked_in(s)[table, 0] += 1


@_compiled
def outside(low: float, high: float, x: float) -> bool:
    """Not ``interpolate.inside``."""
    return not (low - 1e-9 * abs(low) <= x <= high + 1e-9 * abs(high))


@_compiled
def segment(tables: Array, at: int, count: int, x: float) -> int:
    """``interpolate.segment`` of the grid that begins at ``at``."""
    i = 0
    while i < count and tables[at + i] < x:
        i += 1
    return min(max(i - 1, 0), count - 2)


@_compiled
def interpolated(tables: Array, grid_at: int, count: int, values_at: int, x: float) -> float:
    """``interpolate.linear``."""
    i = segment(tables, grid_at, count, x)
    weight = (x - tables[grid_at + i]) / (tables[grid_at + i + 1] - tables[grid_at + i])
    return tables[values_at + i] * (1.0 - weight) + tables[values_at + i + 1] * weight


@_compiled
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


@_compiled
def roofline_forward(s: State, part: Any, tokens: float, pairs: float) -> tuple[float, float, float]:
    """Seconds, operations and bytes (of one device) of ``operators.ForwardTerms``."""
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
        arithmetic = terms[i, 0] + terms[i, 4] * tokens + terms[i, 8] * touched
        memory = terms[i, 1] + terms[i, 5] * tokens + terms[i, 9] * touched
        seconds += max(arithmetic, memory)
        flops += terms[i, 2] + terms[i, 6] * tokens + terms[i, 10] * touched
        traffic += terms[i, 3] + terms[i, 7] * tokens + terms[i, 11] * touched
    seconds += part.latency_s + part.per_token * tokens
    return max(seconds, part.least_s) + part.host_s, flops, traffic


@_compiled
def forward(s: State, index: int, tokens: float, pairs: float) -> tuple[float, float, float]:
    """``EngineCost.prefill_time`` and ``prefill_work``: seconds, operations, bytes of all devices."""
    part = parts_in(s)[index]
    if part.kind == ROOFLINE:
        seconds, flops, traffic = roofline_forward(s, part, tokens, pairs)
        return seconds, flops * part.devices, traffic * part.devices
    if part.kind == LINEAR:
        return part.fixed + part.per_token * tokens + part.per_pair * pairs, 0.0, 0.0
    return table_seconds(s, part, tokens, pairs), 0.0, 0.0


@_compiled
def roofline_stage(s: State, stage: Any, tokens: float, pairs: float) -> tuple[float, float]:
    """``RooflineTraining._part``: seconds, and operations of one device."""
    ranks = s.data_parallel
    tokens = tokens / ranks / stage.mini_batches
    pairs = pairs / ranks / stage.mini_batches
    count = max(1, math.ceil(tokens / stage.micro_batch))
    one, flops, _ = roofline_forward(s, parts_in(s)[stage.part], tokens / count, pairs / count)
    micro = max(stage.passes * one / stage.speed, stage.gather_s) + stage.overhead_s
    seconds = stage.steps * (count * micro + stage.reduction_s + stage.optimizer_s) + stage.offload_s
    return seconds, stage.passes * count * stage.steps * flops


@_compiled
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


# ---- scoring workers (model/scorer.py) ---------------------------------------------------------------------


@_compiled
def hand_over(s: State, slot: int, last: int) -> None:
    """``Replica.hand_over``: what the rollout made since its last cut reaches the scorer's inbox."""
    rollout = rollouts_in(s)[slot]
    past = rollout.cut
    new = rollout.generated - past
    if rollout.prompt_sent:
        past += rollout.prompt
    else:
        new += rollout.prompt
        rollout.prompt_sent = 1
    rollout.cut = rollout.generated
    i = s.inbox
    if i >= inbox_in(s).shape[0]:
        s.error = NO_ROOM
        return
    s.inbox = i + 1
    # In order of (id, arrival); ids stay far below 2^39.
    inbox_key_in(s)[i] = (rollout.id << 24) | i
    inbox_in(s)[i, 0], inbox_in(s)[i, 1], inbox_in(s)[i, 2], inbox_in(s)[i, 3] = slot, new, past, last


@_compiled
def queue_place(s: State, w: int, i: int) -> int:
    """Where the ``i``-th piece ever queued at worker ``w`` lies; a ring of a power of two places."""
    return w * s.queue_length + (i & (s.queue_length - 1))


@_compiled
def queue_piece(s: State, i: int) -> None:
    """``Scorer._queue`` of piece ``i`` of the inbox."""
    slot, new, past, last = inbox_in(s)[i, 0], inbox_in(s)[i, 1], inbox_in(s)[i, 2], inbox_in(s)[i, 3]
    rollout = rollouts_in(s)[slot]
    chosen = rollout.worker
    if chosen < 0:
        chosen = 0
        for w in range(1, s.workers):
            if workers_in(s)[w].load < workers_in(s)[chosen].load:
                chosen = w
    worker = workers_in(s)[chosen]
    if s.scorer_kv_capacity != UNBOUNDED:
        if not last and (rollout.withheld > 0 or worker.held + new > s.scorer_kv_capacity):
            rollout.withheld += new
            return
        if rollout.withheld:
            new += rollout.withheld
            past -= rollout.withheld
            rollout.withheld = 0
        worker.held += new
        rollout.held += new
    rollout.worker = chosen
    worker.load += new
    if worker.tail - worker.head >= s.queue_length:
        s.error = NO_ROOM
        return
    queue, place = queue_in(s), queue_place(s, chosen, worker.tail)
    queue[place, 0], queue[place, 1], queue[place, 2], queue[place, 3] = slot, new, past, last
    worker.tail += 1
    s.pieces += 1


@_compiled
def take(s: State, w: int) -> None:
    """``Scorer._take``: a free worker takes what is queued."""
    worker = workers_in(s)[w]
    queue, limit = queue_in(s), s.max_scoring_tokens
    place = queue_place(s, w, worker.served)
    tokens = np.int64(queue[place, 1])
    pairs = tokens * (queue[place, 2] + tokens * 0.5)
    served = worker.served + 1
    while served < worker.tail:
        place = queue_place(s, w, served)
        new = np.int64(queue[place, 1])
        if tokens + new > limit:
            break
        tokens += new
        pairs += new * (queue[place, 2] + new * 0.5)
        served += 1
    worker.served = served
    s.scored += tokens
    s.scoring_batches += 1
    seconds, flops, traffic = forward(s, 1, float(tokens), pairs)
    for part in range(2, 1 + s.scorer_parts):
        more, more_flops, more_traffic = forward(s, part, float(tokens), pairs)
        seconds += more
        flops += more_flops
        traffic += more_traffic
    s.scoring_flops += flops
    s.scoring_bytes += traffic
    worker.running = 1
    worker.busy_since = s.now
    worker.end = s.now + seconds
    fire_in(s)[s.replicas + w] = worker.end


@_compiled
def scoring_ended(s: State, w: int) -> None:
    """``Scorer._batch_ended``."""
    worker = workers_in(s)[w]
    fire_in(s)[s.replicas + w] = math.inf
    worker.running = 0
    worker.busy += worker.end - worker.busy_since
    queue = queue_in(s)
    for i in range(worker.head, worker.served):
        place = queue_place(s, w, i)
        worker.load -= queue[place, 1]
        if queue[place, 3]:
            rollout = rollouts_in(s)[queue[place, 0]]
            rollout.scored = 1
            worker.held -= rollout.held
            rollout.held = 0
            if rollout.to_score:
                rollout.to_score = 0
                s.to_score -= 1
                if s.to_score == 0:
                    s.resume = 1
    worker.head = worker.served


@_compiled
def settle_scorer(s: State) -> None:
    """``Scorer.settle``."""
    count = s.inbox
    if count == 1:
        queue_piece(s, 0)
    elif count > 1:
        for i in range(count):
            items_in(s)[i] = i
        sort_by_key(inbox_key_in(s), items_in(s), count)
        for i in range(count):
            queue_piece(s, items_in(s)[i])
    s.inbox = 0
    for w in range(s.workers):
        worker = workers_in(s)[w]
        if worker.served < worker.tail and not worker.running:
            take(s, w)


# ---- replicas (model/replica.py) ---------------------------------------------------------------------------


@_compiled
def start(s: State, r: int, seconds: float, state: int) -> None:
    """``Runner.start`` on replica ``r``, from its ``at`` on."""
    replica = replicas_in(s)[r]
    replica.state = state
    s.active += 1
    replica.started = replica.at
    replica.busy_since = replica.at
    replica.active = 1
    replica.end = replica.at + seconds
    fire_in(s)[r] = max(replica.end, s.now)


@_compiled
def context_of(s: State, r: int, i: int) -> int:
    """Tokens in KV of the rollout at place ``i`` of the replica's heap."""
    rollout = rollouts_in(s)[heap_slot_in(s)[r, i]]
    return rollout.prompt + rollout.response - (rollout.final - replicas_in(s)[r].iteration)


@_compiled
def blocks_for_next_token(s: State, r: int) -> int:
    """``Replica._blocks_for_next_token``."""
    replica, block = replicas_in(s)[r], s.kv_block_tokens
    if block == 1:
        return replica.kv + replica.running
    blocks = 0
    for i in range(replica.heap):
        if heap_slot_in(s)[r, i] >= 0:
            blocks += context_of(s, r, i) // block + 1
    return blocks


@_compiled
def iterations_that_fit(s: State, r: int) -> int:
    """``Replica._iterations_that_fit``."""
    replica, residues = replicas_in(s)[r], residues_in(s)
    block = s.kv_block_tokens
    free = s.kv_blocks - blocks_for_next_token(s, r)
    cycles = free // replica.running
    free -= cycles * replica.running
    clear(residues, 0, block)
    if block > 1:
        for i in range(replica.heap):
            if heap_slot_in(s)[r, i] >= 0:
                residues[context_of(s, r, i) % block] += 1
    else:
        residues[0] = replica.running
    grown = 0
    for ahead in range(1, block + 1):
        grown += residues[block - ahead]
        if grown > free:
            return cycles * block + ahead
    return cycles * block + block


@_compiled
def enqueue(s: State, r: int, slot: int) -> None:
    """``Replica.enqueue``."""
    replica = replicas_in(s)[r]
    i = replica.waiting
    identity = rollouts_in(s)[slot].id
    while i > 0 and rollouts_in(s)[waiting_in(s)[r, i - 1]].id > identity:
        waiting_in(s)[r, i] = waiting_in(s)[r, i - 1]
        i -= 1
    waiting_in(s)[r, i] = slot
    replica.waiting += 1


@_compiled
def push(s: State, r: int, iteration: int, slot: int) -> None:
    """A running rollout's next cut or finish."""
    replica = replicas_in(s)[r]
    i = replica.heap
    if i >= heap_at_in(s).shape[1]:
        s.error = NO_ROOM
        return
    heap_at_in(s)[r, i], heap_slot_in(s)[r, i] = iteration, slot
    replica.heap = i + 1
    heap_up(heap_at_in(s)[r], heap_slot_in(s)[r], i)


@_compiled
def preempt_until_it_fits(s: State, r: int) -> None:
    """``Replica._preempt_until_it_fits``."""
    replica, capacity = replicas_in(s)[r], s.kv_blocks
    while replica.running and blocks_for_next_token(s, r) > capacity:
        victim = -1
        for i in range(replica.heap):
            slot = heap_slot_in(s)[r, i]
            if slot >= 0 and (
                victim < 0 or rollouts_in(s)[slot].id > rollouts_in(s)[heap_slot_in(s)[r, victim]].id
            ):
                victim = i
        slot = heap_slot_in(s)[r, victim]
        rollout = rollouts_in(s)[slot]
        rollout.generated = rollout.response - (rollout.final - replica.iteration)
        rollout.has_kv = 0
        replica.running -= 1
        replica.kv -= rollout.prompt + rollout.generated
        if heap_at_in(s)[r, victim] < rollout.final:
            heap_slot_in(s)[r, victim] = -1  # its cut still ends a run of iterations
        else:
            replica.heap -= 1
            if victim < replica.heap:
                heap_at_in(s)[r, victim], heap_slot_in(s)[r, victim] = (
                    heap_at_in(s)[r, replica.heap],
                    heap_slot_in(s)[r, replica.heap],
                )
                heap_down(heap_at_in(s)[r], heap_slot_in(s)[r], replica.heap, victim)
                heap_up(heap_at_in(s)[r], heap_slot_in(s)[r], victim)
        s.preemptions += 1
        enqueue(s, r, slot)


@_compiled
def room(s: State, r: int) -> int:
    """``Replica._room``: how many waiting rollouts, in id order, may join now."""
    replica = replicas_in(s)[r]
    count = replica.waiting
    if not s.limited:
        return count
    if s.max_num_seqs != UNBOUNDED:
        count = min(count, s.max_num_seqs - replica.running)
    if s.kv_blocks != UNBOUNDED:
        used = blocks_for_next_token(s, r)
        for position in range(count):
            rollout = rollouts_in(s)[waiting_in(s)[r, position]]
            used += (rollout.prompt + rollout.generated) // s.kv_block_tokens + 1
            if used > s.kv_blocks:
                return position
    return max(count, 0)


@_compiled
def join(s: State, r: int) -> bool:
    """``Replica._join``: waiting rollouts join and are prefilled as one batch. True if something started."""
    replica = replicas_in(s)[r]
    count = room(s, r)
    if count == 0:
        return False
    tokens = recomputed = kv = longest = fresh = longest_fresh = 0
    pairs = recomputed_pairs = 0.0
    for i in range(count):
        slot = waiting_in(s)[r, i]
        rollout = rollouts_in(s)[slot]
        context = np.int64(rollout.prompt) + rollout.generated
        if rollout.prefilled:
            recomputed += context
            recomputed_pairs += context * context * 0.5
        else:
            tokens += context
            pairs += context * context * 0.5
            rollout.prefilled = 1
        kv += context
        longest = max(longest, context)
        if rollout.generated == 0:
            fresh += 1
            longest_fresh = max(longest_fresh, context)
        rollout.has_kv = 1
        final = replica.iteration + rollout.response - rollout.generated
        rollout.final = final
        change = final
        if s.stream:
            if rollout.next_cut == 0:
                rollout.next_cut = s.chunk
            change = min(final, replica.iteration + rollout.next_cut - rollout.generated)
        push(s, r, change, slot)
    replica.waiting -= count
    for i in range(replica.waiting):
        waiting_in(s)[r, i] = waiting_in(s)[r, i + count]
    replica.running += count
    replica.kv += kv
    s.prefilled += tokens
    s.recomputed += recomputed
    s.kv_peak = max(s.kv_peak, replica.kv)
    if s.static:
        replica.rows, replica.padded_kv = count, count * longest
        s.padding += count * longest - kv
        if not s.free_padding:
            if s.free_recompute:
                count, longest = fresh, longest_fresh
            tokens, recomputed = count * longest, 0
            pairs, recomputed_pairs = count * longest * longest * 0.5, 0.0
    if not s.free_recompute:
        tokens += recomputed
        pairs += recomputed_pairs
    if tokens == 0:
        return False
    seconds, flops, traffic = forward(s, 0, float(tokens), pairs)
    s.rollout_flops += flops
    s.rollout_bytes += traffic
    start(s, r, seconds, PREFILL)
    return True


@_compiled
def decode(s: State, r: int) -> None:
    """``Replica._decode``: iterations until something changes."""
    replica = replicas_in(s)[r]
    n, kv = replica.running, replica.kv
    if s.static and not s.free_padding:
        n, kv = replica.rows, replica.padded_kv
    k = heap_at_in(s)[r, 0] - replica.iteration
    if s.rounds and replica.round_left < k:
        k = replica.round_left
    if s.kv_blocks != UNBOUNDED:
        k = min(k, iterations_that_fit(s, r))
    if n >= line_at_in(s).shape[0]:
        s.error = NO_ROOM
        return
    line = line_at_in(s)[n]
    while lines_in(s)[line, 2] < kv:
        line += 1
    fixed, slope, kv_until = lines_in(s)[line, 0], lines_in(s)[line, 1], lines_in(s)[line, 2]
    if s.has_lines_checked:
        if outside(line_range_in(s)[n, 0], line_range_in(s)[n, 1], float(kv)):
            note_range(s, DECODE_RANGE, float(n), float(kv))
        furthest = kv_until if slope < 0 else float(kv)
        if fixed + slope * furthest <= 0:
            s.error = ASK_MODEL
            return
    if kv_until != math.inf:
        k = min(k, int((kv_until - kv) // n) + 1)
    replica.fixed = fixed + slope * kv
    replica.slope = slope * n
    replica.k = k
    start(s, r, seconds_of(replica, k), DECODE)


@_compiled
def seconds_of(replica: Any, k: int) -> float:
    """``Replica._seconds``."""
    return k * replica.fixed + replica.slope * (k * (k - 1) * 0.5)


@_compiled
def iterations_until(replica: Any, seconds: float) -> int:
    """``Replica._iterations_until``."""
    if seconds <= 0.0:
        return 0
    half = replica.fixed - 0.5 * replica.slope
    k = min(
        replica.k,
        max(0, math.ceil(2.0 * seconds / (half + math.sqrt(half * half + 2.0 * replica.slope * seconds)))),
    )
    while k > 0 and seconds_of(replica, k - 1) >= seconds:
        k -= 1
    while k < replica.k and seconds_of(replica, k) < seconds:
        k += 1
    return k


@_compiled
def next_activity(s: State, r: int) -> None:
    """``Replica.next_activity``."""
    replica = replicas_in(s)[r]
    if s.rounds and replica.round_left == 0:
        replica.state = IDLE
        return
    if s.kv_blocks != UNBOUNDED and replica.running:
        preempt_until_it_fits(s, r)
    if replica.waiting and join(s, r):
        return
    if replica.running == 0:
        replica.state = IDLE
        return
    decode(s, r)


@_compiled
def finish(s: State, r: int, slot: int, at: float) -> None:
    """``Replica._finish_rollouts`` of one, ``PhasedRun.finished``, ``Ledger.finish`` and ``Ledger.ready``."""
    replica, rollout = replicas_in(s)[r], rollouts_in(s)[slot]
    rollout.generated = rollout.response
    replica.running -= 1
    replica.kv -= rollout.prompt + rollout.response
    rollout.has_kv = 0
    if s.stream:
        hand_over(s, slot, 1)
    rollout.finished = 1
    made_tokens_in(rollout, s.step)
    replica.load -= 1
    group = groups_in(s)[rollout.group]
    group.missing -= 1
    if group.missing == 0:
        group.whole = 1
        group.finished_step = s.step
        s.awaited -= group.awaited
        arrived_in(s)[s.arrived], arrived_at_in(s)[s.arrived] = rollout.group, at
        s.arrived += 1
        s.fin += 1
    s.finish_seen = 1
    if s.granularity == BY_ROLLOUT and not s.rounds:
        hand_over(s, slot, 1)
        rollout.sent = 1


@_compiled
def account(s: State, r: int, at: float) -> None:
    """``Replica._advance``: the iterations that just ended: tokens, finishes, cuts."""
    replica = replicas_in(s)[r]
    k, n = replica.k, replica.running
    rows, kv = n, replica.kv
    s.decoded += k * n
    replica.kv += k * n
    if s.static:
        rows, kv = replica.rows, replica.padded_kv
        s.padding += k * (rows - n)
        replica.padded_kv += k * rows
    if s.knows_actor:
        work, kv_sum = work_in(s), k * kv + rows * (k * (k - 1) * 0.5)
        s.rollout_flops += k * work[rows, 0] + work[rows, 1] * kv_sum
        s.rollout_bytes += k * work[rows, 2] + work[rows, 3] * kv_sum
    s.kv_peak = max(s.kv_peak, kv + k * rows)
    iteration = replica.iteration + k
    replica.iteration = iteration
    replica.round_left -= k
    at_heap, slots = heap_at_in(s)[r], heap_slot_in(s)[r]
    while replica.heap and at_heap[0] == iteration:
        slot = slots[0]
        if slot >= 0 and rollouts_in(s)[slot].final > iteration:
            rollout = rollouts_in(s)[slot]
            rollout.generated = rollout.next_cut
            hand_over(s, slot, 0)
            rollout.next_cut = rollout.cut + s.chunk
            at_heap[0] = min(rollout.final, iteration + s.chunk)
        else:
            if slot >= 0:
                finish(s, r, slot, at)
            replica.heap -= 1
            at_heap[0], slots[0] = at_heap[replica.heap], slots[replica.heap]
        if replica.heap > 1:
            heap_down(at_heap, slots, replica.heap, 0)


@_compiled
def replica_ended(s: State, r: int) -> None:
    """``Replica._activity_ended``."""
    replica = replicas_in(s)[r]
    at = replica.end
    fire_in(s)[r] = math.inf
    replica.active = 0
    replica.busy += at - replica.busy_since
    s.active -= 1
    if replica.state == DECODE and replica.k:
        account(s, r, at)
    replica.at = at
    replica.state = READY
    s.ready = 1


@_compiled
def sync_generated(s: State, r: int) -> None:
    """``Replica.sync_generated``."""
    replica = replicas_in(s)[r]
    for i in range(replica.heap):
        if heap_slot_in(s)[r, i] >= 0:
            rollout = rollouts_in(s)[heap_slot_in(s)[r, i]]
            rollout.generated = rollout.response - (rollout.final - replica.iteration)


@_compiled
def release_kv(s: State) -> None:
    """``RunState.release_kv``: all KV is freed."""
    for r in range(s.replicas):
        replica = replicas_in(s)[r]
        sync_generated(s, r)
        for i in range(replica.heap):
            slot = heap_slot_in(s)[r, i]
            if slot >= 0:
                rollouts_in(s)[slot].has_kv = 0
                waiting_in(s)[r, replica.waiting] = slot
                replica.waiting += 1
        replica.heap = replica.running = replica.kv = replica.rows = replica.padded_kv = 0
        if s.limited:
            for i in range(replica.waiting):
                keys_in(s)[i] = rollouts_in(s)[waiting_in(s)[r, i]].id
            sort_by_key(keys_in(s), waiting_in(s)[r], replica.waiting)


# ---- who is in flight (schedule/ledger.py, policies/) ------------------------------------------------------


@_compiled
def made_tokens_in(rollout: Any, version: int) -> None:
    """``RolloutState.made_tokens_in``."""
    if rollout.head < 0:
        rollout.head = version
    if rollout.tail != version:
        rollout.tail = version
        rollout.span += 1


@_compiled
def draw_row(s: State, group: int, position: int) -> int:
    """First row of a group (``Replay.row``); ``position`` counts the groups first admitted in this step."""
    block = s.step % blocks_in(s).shape[0]
    first, groups = blocks_in(s)[block, 0], blocks_in(s)[block, 1]
    if s.sampling == IN_ORDER:
        return group % groups * s.group_size
    if s.sampling == BY_STEP and position < groups:
        return first + position * s.group_size
    return first + draw_index(key_in(s)[0], group, groups) * s.group_size


@_compiled
def admit_group(s: State, position: int) -> None:
    """``Ledger._admit_new`` for the members of one group, ``RunState._make_rollout`` and
    ``Replica.enqueue``."""
    s.free -= 1
    place = free_in(s)[s.free]
    group = groups_in(s)[place]
    group.id = s.admitted
    s.admitted += 1
    group.deferrals = 0
    group.missing = s.group_size
    group.whole = 0
    group.awaited = 1 if s.max_deferrals == 0 else 0
    s.awaited += group.awaited
    flights_in(s)[s.flights] = place
    s.flights += 1
    row = draw_row(s, group.id, position)
    for member in range(s.group_size):
        slot = place * s.group_size + member
        rollout = rollouts_in(s)[slot]
        rollout.id = group.id * s.group_size + member
        rollout.group = place
        rollout.row = row + member
        rollout.prompt = prompts_in(s)[row + member]
        rollout.response = responses_in(s)[row + member]
        rollout.clipped = clipped_in(s)[row + member]
        rollout.generated = rollout.before = rollout.next_cut = rollout.cut = 0
        rollout.prompt_sent = rollout.sent = rollout.has_kv = rollout.finished = rollout.prefilled = 0
        rollout.scored = rollout.to_score = rollout.withheld = rollout.held = rollout.span = 0
        rollout.worker = rollout.head = rollout.tail = -1
        if s.window == 0:
            r = 0
            for other in range(1, s.replicas):
                if replicas_in(s)[other].load < replicas_in(s)[r].load:
                    r = other
            place_on(s, slot, r)
    s.new += s.group_size


@_compiled
def place_on(s: State, slot: int, r: int) -> None:
    """Put a rollout in line on a replica."""
    rollouts_in(s)[slot].replica = r
    replicas_in(s)[r].load += 1
    enqueue(s, r, slot)


@_compiled
def sort_window(s: State) -> None:
    """The oracle's order: groups by (longest response, id). Nothing but training takes from it, so once a
    window is enough."""
    for i in range(s.flights):
        longest = 0
        for member in range(s.group_size):
            longest = max(longest, rollouts_in(s)[flights_in(s)[i] * s.group_size + member].response)
        keys_in(s)[i] = (longest << 32) | groups_in(s)[flights_in(s)[i]].id
        order_in(s)[i] = flights_in(s)[i]
    sort_by_key(keys_in(s), order_in(s), s.flights)
    s.oracle_next = 0


@_compiled
def arrange_window(s: State) -> None:
    """``Oracle.arrange``: the shortest groups run, their rollouts dealt longest first to the replica with the
    fewest tokens dealt."""
    size = s.group_size
    count = 0
    for i in range(s.oracle_next, s.oracle_next + s.batch // size):
        for member in range(size):
            slot = order_in(s)[i] * size + member
            # Lengths falling, ids rising.
            keys_in(s)[count] = ((np.int64(1 << 31) - rollouts_in(s)[slot].response) << 32) | rollouts_in(s)[
                slot
            ].id
            items_in(s)[count] = slot
            count += 1
    s.oracle_next += s.batch // size
    sort_by_key(keys_in(s), items_in(s), count)
    clear(dealt_in(s), 0, s.replicas)
    for i in range(count):
        r = 0
        for other in range(1, s.replicas):
            if dealt_in(s)[other] < dealt_in(s)[r]:
                r = other
        dealt_in(s)[r] += rollouts_in(s)[items_in(s)[i]].response
        place_on(s, items_in(s)[i], r)


@_compiled
def rebase(s: State) -> None:
    """``Machine.begin_row``: seconds, busy ones too, are counted from now on."""
    passed = s.now
    s.origin += passed
    s.now = s.training_busy = 0.0
    for i in range(fire_in(s).shape[0]):
        fire_in(s)[i] -= passed
    for i in range(s.dead):
        dead_in(s)[i] -= passed
    for r in range(s.replicas):
        replicas_in(s)[r].busy = 0.0
    for w in range(s.workers):
        worker = workers_in(s)[w]
        worker.end -= passed
        worker.busy = worker.busy_since = 0.0


@_compiled
def begin_step(s: State) -> None:
    """``RunState.begin_row``, ``Ledger.begin_step`` with the plan of ``Policy.refill`` or ``Oracle.plan``,
    ``RunState.place``."""
    s.new = s.decoded = s.prefilled = s.recomputed = s.padding = s.preemptions = s.kv_peak = 0
    s.pieces = s.scored = s.scoring_batches = 0
    s.rollout_flops = s.rollout_bytes = s.scoring_flops = s.scoring_bytes = 0.0
    rebase(s)
    s.awaited = 0
    for i in range(s.flights):
        group = groups_in(s)[flights_in(s)[i]]
        late = s.max_deferrals != UNBOUNDED and not group.whole and group.deferrals >= s.max_deferrals
        group.awaited = 1 if late else 0
        s.awaited += group.awaited
        for slot in range(flights_in(s)[i] * s.group_size, (flights_in(s)[i] + 1) * s.group_size):
            rollouts_in(s)[slot].before = rollouts_in(s)[slot].generated
    in_flight = s.flights * s.group_size
    s.overcommit = s.delta
    s.chunk = s.row_chunk = chunk_size(s)
    admit = max(0, s.batch + s.delta - in_flight)
    if s.window:
        admit = 0 if in_flight else s.window * s.batch
        s.overcommit = max(0, admit + in_flight - s.batch)
    for position in range(admit // s.group_size):
        admit_group(s, position)
    if s.window:
        if admit:
            sort_window(s)
        arrange_window(s)


@_compiled
def phase_over(s: State) -> bool:
    """``Ledger.phase_over``; ``fin`` counts whole finished groups."""
    return s.fin * s.group_size >= s.batch and s.awaited == 0


@_compiled
def order_arrivals(s: State) -> None:
    """``Ledger._order_arrivals``: by instant of finish, then id (``instants.by_instant_then_id``)."""
    at, place = arrived_at_in(s), arrived_in(s)
    count = s.arrived
    # They come nearly in order.
    for i in range(1, count):
        seconds, group = at[i], place[i]
        j = i
        while j > 0 and (
            at[j - 1] > seconds
            or (at[j - 1] == seconds and groups_in(s)[place[j - 1]].id > groups_in(s)[group].id)
        ):
            at[j], place[j] = at[j - 1], place[j - 1]
            j -= 1
        at[j], place[j] = seconds, group
    known = s.fin - count
    first = 0
    for i in range(count + 1):
        if i == count or at[i] - at[first] > tolerance(s, at[i]):
            for j in range(first, i):
                keys_in(s)[j - first] = groups_in(s)[place[j]].id
                finished_in(s)[known + j] = place[j]
            sort_by_key(keys_in(s), finished_in(s)[known + first : known + i], i - first)
            first = i
    s.arrived = 0


@_compiled
def waited_for_first(s: State) -> None:
    """``Policy.select`` with ``max_deferrals`` (docs/model.md C19): those that were waited for come first."""
    waited = others = 0
    for i in range(s.fin):
        group = groups_in(s)[finished_in(s)[i]]
        if group.deferrals >= s.max_deferrals:
            keys_in(s)[waited] = (group.finished_step << 40) | group.id
            order_in(s)[waited] = finished_in(s)[i]
            waited += 1
        else:
            items_in(s)[others] = finished_in(s)[i]
            others += 1
    sort_by_key(keys_in(s), order_in(s), waited)
    taken = s.batch // s.group_size
    # What is not selected keeps its place in the order of finishing, so only the batch is drawn forward.
    for i in range(taken):
        batch_in(s)[i] = order_in(s)[i] if i < waited else items_in(s)[i - waited]
        groups_in(s)[batch_in(s)[i]].awaited = 2
    kept = 0
    for i in range(s.fin):
        if groups_in(s)[finished_in(s)[i]].awaited != 2:
            finished_in(s)[kept] = finished_in(s)[i]
            kept += 1


@_compiled
def end_phase(s: State) -> None:
    """``Ledger.end_phase``: versions, deferrals, and the batch."""
    size = s.group_size
    taken = s.batch // size
    order_arrivals(s)
    if s.max_deferrals == UNBOUNDED:
        for i in range(taken):
            batch_in(s)[i] = finished_in(s)[i]
            groups_in(s)[batch_in(s)[i]].awaited = 2
        for i in range(taken, s.fin):
            finished_in(s)[i - taken] = finished_in(s)[i]
    else:
        # Deferrals of what has just been deferred once more do not matter here: none of it has finished.
        waited_for_first(s)
    s.fin -= taken
    kept = unfinished = tokens = 0
    for i in range(s.flights):
        place = flights_in(s)[i]
        group = groups_in(s)[place]
        if group.awaited == 2:
            group.awaited = 0
            continue
        flights_in(s)[kept] = place
        kept += 1
        decoded = False
        for slot in range(place * size, (place + 1) * size):
            rollout = rollouts_in(s)[slot]
            tokens += rollout.generated
            if rollout.generated > rollout.before and not group.whole:
                decoded = True
                if not rollout.finished:
                    made_tokens_in(rollout, s.step)
        if not group.whole:
            unfinished += size
            if decoded:
                group.deferrals += 1
    s.flights = kept
    s.deferred = unfinished
    s.surplus = s.fin * size
    s.tokens_in_flight = tokens


# ---- the phase (model/synchronous.py) ----------------------------------------------------------------------


@_compiled
def generate(s: State) -> None:
    """``Machine.generate``."""
    if s.static:
        release_kv(s)  # a batch is formed anew
    s.generating = s.ready = 1
    s.stopping = s.finish_seen = 0
    for r in range(s.replicas):
        replica = replicas_in(s)[r]
        replica.at = s.now
        replica.round_left = s.chunk
        replica.state = READY


@_compiled
def stop(s: State) -> None:
    """``Machine.stop``: iterations and prefills in progress complete, no others start."""
    s.stopping = 1
    for r in range(s.replicas):
        replica = replicas_in(s)[r]
        if replica.state == READY:
            replica.state = IDLE
        elif replica.state == DECODE:
            k = iterations_until(replica, s.now - tolerance(s, s.now) - replica.started)
            if k < replica.k:
                replica.k = k
                replica.end = replica.started + seconds_of(replica, k)
                bury(s, fire_in(s)[r])
                fire_in(s)[r] = max(replica.end, s.now)


@_compiled
def bury(s: State, seconds: float) -> None:
    """``Clock.cancel``: the event does nothing any more, but its time comes."""
    i = s.dead
    if i >= dead_in(s).shape[0]:
        s.error = NO_ROOM
        return
    s.dead = i + 1
    while i > 0 and dead_in(s)[(i - 1) >> 1] > seconds:
        dead_in(s)[i] = dead_in(s)[(i - 1) >> 1]
        i = (i - 1) >> 1
    dead_in(s)[i] = seconds
    fire_in(s)[s.replicas + s.workers + 1] = dead_in(s)[0]


@_compiled
def unbury(s: State) -> None:
    """The earliest cancelled event passes."""
    dead = dead_in(s)
    s.dead -= 1
    count = s.dead
    seconds = dead[count]
    i, child = 0, 1
    while child < count:
        if child + 1 < count and dead[child + 1] < dead[child]:
            child += 1
        if dead[child] >= seconds:
            break
        dead[i] = dead[child]
        i, child = child, 2 * child + 1
    if count:
        dead[i] = seconds
    fire_in(s)[s.replicas + s.workers + 1] = dead[0] if count else math.inf


@_compiled
def hand_out(s: State, at: float) -> None:
    """``PhasedRun._hand_out``: the phase is over."""
    end_phase(s)
    s.gen_ended = at
    if s.granularity == BY_BATCH:
        for i in range(s.batch // s.group_size):
            for slot in range(batch_in(s)[i] * s.group_size, (batch_in(s)[i] + 1) * s.group_size):
                if not rollouts_in(s)[slot].sent:
                    rollouts_in(s)[slot].sent = 1
                    hand_over(s, slot, 1)
    s.doing = GENERATED
    s.resume = 1


@_compiled
def rest(s: State) -> None:
    """``PhasedRun._end_phase`` and ``Machine.rest``."""
    s.generating = s.stopping = s.ready = 0
    last = replicas_in(s)[0].at
    for r in range(s.replicas):
        replicas_in(s)[r].state = IDLE
        sync_generated(s, r)
        last = max(last, replicas_in(s)[r].at)
    hand_out(s, last)


@_compiled
def deliver_round(s: State) -> None:
    """``PhasedRun._deliver_round``: at the barrier, pieces of the round reach the scorer."""
    if s.granularity == BY_BATCH:
        return
    for r in range(s.replicas):
        sync_generated(s, r)
    for i in range(s.flights):
        for slot in range(flights_in(s)[i] * s.group_size, (flights_in(s)[i] + 1) * s.group_size):
            rollout = rollouts_in(s)[slot]
            if s.granularity == BY_CHUNK:
                if rollout.generated > rollout.cut:
                    hand_over(s, slot, rollout.finished)
            elif rollout.finished and not rollout.sent:
                rollout.sent = 1
                hand_over(s, slot, 1)


@_compiled
def barrier(s: State) -> None:
    """``PhasedRun.all_idle``: the round is over."""
    if not s.rounds:
        s.error = ASK_MODEL
        return
    at = replicas_in(s)[0].at
    for r in range(s.replicas):
        at = max(at, replicas_in(s)[r].at)
    deliver_round(s)
    if phase_over(s):
        rest(s)
        return
    for r in range(s.replicas):
        replicas_in(s)[r].at = at
        replicas_in(s)[r].round_left = s.chunk
        next_activity(s, r)


@_compiled
def settle(s: State) -> None:
    """``Machine.settle``: the decisions of one instant, in their order."""
    if s.generating:
        if not s.rounds and (s.finish_seen or s.stopping):
            s.finish_seen = 0
            if not s.stopping and phase_over(s):
                stop(s)
                for r in range(s.replicas):
                    replica = replicas_in(s)[r]
                    if replica.state == DECODE and replica.end <= s.now + tolerance(s, s.now):
                        return  # its end comes first
            if s.stopping and s.active == 0:
                rest(s)
        if s.ready and not s.stopping and s.generating:
            idle = False
            for r in range(s.replicas):
                if replicas_in(s)[r].state == READY:
                    next_activity(s, r)
                    if replicas_in(s)[r].state == IDLE:
                        idle = True
            s.ready = 0
            if idle and s.active == 0:
                barrier(s)
    settle_scorer(s)


# ---- the step (SynchronousRun._step, model/training.py) ----------------------------------------------------


@_compiled
def busy_rollout(s: State) -> float:
    """Busy seconds of all replicas so far."""
    total = 0.0
    for r in range(s.replicas):
        replica = replicas_in(s)[r]
        total += replica.busy + (s.now - replica.busy_since if replica.active else 0.0)
    return total


@_compiled
def busy_scoring(s: State, total: float) -> float:
    """``total`` and the busy seconds of all scoring workers so far."""
    for w in range(s.workers):
        worker = workers_in(s)[w]
        total += worker.busy + (s.now - worker.busy_since if worker.running else 0.0)
    return total


@_compiled
def busy_training(s: State) -> float:
    """Busy seconds of the training devices so far (they are never read while active)."""
    return busy_rollout(s) if s.colocated else s.training_busy


@_compiled
def await_scores(s: State) -> None:
    """``RunState.scores_of``."""
    s.to_score = 0
    for i in range(s.batch // s.group_size):
        for slot in range(batch_in(s)[i] * s.group_size, (batch_in(s)[i] + 1) * s.group_size):
            if not rollouts_in(s)[slot].scored:
                rollouts_in(s)[slot].to_score = 1
                s.to_score += 1


@_compiled
def plan_training(s: State) -> None:
    """``Trainer.train``: the stages of the batch, as activities one after the other."""
    s.scored_at = s.now
    s.scored_inference = busy_scoring(s, busy_rollout(s))
    tokens = squares = 0
    for i in range(s.batch // s.group_size):
        for slot in range(batch_in(s)[i] * s.group_size, (batch_in(s)[i] + 1) * s.group_size):
            length = np.int64(rollouts_in(s)[slot].prompt) + rollouts_in(s)[slot].response
            tokens += length
            squares += length * length
    stage_times(s, float(tokens), squares / 2.0)
    clear(passed_s_in(s), 0, STAGES)
    s.activity = 0
    count = 0
    first = 0
    if s.parallel_inference:
        # As one activity that lasts as long as the longest of them, in legs that end where the shorter ones
        # do.
        first = PARALLEL_STAGES
        before = 0.0
        longest = max(stage_s_in(s)[0], stage_s_in(s)[1], stage_s_in(s)[2])
        while before < longest:
            until = longest
            for i in range(PARALLEL_STAGES):
                if before < stage_s_in(s)[i] < until:
                    until = stage_s_in(s)[i]
            activity_s_in(s)[count] = until - before
            activity_stages_in(s)[count] = 0
            for i in range(PARALLEL_STAGES):
                if stage_s_in(s)[i] >= until:
                    activity_stages_in(s)[count] |= 1 << i
            count += 1
            before = until
    for i in range(first, STAGES):
        activity_s_in(s)[count] = stage_s_in(s)[i]
        activity_stages_in(s)[count] = 1 << i
        count += 1
    s.activities = count


@_compiled
def next_training_activity(s: State) -> bool:
    """``Trainer._run`` of the next activity that takes time; False: there is none left."""
    while s.activity < s.activities and activity_s_in(s)[s.activity] <= 0.0:
        s.activity += 1
    if s.activity == s.activities:
        return False
    s.trainer_active = 1
    s.trainer_began = s.now
    s.trainer_end = s.now + activity_s_in(s)[s.activity]
    s.training_since = s.now
    fire_in(s)[s.replicas + s.workers] = s.trainer_end
    if on_replicas(s):
        for r in range(s.replicas):
            replicas_in(s)[r].active = 1
            replicas_in(s)[r].busy_since = s.now
    return True


@_compiled
def on_replicas(s: State) -> bool:
    """True if the trainer's activity uses the devices of the replicas."""
    return s.colocated == 1 or activity_stages_in(s)[s.activity] == 1 << SYNC


@_compiled
def training_ended(s: State) -> None:
    """``Trainer._ended``: one activity is done."""
    fire_in(s)[s.replicas + s.workers] = math.inf
    s.trainer_active = 0
    s.training_busy += s.trainer_end - s.training_since
    if on_replicas(s):
        for r in range(s.replicas):
            replicas_in(s)[r].active = 0
            replicas_in(s)[r].busy += s.trainer_end - replicas_in(s)[r].busy_since
    for i in range(STAGES):
        if activity_stages_in(s)[s.activity] & (1 << i):
            passed_s_in(s)[i] += s.now - s.trainer_began
    s.activity += 1
    s.resume = 1


@_compiled
def go_on(s: State) -> None:
    """The process of a run (``SynchronousRun.process``), from where it waits to where it waits next."""
    while s.error == OK:
        if s.doing == BEGIN:
            if s.step == s.until:
                s.resume = 1
                return
            begin_step(s)
            if not phase_over(s):
                generate(s)
                s.doing = GENERATE
                return
            hand_out(s, s.now)
            s.resume = 0
        elif s.doing == GENERATED:
            await_scores(s)
            s.doing = SCORE
            if s.to_score:
                return
        elif s.doing == SCORE:
            plan_training(s)
            s.doing = TRAIN
        elif next_training_activity(s):
            return
        else:
            close_row(s)
            s.step += 1
            if s.clear_kv:
                release_kv(s)
            s.doing = BEGIN


@_compiled
def run_until(s: State, until: int) -> int:
    """``Clock.drive``: events in the order of time, decisions when none is left in an instant."""
    fire = fire_in(s)
    trainer = s.replicas + s.workers
    s.until = until
    s.row = s.histogram = 0
    while s.step < until and s.error == OK:
        if s.resume:
            s.resume = 0
            go_on(s)
        else:
            actor = earliest(fire)
            if fire[actor] == math.inf:
                return ASK_MODEL
            s.now = fire[actor]
            if actor < s.replicas:
                replica_ended(s, actor)
            elif actor < trainer:
                scoring_ended(s, actor - s.replicas)
            elif actor == trainer:
                training_ended(s)
            else:
                unbury(s)
        if s.resume or fire[earliest(fire)] <= s.now + tolerance(s, s.now):
            continue
        settle(s)
    return int(s.error)


@_compiled
def earliest(fire: Array) -> int:
    """The actor whose event is next."""
    best = 0
    for i in range(1, fire.shape[0]):
        if fire[i] < fire[best]:
            best = i
    return best


# ---- rows and controllers (model/row.py, policies/controllers.py) ------------------------------------------


@_compiled
def chunk_size(s: State) -> int:
    """``ChunkController.value``."""
    candidate = s.chunk_phase // s.explore_steps
    return candidates_in(s)[candidate] if candidate < s.candidates else s.chunk_kept


@_compiled
def observe_chunk(s: State, seconds: float, tokens: int) -> None:
    """``ChunkController.observe``; a fixed size is one candidate that is always kept."""
    candidate = s.chunk_phase // s.explore_steps
    if candidate < s.candidates:
        if s.chunk_phase == 0:
            clear(candidate_s_in(s), 0, s.candidates)
            clear(candidate_tokens_in(s), 0, s.candidates)
        candidate_s_in(s)[candidate] += seconds
        candidate_tokens_in(s)[candidate] += tokens
    s.chunk_phase += 1
    if s.chunk_phase == s.candidates * s.explore_steps:
        least = math.inf
        for i in range(s.candidates):
            least = min(least, candidate_s_in(s)[i] / max(candidate_tokens_in(s)[i], 1))
        s.chunk_kept = 0
        for i in range(s.candidates):
            if candidate_s_in(s)[i] / max(candidate_tokens_in(s)[i], 1) <= least * (1.0 + s.tie):
                s.chunk_kept = max(s.chunk_kept, candidates_in(s)[i])
    if s.chunk_phase == s.explore_every:
        s.chunk_phase = 0


@_compiled
def observe_reward(s: State, reward: float) -> None:
    """``DeltaController.observe``."""
    ring = rewards_seen_in(s)
    if not s.controls_delta or math.isnan(reward):
        return
    length = s.delta_window + 1
    ring[s.rewards_seen % length] = reward
    s.rewards_seen += 1
    if s.rewards_seen < length:
        return
    slope = (reward - ring[s.rewards_seen % length]) / s.delta_window
    up, down = s.delta_up, s.delta_down
    if s.proportional:
        up = down = max(1, s.delta // 4)
    size = s.group_size
    if slope > 0:
        s.delta = min(s.delta_max, s.delta + (up + size - 1) // size * size)
    else:
        s.delta = max(s.delta_min, s.delta - (down + size - 1) // size * size)


@_compiled
def share(busy: float, devices: int, seconds: float) -> float:
    """``row._share``."""
    return busy / (devices * seconds) if seconds > 0.0 else math.nan


@_compiled
def batch_columns(s: State, row: Array) -> int:
    """Columns of the trained batch, and its slots given back; returns its response tokens."""
    size, groups = s.batch, s.batch // s.group_size
    tokens = prompts = clipped = longest = spans = longest_span = partial = stale = stalest = 0
    shortest = freshest = np.int64(1 << 62)
    reward = 0.0
    for i in range(groups):
        for slot in range(batch_in(s)[i] * s.group_size, (batch_in(s)[i] + 1) * s.group_size):
            rollout = rollouts_in(s)[slot]
            response = np.int64(rollout.response)
            tokens += response
            longest, shortest = max(longest, response), min(shortest, response)
            prompts += rollout.prompt
            clipped += rollout.clipped
            age = s.step - rollout.head
            stale += age
            stalest, freshest = max(stalest, age), min(freshest, age)
            spans += rollout.span
            longest_span = max(longest_span, np.int64(rollout.span))
            partial += 1 if rollout.span > 1 else 0
            if s.by_row_rewards:
                reward += rewards_in(s)[rollout.row]
    first = s.histogram
    s.histogram = first + stalest + 1
    if s.histogram > histogram_in(s).shape[0]:
        s.error = NO_ROOM
        s.histogram = 0
        return tokens
    clear(histogram_in(s), first, s.histogram)
    for i in range(groups):
        for slot in range(batch_in(s)[i] * s.group_size, (batch_in(s)[i] + 1) * s.group_size):
            histogram_in(s)[first + s.step - rollouts_in(s)[slot].head] += 1
        free_in(s)[s.free] = batch_in(s)[i]
        s.free += 1
    histogram_end_in(s)[s.row] = s.histogram
    row[LENGTH_MEAN] = tokens / size
    row[LENGTH_MAX] = longest
    row[LENGTH_MIN] = shortest
    row[LENGTH_CLIP_RATIO] = clipped / size
    row[PROMPT_LENGTH_MEAN] = prompts / size
    row[PARTIAL_RATIO] = partial / size
    row[STALENESS_MEAN] = stale / size
    row[STALENESS_MAX] = stalest
    row[STALENESS_MIN] = freshest
    row[SPANS_MEAN] = spans / size
    row[SPANS_MAX] = longest_span
    row[REWARD_MEAN] = (
        reward / size if s.by_row_rewards else rewards_in(s)[min(s.step, rewards_in(s).shape[0] - 1)]
    )
    return tokens


@_compiled
def close_row(s: State) -> None:
    """``RunState.close_row`` and ``row.step_row``, and what the policy learns."""
    row = out_in(s)[s.row]
    seconds = s.now
    if seconds <= 0.0 and (s.knows_actor or s.knows_scorer or s.knows_training):
        s.error = ASK_MODEL
    tokens = batch_columns(s, row)
    row[STEP] = row[WEIGHT_VERSION] = s.step
    row[START_S] = s.origin
    row[GEN_S] = s.gen_ended
    row[REWARD_S] = max(0.0, s.scored_at - s.gen_ended)
    for i in range(STAGES):
        row[FIRST_STAGE_S + i] = passed_s_in(s)[i]
    row[STEP_S] = seconds
    row[TRACE_LENGTH_MEAN] = block_means_in(s)[s.step % block_means_in(s).shape[0]]
    row[ROLLOUTS_ADMITTED] = s.new
    row[ROLLOUTS_DEFERRED] = s.deferred
    row[ROLLOUTS_SURPLUS] = s.surplus
    row[ROLLOUTS_DROPPED] = row[TOKENS_DROPPED] = 0
    row[TOKENS_PADDING] = s.padding
    row[OVERCOMMIT] = s.overcommit
    row[CHUNK_SIZE] = s.row_chunk
    row[TOKENS_DECODED] = s.decoded
    row[TOKENS_TRAINED] = tokens
    row[TOKENS_PREFILLED] = s.prefilled
    row[TOKENS_RECOMPUTED] = s.recomputed
    row[TOKENS_IN_FLIGHT] = s.tokens_in_flight
    row[TOKENS_SCORED] = s.scored
    row[SCORER_PIECES] = s.pieces
    row[SCORER_BATCHES] = s.scoring_batches
    devices = s.replicas + s.workers
    row[BUSY_ROLLOUT] = share(busy_rollout(s), s.replicas, seconds)
    row[BUSY_SCORING] = share(busy_scoring(s, 0.0), s.workers, seconds)
    row[BUSY_TRAINING] = share(busy_training(s), s.replicas if s.colocated else 1, seconds)
    row[UTILIZATION_INFERENCE] = share(s.scored_inference, devices, s.scored_at)
    for i in range(FLOPS_ROLLOUT, MBU_SCORING + 1):
        row[i] = math.nan
    if s.knows_actor:
        row[FLOPS_ROLLOUT] = s.rollout_flops / seconds
        row[MFU_ROLLOUT] = s.rollout_flops / (seconds * s.actor_flops * s.replicas)
        row[BANDWIDTH_ROLLOUT] = s.rollout_bytes / seconds
        row[MBU_ROLLOUT] = s.rollout_bytes / (seconds * s.actor_bytes * s.replicas)
    if s.knows_scorer:
        row[FLOPS_SCORING] = s.scoring_flops / seconds
        row[MFU_SCORING] = s.scoring_flops / (seconds * s.scorer_flops * s.workers)
        row[BANDWIDTH_SCORING] = s.scoring_bytes / seconds
        row[MBU_SCORING] = s.scoring_bytes / (seconds * s.scorer_bytes * s.workers)
    if s.knows_training:
        row[FLOPS_TRAINING] = s.batch_flops / seconds
        row[MFU_TRAINING] = s.batch_flops / (seconds * s.training_flops)
    row[KV_PEAK_TOKENS] = s.kv_peak
    row[KV_PREEMPTIONS] = s.preemptions
    s.row += 1
    observe_chunk(s, seconds, tokens)
    observe_reward(s, row[REWARD_MEAN])


# ---- what is called from Python ----------------------------------------------------------------------------


@_entry
def advance(states: Array, until: int) -> int:
    """Run the one record of ``states`` until ``until`` steps are done; their rows are in ``out`` from row 0
    on.

    To be called again with a higher ``until``: the run goes on where it was. Returns OK, ASK_MODEL or
    NO_ROOM.
    """
    return run_until(states[0], until)


@_entry
def add_moments(rows: Array, moments: Array) -> None:
    """``Moments.add`` of every column: ``moments`` holds (count, mean, squares, total, least, greatest) of
    each."""
    for i in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            value = rows[i, column]
            if math.isnan(value):
                continue
            found = moments[column]
            found[0] += 1.0
            found[3] += value
            change = value - found[1]
            found[1] += change / found[0]
            found[2] += change * (value - found[1])
            found[4] = min(found[4], value)
            found[5] = max(found[5], value)
