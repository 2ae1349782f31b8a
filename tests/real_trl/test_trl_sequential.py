"""With the sequential policy the trainer is TRL's, to the last bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from trl.experimental.ppo import PPOTrainer

from oppo_real.trl_client import OppoPPOTrainer
from tests.real_trl import toy

STEPS = 3
WALL_CLOCK = {"eps"}  # episodes per second

SETTINGS: dict[str, dict[str, Any]] = {
    "stop token, penalty": {},
    "no stop token, rewards whitened": {
        "stop_token": None,
        "missing_eos_penalty": None,
        "whiten_rewards": True,
        "num_mini_batches": 1,
        "response_length": 12,
    },
    "stop token by id, k3, one call of generate": {
        "stop_token": None,
        "stop_token_id": 5,
        "kl_estimator": "k3",
        "local_rollout_forward_batch_size": 64,
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_metric_of_every_step_and_the_weights_are_those_of_the_unmodified_trainer(
    name: str, tmp_path: Path
) -> None:
    ours = toy.make(OppoPPOTrainer, tmp_path, STEPS, SETTINGS[name], policy="sequential")
    logged = toy.train(ours)
    # Trained after ours in the same process: nothing of ours may have stayed behind in TRL.
    theirs = toy.make(PPOTrainer, tmp_path, STEPS, SETTINGS[name])
    expected = toy.train(theirs)
    assert len(logged) == len(expected) == STEPS
    for own, unmodified in zip(logged, expected, strict=True):
        assert {key: own[key] for key in unmodified if key not in WALL_CLOCK} == {
            key: value for key, value in unmodified.items() if key not in WALL_CLOCK
        }
    assert all(
        torch.equal(one, other) for one, other in zip(toy.weights(ours), toy.weights(theirs), strict=True)
    )
    assert len({entry["objective/scores"] for entry in expected}) == STEPS


def test_the_records_tell_what_trl_trained(tmp_path: Path) -> None:
    trainer = toy.make(OppoPPOTrainer, tmp_path, STEPS, policy="sequential")
    logged = toy.train(trainer)
    known = {tuple(prompt) for prompt in toy.prompts()}
    for step, (record, entry) in enumerate(zip(trainer.steps, logged, strict=True)):
        assert record.trained == tuple(range(step * toy.BATCH, (step + 1) * toy.BATCH))
        assert set(record.prompts) <= known
        assert (record.deferred, record.surplus, set(record.staleness)) == (0, 0, {0})
        # A response ends with its stop token or at the cap.
        for response in record.responses:
            assert toy.EOS not in response[:-1]
            assert response[-1] == toy.EOS or len(response) == toy.RESPONSE_LENGTH
        assert record.tokens_decoded == sum(record.response_lengths)
        assert entry["response_length/max"] == max(record.response_lengths)
        assert sum(seconds for stage, seconds in record.timing_s.items() if stage != "step") == pytest.approx(
            record.timing_s["step"]
        )
        assert (
            min(
                record.timing_s["gen"],
                record.timing_s["reward"],
                record.timing_s["ref"],
                record.timing_s["update_actor"],
            )
            > 0
        )
