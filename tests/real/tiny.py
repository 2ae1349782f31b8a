"""Tiny random-init models that the tests of the real backend share, and greedy continuation by transformers
itself as the truth."""

from collections.abc import Sequence
from typing import Any

import torch

from oppo_real.engines.models import build_causal_lm, build_reward_model, build_value_model

VOCABULARY = 97
CONFIG: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
"""A large initializer_range spreads the logits, so that greedy decoding does not hang on rounding."""


def single_thread() -> None:
    """Tests share the machine."""
    torch.set_num_threads(1)


def tiny_actor(seed: int = 0, **changes: Any) -> torch.nn.Module:
    """A causal language model."""
    return build_causal_lm(CONFIG | changes, seed=seed)


def tiny_reward(seed: int = 1, **changes: Any) -> torch.nn.Module:
    """A reward model."""
    return build_reward_model(CONFIG | changes, seed=seed)


def tiny_critic(seed: int = 2, **changes: Any) -> torch.nn.Module:
    """A value model."""
    return build_value_model(CONFIG | changes, seed=seed)


def random_tokens(generator: torch.Generator, length: int) -> tuple[int, ...]:
    """Uniform tokens of the vocabulary."""
    return tuple(torch.randint(VOCABULARY, (length,), generator=generator).tolist())


def generate(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """``count`` greedy tokens by transformers' own ``generate``; ``model`` must not have packed attention."""
    ids = torch.tensor([list(prompt)])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    return [int(token) for token in out[0, len(prompt) :]]


def one_shot_score(model: Any, tokens: Sequence[int]) -> float:
    """Score of a whole sequence by an unmodified reward model: its head on the last hidden state."""
    with torch.no_grad():
        hidden = model.model(input_ids=torch.tensor([list(tokens)])).last_hidden_state
        return float(model.score(hidden[0, -1])[0])


def full_log_probs(
    model: Any, prompt: Sequence[int], response: Sequence[int], temperature: float = 1.0
) -> torch.Tensor:
    """log p of each response token by one forward of an unmodified language model over the whole sequence."""
    ids = torch.tensor([[*prompt, *response]])
    with torch.no_grad():
        log_probs = (model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / temperature).log_softmax(-1)
    chosen: torch.Tensor = log_probs.gather(1, torch.tensor(list(response)).unsqueeze(1)).squeeze(1)
    return chosen
