"""What the trainer asks of its models, over packed rows: no padding, and never [tokens, vocabulary] logits at
once.

A model keeps packed attention from its first forward on. Gradients flow unless the caller switched them off.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from oppo_real.engines.device import to_device
from oppo_real.engines.packed_model import head_of, prepare, whole_forward
from oppo_real.ppo.rollout import TokenRow

_LOGIT_ROWS = 1024
"""Rows of logits that exist at once; recomputed in the backward pass."""


class PolicyOutputs(NamedTuple):
    """Flat over the response tokens of all rows, in order: [tokens], float32 (float64 of such a model)."""

    log_probs: torch.Tensor
    entropies: torch.Tensor
    """Of the tempered distributions that the tokens were drawn from; without gradient."""
    values: torch.Tensor | None
    """Of the state before each token; None without a value head."""


def policy_outputs(
    model: nn.Module, rows: Sequence[TokenRow], temperature: float, value_head: nn.Module | None = None
) -> PolicyOutputs:
    """``model``: a causal language model; ``value_head`` maps its last hidden states to one number."""
    hidden = _states_before_tokens(model, rows)
    targets = to_device(torch.tensor([token for row in rows for token in row.response]), hidden.device)
    head = head_of(model)

    def compute(states: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = widened(head(states)) / temperature
        normaliser = logits.logsumexp(-1)
        chosen = logits.gather(1, tokens.unsqueeze(1)).squeeze(1) - normaliser
        with torch.no_grad():
            entropies = normaliser - (logits.softmax(-1) * logits).sum(-1)  # H = log Z − Σ p·logit
        return chosen, entropies

    chunks = zip(torch.split(hidden, _LOGIT_ROWS), torch.split(targets, _LOGIT_ROWS), strict=True)
    if torch.is_grad_enabled():
        found = [checkpoint(compute, *chunk, use_reentrant=False) for chunk in chunks]
    else:
        found = [compute(*chunk) for chunk in chunks]
    values = None if value_head is None else widened(value_head(hidden)).squeeze(1)
    return PolicyOutputs(torch.cat([one for one, _ in found]), torch.cat([one for _, one in found]), values)


def state_values(model: nn.Module, head: nn.Module, rows: Sequence[TokenRow]) -> torch.Tensor:
    """[tokens]: ``head`` (one number) on the last hidden state of ``model`` before each response token."""
    return widened(head(_states_before_tokens(model, rows))).squeeze(1)


def hidden_states(model: nn.Module, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
    """[sum of lengths, hidden]: last hidden states of whole sequences, end to end."""
    prepare(model)
    return whole_forward(model, sequences)


def widened(numbers: torch.Tensor) -> torch.Tensor:
    """At least float32."""
    return numbers.float() if numbers.dtype.itemsize < 4 else numbers


def _states_before_tokens(model: nn.Module, rows: Sequence[TokenRow]) -> torch.Tensor:
    """[tokens, hidden]. The last token of a response is not run."""
    hidden = hidden_states(model, [row.prompt + row.response[:-1] for row in rows])
    ends = accumulate(len(row.prompt) + len(row.response) - 1 for row in rows)
    places = [
        place for end, row in zip(ends, rows, strict=True) for place in range(end - len(row.response), end)
    ]
    return hidden.index_select(0, to_device(torch.tensor(places), hidden.device))
