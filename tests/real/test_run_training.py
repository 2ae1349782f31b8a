"""Mode train: sampled answers, PPO, new weights in the replicas."""

from __future__ import annotations

import math
from typing import Any

import pytest

from oppo_real.ppo import metrics
from oppo_real.run.start import run_real
from oppo_real.task.arithmetic import MAX_OPERATIONS
from oppo_sim import columns as c
from tests.real.real_scenario import real_scenario

ON_POLICY = {"num_ppo_epochs": 1, "learning_rate": 3e-3, "carried": "behaviour"}


def train(policy: Any, **fields: Any) -> Any:
    section = {"mode": "train", "models": {}, "sft": {"steps": 12, "batch_size": 8}, "ppo": ON_POLICY}
    scenario = real_scenario(
        section, policy=policy, max_prompt_length=3 + 3 * MAX_OPERATIONS, max_response_length=48, **fields
    )
    return run_real(scenario)


def test_the_trainer_sees_the_log_probabilities_of_the_weights_that_sampled() -> None:
    run = train("sequential", rollout_batch_size=8, steps=4)
    ratios = run.training[metrics.RATIO]
    # On-policy and one pass: new and old log-probabilities are of the same weights, if every update reached
    # the replicas.
    assert ratios.tolist() == pytest.approx([1.0] * 4, abs=1e-4)
    assert run.training[metrics.POLICY_LOSS].abs().max() < 1.0
    assert (run.steps[c.timing("update_actor")] > 0).all()
    assert run.steps[c.REWARD_MEAN].map(math.isfinite).all()
    assert run.rollouts[c.RESPONSE_LENGTH].nunique() > 1


def test_rollouts_carried_over_updates_are_trained_with_their_versions() -> None:
    run = train({"name": "oppo", "overcommit": 4, "chunk_size": 8}, rollout_batch_size=6, steps=4, training={"stream_ref": True},
                costs={"kind": "linear", "decode": {"fixed": 1.0}, "score_ref": {}})  # fmt: skip
    carried = run.rollouts[run.rollouts[c.SPAN] > 1]
    assert len(carried)
    assert (carried[c.STALENESS] >= 1).all()
    assert run.training[metrics.CARRIED_TOKENS].max() > 0
    # The scoring worker ran the reference model over the pieces: the trainer did not.
    assert (run.steps[c.timing("ref")] < run.steps[c.timing("values")]).all()
    assert run.training[metrics.OBJECTIVE_KL].abs().max() < 5
