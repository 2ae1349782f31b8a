"""A small learned reward model: is the response right so far? Its score is the logit at the last token, as of
any sequence classifier."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

from oppo_real.engines.packed_model import packed
from oppo_real.ppo.batching import micro_batches
from oppo_real.ppo.forward import hidden_states
from oppo_real.ppo.rollout import TokenRow
from oppo_real.task.arithmetic import (
    ANY_LENGTH,
    EOS,
    VOCABULARY,
    ArithmeticProblem,
    Lengths,
    Slips,
    demonstrate,
    draw_problem,
)
from oppo_real.task.sft import fit
from oppo_real.task.tiny import new_classifier
from oppo_sim.draws import draw_index, draw_uniform, stream_key

SOMETIMES_WRONG: Final = Slips(wrong_result=0.08, give_up=0.05)


@dataclass(frozen=True)
class RewardModelConfig:
    """The defaults make about every other response wrong."""

    steps: int = 500
    batch_size: int = 32
    learning_rate: float = 3e-3
    warmup_steps: int = 20
    micro_batch_tokens: int = 2048
    slips: Slips = SOMETIMES_WRONG
    wrong_token: float = 0.25
    """Probability that one token of the response, anywhere, is replaced by another."""
    first_error_weight: float = 4.0
    """Of the first wrong token in the loss; a right one has 1."""
    after_error_weight: float = 0.3
    """Of the tokens behind it, which only have to remember."""
    language_coef: float = 0.5
    """Of an auxiliary loss: predict the next token while the response is right, to learn what right is."""
    lengths: Lengths = ANY_LENGTH
    seed: int = 1


class LabelledResponse(NamedTuple):
    """A response, and for each of its tokens whether all up to it is right."""

    row: TokenRow
    right_so_far: tuple[bool, ...]


def labelled(problem: ArithmeticProblem, response: Sequence[int]) -> LabelledResponse:
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
    """Train a sequence classifier with one label in place; returns the mean loss (a response token) of each
    step.

    Binary cross-entropy at every response token, so that an error teaches at the place where it is made.
    """
    settings = config or RewardModelConfig()
    language_head = _language_head(model, settings.seed)

    def step_loss(step: int) -> Iterator[torch.Tensor]:
        first = step * settings.batch_size
        examples = [training_example(settings, first + place) for place in range(settings.batch_size)]
        tokens = sum(len(example.row.response) for example in examples)
        for group in micro_batches([one.row.length for one in examples], settings.micro_batch_tokens):
            yield _loss(model, language_head, [examples[index] for index in group], settings) / tokens

    with packed(model):
        parameters = [*model.parameters(), *language_head.parameters()]
        return fit(parameters, settings.steps, settings.learning_rate, settings.warmup_steps, step_loss)


def reward_model_from(
    actor: Qwen2ForCausalLM, seed: int, num_hidden_layers: int = 3
) -> Qwen2ForSequenceClassification:
    """Untrained: the actor's embeddings and first layers, and layers above to compare with them."""
    model = new_classifier(
        seed,
        Qwen2Config.from_dict(
            actor.config.to_dict() | {"num_hidden_layers": num_hidden_layers, "layer_types": None}
        ),
    )
    model.model.embed_tokens.load_state_dict(actor.model.embed_tokens.state_dict())
    for layer, source in zip(model.model.layers, actor.model.layers, strict=False):
        layer.load_state_dict(source.state_dict())
    return model


def _language_head(model: nn.Module, seed: int) -> nn.Linear:
    weight = model.get_submodule("score").weight
    assert isinstance(weight, torch.Tensor)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(weight.shape[1], len(VOCABULARY), bias=False).to(weight)


def _loss(
    model: nn.Module,
    language_head: nn.Module,
    examples: Sequence[LabelledResponse],
    settings: RewardModelConfig,
) -> torch.Tensor:
    """Sum over the response tokens of one packed batch."""
    states = hidden_states(model, [row.prompt + row.response for row, _ in examples])
    at, before, start = [], [], 0
    for row, _ in examples:
        begin, end = start + len(row.prompt), start + row.length
        at.append(states[begin:end])
        before.append(states[begin - 1 : end - 1])
        start = end
    labels = [right for _, right_so_far in examples for right in right_so_far]
    weights = [weight for _, right_so_far in examples for weight in _weights(right_so_far, settings)]
    targets = [token for row, _ in examples for token in row.response]
    device = states.device
    right = torch.tensor(labels, device=device)
    scores = model.get_submodule("score")(torch.cat(at)).squeeze(-1).float()
    judged = nn.functional.binary_cross_entropy_with_logits(
        scores, right.float(), torch.tensor(weights, device=device), reduction="sum"
    )
    logits = language_head(torch.cat(before)).float()
    predicted = nn.functional.cross_entropy(
        logits[right], torch.tensor(targets, device=device)[right], reduction="sum"
    )
    return judged + settings.language_coef * predicted


def _weights(right_so_far: Sequence[bool], settings: RewardModelConfig) -> list[float]:
    right = sum(right_so_far)
    wrong = len(right_so_far) - right
    behind = [settings.after_error_weight] * max(wrong - 1, 0)
    return [1.0] * right + [settings.first_error_weight] * min(wrong, 1) + behind
