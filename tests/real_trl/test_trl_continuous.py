"""Policies that decode continuously: what is trained and carried, and that scores and log-probabilities are
those that TRL computes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from oppo_real.trl_client import OppoPPOTrainer
from oppo_sim.policies.interface import Batch, Policy, PoolView, StepPlan
from tests.real_trl import toy

FROZEN = {"learning_rate": 0.0, "num_ppo_epochs": 1, "num_mini_batches": 1, "gradient_accumulation_steps": 1}
FROZEN["per_device_train_batch_size"] = toy.BATCH
OVERCOMMIT = 3


class TwoMore(Policy):
    """A user's own: two rollouts more than the batch, pieces of five tokens."""

    name = "two-more"
    score_granularity = "chunk"

    def plan(self, pool: PoolView) -> StepPlan:
        return self.refill(pool, overcommit=2, chunk_size=5)


def oppo(**settings: Any) -> tuple[str, dict[str, Any]]:
    return "oppo", {"overcommit": OVERCOMMIT, "chunk_size": 8, **settings}


POLICIES: dict[str, Any] = {
    "oppo": oppo(),
    "oppo, its defaults": "oppo",
    "oppo, rounds": oppo(stop_check="chunk"),
    "oppo, waits for the overdue": oppo(max_deferrals=1),
    "inter": ("inter", {"overcommit": OVERCOMMIT}),
    "intra": ("intra", {"chunk_size": 8}),
    "rollout-overlap": "rollout-overlap",
    "partial-rollout": ("partial-rollout", {"token_budget": 10}),
    "april": "april",
    "tail-batching": "tail-batching",
    "a policy object": TwoMore(Batch(toy.BATCH)),
}
CARRYING = {"oppo", "oppo, rounds", "inter", "partial-rollout", "april", "a policy object"}


@pytest.mark.parametrize("name", POLICIES)
def test_each_step_trains_the_batch_and_nothing_gets_lost(name: str, tmp_path: Path) -> None:
    steps = 5
    trainer = toy.make(OppoPPOTrainer, tmp_path, steps, policy=POLICIES[name], scoring="inline")
    logged = toy.train(trainer)
    records = trainer.steps
    assert len(logged) == len(records) == steps
    trained = [rollout_id for record in records for rollout_id in record.trained]
    assert [len(record.trained) for record in records] == [toy.BATCH] * steps
    assert len(set(trained)) == len(trained)
    admitted = sum(record.admitted for record in records)
    # Tail batching runs a batch of dropped prompts again in a step that admits none.
    again = sum(not record.admitted for record in records) * toy.BATCH if name == "tail-batching" else 0
    shelved = sum(record.dropped for record in records) - again
    assert admitted == len(trained) + records[-1].deferred + records[-1].surplus + shelved
    decoded, dropped = (
        sum(getattr(record, column) for record in records) for column in ("tokens_decoded", "tokens_dropped")
    )
    assert (
        decoded
        == sum(sum(record.response_lengths) for record in records) + records[-1].tokens_in_flight + dropped
    )
    # Prompts are admitted in the order of TRL's data loader, over and over.
    assert {tuple(prompt) for prompt in toy.prompts()} >= {
        prompt for record in records for prompt in record.prompts
    }
    for record in records:
        for response, versions in zip(record.responses, record.versions, strict=True):
            assert toy.EOS not in response[:-1]
            assert response[-1] == toy.EOS or len(response) == toy.RESPONSE_LENGTH
            assert list(versions) == sorted(versions)
            assert versions[-1] <= record.weight_version
    assert (max(max(record.staleness) for record in records) > 0) == (
        name in CARRYING or name.startswith("oppo,")
    )


def test_weights_learn(tmp_path: Path) -> None:
    trainer = toy.make(OppoPPOTrainer, tmp_path, 2, policy=oppo(), scoring="inline")
    before = [tensor.clone() for tensor in toy.weights(trainer)]
    toy.train(trainer)
    assert any(not one.equal(other) for one, other in zip(before, toy.weights(trainer), strict=True))


def responses(trainer: Any) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    return {
        rollout_id: (prompt, response)
        for record in trainer.steps
        for rollout_id, prompt, response in zip(record.trained, record.prompts, record.responses, strict=True)
    }


@pytest.mark.parametrize("clear_kv", [True, False])
def test_a_carried_response_keeps_its_tokens(clear_kv: bool, tmp_path: Path) -> None:
    # With weights that do not change, a rollout makes the same tokens whether it is carried or generated in
    # one go.
    carrying = toy.make(
        OppoPPOTrainer,
        tmp_path,
        5,
        FROZEN,
        policy=oppo(),
        scoring="inline",
        clear_kv_cache_on_weight_sync=clear_kv,
    )
    toy.train(carrying)
    whole = toy.make(OppoPPOTrainer, tmp_path, 6, FROZEN, policy="sequential", generation="continuous")
    toy.train(whole)
    carried = {
        rollout_id
        for record in carrying.steps
        for rollout_id, versions in zip(record.trained, record.versions, strict=True)
        if len(set(versions)) > 1
    }
    assert len(carried) >= 3
    expected, found = responses(whole), responses(carrying)
    assert all(found[rollout_id] == expected[rollout_id] for rollout_id in found if rollout_id in expected)
    assert carried <= set(expected)
    assert (sum(record.tokens_recomputed for record in carrying.steps) > 0) == clear_kv


def test_stored_log_probabilities_are_those_that_trl_computes_again(tmp_path: Path) -> None:
    # Weights that do not change: every probability ratio is 1, of carried tokens too.
    trainer = toy.make(OppoPPOTrainer, tmp_path, 4, FROZEN, policy=oppo(), scoring="inline")
    logged = toy.train(trainer)
    assert max(max(record.staleness) for record in trainer.steps) > 0
    for entry in logged:
        assert entry["val/ratio"] == pytest.approx(1.0, abs=1e-5)
        assert entry["policy/approxkl_avg"] == pytest.approx(0.0, abs=1e-9)
        assert entry["objective/kl"] == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize(("scoring", "chunk_size"), [("inline", 1), ("inline", 1000), ("process", 7)])
def test_streamed_scores_train_as_scores_by_trl_do(scoring: str, chunk_size: int, tmp_path: Path) -> None:
    # The policy samples the padding token too: where TRL reads the score then must not depend on where pieces
    # are cut.
    arguments = {"learning_rate": 1e-4}
    streamed = toy.make(
        OppoPPOTrainer, tmp_path, 3, arguments, policy=oppo(chunk_size=chunk_size), scoring=scoring
    )
    ours = toy.train(streamed)
    batched = toy.make(OppoPPOTrainer, tmp_path, 3, arguments, policy=("inter", {"overcommit": OVERCOMMIT}))
    theirs = toy.train(batched)
    assert [record.trained for record in streamed.steps] == [record.trained for record in batched.steps]
    assert [record.responses for record in streamed.steps] == [record.responses for record in batched.steps]
    assert any(toy.PAD in response for record in streamed.steps for response in record.responses)
    close(
        ours,
        theirs,
        ("objective/scores", "objective/rlhf_reward", "loss/policy_avg", "loss/value_avg", "val/ratio"),
    )
    assert (
        sum(record.tokens_scored for record in streamed.steps)
        > 0
        == sum(record.tokens_scored for record in batched.steps)
    )


def close(ours: list[Any], theirs: list[Any], keys: tuple[str, ...]) -> None:
    def chosen(entries: list[Mapping[str, float]]) -> list[list[float]]:
        return [[entry[key] for key in keys] for entry in entries]

    for one, other in zip(chosen(ours), chosen(theirs), strict=True):
        assert one == pytest.approx(other, abs=1e-4)


def test_without_overcommit_the_streamed_and_the_sequential_schedule_train_the_same(tmp_path: Path) -> None:
    arguments = {"learning_rate": 1e-4}
    runs = []
    for policy in ("sequential", ("intra", {"chunk_size": 8}), "rollout-overlap"):
        trainer = toy.make(
            OppoPPOTrainer, tmp_path, 3, arguments, policy=policy, generation="continuous", scoring="inline"
        )
        logged = toy.train(trainer)
        runs.append(([record.trained for record in trainer.steps], logged))
    for trained, logged in runs[1:]:
        assert trained == runs[0][0]
        close(logged, runs[0][1], ("objective/scores", "loss/policy_avg", "loss/value_avg"))


def test_no_stop_token_and_whitened_rewards(tmp_path: Path) -> None:
    arguments = {
        "stop_token": None,
        "missing_eos_penalty": None,
        "whiten_rewards": True,
        "num_mini_batches": 1,
        "response_length": 10,
    }
    arguments |= {"per_device_train_batch_size": toy.BATCH, "gradient_accumulation_steps": 1}
    trainer = toy.make(OppoPPOTrainer, tmp_path, 2, arguments, policy=oppo(), scoring="inline")
    assert len(toy.train(trainer)) == 2
    assert {length for record in trainer.steps for length in record.response_lengths} == {10}


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    runs = []
    for _ in range(2):
        trainer = toy.make(OppoPPOTrainer, tmp_path, 2, policy=oppo(), scoring="inline")
        toy.train(trainer)
        runs.append([(record.trained, record.responses, record.reward_mean) for record in trainer.steps])
    assert runs[0] == runs[1]


def test_training_again_begins_anew(tmp_path: Path) -> None:
    trainer = toy.make(OppoPPOTrainer, tmp_path, 2, policy=oppo(), scoring="inline")
    toy.train(trainer)
    toy.train(trainer)
    assert [record.step for record in trainer.steps] == [0, 1]
    assert min(trainer.steps[0].trained) >= 0 == trainer.steps[0].weight_version
