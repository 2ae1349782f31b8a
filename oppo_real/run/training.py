"""What a real run does with a batch: PPO, or nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from oppo_real.ppo.rollout import TrainRollout
from oppo_real.ppo.trainer import PPOTrainer


class PPOTraining:
    """PPO in the driver's process."""

    def __init__(self, trainer: PPOTrainer) -> None:
        self._trainer = trainer

    def train(self, batch: Sequence[TrainRollout], version: int) -> Mapping[str, float]:
        """One update."""
        return self._trainer.update(batch, version)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The policy's."""
        return self._trainer.weights()

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on."""
        return self._trainer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the state was taken."""
        self._trainer.load_state_dict(state)


class FrozenTraining:
    """Weights that never change; they are sent to the replicas all the same, as a run that trains does."""

    def __init__(self, policy: torch.nn.Module) -> None:
        self._weights = {name: tensor.detach() for name, tensor in policy.state_dict().items()}

    def train(self, batch: Sequence[TrainRollout], version: int) -> Mapping[str, float]:
        """Nothing."""
        return {}

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The policy's."""
        return self._weights

    def state_dict(self) -> dict[str, Any]:
        """Nothing changes."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""
