"""The packed forwards of the engines behind the trainer's seam: no padding, and never [tokens, vocabulary]
logits at once."""

from collections.abc import Sequence

import torch
from torch import nn

from oppo_real.engines.forwards import PromptResponse, response_log_probs, response_values
from oppo_real.ppo.forward import PolicyOutputs
from oppo_real.ppo.rollout import TokenRow


class PackedForward:
    """Models keep packed attention from their first forward on."""

    pads = False

    def policy(
        self,
        model: nn.Module,
        rows: Sequence[TokenRow],
        temperature: float,
        value_head: nn.Module | None = None,
    ) -> PolicyOutputs:
        """See ``forward.Forward``."""
        found = response_log_probs(
            model,
            _sequences(rows),
            temperature,
            _total(rows),
            entropy=True,
            grad=torch.is_grad_enabled(),
            value_head=value_head,
        )
        assert found.entropies is not None
        values = None if found.values is None else torch.cat(found.values)
        return PolicyOutputs(torch.cat(found.log_probs), torch.cat(found.entropies).detach(), values)

    def values(self, model: nn.Module, head: nn.Module, rows: Sequence[TokenRow]) -> torch.Tensor:
        """See ``forward.Forward``."""
        return torch.cat(
            response_values(
                model, _sequences(rows), _total(rows), grad=torch.is_grad_enabled(), value_head=head
            )
        )


def _sequences(rows: Sequence[TokenRow]) -> list[PromptResponse]:
    return [PromptResponse(row.prompt, row.response) for row in rows]


def _total(rows: Sequence[TokenRow]) -> int:
    """The trainer has cut micro-batches already."""
    return sum(len(row.prompt) + len(row.response) for row in rows)
