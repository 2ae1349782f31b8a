"""What the tests say of actors again and again."""

import random
from collections.abc import Sequence
from typing import Any

from oppo_real.engines.interface import NewTokens, Request

# vLLM and what it imports warn about their own deprecations.
QUIET = (
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::UserWarning",
    "ignore::ResourceWarning",
)


def prompt(seed: int, length: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(1, 96), k=length))


def forced(
    rollout_id: int, length: int, prompt_length: int = 9, limit: int = 100, generated: Sequence[int] = ()
) -> Request:
    return Request(
        rollout_id, prompt(rollout_id, prompt_length), limit, forced_length=length, generated=tuple(generated)
    )


def finish(actor: Any, into: dict[int, list[int]] | None = None) -> dict[int, list[int]]:
    """Step until nothing runs; tokens of each rollout, those in ``into`` continued."""
    tokens = into if into is not None else {}
    while actor.running():
        gather(actor.step(), tokens)
    return tokens


def gather(news: Sequence[NewTokens], into: dict[int, list[int]]) -> dict[int, list[int]]:
    for one in news:
        into.setdefault(one.rollout_id, []).extend(one.tokens)
    return into


def greedy(model: Any, start: Sequence[int], length: int) -> list[int]:
    """What transformers' ``generate`` says."""
    import torch

    made = model.generate(
        torch.tensor([list(start)]),
        attention_mask=torch.ones(1, len(start), dtype=torch.long),
        do_sample=False,
        max_new_tokens=length,
        min_new_tokens=length,
        pad_token_id=0,
        eos_token_id=None,
    )
    return [int(one) for one in made[0, len(start) :]]
