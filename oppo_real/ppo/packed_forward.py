"""The packed forwards of the engines behind the trainer's seam: no padding, and never [tokens, vocabulary] logits at once."""

from collections.abc import Sequence

import torch
from torch import nn

from oppo_real.engines.forwards import PromptResponse, response_log_probs, response_values
from oppo_real.ppo.forward import PolicyOutputs
from oppo_real.ppo.rollout import TokenRow
from oppo_sim.errors import OppoError


class PackedForward:
    """For a separate critic; models keep packed attention from their first forward on."""

    def policy(self, model: nn.Module, rows: Sequence[TokenRow], temperature: float, value_head: nn.Module | None = None) -> PolicyOutputs:
        """See ``forward.Forward``. Raises OppoError with a value head, whose hidden states the packed forward does not give."""
        if value_head is not None:
            raise OppoError("the packed forward gives no values of a value head: take critic separate, or the padded forward")
        found = response_log_probs(model, _sequences(rows), temperature, _total(rows), entropy=True, grad=torch.is_grad_enabled())
        assert found.entropies is not None
        return PolicyOutputs(torch.cat(found.log_probs), torch.cat(found.entropies).detach(), None)

    def values(self, model: nn.Module, head: nn.Module, rows: Sequence[TokenRow]) -> torch.Tensor:
        """See ``forward.Forward``; ``head`` must be the model's own."""
        if head is not getattr(model, "score", None):
            raise OppoError("the packed forward gives values of a separate critic only: take critic separate, or the padded forward")
        return torch.cat(response_values(model, _sequences(rows), _total(rows), grad=torch.is_grad_enabled()))


def _sequences(rows: Sequence[TokenRow]) -> list[PromptResponse]:
    return [PromptResponse(row.prompt, row.response) for row in rows]


def _total(rows: Sequence[TokenRow]) -> int:
    """The trainer has cut micro-batches already."""
    return sum(len(row.prompt) + len(row.response) for row in rows)
