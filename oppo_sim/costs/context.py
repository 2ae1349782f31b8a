"""What a cost model may know of the rest of a scenario, and the training stages that follow from it."""

from dataclasses import dataclass
from typing import NamedTuple

from oppo_sim.costs.interface import BatchShape
from oppo_sim.costs.training_config import TrainingConfig


@dataclass(frozen=True)
class CostContext:
    """Numbers of the scenario that cost models need; lengths in tokens."""

    num_replicas: int
    num_scoring_workers: int
    rollout_batch_size: int
    max_prompt_length: int
    max_response_length: int
    training: TrainingConfig
    colocated_training: bool = False
    """The training group shares the devices of the rollout replicas."""
    colocated_scoring: bool = False
    """The scoring workers share the devices of the rollout replicas."""
    scores_beside_training: bool = False
    """The scoring workers share devices that are the training group's own."""

    node_link_bytes_per_s: float | None = None
    """Of a GPU, per direction, between nodes; None: all GPUs are in one node."""
    gpus_per_node: int = 1
    training_spans_nodes: bool = False
    """Gradients and gathered weights cross the links between nodes."""
    sync_spans_nodes: bool = False
    """New weights cross it on their way to the rollout replicas."""
    max_num_seqs: int | None = None
    """Rollouts that a replica decodes at once, at most; None: as many as memory holds."""
    trains_experts: bool = False
    """The actor is a mixture of experts."""

    @property
    def nominal_batch(self) -> BatchShape:
        """A batch of prompts and responses of half the longest: what mean demands are meant for."""
        prompt, response = (self.max_prompt_length + 1) // 2, (self.max_response_length + 1) // 2
        return BatchShape((prompt,) * self.rollout_batch_size, (response,) * self.rollout_batch_size)


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
