"""What the tests have the engines do, on whatever device they are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from oppo_real.engines import models
from oppo_real.engines.interface import Answer, NewTokens, Request, Sampling, ScorePiece
from oppo_real.engines.torch_actor import ActorLimits, TorchActor
from oppo_real.engines.torch_scorer import TorchScorer
from oppo_real.ppo.config import PPOConfig
from oppo_real.ppo.rollout import TrainRollout
from oppo_real.ppo.trainer import PPOTrainer
from tests.real.tiny import CONFIG

SMALL = CONFIG | {"num_hidden_layers": 1}
GREEDY = Sampling(temperature=0.0)


def actor(device: str, dtype: str = "float32", sampling: Sampling = GREEDY, **limits: Any) -> TorchActor:
    """With one layer."""
    return TorchActor(models.build_causal_lm(SMALL, 0, dtype, device), sampling, ActorLimits(**limits))


class Made:
    """What an actor has made, by rollout."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.log_probs: dict[int, list[float]] = {}

    def take(self, new: Sequence[NewTokens]) -> bool:
        for one in new:
            self.tokens.setdefault(one.rollout_id, []).extend(one.tokens)
            self.log_probs.setdefault(one.rollout_id, []).extend(one.log_probs)
        return bool(new)

    def finish(self, engine: TorchActor) -> Made:
        while self.take(engine.step()):
            pass
        return self


def decoded(engine: TorchActor) -> Made:
    """Rollouts that join while others run."""
    made = Made()
    engine.submit([Request(1, (1, 2, 3), 6), Request(2, (4, 5), 4)])
    made.take(engine.step())
    engine.submit([Request(0, tuple(range(9)), 5)])
    return made.finish(engine)


def through_an_update(engine: TorchActor, weights: Any, keep_kv: bool) -> Made:
    """A rollout with a tool, one that is aborted, and new weights while they run."""
    made = Made()
    engine.submit([Request(0, (1, 2, 3), 9, call_after=2), Request(1, (4, 5), 8), Request(2, (6,), 8)])
    for _ in range(3):
        made.take(engine.step())
    engine.abort([1])
    engine.load_weights(weights, 1, keep_kv)
    answer = Answer(2, (7, 8, 9))
    engine.submit([Request(0, (1, 2, 3), 9, generated=tuple(made.tokens[0]), answers=(answer,), unseen=4)])
    return made.finish(engine)


def scorer(device: str, dtype: str = "float32", **options: Any) -> TorchScorer:
    """With a reference model beside it."""
    return TorchScorer(
        models.build_reward_model(SMALL, 1, dtype, device),
        reference_model=models.build_causal_lm(SMALL, 2, dtype, device),
        **options,
    )


PIECES = (
    (ScorePiece(0, (1, 2, 3, 4, 5), False), ScorePiece(1, (3, 4, 5), True), ScorePiece(2, (9, 9), False)),
    (ScorePiece(0, (6, 7), False),),
    (ScorePiece(0, (8,), True),),
)


def scored(engine: TorchScorer) -> tuple[dict[int, float], tuple[float, ...]]:
    """Pieces of three rollouts, one of which is released; scores, and the reference's log-probabilities."""
    stream = engine.reference_stream()
    assert stream is not None
    stream.expect({0: 3, 1: 2, 2: 1})
    scores: dict[int, float] = {}
    for pieces in PIECES:
        scores |= engine.append(pieces)
        engine.release([2])
    return scores, stream.pop_reference_log_probs(0)


BATCH = tuple(
    TrainRollout(
        number,
        (1, 2, 3 + number),
        tuple(range(4 + number)),
        tuple([-1.0] * (4 + number)),
        tuple([0] * 2 + [1] * (2 + number)),
        0.5 * number,
        "stop",
    )
    for number in range(3)
)
"""Two tokens of each are of older weights."""


def trainer(device: str, dtype: str = "float32", **changes: Any) -> PPOTrainer:
    """Random models of one layer."""
    config = PPOConfig(**({"num_mini_batches": 1, "num_ppo_epochs": 1, "micro_batch_tokens": 16} | changes))
    critic = models.build_value_model(SMALL, 3, dtype, device) if config.critic == "separate" else None
    policy, reference = (models.build_causal_lm(SMALL, seed, dtype, device) for seed in (0, 2))
    return PPOTrainer(policy, reference, critic, config, device)


def timeless(found: dict[str, float]) -> dict[str, float]:
    """Metrics without seconds."""
    return {name: value for name, value in found.items() if not name.startswith("timing") and name != "eps"}


def same_weights(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Within rounding, wherever they lie."""
    return left.keys() == right.keys() and all(
        torch.allclose(left[name].cpu(), right[name].cpu(), atol=1e-5) for name in left
    )
