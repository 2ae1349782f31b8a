"""One optimizer over parameters that are trained together: rate, clipping, state."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from oppo_real.ppo.config import PPOConfig
from oppo_sim.errors import OppoError


class Stepper:
    """AdamW with clipped gradients; gradients are those that the caller's backward left."""

    def __init__(
        self, name: str, parameters: Iterable[nn.Parameter], learning_rate: float, config: PPOConfig
    ) -> None:
        self._name = name
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._learning_rate = learning_rate
        self._max_norm = math.inf if config.max_grad_norm is None else config.max_grad_norm
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=learning_rate,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_epsilon,
            weight_decay=config.weight_decay,
        )

    def begin(self, rate_factor: float) -> float:
        """Set the learning rate to its first value times ``rate_factor``; returns it."""
        rate = self._learning_rate * rate_factor
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def step(self) -> float:
        """Change the weights; the norm before clipping. Raises OppoError, with no change, if not finite."""
        norm = float(nn.utils.clip_grad_norm_(self._parameters, self._max_norm))
        if not math.isfinite(norm):
            self.forget()
            raise OppoError(
                f"the gradient of the {self._name} is not finite: lower learning_rate, or look at scores and"
                " log-probabilities"
            )
        self._optimizer.step()
        self.forget()
        return norm

    def stand_ins(self) -> list[torch.Tensor]:
        """Tensors that take as much memory as the state does from the first step on."""
        return [torch.zeros_like(one) for one in self._parameters for _ in ("mean", "variance")]

    def forget(self) -> None:
        """Drop the gradients."""
        self._optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The optimizer's."""
        self._optimizer.load_state_dict(state)
