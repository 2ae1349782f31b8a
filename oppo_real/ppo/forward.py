"""Log-probabilities and values of response tokens under a transformers model; the seam at which another
forward can be put in."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from oppo_real.ppo.rollout import TokenRow
from oppo_sim.errors import OppoError


class PolicyOutputs(NamedTuple):
    """Flat over the response tokens of all rows, in order: [tokens], float32."""

    log_probs: torch.Tensor
    entropies: torch.Tensor
    """Of the tempered distributions that the tokens were drawn from; without gradient."""
    values: torch.Tensor | None
    """Of the state before each token; None without a value head."""


class Forward(Protocol):
    """How the trainer runs its models; gradients flow unless the caller switched them off."""

    @property
    def pads(self) -> bool:
        """Whether rows that go together are padded to the longest of them."""

    def policy(
        self,
        model: nn.Module,
        rows: Sequence[TokenRow],
        temperature: float,
        value_head: nn.Module | None = None,
    ) -> PolicyOutputs:
        """``model`` is a causal language model; ``value_head`` maps its last hidden states to one number."""

    def values(self, model: nn.Module, head: nn.Module, rows: Sequence[TokenRow]) -> torch.Tensor:
        """[tokens], float32: ``head`` on the last hidden states of ``model`` before each response token."""


class PaddedForward:
    """One right-padded batch. A causal model's outputs at real tokens do not depend on what follows, so no
    mask is needed."""

    pads = True

    def __init__(self, autocast_dtype: torch.dtype | None = None) -> None:
        """``autocast_dtype``: run the models in mixed precision, their weights staying what they are."""
        self._autocast_dtype = autocast_dtype

    def policy(
        self,
        model: nn.Module,
        rows: Sequence[TokenRow],
        temperature: float,
        value_head: nn.Module | None = None,
    ) -> PolicyOutputs:
        """See ``Forward``."""
        device = device_of(model)
        with self._precision(device):
            hidden = _states_before_tokens(model, rows)
            logits = output_head(model)(hidden)
            values = None if value_head is None else value_head(hidden).squeeze(-1)
        log_probs = torch.log_softmax(logits.float() / temperature, dim=-1)
        targets = torch.tensor([token for row in rows for token in row.response], device=device)
        with torch.no_grad():
            entropies = -(log_probs.exp() * log_probs).sum(dim=-1)
        chosen = log_probs.gather(1, targets[:, None]).squeeze(1)
        return PolicyOutputs(chosen, entropies, None if values is None else values.float())

    def values(self, model: nn.Module, head: nn.Module, rows: Sequence[TokenRow]) -> torch.Tensor:
        """See ``Forward``."""
        with self._precision(device_of(model)):
            values: torch.Tensor = head(_states_before_tokens(model, rows)).squeeze(-1)
        return values.float()

    def _precision(self, device: torch.device) -> AbstractContextManager[Any]:
        return (
            nullcontext()
            if self._autocast_dtype is None
            else torch.autocast(device.type, self._autocast_dtype)
        )


def hidden_states(model: nn.Module, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
    """[sequences, longest, hidden]: last hidden states over token ids, right-padded; what lies behind an end
    means nothing."""
    longest = max(map(len, sequences))
    tokens = torch.tensor(
        [[*sequence, *[0] * (longest - len(sequence))] for sequence in sequences], device=device_of(model)
    )
    states: torch.Tensor = backbone(model)(input_ids=tokens, use_cache=False).last_hidden_state
    return states


def backbone(model: nn.Module) -> nn.Module:
    """The model without its head. Raises OppoError for a model that does not name it as transformers does."""
    inner = getattr(model, str(getattr(model, "base_model_prefix", "")), None)
    if not isinstance(inner, nn.Module):
        raise OppoError(
            f"{type(model).__name__} has no backbone under base_model_prefix: give a transformers model with"
            " a head"
        )
    return inner


def output_head(model: nn.Module) -> nn.Module:
    """The language model's head. Raises OppoError where there is none."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if not isinstance(head, nn.Module):
        raise OppoError(
            f"{type(model).__name__} has no output embeddings: give a causal language model, such as"
            " Qwen2ForCausalLM"
        )
    return head


def device_of(model: nn.Module) -> torch.device:
    """Where the model's parameters are."""
    return next(model.parameters()).device


@torch.no_grad()
def check_head(model: nn.Module) -> None:
    """Make sure that backbone and head give the model's own logits. Raises OppoError for one that changes
    them behind the head."""
    tokens = torch.tensor([[0, 1, 0]], device=device_of(model))
    own = model(input_ids=tokens, use_cache=False).logits
    ours = output_head(model)(hidden_states(model, tokens.tolist()))
    if not torch.allclose(own.float(), ours.float(), rtol=1e-3, atol=1e-3):
        raise OppoError(
            f"{type(model).__name__} changes its logits behind the head (a soft cap, a scale): give a forward"
            " that does so too"
        )


def _states_before_tokens(model: nn.Module, rows: Sequence[TokenRow]) -> torch.Tensor:
    states = hidden_states(model, [row.prompt + row.response[:-1] for row in rows])
    return torch.cat(
        [
            states[index, len(row.prompt) - 1 : len(row.prompt) - 1 + len(row.response)]
            for index, row in enumerate(rows)
        ]
    )
