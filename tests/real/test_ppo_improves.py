"""PPO on the arithmetic task from end to end: fit, sample, score, train, and the reward rises."""

import copy
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from oppo_real.ppo.config import PPOConfig
from oppo_real.ppo.rollout import TrainRollout
from oppo_real.ppo.trainer import PPOTrainer
from oppo_real.task.arithmetic import EOS, PAD, ArithmeticProblem, Lengths, draw_problem, reward
from oppo_real.task.sft import SftConfig, fit_actor
from oppo_real.task.tiny import critic_from, new_actor

LENGTHS = Lengths(largest=8)
MAX_RESPONSE_LENGTH = 64
BATCH = 64


@dataclass
class Job:
    """A rollout in the making."""

    rollout_id: int
    problem: ArithmeticProblem
    response: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    finish_reason: Any = None

    def finished(self) -> TrainRollout:
        return TrainRollout(
            self.rollout_id, self.problem.prompt(), self.response, self.log_probs, self.versions, reward(self.problem, self.response),
            self.finish_reason,
        )  # fmt: skip


@dataclass
class Sampler:
    """Left-padded generation at temperature 1, stopped when enough rollouts have finished; the others can go
    on later."""

    model: Any
    draws: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    @torch.no_grad()
    def run(self, jobs: list[Job], enough: int, version: int) -> None:
        contexts = [job.problem.prompt() + job.response for job in jobs]
        longest = max(map(len, contexts))
        ids = torch.tensor([[PAD] * (longest - len(context)) + list(context) for context in contexts])
        mask = torch.tensor([[0] * (longest - len(context)) + [1] * len(context) for context in contexts])
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache = DynamicCache(config=self.model.config)
        while sum(job.finish_reason is not None for job in jobs) < enough:
            logits = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            log_probs = torch.log_softmax(logits, dim=-1)
            ids = torch.multinomial(log_probs.exp(), 1, generator=self.draws)
            chosen = log_probs.gather(1, ids).squeeze(1).tolist()
            for job, token, log_prob in zip(jobs, ids.squeeze(1).tolist(), chosen, strict=True):
                if job.finish_reason is not None:
                    continue
                job.response += (token,)
                job.log_probs += (log_prob,)
                job.versions += (version,)
                if token == EOS or len(job.response) == MAX_RESPONSE_LENGTH:
                    job.finish_reason = "stop" if token == EOS else "length"
            mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
            positions = positions[:, -1:] + 1


@pytest.fixture(scope="module")
def fitted() -> Any:
    torch.set_num_threads(1)
    actor = new_actor(0)
    losses = fit_actor(actor, SftConfig(steps=250, lengths=LENGTHS))
    assert mean(losses[-10:]) < 0.15 * losses[0]
    return actor


def train(fitted: Any, steps: int, batch: int, overcommit: int, **changes: Any) -> list[dict[str, float]]:
    """The first ``batch`` rollouts that finish are trained, up to ``overcommit`` others carried on under the
    new weights."""
    actor = copy.deepcopy(fitted)
    settings: dict[str, Any] = {
        "learning_rate": 3e-4,
        "temperature": 1.0,
        "kl_coef": 0.02,
        "num_ppo_epochs": 2,
        "num_mini_batches": 2,
    }
    config = PPOConfig(**{**settings, **changes})
    critic = critic_from(actor, 1) if config.critic == "separate" else None
    trainer = PPOTrainer(actor, copy.deepcopy(fitted), critic, config)
    sampler = Sampler(copy.deepcopy(fitted))  # the trainer's own has packed attention from now on
    flight: list[Job] = []
    admitted, rows = 0, []
    for step in range(steps):
        while len(flight) < batch + overcommit:
            flight.append(Job(admitted, draw_problem(7, admitted, LENGTHS)))
            admitted += 1
        ready = [job for job in flight if job.finish_reason is not None]
        if len(ready) < batch:
            sampler.model.load_state_dict(trainer.weights())
            sampler.run([job for job in flight if job.finish_reason is None], batch - len(ready), step)
        chosen = [job for job in flight if job.finish_reason is not None][:batch]
        flight = [job for job in flight if job not in chosen]
        rows.append(trainer.update([job.finished() for job in chosen], step))
    return rows


def test_the_reward_rises(fitted: Any) -> None:
    rows = train(fitted, 28, BATCH, 0)
    scores = [row["objective/scores"] for row in rows]
    assert mean(scores[:4]) < 0.6  # a mediocre actor to begin with
    assert mean(scores[-6:]) > mean(scores[:6]) + 0.12
    assert mean(row["policy/entropy_avg"] for row in rows[-6:]) < mean(
        row["policy/entropy_avg"] for row in rows[:6]
    )
    assert all(
        row["carried/token_ratio"] == 0 and row["carried/importance_max"] == pytest.approx(1) for row in rows
    )
    assert rows[0]["objective/kl"] == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(
    ("carried", "critic"),
    [("behaviour", "separate"), ("behaviour", "value_head"), ("recompute", "separate"), ("mask", "separate")],
)
def test_carried_rollouts_are_trained_without_harm(fitted: Any, carried: str, critic: str) -> None:
    rows = train(fitted, 8, 32, 16, carried=carried, critic=critic, learning_rate=1e-4)
    scores = [row["objective/scores"] for row in rows]
    assert 0.1 < mean(row["carried/token_ratio"] for row in rows[1:]) < 0.9
    assert mean(scores[-4:]) > mean(scores[:4]) - 0.1
    assert max(row["policy/approxkl_avg"] for row in rows) < 0.1
    corrected = max(row["carried/importance_max"] for row in rows) > 1.01
    assert corrected == (carried != "mask")
    assert (max(row["carried/masked_ratio"] for row in rows) > 0) == (carried == "mask")


def test_the_same_seed_gives_the_same_run(fitted: Any) -> None:
    one, other = (train(fitted, 2, 16, 4) for _ in range(2))
    kept = [name for name in one[0] if not name.startswith(("timing_s/", "eps"))]
    assert [[row[name] for name in kept] for row in one] == [[row[name] for name in kept] for row in other]
