"""What numbers of the compiled path stand for, and the columns of a step's row."""

from oppo_sim import columns as c

OK, ASK_MODEL, NO_ROOM, PLAN, ARRANGE, SELECT, DROP = range(7)
"""Why a run came back: it is there; the model has to say what is wrong; a buffer is full; the policy has to
decide."""
BY_BATCH, BY_ROLLOUT, BY_CHUNK = range(3)
GRANULARITIES = ("batch", "rollout", "chunk")
SYNCHRONOUS, ONE_STEP_OFF, ASYNC = range(3)
SCHEDULES = ("synchronous", "one-step-off", "async")
IN_ORDER, RESAMPLE, BY_STEP = range(3)
SAMPLINGS = ("in_order", "resample", "by_step")
IDLE, READY, DECODE, PREFILL = range(4)
BEGIN, ADMIT, PLACE, FIRST_PHASE, PHASE, BUSY, READY_BATCH, SCORE, TRAIN = range(9)
PAUSE, DRAIN, UPDATE, OTHER = range(9, 13)
"""Where the process of a run is: before a row, before admission, before placement, generating (a first batch
of one-step-off, or the step's), waiting for the trainer and for a batch (async), for scores, for training,
for what comes before the weight update (async: for a pause, and for rollouts that run to their end), for
that, and for what a step does outside its stages."""
LINEAR, TABLE, ROOFLINE, NOTHING = range(4)
"""Kinds of cost."""
DECODE_RANGE, PREFILL_RANGE, SCORE_RANGE, SCORE_REF_RANGE, TRAINING_RANGE = range(5)
"""Measured tables whose extrapolations are counted."""
SPAN_WAKE, SPAN_DECODE, SPAN_PREFILL, SPAN_SCORE, SPAN_TRAINING = range(5)
MARK_PIECE, MARK_GENERATED, MARK_STEP = range(5, 8)
SPAN_BARRIER = 8
"""What a row of ``trace`` is."""
STAGES = 7
PARALLEL_STAGES = 3
SYNC = STAGES - 1
UNBOUNDED = -1
SLOT_BITS = 24
NO_SLOT = (1 << SLOT_BITS) - 1
"""``finals`` and ``cuts``: iteration and slot in one number; ``NO_SLOT``: a cut whose rollout is gone."""

# Columns of ``out``, in the order of a step's row.
NAMES = (
    c.STEP, c.WEIGHT_VERSION, c.START_S, *(c.timing(stage) for stage in c.STAGES), c.TIMING_STEP,
    c.LENGTH_MEAN, c.LENGTH_MAX, c.LENGTH_MIN, c.LENGTH_CLIP_RATIO, c.PROMPT_LENGTH_MEAN, c.TRACE_LENGTH_MEAN,
    c.ROLLOUTS_ADMITTED, c.ROLLOUTS_DEFERRED, c.ROLLOUTS_SURPLUS, c.ROLLOUTS_DROPPED,
    c.ROLLOUTS_FILTERED, c.PARTIAL_RATIO,
    c.STALENESS_MEAN, c.STALENESS_MAX, c.STALENESS_MIN,
    c.STALENESS_NEWEST_MEAN, c.STALENESS_NEWEST_MAX, c.STALENESS_NEWEST_MIN,
    c.SPANS_MEAN, c.SPANS_MAX, c.OVERCOMMIT,
    c.CHUNK_SIZE, c.REWARD_MEAN,
    c.TOKENS_DECODED, c.TOKENS_TRAINED, c.TOKENS_PREFILLED, c.TOKENS_RECOMPUTED, c.TOKENS_PREFIX_CACHED,
    c.TOKENS_PADDING, c.TOKENS_DROPPED, c.TOKENS_FILTERED,
    c.TOKENS_IN_FLIGHT, c.TOKENS_SCORED, c.SCORER_PIECES, c.SCORER_BATCHES,
    c.BUSY_ROLLOUT, c.BUSY_SCORING, c.BUSY_TRAINING, c.UTILIZATION_INFERENCE,
    c.FLOPS_ROLLOUT, c.FLOPS_SCORING, c.FLOPS_TRAINING, c.MFU_ROLLOUT, c.MFU_SCORING, c.MFU_TRAINING,
    c.BANDWIDTH_ROLLOUT, c.BANDWIDTH_SCORING, c.MBU_ROLLOUT, c.MBU_SCORING, c.KV_PEAK_TOKENS,
    c.KV_PREEMPTIONS, c.KERNEL_GEN, c.KERNEL_REWARD, c.KERNEL_TRAINING, c.KERNEL_DEVICES,
)  # fmt: skip
WHOLE = frozenset({
    c.STEP, c.WEIGHT_VERSION, c.LENGTH_MAX, c.LENGTH_MIN, c.ROLLOUTS_ADMITTED, c.ROLLOUTS_DEFERRED,
    c.ROLLOUTS_SURPLUS, c.ROLLOUTS_DROPPED, c.ROLLOUTS_FILTERED, c.TOKENS_FILTERED,
    c.STALENESS_MAX, c.STALENESS_MIN, c.STALENESS_NEWEST_MAX, c.STALENESS_NEWEST_MIN,
    c.SPANS_MAX, c.OVERCOMMIT, c.CHUNK_SIZE, c.TOKENS_DECODED,
    c.TOKENS_TRAINED, c.TOKENS_PREFILLED,
    c.TOKENS_RECOMPUTED, c.TOKENS_PREFIX_CACHED, c.TOKENS_PADDING, c.TOKENS_DROPPED, c.TOKENS_IN_FLIGHT,
    c.TOKENS_SCORED, c.SCORER_PIECES, c.SCORER_BATCHES,
    c.KV_PEAK_TOKENS, c.KV_PREEMPTIONS,
})  # fmt: skip
"""Columns of whole numbers."""
