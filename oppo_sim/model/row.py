"""The row of a step and the rows of its rollouts."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from oppo_sim import columns as c
from oppo_sim.costs.interface import Costs
from oppo_sim.model.device import Device
from oppo_sim.model.machine import Machine
from oppo_sim.model.rollout import Rollout
from oppo_sim.model.tally import Tally
from oppo_sim.policies.interface import Policy, StepReport
from oppo_sim.results.sinks import Sink
from oppo_sim.schedule.rules import told_timing

NAN = float("nan")
Recorded = Sequence[Mapping[str, float]] | None
"""Stage times that a policy is told instead of those that passed, one mapping a step."""


class BusyReading(NamedTuple):
    """Busy seconds of every device so far, read at one moment."""

    at: float
    rollout: tuple[float, ...]
    scoring: tuple[float, ...]
    training: tuple[float, ...]


def read_busy(machine: Machine, at: float) -> BusyReading:
    """Read the meters at ``at`` (seconds)."""

    def busy(devices: Sequence[Device]) -> tuple[float, ...]:
        return tuple([device.busy_until(at) for device in devices])

    return BusyReading(
        at, busy(machine.rollout_devices), busy(machine.scoring_devices), busy(machine.training_devices)
    )


def _share(before: Sequence[float], after: Sequence[float], seconds: float) -> float:
    return (sum(after) - sum(before)) / (len(after) * seconds) if after and seconds > 0.0 else NAN


class StepFacts(NamedTuple):
    """What the driver knows of a finished step."""

    step: int
    weight_version: int
    timing_s: Mapping[str, float]
    batch: list[Rollout]
    new: int
    deferred: int
    surplus: int
    tokens_in_flight: int
    overcommit: int
    chunk_size: int
    reward_mean: float | None
    trace_length_mean: float
    begin: BusyReading
    scored: BusyReading | None
    """Meters at the last score; None where generation never pauses (then the whole row counts)."""
    end: BusyReading
    training_flops: float | None
    origin: float = 0.0
    """Seconds of the run at which the seconds of the readings and of the batch are 0."""


def step_row(tally: Tally, replicas: int, workers: int, costs: Costs, facts: StepFacts) -> dict[str, Any]:
    """One row of the step table, of a machine with so many replicas and scoring workers."""
    batch, begin, end = facts.batch, facts.begin, facts.end
    size = len(batch)
    seconds = facts.timing_s["step"]
    lengths = [rollout.response_length for rollout in batch]
    total = sum(lengths)
    staleness = [
        facts.weight_version - rollout.head_version for rollout in batch if rollout.head_version is not None
    ]
    stalest = max(staleness)
    histogram = [size] if stalest == 0 else [staleness.count(value) for value in range(stalest + 1)]
    spans = [rollout.span for rollout in batch]
    scored = end if facts.scored is None else facts.scored
    inference = (*begin.rollout, *begin.scoring), (*scored.rollout, *scored.scoring)
    row: dict[str, Any] = {
        c.STEP: facts.step,
        c.WEIGHT_VERSION: facts.weight_version,
        c.START_S: facts.origin + begin.at,
    }
    for stage, value in facts.timing_s.items():
        row[_TIMING[stage]] = value
    row[c.LENGTH_MEAN] = total / size
    row[c.LENGTH_MAX] = max(lengths)
    row[c.LENGTH_MIN] = min(lengths)
    row[c.LENGTH_CLIP_RATIO] = sum([rollout.clipped for rollout in batch]) / size
    row[c.PROMPT_LENGTH_MEAN] = sum([rollout.prompt_length for rollout in batch]) / size
    row[c.TRACE_LENGTH_MEAN] = facts.trace_length_mean
    row[c.ROLLOUTS_ADMITTED] = facts.new
    row[c.ROLLOUTS_DEFERRED] = facts.deferred
    row[c.ROLLOUTS_SURPLUS] = facts.surplus
    row[c.ROLLOUTS_DROPPED] = tally.dropped
    row[c.PARTIAL_RATIO] = sum([span > 1 for span in spans]) / size
    row[c.STALENESS_MEAN] = sum(staleness) / size
    row[c.STALENESS_MAX] = stalest
    row[c.STALENESS_MIN] = min(staleness)
    row[c.STALENESS_HISTOGRAM] = histogram
    row[c.SPANS_MEAN] = sum(spans) / size
    row[c.SPANS_MAX] = max(spans)
    row[c.OVERCOMMIT] = facts.overcommit
    row[c.CHUNK_SIZE] = facts.chunk_size
    row[c.REWARD_MEAN] = NAN if facts.reward_mean is None else facts.reward_mean
    row[c.TOKENS_DECODED] = tally.decoded
    row[c.TOKENS_TRAINED] = total
    row[c.TOKENS_PREFILLED] = tally.prefilled
    row[c.TOKENS_RECOMPUTED] = tally.recomputed
    row[c.TOKENS_PADDING] = tally.padding
    row[c.TOKENS_DROPPED] = tally.dropped_tokens
    row[c.TOKENS_IN_FLIGHT] = facts.tokens_in_flight
    row[c.TOKENS_SCORED] = tally.scored
    row[c.SCORER_PIECES] = tally.pieces
    row[c.SCORER_BATCHES] = tally.scoring_batches
    row[c.BUSY_ROLLOUT] = _share(begin.rollout, end.rollout, seconds)
    row[c.BUSY_SCORING] = _share(begin.scoring, end.scoring, seconds)
    row[c.BUSY_TRAINING] = _share(begin.training, end.training, seconds)
    row[c.UTILIZATION_INFERENCE] = _share(inference[0], inference[1], scored.at - begin.at)
    actor, scorer, training = costs.actor.peak, costs.scorer.peak, costs.training.peak
    row[c.FLOPS_ROLLOUT] = NAN if actor is None else tally.rollout_flops / seconds
    row[c.FLOPS_SCORING] = NAN if scorer is None else tally.scoring_flops / seconds
    row[c.FLOPS_TRAINING] = NAN if facts.training_flops is None else facts.training_flops / seconds
    row[c.MFU_ROLLOUT] = NAN if actor is None else tally.rollout_flops / (seconds * actor.flops * replicas)
    row[c.MFU_SCORING] = NAN if scorer is None else tally.scoring_flops / (seconds * scorer.flops * workers)
    row[c.MFU_TRAINING] = (
        NAN
        if training is None or facts.training_flops is None
        else facts.training_flops / (seconds * training.flops)
    )
    row[c.BANDWIDTH_ROLLOUT] = NAN if actor is None else tally.rollout_bytes / seconds
    row[c.BANDWIDTH_SCORING] = NAN if scorer is None else tally.scoring_bytes / seconds
    row[c.MBU_ROLLOUT] = NAN if actor is None else tally.rollout_bytes / (seconds * actor.bytes * replicas)
    row[c.MBU_SCORING] = NAN if scorer is None else tally.scoring_bytes / (seconds * scorer.bytes * workers)
    row[c.KV_PEAK_TOKENS] = tally.kv_peak
    row[c.KV_PREEMPTIONS] = tally.preemptions
    return row


def conclude_step(
    sink: Sink, policy: Policy, row: Mapping[str, Any], facts: StepFacts, recorded: Recorded
) -> None:
    """Write the row of a finished step and those of its rollouts, and tell the policy. Raises OppoError past
    the end of ``recorded``."""
    sink.on_step(row)
    sink.on_rollouts(rollout_rows(facts))
    told = told_timing(recorded, facts.step, facts.timing_s)
    tokens = sum([rollout.response_length for rollout in facts.batch])
    ids = tuple([rollout.rollout_id for rollout in facts.batch])
    left = facts.deferred, facts.surplus
    policy.observe(
        StepReport(
            facts.step, told, ids, tokens, facts.reward_mean, *left, facts.overcommit, facts.chunk_size
        )
    )


_TIMING = {stage: c.timing(stage) for stage in (*c.STAGES, "step")}


def rollout_rows(facts: StepFacts) -> list[tuple[Any, ...]]:
    """One tuple a trained rollout, in the order of ``columns.ROLLOUT_COLUMNS``."""
    origin, version = facts.origin, facts.weight_version
    return [
        (
            r.rollout_id,
            r.group_id,
            r.trace_row,
            r.prompt_length,
            r.response_length,
            "length" if r.clipped else "stop",
            r.replica,
            r.admitted_step,
            facts.step,
            rank,
            r.head_version,
            r.tail_version,
            version - r.head_version if r.head_version is not None else -1,
            r.span,
            r.deferrals,
            r.drops,
            r.preemptions,
            r.admitted_s,
            None if r.finished_at is None else origin + r.finished_at,
            None if r.scored_at is None else origin + r.scored_at,
        )
        for rank, r in enumerate(facts.batch)
    ]
