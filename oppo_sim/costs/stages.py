"""Which stages the training part has, whatever the cost model."""

from typing import NamedTuple

from oppo_sim.costs.training_config import TrainingConfig


class StagesRun(NamedTuple):
    """True where a stage takes time of its own."""

    old_log_prob: bool
    ref: bool
    values: bool
    update_critic: bool


def stages_run(training: TrainingConfig) -> StagesRun:
    """A value head's values come out of the forward of ``old_log_prob`` where there is one, and it is trained
    with the actor."""
    recompute = training.old_log_prob == "recompute"
    return StagesRun(
        old_log_prob=recompute,
        ref=training.ref and not training.stream_ref,
        values=training.critic == "separate" or (training.critic == "value_head" and not recompute),
        update_critic=training.critic == "separate",
    )


def unused_fields(training: TrainingConfig) -> list[str]:
    """Fields set by the user that a cost model given as whole stages (linear, profile) does not look at."""
    used = {"old_log_prob", "parallel_inference", "ref", "stream_ref", "critic"}
    return sorted(training.model_fields_set - used)
