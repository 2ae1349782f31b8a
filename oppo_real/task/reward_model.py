"""A small learned reward model: is the response right so far? Its score is the logit at the last token, as of any sequence classifier."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from oppo_real.ppo.batching import micro_batches
from oppo_real.ppo.forward import hidden_states
from oppo_real.ppo.rollout import TokenRow
from oppo_real.task.arithmetic import ANY_LENGTH, EOS, VOCABULARY, Lengths, Problem, Slips, demonstrate, draw_problem
from oppo_real.task.sft import rate_factor
from oppo_sim.draws import draw_index, draw_uniform, stream_key

SOMETIMES_WRONG: Final = Slips(wrong_result=0.08, give_up=0.05)


@dataclass(frozen=True)
class RewardModelConfig:
    """The defaults make about every other response wrong."""

    steps: int = 400
    batch_size: int = 32
    learning_rate: float = 3e-3
    warmup_steps: int = 20
    micro_batch_tokens: int = 2048
    slips: Slips = SOMETIMES_WRONG
    wrong_token: float = 0.25
    """Probability that one token of the response, anywhere, is replaced by another."""
    lengths: Lengths = ANY_LENGTH
    seed: int = 1


@dataclass(frozen=True)
class LabelledResponse:
    """A response, and for each of its tokens whether all up to it is right."""

    row: TokenRow
    right_so_far: tuple[bool, ...]


def labelled(problem: Problem, response: Sequence[int]) -> LabelledResponse:
    """A response held against the right one, word for word."""
    solution = demonstrate(problem)
    right, labels = True, []
    for position, token in enumerate(response):
        right = right and position < len(solution) and token == solution[position]
        labels.append(right)
    return LabelledResponse(TokenRow(problem.prompt(), tuple(response)), tuple(labels))


def training_example(config: RewardModelConfig, index: int) -> LabelledResponse:
    """The index-th example: a demonstration with slips, sometimes with a wrong token besides."""
    problem = draw_problem(config.seed, index, config.lengths)
    response = list(demonstrate(problem, config.slips, config.seed, index))
    key = stream_key(config.seed, f"arithmetic/wrong_token/{index}")
    if draw_uniform(key, 0) < config.wrong_token:
        response[draw_index(key, 1, len(response))] = draw_index(key, 2, len(VOCABULARY))
        if EOS in response:
            response = response[: response.index(EOS) + 1]
    return labelled(problem, response)


def fit_reward_model(model: nn.Module, config: RewardModelConfig | None = None) -> list[float]:
    """Train a sequence classifier with one label in place; returns the mean loss (nats a response token) of each step.

    Binary cross-entropy at every response token, so that an error teaches at the place where it is made.
    """
    settings = config or RewardModelConfig()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    losses = []
    for step in range(settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * rate_factor(step, settings.warmup_steps, settings.steps)
        examples = [training_example(settings, step * settings.batch_size + position) for position in range(settings.batch_size)]
        tokens = sum(len(example.row.response) for example in examples)
        total = 0.0
        for indices in micro_batches(
            [len(example.row.prompt) + len(example.row.response) for example in examples], settings.micro_batch_tokens
        ):
            rows = [examples[index].row for index in indices]
            logits = torch.cat([scores[len(row.prompt) :] for row, scores in zip(rows, token_scores(model, rows), strict=True)])
            labels = torch.tensor([float(label) for index in indices for label in examples[index].right_so_far], device=logits.device)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / tokens
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def token_scores(model: nn.Module, rows: Sequence[TokenRow]) -> list[torch.Tensor]:
    """The head's output at every token of each row, prompt first, float32; one padded batch, with gradients."""
    scores = model.get_submodule("score")(hidden_states(model, [row.prompt + row.response for row in rows])).squeeze(-1).float()
    return [scores[index, : len(row.prompt) + len(row.response)] for index, row in enumerate(rows)]


@torch.no_grad()
def score_rows(model: nn.Module, rows: Sequence[TokenRow], micro_batch_tokens: int = 16384) -> list[float]:
    """The score of each whole row, in one go: the logit at its last token."""
    scores = [0.0] * len(rows)
    for indices in micro_batches([len(row.prompt) + len(row.response) for row in rows], micro_batch_tokens):
        for index, row_scores in zip(indices, token_scores(model, [rows[index] for index in indices]), strict=True):
            scores[index] = float(row_scores[-1])
    return scores
