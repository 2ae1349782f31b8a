"""What the compiled path works on: records and arrays (docs/architecture.md).

The state ``s`` of a run is one record of numbers (``SETTINGS``, ``RUN``) and of places of arrays
(``TABLES``): ``replicas_in(s)[r].kv`` is here what ``ReplicaBatch.kv`` is in the model. One pointer to
everything, since arrays as arguments cost compiled calls more than what the calls do.

A *slot* is a place of a rollout in flight; the rollouts of a group lie side by side, in a *group slot*, and
the slot is used again when its rollout has been trained or dropped. An *actor* is what has one event to come:
replicas, then scoring workers, the trainer, the timer of phases and rounds, the next piece to arrive, and
tools.
"""

from typing import Any

import numpy as np

from oppo_sim.fast.codes import NAMES

Array = Any
State = Any
"""The record of a run."""


def _fields(whole: str, real: str, small: str = "", flags: str = "") -> list[tuple[str, Any]]:
    """Fields of a record, by name: 64-bit whole numbers, 64-bit reals, 32-bit whole numbers, and bytes."""
    kinds = ((whole, "i8"), (real, "f8"), (small, "i4"), (flags, "i1"))
    return [(name, kind) for names, kind in kinds for name in names.split()]


def _record(whole: str, real: str = "", small: str = "", flags: str = "") -> np.dtype[Any]:
    return np.dtype(_fields(whole, real, small, flags), align=True)


def _field(name: str) -> str:
    """A column's name as a field: ``timing_s/gen`` is ``timing_s_gen``."""
    return name.replace("/", "_").replace("-", "_")


ROW = np.dtype([(_field(name), "f8") for name in NAMES])
"""A step's row, read and written by name; in memory one real a column of ``NAMES``."""

SETTINGS = _fields(
    "batch group_size replicas workers schedule granularity rounds stream static free_padding clear_kv"
    " limited kv_blocks kv_block_tokens max_num_seqs max_scoring_tokens queue_length scorer_kv_capacity"
    " scorer_block_tokens scorer_cache_blocks scorer_iteration_tokens"
    " parallel_inference free_recompute window sampling by_row_rewards has_lines_checked scorer_parts"
    " knows_actor knows_scorer knows_training oldest_first drains"
    " asks_plan asks_arrange asks_select asks_drop devices contention"
    " num_devices train_first train_devices train_shared sync_first sync_devices sync_shared"
    " relative_demand hosts keeps_rollouts trace_first trace_last leaves keeps_kv travels time_slices"
    " tools clear_kv_on_call shares_prefixes groups_together filters",
    "prefill_factor score_factor score_added_s gen_phase_s first_step_s other_s reward_phase_s"
    " round_fixed_s piece_fixed_s piece_send_s send_s_per_token"
    " update_weights actor_flops actor_bytes scorer_flops scorer_bytes training_flops gpus data_parallel"
    " interference turn_s train_memory train_arithmetic sync_memory sync_arithmetic",
)
"""What does not change in a run; as in ``MachineSetup``, the policy's settings and the cost models.
``UNBOUNDED``: no limit."""

RUN = _fields(
    "step until row error asking planned arranged selected resume doing generating stopping finish_seen"
    " ready_first ready_last least_at least_load active inbox fin arrived wholes flights free"
    " admitted awaited to_score to_admit next_delta"
    " chunk next_chunk overcommit stop_after max_deferrals answers readmits ending in_settle phase_done"
    " leaving first_sent last_sent landed"
    " paused draining awaiting_batch first_done histogram deferred surplus tokens_in_flight activity"
    " activities trainer_active waking spending oracle_next shelved tracing traced dirty new dropped"
    " dropped_tokens decoded prefilled recomputed padding preemptions kv_peak pieces scored scoring_batches"
    " answers_due answered postponed prefix_cached placed_group placed_on"
    " filtering filtered filtered_tokens filtered_ever to_replace",
    "origin now instant phase_began phase_ended batch_ended phase_s gen_s reward_s other_passed timer_began"
    " scored_at trainer_began scored_inference"
    " batch_flops training_kernel_s sync_kernel_s",
)
"""Everything that changes once, not once a rollout, replica or worker. ``instant``: its first event;
``leaving``: a barrier's seconds pass
(1), or have passed (2); ``first_sent`` to before ``last_sent``: pieces on their way; ``ending``: how far the
end of a phase has come; ``dirty``: a shared device has other activities than when rates were taken;
``ready_first`` to ``ready_last``: replicas among which some are ready; ``least_load``: of replica
``least_at``, no other has less, −1: to be found."""

ROLLOUT = np.dtype(
    [
        *_fields(
            "id final",
            "",
            "generated next_cut cut prompt turn_end worker incarnation group",
            "prompt_sent has_kv queued prefilled finished scored to_score sent clipped on_hold shares",
        ),
        *_fields("", "", "before"),
        *_fields(
            "",
            "admitted_s finished_at scored_at",
            "row response head tail span replica withheld held admitted_step preemptions",
        ),
    ],
    align=True,
)
"""``head`` −1: no token yet. ``before``: tokens at the step's begin. ``to_score``: the step waits for its
score. ``incarnation`` differs whenever the slot holds another rollout. Seconds count from the begin of the
row, but those of ``admitted_s``. ``prompt`` holds the answers of tools too. Two cache lines;
what a cut reads and writes lies in the first."""
TURNS = _record("", "", "prompt first call last at_tool kept kept_at unseen handed")
"""What a rollout has besides where some wait for tools: ``prompt`` alone; ``call`` is the next (or present)
one of ``first`` to before ``last``; ``kept``, ``unseen`` as in ``model/rollout.py``, ``kept_at``: its place
among those of its replica; ``handed``: tokens of ``prompt`` in ``ROLLOUT`` that the scorer was given."""
CALL = _record("", "seconds", "after tokens")
ANSWER = _record("slot incarnation", "at")
LENGTHS = _record("", "", "prompt response clipped")
"""A row of the trace."""
GROUP = _record(
    "id", "", "deferrals drops finished_step missing unfinished awaited whole taken prompt prefix"
)
"""``missing``: members that are not ready to be selected; ``unfinished``: members that have not finished;
``whole``: all are ready; ``prompt``: of the first member, ``prefix`` of its tokens can be shared, by those of
the same length."""
REPLICA = _record(
    "state iteration running kv rows padded_kv k round_left first_cut last_cut waiting first_waiting"
    " load stale away kept kept_blocks kept_rollouts answered shared_tokens shared_blocks shared_running",
    "at fixed slope memory arithmetic turns link_free flops traffic kernel_s",
)
"""``link_free``: when its link has sent all that it has; ``first_cut`` to before ``last_cut``: cuts to come;
``waiting`` rollouts wait from place ``first_waiting`` on;
``stale``: the demand of decoding is to be taken anew; ``away``: rollouts at a tool; ``kept``: tokens of KV
kept for those that do not run; ``shared_…``: tokens and blocks less in memory, and blocks less among
those that run, as in ``SharedPrefixes``."""
WORKER = _record(
    "device load held head served tail oldest newest first_in_use spare entries room open idle left asleep",
    "flops traffic kernel_s",
)
"""``head`` to ``served`` of its queue are in service, ``served`` to ``tail`` wait. ``oldest`` to ``newest``:
entries of its prefix cache, from ``first_in_use`` on those of this iteration (0: none); ``entries``: the last
that there ever was, ``spare`` the first of those that are no more; blocks: ``room`` are free, ``open`` not
full, ``idle`` may go; ``left``: tokens that the iteration has room for; ``asleep``: to be woken before its
next batch."""
CACHED = _record("", "", "slot blocks older newer in_use")
"""An entry of a prefix cache: blocks of the rollout in ``slot`` (−1: nobody's any more), and those that were
used before and after it (0: none). Of an entry that is no more, ``newer`` is another such."""
RUNNER = _record(
    "running shared reschedule first_device devices",
    "started seconds done end rate updated memory arithmetic turns slowed_by",
)
"""What an actor does on its devices, as ``Runner`` in the model."""
DEVICE = _record("shared host active dirty", "busy busy_since")
PART = _record(
    "kind first_term last_term experts tokens_at tokens_count context_at context_count seconds_at range",
    "fixed per_token per_pair latency_s least_s host_s missed devices memory arithmetic",
)
"""One forward: see ``cost_tables``. ``memory``, ``arithmetic``: its demand, where that is fixed."""
STAGE = _record(
    "kind part micro_batch mini_batches steps grid_at grid_count values_at",
    "micro_batch_rollouts padded_tokens spread pipeline longest_stage filling fixed per_token per_pair passes"
    " speed beside_s overhead_s reduction_s optimizer_s optimizer_bytes offload_s factor added_s",
)
"""One training stage: see ``cost_tables``."""

TABLES: dict[str, Any] = {
    "rollouts": ROLLOUT,
    "turns": TURNS,  # Of each slot.
    "groups": GROUP,
    "prefix_running": "i4",  # Of each replica and group slot: members that share the prompt and run, and …
    "prefix_held": "i4",  # … those that run or whose KV is kept.
    "shelf_rollouts": ROLLOUT,  # Dropped rollouts that may run again, …
    "shelf_groups": GROUP,  # … and their groups.
    "replicas": REPLICA,
    "workers": WORKER,
    "runners": RUNNER,
    "device_list": "i8",  # Devices of each runner, one after the other.
    "devices": DEVICE,
    "device_actors": "i8",  # Of each device: actors that are busy on it, in order of their start.
    "fire": "f8",  # A tournament of the actors' next events (seconds; inf: none): entry 1 is the earliest.
    "finals": "i8",  # Of each replica, as a heap: final iteration and slot of each running rollout.
    "cuts": "i8",  # Of each replica, a ring: iteration and slot of each cut to come, rising.
    "classes": "i8",  # Of each replica: running rollouts by (context − iteration) modulo a block's tokens.
    "waiting": "i8",  # Of each replica: slots of rollouts to be prefilled, by id.
    "kept": "i8",  # Of each replica: slots of rollouts whose KV is kept, in any order.
    "flights": "i8",  # Group slots in flight but for the batch in training.
    "free": "i8",  # Group slots that are not used, the next one last.
    "arrived": "i8",  # Group slots that became ready since the last selection.
    "arrived_at": "f8",
    "wholes": "i8",  # Group slots that finished and wait until they make up a batch for the scorer (async).
    "whole_at": "f8",
    "filtered": "i8",  # Group slots with equal rewards, which are to leave the scorer.
    "sample_rewards": "f8",  # Of the trace's rows, by which groups are judged.
    "finished": "i8",  # Group slots that may be selected, in order.
    "batch": "i8",  # Slots of the batch in training.
    "selection": "i8",  # Slots of the batch selected last.
    "trained": "i8",  # Ids of the batch trained last.
    "answer": "i8",  # What the policy answered: ids that are waited for, or slots.
    "readmit": "i8",  # Ids of dropped rollouts to run again.
    "inbox": "i4",  # Pieces that arrived in this instant: (slot, new, past, last).
    "inbox_id": "i8",
    "way": "i4",  # A ring of pieces on their way: those and the incarnation.
    "way_at": "f8",  # When they arrive, rising.
    "way_id": "i8",
    "land": "i4",  # Pieces that arrived in this instant from their way, as ``way``.
    "land_id": "i8",
    "queue": "i4",  # Of each worker, a ring of pieces: those and the incarnation.
    "cached": "i4",  # Of each slot: its entry in ``caches``, 0: none.
    "uptos": "i8",  # Scratch, of each slot: how far its last piece goes, times 2, and 1 if it ends it.
    "caches": CACHED,  # Of each worker, those of one after those of another.
    "residues": "i8",
    "keys": "i8",  # Scratch for sorting, and …
    "items": "i8",  # … what is sorted.
    "order": "i8",  # Group slots of the oracle's window, shortest first.
    "scratch": "i8",
    "scratch_at": "f8",
    "dealt": "i8",  # Scratch: response tokens dealt to each replica.
    "stage_s": "f8",  # Seconds of each stage alone.
    "passed_s": "f8",  # Seconds of each stage as they passed.
    "activity_s": "f8",
    "activity_stages": "i8",  # The trainer's activities: seconds, and the stages (bits) that they are.
    "rewards": "f8",  # Mean reward of each step (NaN: none), or of each row of the trace.
    "lengths": LENGTHS,
    "drawn": "i8",  # Scratch: first row of each group that is admitted, and …
    "drawn_lengths": LENGTHS,  # … its members' lengths.
    "calls": CALL,  # Of tools, those of one row of the trace after those of another.
    "first_call": "i8",  # First call of each row, and their end.
    "answers": ANSWER,  # To come, as a heap.
    "blocks": "i8",  # (first row, groups) of each step of the trace.
    "block_means": "f8",
    "key": "u8",  # Of the stream of row draws.
    "lines": "f8",  # Decode lines (fixed, slope, kv_until), those of one batch size after those of another.
    "line_at": "i8",  # First line of a batch size.
    "line_range": "f8",  # Of each batch size: lowest and highest KV measured, ``least_s``, ``idle``.
    "work": "f8",  # Of each batch size: operations at no KV, a KV token; bytes at no KV, a KV token.
    "demand": "f8",  # Of each batch size: memory and arithmetic at no KV, a KV token (each).
    "parts": PART,
    "terms": "f8",
    "tables": "f8",
    "stages": STAGE,
    "extrapolated": "f8",  # Of each measured table: extrapolated queries, and the first (two numbers).
    "out": ROW,  # One row a step.
    "rollout_rows": "f8",  # Rows of ``ROLLOUT_COLUMNS``, one a trained rollout.
    "trace": "f8",  # Spans and markers: (what, index, stage, start, end, step, three numbers).
    "histogram": "i8",  # Counts of staleness 0, 1, …, then of deferrals 0, 1, …, step after step.
    "histogram_end": "i8",  # Two a step.
}
"""Arrays of a run and what they hold."""
STATE = np.dtype(
    [*SETTINGS, *RUN, *((name, "i8", (len(TABLES),)) for name in ("address", "length", "width"))], align=True
)
"""``width``: entries of a row, for arrays of two dimensions."""
