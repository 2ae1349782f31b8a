"""Every column of the result tables and of a length trace, named once.

Names follow verl where verl has one (``timing_s/*``, ``response_length/*``, ``training/off_policy/*``), so
that a simulated step can be laid over a logged one.
"""

from typing import Final, NamedTuple

# ---- length traces: one row a rollout ----------------------------------------------------------------------
PROMPT_LENGTH: Final = "prompt_length"  # tokens; empty where unknown
RESPONSE_LENGTH: Final = "response_length"  # tokens
STEP: Final = "step"
PROMPT_ID: Final = "prompt_id"
SAMPLE_ID: Final = "sample_id"
FINISH_REASON: Final = "finish_reason"  # stop | length | abort, empty where unknown
REWARD: Final = "reward"
ARRIVAL_S: Final = "arrival_s"  # serving traces: seconds from their first request
SOURCE: Final = "source"

# Of rollouts that wait for tools; lists, and only in tables that have them.
TURN_LENGTHS: Final = "turn_response_lengths"  # response tokens of each turn; they add up to response_length
TOOL_SECONDS: Final = "tool_seconds"  # after each turn but the last: until the tool has answered
TOOL_TOKENS: Final = "tool_tokens"  # of each answer

TURN_COLUMNS: Final = (TURN_LENGTHS, TOOL_SECONDS, TOOL_TOKENS)
TRACE_COLUMNS: Final = (
    SOURCE,
    STEP,
    PROMPT_ID,
    SAMPLE_ID,
    PROMPT_LENGTH,
    RESPONSE_LENGTH,
    FINISH_REASON,
    REWARD,
)

# ---- stages ------------------------------------------------------------------------------------------------
STAGES: Final = (
    "gen",
    "reward",
    "old_log_prob",
    "ref",
    "values",
    "adv",
    "update_critic",
    "update_actor",
    "update_weights",
    "other",  # outside every stage: data, logging, checkpoints
)
TRAINING_STAGES: Final = STAGES[2:-1]


def timing(stage: str) -> str:
    """Column of a stage's seconds in a step row, e.g. ``timing_s/gen``; ``timing_s/step`` is the whole."""
    return f"timing_s/{stage}"


TIMING_STEP: Final = timing("step")

# ---- step rows ---------------------------------------------------------------------------------------------
WEIGHT_VERSION: Final = "weight_version"  # updates done when the step began
START_S: Final = "start_s"  # simulated seconds at which the step began
LENGTH_MEAN: Final = "response_length/mean"  # of the trained batch
LENGTH_MAX: Final = "response_length/max"
LENGTH_MIN: Final = "response_length/min"
LENGTH_CLIP_RATIO: Final = "response_length/clip_ratio"
PROMPT_LENGTH_MEAN: Final = "prompt_length/mean"
TRACE_LENGTH_MEAN: Final = "trace/response_length/mean"  # of the rows the step's rollouts are drawn from
ROLLOUTS_ADMITTED: Final = "rollouts/admitted"
ROLLOUTS_DEFERRED: Final = "rollouts/deferred"  # unfinished in flight at the end of gen
ROLLOUTS_SURPLUS: Final = "rollouts/surplus"  # finished, not selected
ROLLOUTS_DROPPED: Final = "rollouts/dropped"
ROLLOUTS_FILTERED: Final = "rollouts/filtered"  # of groups whose rewards were all equal (dynamic sampling)
PARTIAL_RATIO: Final = (
    "partial/partial_ratio"  # share of the batch whose tokens come from more than one version
)
# Staleness: updates between the weights of a rollout's first token and those that its update begins with.
# verl's names: "worst" is of the oldest version among its tokens, without it of the newest.
STALENESS_MEAN: Final = "training/off_policy/trajectory_staleness_worst/mean"
STALENESS_MAX: Final = "training/off_policy/trajectory_staleness_worst/max"
STALENESS_MIN: Final = "training/off_policy/trajectory_staleness_worst/min"
STALENESS_HISTOGRAM: Final = (
    "training/off_policy/trajectory_staleness_worst/histogram"  # list: rollouts with staleness 0, 1, 2, …
)
DEFERRALS_HISTOGRAM: Final = "rollouts/deferrals/histogram"  # list: rollouts deferred 0, 1, 2, … times
HISTOGRAMS: Final = (STALENESS_HISTOGRAM, DEFERRALS_HISTOGRAM)  # of the trained batch
STALENESS_NEWEST_MEAN: Final = "training/off_policy/trajectory_staleness/mean"
STALENESS_NEWEST_MAX: Final = "training/off_policy/trajectory_staleness/max"
STALENESS_NEWEST_MIN: Final = "training/off_policy/trajectory_staleness/min"
SPANS_MEAN: Final = "training/off_policy/trajectory_spans/mean"
SPANS_MAX: Final = "training/off_policy/trajectory_spans/max"
OVERCOMMIT: Final = "overcommit"  # Δ in force
CHUNK_SIZE: Final = "chunk_size"  # tokens, in force
REWARD_MEAN: Final = "reward/mean"  # of the trained batch
TOKENS_DECODED: Final = "tokens/decoded"
TOKENS_TRAINED: Final = "tokens/trained"  # response tokens of the batch
TOKENS_PREFILLED: Final = "tokens/prefilled"  # by the actor, recomputed ones and padding left out
TOKENS_RECOMPUTED: Final = "tokens/recomputed"  # prefilled again: carried without KV, preempted or moved
TOKENS_PREFIX_CACHED: Final = "tokens/prefix_cached"  # not prefilled: another sample's KV has the prompt
TOKENS_PADDING: Final = (
    "tokens/padding"  # rows and columns computed for nobody: static batches, padded graphs
)
TOKENS_DROPPED: Final = "tokens/dropped"
TOKENS_FILTERED: Final = "tokens/filtered"  # response tokens of rollouts/filtered: generated for nothing
TOKENS_IN_FLIGHT: Final = (
    "tokens/in_flight"  # response tokens held by rollouts not yet trained, at the end of the step
)
TOKENS_SCORED: Final = "tokens/scored"  # prefilled by the scorer
SCORER_PIECES: Final = "scorer/pieces"
SCORER_BATCHES: Final = "scorer/batches"
BUSY_ROLLOUT: Final = (
    "busy/rollout"  # share of the step in which the group's devices had an activity, mean over devices
)
BUSY_SCORING: Final = "busy/scoring"
BUSY_TRAINING: Final = "busy/training"
UTILIZATION_INFERENCE: Final = (
    "utilization/inference"  # the paper's: gen start to last score, rollout and scoring devices
)
# Share of the step with a kernel on the device (docs/model.md), mean over devices; empty for real runs.
KERNEL_GEN: Final = "kernel/gen"  # of decode and prefill, rollout devices
KERNEL_REWARD: Final = "kernel/reward"  # of scoring, devices of the scoring workers, one a worker
KERNEL_TRAINING: Final = "kernel/training"  # of training and weight sync, training devices
KERNEL_DEVICES: Final = "kernel/devices"  # of everything, all devices, a shared one counted once
FLOPS_ROLLOUT: Final = "perf/flops_per_s/rollout"  # achieved over the step, all replicas
FLOPS_SCORING: Final = "perf/flops_per_s/scoring"
FLOPS_TRAINING: Final = "perf/flops_per_s/training"
MFU_ROLLOUT: Final = "perf/mfu/rollout"  # achieved / datasheet peak
MFU_SCORING: Final = "perf/mfu/scoring"
MFU_TRAINING: Final = "perf/mfu/training"
BANDWIDTH_ROLLOUT: Final = "perf/bytes_per_s/rollout"
BANDWIDTH_SCORING: Final = "perf/bytes_per_s/scoring"
MBU_ROLLOUT: Final = "perf/mbu/rollout"  # achieved / datasheet memory bandwidth
MBU_SCORING: Final = "perf/mbu/scoring"
KV_PEAK_TOKENS: Final = "kv/peak_tokens"  # highest of any replica
KV_PREEMPTIONS: Final = "kv/preemptions"

# ---- step logs of other frameworks, beside the columns of step rows ----------------------------------------
STEP_TESTING_S: Final = timing("testing")  # validation, inside the step
STEP_SAVE_S: Final = timing("save_checkpoint")  # inside the step
PROMPT_LENGTH_MAX: Final = "prompt_length/max"
LENGTH_STD: Final = "response_length/std"
LENGTH_MEDIAN: Final = "response_length/median"
TOKENS_TOTAL: Final = "tokens/total"  # prompt and response, of all rollouts that the step generated
TOKENS_CUMULATIVE: Final = "tokens/cumulative"  # the same, added up since the run began
PER_TOKEN_UPDATE_MS: Final = "timing_per_token_ms/update_actor"  # milliseconds a token trained
ROLLOUTS_TRAINED: Final = "rollouts/trained"
SLOWEST_LENGTH: Final = "slowest/response_length"  # of the rollout that finished last
SLOWEST_TOOL_S: Final = "slowest/tool_calls_s"  # seconds it waited for tools
TURNS_MAX: Final = "num_turns/max"  # messages of the rollout with the most; 2 without tools
COLD_START: Final = "cold_start"  # the first step of a run, or after a restart

# ---- rollout rows ------------------------------------------------------------------------------------------
ROLLOUT_ID: Final = "rollout_id"
GROUP_ID: Final = "group_id"
TRACE_ROW: Final = "trace_row"  # row number in the replayed trace
REPLICA: Final = "replica"
TRAINED_STEP: Final = "trained_step"
TRAINED_RANK: Final = "trained_rank"  # position in the batch, in order of selection
HEAD_VERSION: Final = "head_version"  # weight version of the first token
TAIL_VERSION: Final = "tail_version"  # of the last
STALENESS: Final = "staleness"
SPAN: Final = "span"
DEFERRALS: Final = "deferrals"
PREEMPTIONS: Final = "preemptions"
ADMITTED_S: Final = "admitted_s"
FINISHED_S: Final = "finished_s"
SCORED_S: Final = "scored_s"


class RolloutRow(NamedTuple):
    """A trained rollout; the fields are the columns, in their order. Seconds since the run began."""

    rollout_id: int
    group_id: int
    trace_row: int
    prompt_length: int
    response_length: int
    finish_reason: str
    replica: int
    admitted_step: int
    trained_step: int
    trained_rank: int
    head_version: int | None
    tail_version: int
    staleness: int
    span: int
    deferrals: int
    drops: int
    preemptions: int
    admitted_s: float
    finished_s: float | None
    scored_s: float | None


ROLLOUT_COLUMNS: Final = RolloutRow._fields

# ---- comparison rows: one a policy, means over steps and seeds, seconds a step -----------------------------
STEP_S: Final = "step_s"
STEP_S_LOW: Final = "step_s_low"
STEP_S_HIGH: Final = "step_s_high"
SPEEDUP: Final = "speedup"  # against the sequential baseline, by trained rollouts
SPEEDUP_LOW: Final = "speedup_low"
SPEEDUP_HIGH: Final = "speedup_high"
SPEEDUP_PER_TOKEN: Final = "speedup_per_token"
SPEEDUP_PER_TOKEN_LOW: Final = "speedup_per_token_low"
SPEEDUP_PER_TOKEN_HIGH: Final = "speedup_per_token_high"
GEN_S: Final = "gen_s"
REWARD_S: Final = "reward_s"
TRAINING_S: Final = "training_s"
COMPARED_STALENESS_MEAN: Final = "staleness_mean"
COMPARED_STALENESS_MAX: Final = "staleness_max"
LENGTH_BIAS: Final = "length_bias"  # mean response length trained / mean of the trace − 1
# Mean response length trained / that of the sequential baseline on the same seeds − 1. The trained lengths of
# any policy scatter around the trace's mean from seed to seed; the baseline's, which trains what it admits,
# scatter alike: what is left is the policy's own doing.
LENGTH_BIAS_PAIRED: Final = "length_bias_paired"
DEFERRED: Final = "deferred"  # rollouts a step
FILTERED: Final = "filtered"  # rollouts a step, generated for nothing: all rewards of their group were equal
COMPARED_DEFERRALS_MEAN: Final = "deferrals_mean"  # of a trained rollout: steps in which it did not finish
COMPARED_DEFERRALS_MAX: Final = "deferrals_max"
DISTRIBUTIONS: Final = {"staleness": STALENESS_HISTOGRAM, "deferrals": DEFERRALS_HISTOGRAM}
LAST_SHARE: Final = 16  # a distribution's last entry: so many, or more


def share(of: str, value: int) -> str:
    """Column of the share of trained rollouts with so many updates of staleness, or deferrals: a key of
    ``DISTRIBUTIONS`` and 0 to ``LAST_SHARE``."""
    return f"share/{of}/{value}"


UTILIZATION: Final = "utilization"
HOURS_PER_10K: Final = "hours_per_10k_rollouts"
NUM_GPUS: Final = "num_gpus"  # of the job, idle ones included
TOKENS_PER_S_PER_GPU: Final = "tokens_per_s_per_gpu"  # response tokens trained
GPU_HOURS_PER_1K_STEPS: Final = "gpu_hours_per_1k_steps"
# To a target reward (learning.py); 95 % intervals of rollouts, machine and the effect of staleness together.
PROGRESS: Final = "progress"  # on-policy steps that a step is worth
TIME_TO_REWARD_S: Final = "time_to_reward_s"
HOURS_TO_REWARD: Final = "hours_to_reward"
HOURS_TO_REWARD_LOW: Final = "hours_to_reward_low"
HOURS_TO_REWARD_HIGH: Final = "hours_to_reward_high"
GPU_HOURS_TO_REWARD: Final = "gpu_hours_to_reward"
GPU_HOURS_TO_REWARD_LOW: Final = "gpu_hours_to_reward_low"
GPU_HOURS_TO_REWARD_HIGH: Final = "gpu_hours_to_reward_high"
REWARD_SPEEDUP: Final = "speedup_to_reward"  # against the sequential baseline
REWARD_SPEEDUP_LOW: Final = "speedup_to_reward_low"
REWARD_SPEEDUP_HIGH: Final = "speedup_to_reward_high"
BOUND_ONLY: Final = "bound_only"  # the policy knows what no real run can: never the best
# The intervals above are of the rollouts (seeds). Where draws say how unknown the machine's seconds are,
# there are these: 95 % of the draws, and both together around the value.
STEP_S_MACHINE_LOW: Final = "step_s_machine_low"
STEP_S_MACHINE_HIGH: Final = "step_s_machine_high"
SPEEDUP_MACHINE_LOW: Final = "speedup_machine_low"
SPEEDUP_MACHINE_HIGH: Final = "speedup_machine_high"
SPEEDUP_BOTH_LOW: Final = "speedup_both_low"
SPEEDUP_BOTH_HIGH: Final = "speedup_both_high"
SPEEDUP_PER_TOKEN_MACHINE_LOW: Final = "speedup_per_token_machine_low"
SPEEDUP_PER_TOKEN_MACHINE_HIGH: Final = "speedup_per_token_machine_high"
SPEEDUP_PER_TOKEN_BOTH_LOW: Final = "speedup_per_token_both_low"
SPEEDUP_PER_TOKEN_BOTH_HIGH: Final = "speedup_per_token_both_high"
P_BEST: Final = "p_best"  # share of draws × seeds in which it is the best
MACHINE_WIDEST: Final = "machine_widest"  # the term that widens the machine's interval of the speed-up most
MACHINE_WIDEST_SHARE: Final = "machine_widest_share"  # of the variance of the log speed-up
DRAW: Final = "draw"  # number of a draw of the machine

# ---- sweep rows: one a configuration; the varied fields under their dotted names, the columns of a compariso
STATUS: Final = "status"  # ok | failed | stopped
ERROR: Final = "error"  # why it failed
SEEDS: Final = "seeds"  # runs that the row rests on
ENGINE: Final = "engine"  # compiled | simpy
S_PER_ROLLOUT: Final = "s_per_rollout"
S_PER_TOKEN: Final = "s_per_token"  # seconds a trained response token
TOKENS_PER_S: Final = "tokens_per_s"  # response tokens trained
COMPARED_PARTIAL_RATIO: Final = "partial_ratio"
COMPARED_TOKENS_IN_FLIGHT: Final = "tokens_in_flight"  # at the end of a step, mean
COMPARED_KV_PEAK_TOKENS: Final = "kv_peak_tokens"  # highest of any replica, step and seed
COMPARED_KV_PREEMPTIONS: Final = "kv_preemptions"  # a step
COMPARED_SCORER_PIECES: Final = "scorer_pieces"  # a step
COMPARED_BUSY_ROLLOUT: Final = "busy_rollout"
COMPARED_BUSY_SCORING: Final = "busy_scoring"
COMPARED_BUSY_TRAINING: Final = "busy_training"
DIFFERENCE: Final = (
    "difference"  # paired, from the best point: seconds a rollout (or speed-up) over its own, minus 1
)
DIFFERENCE_LOW: Final = "difference_low"
DIFFERENCE_HIGH: Final = "difference_high"
# Those with draws of the machine (docs/sweep.md says which): the interval of seeds and draws together.
DIFFERENCE_BOTH_LOW: Final = "difference_both_low"
DIFFERENCE_BOTH_HIGH: Final = "difference_both_high"
POINT: Final = "point"  # row number in the points table

# ---- trials of a tuning: one a setting; the columns of a sweep, and these ----------------------------------
TRIAL: Final = "trial"  # its number
REGRET: Final = "regret"  # seconds over the best setting of the same world, minus 1
BROKEN: Final = "broken"  # bounds that it does not keep, comma-separated

HIDDEN_BY_OVERLAP_S: Final = "hidden_by_overlap_s"
SAVED_BY_SHORTER_TAIL_S: Final = "saved_by_shorter_tail_s"
LOST_TO_RECOMPUTATION_S: Final = "lost_to_recomputation_s"
LOST_TO_CONTENTION_S: Final = "lost_to_contention_s"
LOST_TO_PADDING_S: Final = "lost_to_padding_s"
LOST_TO_CUTS_S: Final = "lost_to_cuts_s"
