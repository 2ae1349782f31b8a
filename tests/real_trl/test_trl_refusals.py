"""What the trainer refuses, in one sentence each."""

from pathlib import Path
from typing import Any

import pytest

from oppo_real.trl_client import OppoPPOTrainer
from oppo_sim.errors import OppoError
from oppo_sim.policies.interface import Batch, Policy, PoolView, StepPlan
from tests.real_trl import toy


def refused(tmp_path: Path, **extra: Any) -> str:
    with pytest.raises(OppoError) as caught:
        toy.make(OppoPPOTrainer, tmp_path, 1, **extra)
    return str(caught.value)


def test_policies_that_generate_during_training(tmp_path: Path) -> None:
    assert "'one-step-off' generates while it trains" in refused(tmp_path, policy="one-step-off")
    assert "'async' generates while it trains" in refused(tmp_path, policy="async")


def test_an_oracle(tmp_path: Path) -> None:
    assert "'oracle' is an oracle" in refused(tmp_path, policy="oracle")


def test_streaming_scores_with_generate(tmp_path: Path) -> None:
    assert "set generation='continuous'" in refused(tmp_path, policy="oppo", generation="trl")


def test_unknown_names_and_settings(tmp_path: Path) -> None:
    assert "opo" in refused(tmp_path, policy="opo")
    assert "overcomit" in refused(tmp_path, policy=("oppo", {"overcomit": 3}))
    assert "choose one of auto, trl, continuous" in refused(tmp_path, generation="static")
    assert "choose one of auto, inline, process" in refused(tmp_path, scoring="thread")


def test_a_policy_for_another_batch(tmp_path: Path) -> None:
    assert "rollout_batch_size=4" in refused(tmp_path, policy=Policy(Batch(4)))


def test_one_model_as_critic_and_reward_model(tmp_path: Path) -> None:
    reward = toy.models()["reward_model"]
    assert "give a copy as value_model" in refused(
        tmp_path, policy="oppo", reward_model=reward, value_model=reward
    )


class OneMore(Policy):
    name = "one-more"

    def plan(self, pool: PoolView) -> StepPlan:
        return self.refill(pool, overcommit=1, chunk_size=256)


def test_a_policy_that_carries_cannot_use_generate(tmp_path: Path) -> None:
    trainer = toy.make(OppoPPOTrainer, tmp_path, 1, policy=OneMore(Batch(toy.BATCH)), generation="trl")
    with pytest.raises(OppoError, match="set generation='continuous'"):
        toy.train(trainer)


def test_a_reward_model_that_is_not_causal_cannot_be_scored_in_pieces(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    shape = {
        "vocab_size": toy.VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    bert = BertForSequenceClassification(BertConfig(**shape, num_labels=1))
    bert.score = bert.classifier  # the name that TRL asks for
    for scoring in ("inline", "process"):
        trainer = toy.make(OppoPPOTrainer, tmp_path, 1, policy="oppo", reward_model=bert, scoring=scoring)
        with pytest.raises(OppoError, match="BertForSequenceClassification"):
            toy.train(trainer)
