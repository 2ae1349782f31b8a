"""Everything one real run needs, built."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from oppo_real.placement.interface import WorkerGroup
from oppo_real.ppo.rollout import TrainRollout
from oppo_real.run.signals import TrainingThread
from oppo_real.run.source import Source
from oppo_sim.model.setup import MachineSetup
from oppo_sim.policies.interface import Batch, Policy
from oppo_sim.rewards import BatchRewards

if TYPE_CHECKING:
    import torch

Metrics = Mapping[str, float]


class Training(Protocol):
    """What happens to a batch, and the weights that come of it."""

    def update(self, batch: Sequence[TrainRollout], version: int) -> Metrics:
        """One update; ``timing_s/<stage>`` of the stages up to ``update_actor``, and whatever else it
        measures."""

    def weights(self) -> "Mapping[str, torch.Tensor]":
        """The policy's weights, for the replicas."""


@dataclass(frozen=True)
class RunInput:
    """Policy, batch, machines, prompts, rewards."""

    policy: Policy
    batch: Batch
    machine: MachineSetup
    worker_group: WorkerGroup
    source: Source
    training: Training
    rewards: BatchRewards | None
    """None: the mean score of the trained batch is its reward."""
    max_response_length: int
    steps: int
    lock_step: bool
    replays: bool
    """Response lengths are known beforehand (which only a declared oracle is told)."""
    timeline_steps: tuple[int, int] | None = None
    recorded_timing: Sequence[Mapping[str, float]] | None = None
    """Stage times that the policy observes instead of the measured ones, one mapping a step."""
    first_step: int = 0
    """Steps before it were done in an earlier run."""
    after_step: Callable[[int], None] = lambda step: None
    """Called when a step is done and its row written (for checkpoints)."""
    sample_rewards: Sequence[float] | None = None
    """Dynamic sampling: reward of each row of the replayed trace, by which groups are judged; None: every
    group is trained."""
    training_thread: TrainingThread = field(default_factory=TrainingThread)
    """Updates in the background are its."""
    own_loop: bool = False
    """The caller trains: the run pauses for him with every batch, and after every step."""
