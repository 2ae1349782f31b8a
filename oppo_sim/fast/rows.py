"""Rows of the step and rollout tables, compiled (``model/row.py``)."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment"

import math
from typing import Any

import numpy as np

from oppo_sim.fast.activities import busy_rollout, busy_scoring, busy_training, record
from oppo_sim.fast.arrays import (
    batch_in,
    block_means_in,
    flights_in,
    groups_in,
    histogram_end_in,
    histogram_in,
    out_in,
    passed_s_in,
    replicas_in,
    rewards_in,
    rollout_rows_in,
    rollouts_in,
    selection_in,
    trained_in,
    turns_in,
    workers_in,
)
from oppo_sim.fast.codes import ASK_MODEL, MARK_STEP, NO_ROOM, ONE_STEP_OFF, SYNC, SYNCHRONOUS
from oppo_sim.fast.compiled import compiled, rule
from oppo_sim.fast.ordering import clear
from oppo_sim.fast.records import State
from oppo_sim.fast.selection import give_back
from oppo_sim.model import formulas

busy_share = rule(formulas.busy_share)
kernel_share = rule(formulas.kernel_share)


@compiled
def batch_columns(s: State, row: Any) -> int:
    """Columns of the trained batch; returns its response tokens."""
    size = s.batch
    tokens = prompts = clipped = longest = spans = longest_span = partial = stale = stalest = 0
    newest = newest_most = deferred_most = 0
    shortest = freshest = newest_least = np.int64(1 << 62)
    reward = 0.0
    for i in range(size):
        rollout = rollouts_in(s)[batch_in(s)[i]]
        trained_in(s)[i] = rollout.id
        response = np.int64(rollout.response)
        tokens += response
        longest, shortest = max(longest, response), min(shortest, response)
        prompts += turns_in(s)[batch_in(s)[i]].prompt if s.tools else rollout.prompt
        clipped += rollout.clipped
        age = s.step - rollout.head
        stale += age
        stalest, freshest = max(stalest, age), min(freshest, age)
        age = s.step - rollout.tail
        newest += age
        newest_most, newest_least = max(newest_most, age), min(newest_least, age)
        spans += rollout.span
        longest_span = max(longest_span, np.int64(rollout.span))
        partial += 1 if rollout.span > 1 else 0
        deferred_most = max(deferred_most, np.int64(groups_in(s)[rollout.group].deferrals))
        if s.by_row_rewards:
            reward += rewards_in(s)[rollout.row]
    row.response_length_mean = tokens / size
    row.response_length_max = longest
    row.response_length_min = shortest
    row.response_length_clip_ratio = clipped / size
    row.prompt_length_mean = prompts / size
    row.partial_partial_ratio = partial / size
    row.training_off_policy_trajectory_staleness_worst_mean = stale / size
    row.training_off_policy_trajectory_staleness_worst_max = stalest
    row.training_off_policy_trajectory_staleness_worst_min = freshest
    row.training_off_policy_trajectory_staleness_mean = newest / size
    row.training_off_policy_trajectory_staleness_max = newest_most
    row.training_off_policy_trajectory_staleness_min = newest_least
    row.training_off_policy_trajectory_spans_mean = spans / size
    row.training_off_policy_trajectory_spans_max = longest_span
    row.reward_mean = (
        reward / size if s.by_row_rewards else rewards_in(s)[min(s.step, rewards_in(s).shape[0] - 1)]
    )
    first, second = s.histogram, s.histogram + stalest + 1
    s.histogram = second + deferred_most + 1
    if s.histogram > histogram_in(s).shape[0]:
        s.error = NO_ROOM
        s.histogram = 0
        return tokens
    clear(histogram_in(s), first, s.histogram)
    for i in range(size):
        rollout = rollouts_in(s)[batch_in(s)[i]]
        histogram_in(s)[first + s.step - rollout.head] += 1
        histogram_in(s)[second + groups_in(s)[rollout.group].deferrals] += 1
    histogram_end_in(s)[2 * s.row], histogram_end_in(s)[2 * s.row + 1] = second, s.histogram
    return tokens


@compiled
def keep_rollouts(s: State) -> None:
    """``row.rollout_rows``: the rows of the trained rollouts."""
    for i in range(s.batch):
        rollout = rollouts_in(s)[batch_in(s)[i]]
        group = groups_in(s)[rollout.group]
        row = rollout_rows_in(s)[s.row * s.batch + i]
        row[0], row[1], row[2], row[3], row[4] = (
            rollout.id,
            group.id,
            rollout.row,
            turns_in(s)[batch_in(s)[i]].prompt if s.tools else rollout.prompt,
            rollout.response,
        )
        row[5], row[6], row[7], row[8], row[9] = (
            rollout.clipped,
            rollout.replica,
            rollout.admitted_step,
            s.step,
            i,
        )
        row[10], row[11], row[12], row[13], row[14] = (
            rollout.head,
            rollout.tail,
            s.step - rollout.head,
            rollout.span,
            group.deferrals,
        )
        row[15], row[16], row[17] = group.drops, rollout.preemptions, rollout.admitted_s
        row[18], row[19] = s.origin + rollout.finished_at, s.origin + rollout.scored_at


@compiled
def tokens_in_flight(s: State) -> int:
    """``Ledger.tokens_in_flight``, and those of a batch that is generated already."""
    tokens = 0
    for i in range(s.flights):
        for slot in range(flights_in(s)[i] * s.group_size, (flights_in(s)[i] + 1) * s.group_size):
            tokens += rollouts_in(s)[slot].generated
    if s.schedule == ONE_STEP_OFF:
        for i in range(s.batch):
            tokens += rollouts_in(s)[selection_in(s)[i]].generated
    return tokens


@compiled
def close_row(s: State) -> None:
    """``StepRows.close``; the slots of the batch are given back."""
    row = out_in(s)[s.row]
    seconds = s.now
    if seconds <= 0.0 and (s.knows_actor or s.knows_scorer or s.knows_training):
        s.error = ASK_MODEL
    row.step = row.weight_version = s.step
    row.start_s = s.origin
    row.timing_s_gen = s.gen_s
    row.timing_s_reward = s.reward_s
    row.timing_s_old_log_prob = passed_s_in(s)[0]
    row.timing_s_ref = passed_s_in(s)[1]
    row.timing_s_values = passed_s_in(s)[2]
    row.timing_s_adv = passed_s_in(s)[3]
    row.timing_s_update_critic = passed_s_in(s)[4]
    row.timing_s_update_actor = passed_s_in(s)[5]
    row.timing_s_update_weights = passed_s_in(s)[SYNC]
    row.timing_s_other = s.other_passed
    row.timing_s_step = seconds
    row.trace_response_length_mean = block_means_in(s)[s.step % block_means_in(s).shape[0]]
    row.tokens_trained = batch_columns(s, row)
    if s.keeps_rollouts:
        keep_rollouts(s)
    row.rollouts_admitted = s.new
    if s.schedule == ONE_STEP_OFF:
        s.deferred = s.surplus = 0
    row.rollouts_deferred = s.deferred
    row.rollouts_surplus = s.surplus
    row.rollouts_dropped = s.dropped
    row.tokens_dropped = s.dropped_tokens
    row.rollouts_filtered = s.filtered
    row.tokens_filtered = s.filtered_tokens
    row.tokens_padding = s.padding
    row.overcommit = s.overcommit
    row.chunk_size = s.chunk
    row.tokens_decoded = s.decoded
    row.tokens_prefilled = s.prefilled
    row.tokens_recomputed = s.recomputed
    row.tokens_prefix_cached = s.prefix_cached
    row.tokens_in_flight = tokens_in_flight(s)
    row.tokens_scored = s.scored
    row.scorer_pieces = s.pieces
    row.scorer_batches = s.scoring_batches
    row.busy_rollout = busy_share(busy_rollout(s), s.replicas, seconds)
    row.busy_scoring = busy_share(busy_scoring(s, 0.0), s.workers, seconds)
    row.busy_training = busy_share(busy_training(s), s.train_devices - s.hosts, seconds)
    if s.schedule != SYNCHRONOUS:
        s.scored_at, s.scored_inference = s.now, busy_scoring(s, busy_rollout(s))
    row.utilization_inference = busy_share(s.scored_inference, s.replicas + s.workers, s.scored_at)
    work_columns(s, row, seconds)
    row.kv_peak_tokens = s.kv_peak
    row.kv_preemptions = s.preemptions
    if s.tracing:
        record(s, MARK_STEP, 0, 0, s.now, s.now, 0.0, 0.0, 0.0)
    for i in range(s.batch):
        if batch_in(s)[i] % s.group_size == 0:
            give_back(s, batch_in(s)[i] // s.group_size)
    s.row += 1


@compiled
def work_columns(s: State, row: Any, seconds: float) -> None:
    """Operations and bytes, against the peaks (NaN where a cost model does not know them), and
    ``row._kernel_columns``."""
    nan = math.nan
    gen_flops = gen_bytes = gen = scoring_flops = scoring_bytes = scoring = 0.0
    for r in range(s.replicas):
        replica = replicas_in(s)[r]
        gen_flops += replica.flops
        gen_bytes += replica.traffic
        gen += replica.kernel_s
    for w in range(s.workers):
        worker = workers_in(s)[w]
        scoring_flops += worker.flops
        scoring_bytes += worker.traffic
        scoring += worker.kernel_s
    row.perf_flops_per_s_rollout = gen_flops / seconds if s.knows_actor else nan
    row.perf_flops_per_s_scoring = scoring_flops / seconds if s.knows_scorer else nan
    row.perf_flops_per_s_training = s.batch_flops / seconds if s.knows_training else nan
    row.perf_mfu_rollout = gen_flops / (seconds * s.actor_flops * s.replicas) if s.knows_actor else nan
    row.perf_mfu_scoring = scoring_flops / (seconds * s.scorer_flops * s.workers) if s.knows_scorer else nan
    row.perf_mfu_training = s.batch_flops / (seconds * s.training_flops) if s.knows_training else nan
    row.perf_bytes_per_s_rollout = gen_bytes / seconds if s.knows_actor else nan
    row.perf_bytes_per_s_scoring = scoring_bytes / seconds if s.knows_scorer else nan
    row.perf_mbu_rollout = gen_bytes / (seconds * s.actor_bytes * s.replicas) if s.knows_actor else nan
    row.perf_mbu_scoring = scoring_bytes / (seconds * s.scorer_bytes * s.workers) if s.knows_scorer else nan
    training, sync = s.training_kernel_s, s.sync_kernel_s
    whole = gen + scoring + training * (s.train_devices - s.hosts) + sync * (s.sync_devices - s.hosts)
    row.kernel_gen = kernel_share(gen, s.replicas, seconds)
    row.kernel_reward = kernel_share(scoring, s.workers, seconds)
    row.kernel_training = kernel_share(training + sync, 1, seconds)
    row.kernel_devices = kernel_share(whole, s.num_devices, seconds)
