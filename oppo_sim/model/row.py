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
from oppo_sim.schedule.rules import told_timing

NAN = float("nan")
R = TypeVar("R", bound=Rollout)
Recorded = Sequence[Mapping[str, float]] | None
"""Stage times that a policy is told instead of those that passed, one mapping a step."""


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
    """Writes the row of each step, of a simulated or a real run, and tells the policy."""

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
                told_timing(self._recorded, step, end.stages),
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
        batch, begin, costs = facts.batch, self._begin, self._costs
        replicas, workers = len(end.rollout), len(end.scoring)
        size = len(batch)
        seconds = facts.stages["step"]
        lengths = [rollout.response_length for rollout in batch]
        total = sum(lengths)
        staleness = [
            facts.weight_version - rollout.head_version
            for rollout in batch
            if rollout.head_version is not None
        ]
        stalest = max(staleness)
        newest = [facts.weight_version - rollout.tail_version for rollout in batch]
        spans = [rollout.span for rollout in batch]
        scored = end if facts.last_score is None else facts.last_score
        inference = (*begin.rollout, *begin.scoring), (*scored.rollout, *scored.scoring)
        row: dict[str, Any] = {
            c.STEP: facts.step,
            c.WEIGHT_VERSION: facts.weight_version,
            c.START_S: self._origin + begin.at,
        }
        for stage, value in facts.stages.items():
            row[_TIMING[stage]] = value
        row[c.LENGTH_MEAN] = total / size
        row[c.LENGTH_MAX] = max(lengths)
        row[c.LENGTH_MIN] = min(lengths)
        row[c.LENGTH_CLIP_RATIO] = sum([rollout.clipped for rollout in batch]) / size
        row[c.PROMPT_LENGTH_MEAN] = sum([rollout.prompt_length for rollout in batch]) / size
        row[c.TRACE_LENGTH_MEAN] = self._trace_mean(facts.step)
        row[c.ROLLOUTS_ADMITTED] = facts.admitted
        row[c.ROLLOUTS_DEFERRED] = facts.deferred
        row[c.ROLLOUTS_SURPLUS] = facts.surplus
        row[c.ROLLOUTS_DROPPED] = facts.dropped
        row[c.ROLLOUTS_FILTERED] = facts.filtered
        row[c.PARTIAL_RATIO] = sum([span > 1 for span in spans]) / size
        row[c.STALENESS_MEAN] = sum(staleness) / size
        row[c.STALENESS_MAX] = stalest
        row[c.STALENESS_MIN] = min(staleness)
        row[c.STALENESS_HISTOGRAM] = _counts(staleness, stalest)
        deferrals = [rollout.deferrals for rollout in batch]
        row[c.DEFERRALS_HISTOGRAM] = _counts(deferrals, max(deferrals))
        row[c.STALENESS_NEWEST_MEAN] = sum(newest) / size
        row[c.STALENESS_NEWEST_MAX] = max(newest)
        row[c.STALENESS_NEWEST_MIN] = min(newest)
        row[c.SPANS_MEAN] = sum(spans) / size
        row[c.SPANS_MAX] = max(spans)
        row[c.OVERCOMMIT] = facts.plan.overcommit
        row[c.CHUNK_SIZE] = facts.plan.chunk_size
        row[c.REWARD_MEAN] = NAN if reward is None else reward
        row[c.TOKENS_DECODED] = tally.decoded
        row[c.TOKENS_TRAINED] = total
        row[c.TOKENS_PREFILLED] = tally.prefilled
        row[c.TOKENS_RECOMPUTED] = tally.recomputed
        row[c.TOKENS_PREFIX_CACHED] = tally.prefix_cached
        row[c.TOKENS_PADDING] = tally.padding
        row[c.TOKENS_DROPPED] = facts.dropped_tokens
        row[c.TOKENS_FILTERED] = facts.filtered_tokens
        row[c.TOKENS_IN_FLIGHT] = facts.tokens_in_flight
        row[c.TOKENS_SCORED] = tally.scored
        row[c.SCORER_PIECES] = tally.pieces
        row[c.SCORER_BATCHES] = tally.scoring_batches
        row[c.BUSY_ROLLOUT] = _share(begin.rollout, end.rollout, seconds)
        row[c.BUSY_SCORING] = _share(begin.scoring, end.scoring, seconds)
        row[c.BUSY_TRAINING] = _share(begin.training, end.training, seconds)
        row[c.UTILIZATION_INFERENCE] = _share(inference[0], inference[1], scored.at - begin.at)
        actor, scorer, training = costs.actor.peak, costs.scorer.peak, costs.training.peak
        row[c.FLOPS_ROLLOUT] = NAN if actor is None else tally.gen.flops / seconds
        row[c.FLOPS_SCORING] = NAN if scorer is None else tally.scoring.flops / seconds
        row[c.FLOPS_TRAINING] = NAN if training_flops is None else training_flops / seconds
        row[c.MFU_ROLLOUT] = NAN if actor is None else tally.gen.flops / (seconds * actor.flops * replicas)
        row[c.MFU_SCORING] = (
            NAN if scorer is None else tally.scoring.flops / (seconds * scorer.flops * workers)
        )
        row[c.MFU_TRAINING] = (
            NAN if training is None or training_flops is None else training_flops / (seconds * training.flops)
        )
        row[c.BANDWIDTH_ROLLOUT] = NAN if actor is None else tally.gen.bytes / seconds
        row[c.BANDWIDTH_SCORING] = NAN if scorer is None else tally.scoring.bytes / seconds
        row[c.MBU_ROLLOUT] = NAN if actor is None else tally.gen.bytes / (seconds * actor.bytes * replicas)
        row[c.MBU_SCORING] = (
            NAN if scorer is None else tally.scoring.bytes / (seconds * scorer.bytes * workers)
        )
        row[c.KV_PEAK_TOKENS] = tally.kv_peak
        row[c.KV_PREEMPTIONS] = tally.preemptions
        return row


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
