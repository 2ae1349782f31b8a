"""The row of a step and the rows of its rollouts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from oppo_sim import columns as c
from oppo_sim.costs.formulas import added
from oppo_sim.costs.interface import Costs
from oppo_sim.model.formulas import busy_share, kernel_share
from oppo_sim.model.rollout import Rollout
from oppo_sim.model.tally import Tally
from oppo_sim.policies.interface import Policy, StepReport
from oppo_sim.results.sinks import Sink
from oppo_sim.schedule.plant import BusyReading, StepEnd
from oppo_sim.schedule.rules import reported_timing

NAN = float("nan")
R = TypeVar("R", bound=Rollout)
Recorded = Sequence[Mapping[str, float]] | None
"""Stage times that a policy observes instead of those that passed, one mapping a step."""


class DeviceCounts(NamedTuple):
    """Devices that train, those of ``update_weights``, and all of them, a shared one counted once."""

    training: int
    sync: int
    whole: int


def _share(before: Sequence[float], after: Sequence[float], seconds: float) -> float:
    return busy_share(added(after) - added(before), len(after), seconds) if after else NAN


def _counts(values: Sequence[int], highest: int) -> list[int]:
    """How many are 0, 1, … highest."""
    return [values.count(value) for value in range(highest + 1)]


class StepRows:
    """Writes the row of each step, of a simulated or a real run, and reports it to the policy."""

    def __init__(
        self,
        sink: Sink,
        policy: Policy,
        costs: Costs,
        reward: Callable[[int, Sequence[Any]], float | None],
        mean_response_length: Callable[[int], float],
        recorded: Recorded,
        reading: BusyReading,
    ) -> None:
        """``costs``: for the peaks of the devices; ``reward``: mean of a step's batch;
        ``mean_response_length``: of the trace, for the rollouts first admitted in a step."""
        self._sink = sink
        self._policy = policy
        self._costs = costs
        self._reward = reward
        self._trace_mean = mean_response_length
        self._recorded = recorded
        self._begin = reading
        self._origin = 0.0

    def begin(self, reading: BusyReading, origin: float = 0.0) -> None:
        """A row begins; its seconds count from second ``origin`` of the run."""
        self._begin = reading
        self._origin = origin

    def close(
        self,
        end: StepEnd[R],
        tally: Tally,
        reading: BusyReading,
        training_flops: float | None,
        devices: DeviceCounts | None = None,
    ) -> None:
        """The row ends; ``devices``: given where ``tally`` knows seconds of kernels.

        Raises OppoError past the end of recorded stage times.
        """
        step, batch = end.step, end.batch
        end.stages["step"] = reading.at - self._begin.at
        reward = self._reward(step, batch)
        row = self._row(end, tally, reading, reward, training_flops)
        row |= _kernel_columns(tally, end.stages["step"], len(reading.rollout), len(reading.scoring), devices)
        self._sink.on_step(row)
        self._sink.on_rollouts(rollout_rows(end, self._origin))
        self._policy.observe(
            StepReport(
                step,
                reported_timing(self._recorded, step, end.stages),
                tuple([rollout.rollout_id for rollout in batch]),
                sum([rollout.response_length for rollout in batch]),
                reward,
                end.deferred,
                end.surplus,
                end.plan.overcommit,
                end.plan.chunk_size,
            )
        )

    def _row(
        self,
        facts: StepEnd[R],
        tally: Tally,
        end: BusyReading,
        reward: float | None,
        training_flops: float | None,
    ) -> dict[str, Any]:
        batch, begin, seconds = facts.batch, self._begin, facts.stages["step"]
        scored = end if facts.last_score is None else facts.last_score
        inference = (*begin.rollout, *begin.scoring), (*scored.rollout, *scored.scoring)
        return {
            c.STEP: facts.step,
            c.WEIGHT_VERSION: facts.weight_version,
            c.START_S: self._origin + begin.at,
            **{_TIMING[stage]: value for stage, value in facts.stages.items()},
            **_length_columns(batch),
            c.TRACE_LENGTH_MEAN: self._trace_mean(facts.step),
            c.ROLLOUTS_ADMITTED: facts.admitted,
            c.ROLLOUTS_DEFERRED: facts.deferred,
            c.ROLLOUTS_SURPLUS: facts.surplus,
            c.ROLLOUTS_DROPPED: facts.dropped,
            c.ROLLOUTS_FILTERED: facts.filtered,
            **_staleness_columns(batch, facts.weight_version),
            c.OVERCOMMIT: facts.plan.overcommit,
            c.CHUNK_SIZE: facts.plan.chunk_size,
            c.REWARD_MEAN: NAN if reward is None else reward,
            **_token_columns(facts, tally),
            c.SCORER_PIECES: tally.pieces,
            c.SCORER_BATCHES: tally.scoring_batches,
            c.BUSY_ROLLOUT: _share(begin.rollout, end.rollout, seconds),
            c.BUSY_SCORING: _share(begin.scoring, end.scoring, seconds),
            c.BUSY_TRAINING: _share(begin.training, end.training, seconds),
            c.UTILIZATION_INFERENCE: _share(inference[0], inference[1], scored.at - begin.at),
            **_achieved_columns(
                tally, training_flops, seconds, self._costs, len(end.rollout), len(end.scoring)
            ),
            c.KV_PEAK_TOKENS: tally.kv_peak,
            c.KV_PREEMPTIONS: tally.preemptions,
        }


def _length_columns(batch: Sequence[Rollout]) -> dict[str, float]:
    lengths = [rollout.response_length for rollout in batch]
    size = len(batch)
    return {
        c.LENGTH_MEAN: sum(lengths) / size,
        c.LENGTH_MAX: max(lengths),
        c.LENGTH_MIN: min(lengths),
        c.LENGTH_CLIP_RATIO: sum([rollout.clipped for rollout in batch]) / size,
        c.PROMPT_LENGTH_MEAN: sum([rollout.prompt_length for rollout in batch]) / size,
    }


def _staleness_columns(batch: Sequence[Rollout], version: int) -> dict[str, Any]:
    """In updates, of the oldest and of the newest token of each rollout; ``version``: updates before it."""
    size = len(batch)
    spans = [rollout.span for rollout in batch]
    oldest = [version - rollout.head_version for rollout in batch if rollout.head_version is not None]
    newest = [version - rollout.tail_version for rollout in batch]
    deferrals = [rollout.deferrals for rollout in batch]
    return {
        c.PARTIAL_RATIO: sum([span > 1 for span in spans]) / size,
        c.STALENESS_MEAN: sum(oldest) / size,
        c.STALENESS_MAX: max(oldest),
        c.STALENESS_MIN: min(oldest),
        c.STALENESS_HISTOGRAM: _counts(oldest, max(oldest)),
        c.DEFERRALS_HISTOGRAM: _counts(deferrals, max(deferrals)),
        c.STALENESS_NEWEST_MEAN: sum(newest) / size,
        c.STALENESS_NEWEST_MAX: max(newest),
        c.STALENESS_NEWEST_MIN: min(newest),
        c.SPANS_MEAN: sum(spans) / size,
        c.SPANS_MAX: max(spans),
    }


def _token_columns(facts: StepEnd[R], tally: Tally) -> dict[str, int]:
    return {
        c.TOKENS_DECODED: tally.decoded,
        c.TOKENS_TRAINED: sum([rollout.response_length for rollout in facts.batch]),
        c.TOKENS_PREFILLED: tally.prefilled,
        c.TOKENS_RECOMPUTED: tally.recomputed,
        c.TOKENS_PREFIX_CACHED: tally.prefix_cached,
        c.TOKENS_PADDING: tally.padding,
        c.TOKENS_DROPPED: facts.dropped_tokens,
        c.TOKENS_FILTERED: facts.filtered_tokens,
        c.TOKENS_IN_FLIGHT: facts.tokens_in_flight,
        c.TOKENS_SCORED: tally.scored,
    }


def _achieved_columns(
    tally: Tally, training_flops: float | None, seconds: float, costs: Costs, replicas: int, workers: int
) -> dict[str, float]:
    """Operations and bytes a second, and their shares of the devices' peaks (MFU, MBU); NaN where a cost
    model knows no peaks or counts no work."""
    actor, scorer, training = costs.actor.peak, costs.scorer.peak, costs.training.peak
    found = dict.fromkeys(_ACHIEVED, NAN)
    if actor is not None:
        found[c.FLOPS_ROLLOUT] = tally.gen.flops / seconds
        found[c.MFU_ROLLOUT] = tally.gen.flops / (seconds * actor.flops * replicas)
        found[c.BANDWIDTH_ROLLOUT] = tally.gen.bytes / seconds
        found[c.MBU_ROLLOUT] = tally.gen.bytes / (seconds * actor.bytes * replicas)
    if scorer is not None:
        found[c.FLOPS_SCORING] = tally.scoring.flops / seconds
        found[c.MFU_SCORING] = tally.scoring.flops / (seconds * scorer.flops * workers)
        found[c.BANDWIDTH_SCORING] = tally.scoring.bytes / seconds
        found[c.MBU_SCORING] = tally.scoring.bytes / (seconds * scorer.bytes * workers)
    if training_flops is not None:
        found[c.FLOPS_TRAINING] = training_flops / seconds
        if training is not None:
            found[c.MFU_TRAINING] = training_flops / (seconds * training.flops)
    return found


_ACHIEVED = (
    c.FLOPS_ROLLOUT, c.FLOPS_SCORING, c.FLOPS_TRAINING,
    c.MFU_ROLLOUT, c.MFU_SCORING, c.MFU_TRAINING,
    c.BANDWIDTH_ROLLOUT, c.BANDWIDTH_SCORING,
    c.MBU_ROLLOUT, c.MBU_SCORING,
)  # fmt: skip


def _kernel_columns(
    tally: Tally, seconds: float, replicas: int, workers: int, devices: DeviceCounts | None
) -> dict[str, float]:
    """Shares of the step with a kernel on the device."""
    if devices is None:
        return dict.fromkeys((c.KERNEL_GEN, c.KERNEL_REWARD, c.KERNEL_TRAINING, c.KERNEL_DEVICES), NAN)
    training, sync = tally.training_kernel_s, tally.sync_kernel_s
    whole = tally.gen.kernel_s + tally.scoring.kernel_s + training * devices.training + sync * devices.sync
    return {
        c.KERNEL_GEN: kernel_share(tally.gen.kernel_s, replicas, seconds),
        c.KERNEL_REWARD: kernel_share(tally.scoring.kernel_s, workers, seconds),
        c.KERNEL_TRAINING: kernel_share(training + sync, 1, seconds),
        c.KERNEL_DEVICES: kernel_share(whole, devices.whole, seconds),
    }


_TIMING = {stage: c.timing(stage) for stage in (*c.STAGES, "step")}


def rollout_rows(end: StepEnd[R], origin: float) -> list[c.RolloutRow]:
    """The rows of a step's trained rollouts."""
    version = end.weight_version
    return [
        c.RolloutRow(
            rollout_id=r.rollout_id,
            group_id=r.group_id,
            trace_row=r.trace_row,
            prompt_length=r.prompt_length,
            response_length=r.response_length,
            finish_reason="length" if r.clipped else "stop",
            replica=r.replica,
            admitted_step=r.admitted_step,
            trained_step=end.step,
            trained_rank=rank,
            head_version=r.head_version,
            tail_version=r.tail_version,
            staleness=version - r.head_version if r.head_version is not None else -1,
            span=r.span,
            deferrals=r.deferrals,
            drops=r.drops,
            preemptions=r.preemptions,
            admitted_s=r.admitted_s,
            finished_s=None if r.finished_at is None else origin + r.finished_at,
            scored_s=None if r.scored_at is None else origin + r.scored_at,
        )
        for rank, r in enumerate(end.batch)
    ]
