"""Forwards of the trainer over whole sequences: log-probabilities of responses (old, reference, new) and
critic values.

All are packed, without padding, and give a number for every response token. With ``grad=True`` they are
differentiable; a trainer then goes through ``micro_batches`` itself, one backward pass each, so that one
micro-batch of activations lives at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.utils.checkpoint import checkpoint

from oppo_real.engines.packed_model import head_of, prepare, whole_forward
from oppo_sim.errors import OppoError


@dataclass(frozen=True)
class PromptResponse:
    """One sequence, as token ids; both parts have at least one."""

    prompt: Sequence[int]
    response: Sequence[int]


@dataclass(frozen=True)
class ResponseLogProbs:
    """A tensor [response_length], float32, for every sequence, in order."""

    log_probs: list[torch.Tensor]
    entropies: list[torch.Tensor] | None
    """Of the distribution each token was drawn from; None unless asked for."""
    values: list[torch.Tensor] | None = None
    """Of the state before each token, float32; None without a value head."""


def micro_batches(sequences: Sequence[PromptResponse], max_tokens: int) -> list[list[int]]:
    """Indices of ``sequences``, cut in order into batches of at most ``max_tokens`` tokens (a longer sequence
    goes alone)."""
    if max_tokens < 1:
        raise OppoError(f"max_tokens of a micro-batch is {max_tokens}; give a number from 1 on.")
    batches: list[list[int]] = []
    room = 0
    for number, sequence in enumerate(sequences):
        length = len(sequence.prompt) + len(sequence.response)
        if not batches or length > room:
            batches.append([])
            room = max_tokens
        batches[-1].append(number)
        room -= length
    return batches


def response_log_probs(
    model: torch.nn.Module,
    sequences: Sequence[PromptResponse],
    temperature: float = 1.0,
    max_tokens: int = 16384,
    entropy: bool = False,
    grad: bool = False,
    logit_tokens: int = 1024,
    value_head: torch.nn.Module | None = None,
) -> ResponseLogProbs:
    """log p(response token | all before it) under ``model`` at ``temperature``; 0 stands for greedy sampling
    and is read as 1.

    ``model``: a causal language model; it keeps packed attention from now on. ``logit_tokens``: rows of
    logits that exist at once (recomputed in the backward pass, so that [tokens, vocabulary] never does).
    ``value_head``: maps a hidden state to one number.
    Raises OppoError for an empty prompt or response.
    """
    if not temperature >= 0:
        raise OppoError(f"temperature is {temperature}; give 0 (greedy) or more.")
    scale = temperature or 1.0
    head = head_of(model)
    log_probs: list[torch.Tensor] = []
    entropies: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    for batch in _batches(model, sequences, max_tokens):
        with torch.set_grad_enabled(grad):
            hidden = _before_response_tokens(model, batch)
            targets = torch.tensor([token for sequence in batch for token in sequence.response]).to(
                hidden.device
            )
            found = [
                _of_chunk(head, rows, tokens, scale, entropy, grad)
                for rows, tokens in _chunks(hidden, targets, logit_tokens)
            ]
            lengths = [len(sequence.response) for sequence in batch]
            log_probs.extend(torch.split(torch.cat([chunk[0] for chunk in found]), lengths))
            if entropy:
                entropies.extend(torch.split(torch.cat([chunk[1] for chunk in found]), lengths))
            if value_head is not None:
                values.extend(torch.split(value_head(hidden).float().squeeze(1), lengths))
    return ResponseLogProbs(log_probs, entropies if entropy else None, None if value_head is None else values)


def response_values(
    model: torch.nn.Module,
    sequences: Sequence[PromptResponse],
    max_tokens: int = 16384,
    grad: bool = False,
    value_head: torch.nn.Module | None = None,
) -> list[torch.Tensor]:
    """The critic's value before each response token, a float32 tensor [response_length] for every sequence.

    Entry t is the value of the state prompt + response[:t], read off the hidden state of the token before
    response token t: aligned with the log-probabilities. ``model``: a value model of
    ``models.build_value_model``, or any with a ``value_head`` instead of its own.
    """
    head = head_of(model) if value_head is None else value_head
    values: list[torch.Tensor] = []
    for batch in _batches(model, sequences, max_tokens):
        with torch.set_grad_enabled(grad):
            found = head(_before_response_tokens(model, batch)).float()
            if found.shape[1] != 1:
                raise OppoError(
                    f"{type(model).__name__} gives {found.shape[1]} values a token, not one; use"
                    " build_value_model."
                )
            values.extend(torch.split(found.squeeze(1), [len(sequence.response) for sequence in batch]))
    return values


def _batches(
    model: torch.nn.Module, sequences: Sequence[PromptResponse], max_tokens: int
) -> list[list[PromptResponse]]:
    prepare(model)
    for number, sequence in enumerate(sequences):
        if not sequence.prompt or not sequence.response:
            raise OppoError(
                f"Sequence {number} has an empty {'response' if sequence.prompt else 'prompt'}; both need at"
                " least one token."
            )
    return [[sequences[number] for number in batch] for batch in micro_batches(sequences, max_tokens)]


def _before_response_tokens(model: torch.nn.Module, batch: Sequence[PromptResponse]) -> torch.Tensor:
    """Hidden states [Σ response lengths, hidden] of the tokens before each response token. The last response
    token is not run."""
    hidden = whole_forward(model, [[*sequence.prompt, *sequence.response[:-1]] for sequence in batch])
    rows: list[int] = []
    end = 0
    for sequence in batch:
        end += len(sequence.prompt) + len(sequence.response) - 1
        rows.extend(range(end - len(sequence.response), end))
    return hidden.index_select(0, torch.tensor(rows).to(hidden.device))


def _chunks(
    hidden: torch.Tensor, targets: torch.Tensor, size: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(torch.split(hidden, size), torch.split(targets, size), strict=True))


def _of_chunk(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    scale: float,
    entropy: bool,
    grad: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    def compute(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = head(rows).float() / scale
        normaliser = logits.logsumexp(-1)
        chosen = logits.gather(1, targets.unsqueeze(1)).squeeze(1) - normaliser
        # H = log Z − Σ p·logit
        spread = normaliser - (logits.softmax(-1) * logits).sum(-1) if entropy else chosen.new_empty(0)
        return chosen, spread

    if not grad:
        return compute(hidden)
    found = checkpoint(compute, hidden, use_reentrant=False)
    assert isinstance(found, tuple)
    return found
