"""Fit the actor to demonstrations by supervised learning."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from oppo_real.engines.packed_model import packed
from oppo_real.ppo.batching import micro_batches
from oppo_real.ppo.forward import policy_outputs
from oppo_real.ppo.rollout import TokenRow
from oppo_real.task.arithmetic import ANY_LENGTH, Lengths, Slips, demonstrate, draw_problem

OFTEN_WRONG: Final = Slips(wrong_result=0.2, give_up=0.1)


@dataclass(frozen=True)
class SftConfig:
    """The defaults give a mediocre actor: it knows the form, and is often wrong."""

    steps: int = 300
    batch_size: int = 32
    learning_rate: float = 5e-3
    warmup_steps: int = 20
    """The rate rises, then falls linearly to 0."""
    micro_batch_tokens: int = 2048
    slips: Slips = OFTEN_WRONG
    lengths: Lengths = ANY_LENGTH
    seed: int = 0


def demonstration(config: SftConfig, index: int) -> TokenRow:
    """The index-th training example."""
    problem = draw_problem(config.seed, index, config.lengths)
    return TokenRow(problem.prompt(), demonstrate(problem, config.slips, config.seed, index))


def fit_actor(model: nn.Module, config: SftConfig | None = None) -> list[float]:
    """Train ``model`` in place, each example once; mean losses (nats a response token) by step."""
    settings = config or SftConfig()

    def step_loss(step: int) -> Iterator[torch.Tensor]:
        first = step * settings.batch_size
        rows = [demonstration(settings, first + place) for place in range(settings.batch_size)]
        tokens = sum(len(row.response) for row in rows)
        for group in micro_batches([row.length for row in rows], settings.micro_batch_tokens):
            found = policy_outputs(model, [rows[index] for index in group], temperature=1.0)
            yield -found.log_probs.sum() / tokens

    with packed(model):
        return fit(
            list(model.parameters()), settings.steps, settings.learning_rate, settings.warmup_steps, step_loss
        )


def fit(
    parameters: list[nn.Parameter],
    steps: int,
    learning_rate: float,
    warmup_steps: int,
    step_loss: Callable[[int], Iterator[torch.Tensor]],
) -> list[float]:
    """Train by AdamW. ``step_loss`` gives a step's loss in parts, one a micro-batch; their sums come back."""
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * rate_factor(step, warmup_steps, steps)
        total = 0.0
        for loss in step_loss(step):
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def rate_factor(step: int, warmup_steps: int, steps: int) -> float:
    """From near 0 up to 1, then linearly down to near 0."""
    return min((step + 1) / max(warmup_steps, 1), (steps - step) / max(steps - warmup_steps, 1))
