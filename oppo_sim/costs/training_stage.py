"""A stage of training by roofline, and what it costs of a batch."""

from typing import NamedTuple

from oppo_sim.costs.formulas import micro_batches, slowest_rank, stage_seconds
from oppo_sim.costs.forward_terms import ForwardTerms
from oppo_sim.costs.interface import BatchShape
from oppo_sim.costs.lowering import StagePlan
from oppo_sim.costs.trained_model import TrainedModel


class Stage(NamedTuple):
    """What runs of a model, and how that differs from plain forwards."""

    model: TrainedModel
    plan: StagePlan
    recomputed: float = 0.0
    """Forwards of a micro-batch that are run again, which take the device and are no work."""
    collectives: float = 1.0
    """Of a pass, over those of a forward: a backward of two passes has those of one."""
    attention: float = 1.0
    """Seconds of a pass, likewise."""
    entropy: bool = False
    """Of each token, over the vocabulary."""


class StageCost(NamedTuple):
    """Seconds of a stage, those that its arithmetic and traffic take alone, and the work of one device."""

    seconds: float = 0.0
    arithmetic_s: float = 0.0
    memory_s: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0


def stage_cost(stage: Stage, forward: ForwardTerms, batch: BatchShape, data_parallel: int) -> StageCost:
    """Of a batch whose tokens ``data_parallel`` ranks share; ``forward`` is one pass of a micro-batch."""
    plan = stage.plan
    tokens = batch.tokens / data_parallel / plan.mini_batches
    pairs = batch.pairs / data_parallel / plan.mini_batches
    rollouts = len(batch.prompt_lengths) / data_parallel / plan.mini_batches
    padded = plan.padded_tokens > 0.0
    run_tokens = plan.padded_tokens * rollouts if padded else tokens
    count = micro_batches(run_tokens, rollouts, plan.micro_batch, plan.micro_batch_rollouts)
    one_s, one = forward.at(run_tokens / count, pairs / count)
    # Padding takes the device and is no work.
    work = forward.at(tokens / count, pairs / count)[1] if padded else one
    slowest = slowest_rank(tokens, pairs, rollouts, count, plan.mini_batches, plan.spread)
    seconds = stage_seconds(
        slowest * one_s,
        count,
        plan.passes,
        plan.speed,
        plan.longest_stage,
        plan.filling,
        plan.beside_s,
        plan.overhead_s,
        plan.steps,
        plan.reduction_s,
        plan.optimizer_s,
        plan.offload_s,
    )
    passes = plan.passes * count * plan.steps / plan.pipeline
    run = (plan.passes + stage.recomputed) * count * plan.steps / plan.pipeline
    return StageCost(
        seconds,
        run * one.arithmetic_s,
        run * one.memory_s + plan.steps * plan.optimizer_s,
        passes * work.flops,
        passes * work.bytes + plan.steps * plan.optimizer_bytes,
    )
