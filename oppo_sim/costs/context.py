"""What a cost model may know of the rest of a scenario."""

from dataclasses import dataclass

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
