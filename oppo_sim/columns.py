"""Every column of the result tables and of a length trace: named once, with its unit and its meaning.

Names follow verl where verl has one (``timing_s/*``, ``response_length/*``, ``training/off_policy/*``), so
that a simulated step can be laid over a logged one. docs/columns.md is made from this file.
"""

from typing import Final, NamedTuple

from oppo_sim.column_facts import Table

# ---- length traces -----------------------------------------------------------------------------------------
_trace = Table("Length traces", "One row a rollout: what is imported, shipped and replayed (docs/traces.md).")

PROMPT_LENGTH: Final = _trace("prompt_length", "tokens", "of the prompt; empty where unknown")
RESPONSE_LENGTH: Final = _trace("response_length", "tokens", "of the response")
STEP: Final = _trace("step", "", "training step, from 0 in what is simulated")
PROMPT_ID: Final = _trace("prompt_id", "", "which rollouts are samples of one prompt")
SAMPLE_ID: Final = _trace("sample_id", "", "which sample of its prompt")
FINISH_REASON: Final = _trace("finish_reason", "", "stop, length (cut) or abort; empty where unknown")
RECORDED_REASONS: Final = ("stop", "length", "abort")
"""What a finish reason of a trace may be."""
REWARD: Final = _trace("reward", "reward", "of the rollout")
ARRIVAL_S: Final = _trace("arrival_s", "s", "serving traces: since their first request")
SOURCE: Final = _trace("source", "", "which run, task or model a row is of")
# Of rollouts that wait for tools; lists, and only in tables that have them.
TURN_LENGTHS: Final = _trace("turn_response_lengths", "tokens", "list: of each turn; they add up")
TOOL_SECONDS: Final = _trace("tool_seconds", "s", "list: after each turn, until the tool answers")
TOOL_TOKENS: Final = _trace("tool_tokens", "tokens", "list: of each answer of a tool")

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


# ---- step rows ---------------------------------------------------------------------------------------------
_step = Table("Steps", "One row a training step: `run.steps`, `steps.parquet`; means in `run.summary`.")

_step("step", "", "number of the step, from 0")
TIMING_STEP: Final = _step(timing("step"), "s", "the whole step")
_step(
    timing("STAGE"),
    "s",
    f"of a stage: {', '.join(STAGES)} (outside every stage; of a synchronous real run the rest of the step)",
)
WEIGHT_VERSION: Final = _step("weight_version", "updates", "done when the step began")
START_S: Final = _step("start_s", "s", "simulated time at which the step began")
LENGTH_MEAN: Final = _step("response_length/mean", "tokens", "of the trained batch")
LENGTH_MAX: Final = _step("response_length/max", "tokens", "of the trained batch")
LENGTH_MIN: Final = _step("response_length/min", "tokens", "of the trained batch")
LENGTH_CLIP_RATIO: Final = _step("response_length/clip_ratio", "share", "of the batch: cut at the limit")
PROMPT_LENGTH_MEAN: Final = _step("prompt_length/mean", "tokens", "of the trained batch")
TRACE_LENGTH_MEAN: Final = _step(
    "trace/response_length/mean", "tokens", "of the rows the step's rollouts are drawn from"
)
ROLLOUTS_ADMITTED: Final = _step("rollouts/admitted", "rollouts", "begun in the step")
ROLLOUTS_DEFERRED: Final = _step("rollouts/deferred", "rollouts", "unfinished in flight at the end of gen")
ROLLOUTS_SURPLUS: Final = _step("rollouts/surplus", "rollouts", "finished, not selected")
ROLLOUTS_DROPPED: Final = _step("rollouts/dropped", "rollouts", "given up")
ROLLOUTS_FILTERED: Final = _step(
    "rollouts/filtered", "rollouts", "of groups whose rewards were all equal (dynamic sampling)"
)
PARTIAL_RATIO: Final = _step(
    "partial/partial_ratio", "share", "of the batch whose tokens come from more than one version"
)
# Staleness: updates between the weights of a rollout's first token and those that its update begins with.
# verl's names: "worst" is of the oldest version among its tokens, without it of the newest.
_WORST, _OLD = "training/off_policy/trajectory_staleness_worst", "staleness of the oldest tokens"
STALENESS_MEAN: Final = _step(f"{_WORST}/mean", "updates", f"{_OLD}: mean")
STALENESS_MAX: Final = _step(f"{_WORST}/max", "updates", f"{_OLD}: highest")
STALENESS_MIN: Final = _step(f"{_WORST}/min", "updates", f"{_OLD}: lowest")
STALENESS_HISTOGRAM: Final = _step(
    f"{_WORST}/histogram", "rollouts", "list: of the batch with staleness 0, 1, 2, …"
)
DEFERRALS_HISTOGRAM: Final = _step(
    "rollouts/deferrals/histogram", "rollouts", "list: of the batch deferred 0, 1, 2, … times"
)
HISTOGRAMS: Final = (STALENESS_HISTOGRAM, DEFERRALS_HISTOGRAM)  # of the trained batch
_NEWEST, _NEW = "training/off_policy/trajectory_staleness", "staleness of the newest tokens"
STALENESS_NEWEST_MEAN: Final = _step(f"{_NEWEST}/mean", "updates", f"{_NEW}: mean")
STALENESS_NEWEST_MAX: Final = _step(f"{_NEWEST}/max", "updates", f"{_NEW}: highest")
STALENESS_NEWEST_MIN: Final = _step(f"{_NEWEST}/min", "updates", f"{_NEW}: lowest")
_SPANS, _MANY = "training/off_policy/trajectory_spans", "weight versions that a rollout's tokens come from"
SPANS_MEAN: Final = _step(f"{_SPANS}/mean", "versions", f"{_MANY}: mean")
SPANS_MAX: Final = _step(f"{_SPANS}/max", "versions", f"{_MANY}: highest")
OVERCOMMIT: Final = _step("overcommit", "rollouts", "Δ in force")
CHUNK_SIZE: Final = _step("chunk_size", "tokens", "in force")
REWARD_MEAN: Final = _step("reward/mean", "reward", "of the trained batch")
TOKENS_DECODED: Final = _step("tokens/decoded", "tokens", "by all replicas")
TOKENS_TRAINED: Final = _step("tokens/trained", "tokens", "of the batch's responses")
TOKENS_PREFILLED: Final = _step(
    "tokens/prefilled", "tokens", "by the actor, recomputed ones and padding left out"
)
TOKENS_RECOMPUTED: Final = _step(
    "tokens/recomputed", "tokens", "prefilled again: carried without KV, preempted or moved"
)
TOKENS_PREFIX_CACHED: Final = _step(
    "tokens/prefix_cached", "tokens", "not prefilled: another sample's KV has the prompt"
)
TOKENS_PADDING: Final = _step(
    "tokens/padding", "tokens", "computed for nobody: static batches, padded graphs"
)
TOKENS_DROPPED: Final = _step("tokens/dropped", "tokens", "of responses that were given up")
TOKENS_FILTERED: Final = _step("tokens/filtered", "tokens", "of responses generated for nothing (filtered)")
TOKENS_IN_FLIGHT: Final = _step(
    "tokens/in_flight", "tokens", "of responses not yet trained, at the end of the step"
)
TOKENS_SCORED: Final = _step("tokens/scored", "tokens", "prefilled by the scorer")
SCORER_PIECES: Final = _step("scorer/pieces", "pieces", "that reached the scorer's queue")
SCORER_BATCHES: Final = _step("scorer/batches", "batches", "of pieces that the scorer began")
BUSY_ROLLOUT: Final = _step("busy/rollout", "share", "of the step: rollout devices had an activity, mean")
BUSY_SCORING: Final = _step("busy/scoring", "share", "the same of scoring devices")
BUSY_TRAINING: Final = _step("busy/training", "share", "the same of training devices")
UTILIZATION_INFERENCE: Final = _step(
    "utilization/inference", "share", "the paper's: gen start to last score, rollout and scoring devices"
)
# A kernel on the device (docs/model.md), mean over devices; empty for real runs.
KERNEL_GEN: Final = _step("kernel/gen", "share", "of the step with a kernel: decode and prefill")
KERNEL_REWARD: Final = _step("kernel/reward", "share", "the same of scoring, one device a worker")
KERNEL_TRAINING: Final = _step("kernel/training", "share", "the same of training and weight sync")
KERNEL_DEVICES: Final = _step("kernel/devices", "share", "the same of everything, a shared device once")
FLOPS_ROLLOUT: Final = _step("perf/flops_per_s/rollout", "FLOP/s", "achieved over the step, all replicas")
FLOPS_SCORING: Final = _step("perf/flops_per_s/scoring", "FLOP/s", "the same of scoring")
FLOPS_TRAINING: Final = _step("perf/flops_per_s/training", "FLOP/s", "the same of training")
MFU_ROLLOUT: Final = _step("perf/mfu/rollout", "share", "achieved FLOP/s over the datasheet's peak")
MFU_SCORING: Final = _step("perf/mfu/scoring", "share", "the same of scoring")
MFU_TRAINING: Final = _step("perf/mfu/training", "share", "the same of training")
BANDWIDTH_ROLLOUT: Final = _step("perf/bytes_per_s/rollout", "bytes/s", "achieved over the step")
BANDWIDTH_SCORING: Final = _step("perf/bytes_per_s/scoring", "bytes/s", "the same of scoring")
MBU_ROLLOUT: Final = _step("perf/mbu/rollout", "share", "achieved over the datasheet's memory bandwidth")
MBU_SCORING: Final = _step("perf/mbu/scoring", "share", "the same of scoring")
KV_PEAK_TOKENS: Final = _step("kv/peak_tokens", "tokens", "highest of any replica")
KV_PREEMPTIONS: Final = _step("kv/preemptions", "preemptions", "for want of KV")

# ---- step logs of other frameworks, beside the columns of step rows ----------------------------------------
_log = Table("Step logs", "What logs of other frameworks have beside the columns of steps: `read_step_log`.")

STEP_TESTING_S: Final = _log(timing("testing"), "s", "validation, where the step holds it")
STEP_SAVE_S: Final = _log(timing("save_checkpoint"), "s", "checkpoints, where the step holds them")
PROMPT_LENGTH_MAX: Final = _log("prompt_length/max", "tokens", "of the batch")
LENGTH_STD: Final = _log("response_length/std", "tokens", "of the batch: standard deviation")
LENGTH_MEDIAN: Final = _log("response_length/median", "tokens", "of the batch")
TOKENS_TOTAL: Final = _log("tokens/total", "tokens", "prompt and response, of all that the step generated")
TOKENS_CUMULATIVE: Final = _log("tokens/cumulative", "tokens", "the same, added up since the run began")
PER_TOKEN_UPDATE_MS: Final = _log("timing_per_token_ms/update_actor", "ms", "a token trained")
ROLLOUTS_TRAINED: Final = _log("rollouts/trained", "rollouts", "in the step")
GENERATION_BATCHES: Final = _log(
    "num_gen_batches", "batches", "generated one after the other until enough groups are kept"
)
SLOWEST_LENGTH: Final = _log("slowest/response_length", "tokens", "of the rollout that finished last")
SLOWEST_TOOL_S: Final = _log("slowest/tool_calls_s", "s", "that it waited for tools")
TURNS_MAX: Final = _log("num_turns/max", "messages", "of the rollout with the most; 2 without tools")
COLD_START: Final = _log("cold_start", "", "true: the first step of a run, or after a restart")

# ---- rollout rows ------------------------------------------------------------------------------------------
_rollout = Table("Rollouts", "One row a trained rollout: `run.rollouts`, `rollouts.parquet`.")

ROLLOUT_ID: Final = _rollout("rollout_id", "", "in order of admission")
GROUP_ID: Final = _rollout("group_id", "", "which rollouts are samples of one prompt")
TRACE_ROW: Final = _rollout(
    "trace_row", "", "row of those that are replayed, from 0; rows that are left out do not count"
)
_rollout("prompt_length", "tokens", "of the prompt")
_rollout("response_length", "tokens", "of the response")
_rollout("finish_reason", "", "stop, or length (cut)")
REPLICA: Final = _rollout("replica", "", "that finished it")
_rollout("admitted_step", "", "in which it began")
TRAINED_STEP: Final = _rollout("trained_step", "", "whose batch it was in")
TRAINED_RANK: Final = _rollout("trained_rank", "", "position in the batch, in order of selection")
HEAD_VERSION: Final = _rollout("head_version", "updates", "weight version of its first token")
TAIL_VERSION: Final = _rollout("tail_version", "updates", "of its last token")
STALENESS: Final = _rollout("staleness", "updates", "between its first token's weights and its update's")
SPAN: Final = _rollout(
    "span", "versions", "of the weights that its tokens come from, from the first to the last"
)
DEFERRALS: Final = _rollout("deferrals", "steps", "in which it did not finish")
_rollout("drops", "times", "that it was given up and begun again")
PREEMPTIONS: Final = _rollout("preemptions", "times", "that it lost its KV to others")
ADMITTED_S: Final = _rollout("admitted_s", "s", "since the run began: when it was admitted")
FINISHED_S: Final = _rollout("finished_s", "s", "since the run began: its last token")
SCORED_S: Final = _rollout("scored_s", "s", "since the run began: its score")


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

# ---- comparison rows ---------------------------------------------------------------------------------------
_MACHINE, _BOTH = "95 % of the draws of the machine", "95 % of rollouts and machine together"
_row = Table(
    "Comparisons and sweeps",
    "One row a policy (`comparison.table`) or a configuration (`sweep.points`, after its fields); means over"
    " steps after the warm-up and over seeds.",
)

STEP_S: Final = _row("step_s", "s", "a step")
STEP_S_LOW, STEP_S_HIGH = _row.interval("step_s", STEP_S)
SPEEDUP: Final = _row("speedup", "ratio", "against the sequential baseline, by trained rollouts")
SPEEDUP_LOW, SPEEDUP_HIGH = _row.interval("speedup", SPEEDUP)
SPEEDUP_PER_TOKEN: Final = _row("speedup_per_token", "ratio", "the same by trained response tokens")
SPEEDUP_PER_TOKEN_LOW, SPEEDUP_PER_TOKEN_HIGH = _row.interval("speedup_per_token", SPEEDUP_PER_TOKEN)
GEN_S: Final = _row("gen_s", "s", "a step, of gen")
REWARD_S: Final = _row("reward_s", "s", "a step, of reward")
TRAINING_S: Final = _row("training_s", "s", "a step, of all training stages")
COMPARED_STALENESS_MEAN: Final = _row("staleness_mean", "updates", "of the trained rollouts")
COMPARED_STALENESS_MAX: Final = _row("staleness_max", "updates", "of the stalest trained rollout")
LENGTH_BIAS: Final = _row("length_bias", "share", "mean response length trained over the trace's, minus 1")
# The trained lengths of any policy scatter around the trace's mean from seed to seed; the baseline's, which
# trains what it admits, scatter alike: what is left is the policy's own doing.
LENGTH_BIAS_PAIRED: Final = _row(
    "length_bias_paired", "share", "the same over the sequential baseline's on the same seeds, minus 1"
)
DEFERRED: Final = _row("deferred", "rollouts", "a step, unfinished at the end of gen")
FILTERED: Final = _row(
    "filtered", "rollouts", "a step, generated for nothing: all rewards of their group were equal"
)
COMPARED_DEFERRALS_MEAN: Final = _row("deferrals_mean", "steps", "in which a trained rollout did not finish")
COMPARED_DEFERRALS_MAX: Final = _row("deferrals_max", "steps", "the same, highest")
DISTRIBUTIONS: Final = {"staleness": STALENESS_HISTOGRAM, "deferrals": DEFERRALS_HISTOGRAM}
LAST_SHARE: Final = 16  # a distribution's last entry: so many, or more


def share(of: str, value: int) -> str:
    """Column of the share of trained rollouts with so many updates of staleness, or deferrals: a key of
    ``DISTRIBUTIONS`` and 0 to ``LAST_SHARE``."""
    return f"share/{of}/{value}"


UTILIZATION: Final = _row("utilization", "share", "the paper's: of rollout and scoring devices")
HOURS_PER_10K: Final = _row("hours_per_10k_rollouts", "h", "for 10,000 trained rollouts")
NUM_GPUS: Final = _row("num_gpus", "GPUs", "of the job, idle ones included")
TOKENS_PER_S_PER_GPU: Final = _row("tokens_per_s_per_gpu", "tokens/s", "response tokens trained, a GPU")
GPU_HOURS_PER_1K_STEPS: Final = _row("gpu_hours_per_1k_steps", "GPU-h", "for 1,000 steps")
# To a target reward (learning.py).
_LEARNT = "95 % of rollouts, machine and the effect of staleness"
PROGRESS: Final = _row("progress", "steps", "on-policy steps that a step is worth (docs/model.md)")
TIME_TO_REWARD_S: Final = _row("time_to_reward_s", "s", "to the target reward")
HOURS_TO_REWARD: Final = _row("hours_to_reward", "h", "to the target reward")
HOURS_TO_REWARD_LOW, HOURS_TO_REWARD_HIGH = _row.interval("hours_to_reward", HOURS_TO_REWARD, _LEARNT)
GPU_HOURS_TO_REWARD: Final = _row("gpu_hours_to_reward", "GPU-h", "to the target reward")
GPU_HOURS_TO_REWARD_LOW, GPU_HOURS_TO_REWARD_HIGH = _row.interval(
    "gpu_hours_to_reward", GPU_HOURS_TO_REWARD, _LEARNT
)
REWARD_SPEEDUP: Final = _row("speedup_to_reward", "ratio", "to the target reward, against sequential")
REWARD_SPEEDUP_LOW, REWARD_SPEEDUP_HIGH = _row.interval("speedup_to_reward", REWARD_SPEEDUP, _LEARNT)
BOUND_ONLY: Final = _row("bound_only", "", "true: the policy knows what no real run can; never the best")
# Where draws say how unknown the machine's seconds are, there are these.
STEP_S_MACHINE_LOW, STEP_S_MACHINE_HIGH = _row.interval("step_s_machine", STEP_S, _MACHINE)
SPEEDUP_MACHINE_LOW, SPEEDUP_MACHINE_HIGH = _row.interval("speedup_machine", SPEEDUP, _MACHINE)
SPEEDUP_BOTH_LOW, SPEEDUP_BOTH_HIGH = _row.interval("speedup_both", SPEEDUP, _BOTH)
SPEEDUP_PER_TOKEN_MACHINE_LOW, SPEEDUP_PER_TOKEN_MACHINE_HIGH = _row.interval(
    "speedup_per_token_machine", SPEEDUP_PER_TOKEN, _MACHINE
)
SPEEDUP_PER_TOKEN_BOTH_LOW, SPEEDUP_PER_TOKEN_BOTH_HIGH = _row.interval(
    "speedup_per_token_both", SPEEDUP_PER_TOKEN, _BOTH
)
P_BEST: Final = _row("p_best", "share", "of draws × seeds in which it is the best")
MACHINE_WIDEST: Final = _row(
    "machine_widest", "", "the term that widens the machine's interval of the speed-up most"
)
MACHINE_WIDEST_SHARE: Final = _row("machine_widest_share", "share", "of the variance of the log speed-up")
S_PER_ROLLOUT: Final = _row("s_per_rollout", "s", "a trained rollout")
S_PER_TOKEN: Final = _row("s_per_token", "s", "a trained response token")
TOKENS_PER_S: Final = _row("tokens_per_s", "tokens/s", "response tokens trained")
COMPARED_PARTIAL_RATIO: Final = _row(
    "partial_ratio", "share", "of the batch with tokens of more than one version"
)
COMPARED_TOKENS_IN_FLIGHT: Final = _row("tokens_in_flight", "tokens", "at the end of a step")
COMPARED_KV_PEAK_TOKENS: Final = _row("kv_peak_tokens", "tokens", "highest of any replica, step and seed")
COMPARED_KV_PREEMPTIONS: Final = _row("kv_preemptions", "preemptions", "a step")
COMPARED_SCORER_PIECES: Final = _row("scorer_pieces", "pieces", "a step")
COMPARED_BUSY_ROLLOUT: Final = _row("busy_rollout", "share", "of the time: rollout devices had an activity")
COMPARED_BUSY_SCORING: Final = _row("busy_scoring", "share", "the same of scoring devices")
COMPARED_BUSY_TRAINING: Final = _row("busy_training", "share", "the same of training devices")
DIFFERENCE: Final = _row(
    "difference", "share", "paired: cost over the best one's (of a search: the choice's), minus 1"
)
DIFFERENCE_LOW, DIFFERENCE_HIGH = _row.interval("difference", DIFFERENCE)
# Those with draws of the machine (docs/sweep.md says which).
DIFFERENCE_BOTH_LOW, DIFFERENCE_BOTH_HIGH = _row.interval("difference_both", DIFFERENCE, _BOTH)
DIFFERENCE_WIDEST: Final = _row(
    "difference_widest",
    "",
    "the term, or placement, that widens the machine's interval of the difference most",
)
DIFFERENCE_WIDEST_SHARE: Final = _row(
    "difference_widest_share", "share", "of the variance of the log difference"
)
STATUS: Final = _row("status", "", "ok, failed or stopped (clearly worse after some seeds)")
ERROR: Final = _row("error", "", "why it failed")
SEEDS: Final = _row("seeds", "runs", "that the row rests on")
ENGINE: Final = _row("engine", "", "compiled, simpy, or both of its runs: compiled+simpy")

# ---- attribution -------------------------------------------------------------------------------------------
_share = Table(
    "Attribution",
    "One row a policy: `comparison.attribution`; seconds a step, from runs without one cost (empty: not"
    " applicable).",
)

HIDDEN_BY_OVERLAP_S: Final = _share("hidden_by_overlap_s", "s", "saved by scoring while others decode")
SAVED_BY_SHORTER_TAIL_S: Final = _share("saved_by_shorter_tail_s", "s", "saved by not waiting for the last")
LOST_TO_RECOMPUTATION_S: Final = _share("lost_to_recomputation_s", "s", "prefilling again")
LOST_TO_CONTENTION_S: Final = _share("lost_to_contention_s", "s", "devices and hosts that are shared")
LOST_TO_PADDING_S: Final = _share("lost_to_padding_s", "s", "computing for nobody")
LOST_TO_CUTS_S: Final = _share("lost_to_cuts_s", "s", "ending rounds and handing over pieces")

# ---- runs of a comparison or a sweep -----------------------------------------------------------------------
_run = Table(
    "Runs of a comparison or a sweep",
    "One row a run: `comparison.cells`, `sweep.runs`; beside these the columns of a comparison, of this run"
    " alone after the warm-up, and mean `timing_s/…`.",
)

POINT: Final = _run("point", "", "row number in the points table")
DRAW: Final = _run("draw", "", "number of a draw of the machine")
RUN_POLICY: Final = _run("policy", "", "policy, or baseline")
RUN_SEED: Final = _run("seed", "", "of the run")
VARIANT: Final = _run("variant", "", "actual, or the cost that was left out")
_run(timing("STAGE"), "s", "of a stage, mean of the steps")
RUN_STEPS: Final = _run("steps", "steps", "that count")
RUN_SECONDS: Final = _run("seconds", "s", "that they took")
RUN_ROLLOUTS: Final = _run("rollouts", "rollouts", "trained")
RUN_TOKENS: Final = _run("tokens", "tokens", "of the responses trained")
RUN_LENGTH_MEAN: Final = _run("length_mean", "tokens", "of the responses trained")
RUN_TRACE_LENGTH_MEAN: Final = _run("trace_length_mean", "tokens", "of the rows they are drawn from")
ON_POLICY_LENGTH_MEAN: Final = _run(
    "on_policy_length_mean", "tokens", "of what sequential trains in these steps, same seed"
)
RUN_TOKENS_DROPPED: Final = _run("dropped_tokens", "tokens", "of responses that were given up")
RUN_TOKENS_RECOMPUTED: Final = _run("recomputed_tokens", "tokens", "prefilled again")
RUN_TOKENS_PADDING: Final = _run("padding_tokens", "tokens", "computed for nobody")
RUN_OVERCOMMIT: Final = _run("overcommit", "rollouts", "Δ in force, mean")
RUN_CHUNK_SIZE: Final = _run("chunk_size", "tokens", "in force, mean")
RUN_REWARD_MEAN: Final = _run("reward_mean", "reward", "of the trained rollouts")
_run("baseline_s_per_rollout", "s", "a trained rollout, of its baseline on the same seed")
for _name, _unit in (("staleness", "updates of staleness"), ("deferrals", "deferrals")):
    _run(f"share/{_name}/N", "share", f"of the trained rollouts with N {_unit}; {LAST_SHARE}: or more")

# ---- searches ----------------------------------------------------------------------------------------------
_trial = Table(
    "Searches",
    "One row a setting: `tuning.trials`, `tuning.settings`, or a value of a knob: `tuning.sensitivity`;"
    " beside these, columns of a comparison.",
)

TRIAL: Final = _trial("trial", "", "its number")
REGRET: Final = _trial("regret", "share", "seconds over the best setting of the same world, minus 1")
BROKEN: Final = _trial("broken", "", "bounds that it does not keep, comma-separated")
_trial("setting", "", "policy and knobs")
_trial("why", "", "why it was looked at on fresh seeds")
_trial("alike", "", "true: cannot be told apart from the choice")
_trial(
    "keeps_bounds", "", "true: on fresh seeds; trials have what was broken on the search's seeds under broken"
)
_trial("field", "", "the knob")
_trial("value", "", "its value, as JSON")
_trial("value_number", "", "its value, where it is a number")
_trial("relative", "share", "cost over the choice's, minus 1")
_trial.interval("relative", "relative")

TABLES: Final = (_trace, _step, _log, _rollout, _row, _share, _run, _trial)
