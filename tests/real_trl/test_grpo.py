"""TRL's GRPO trainer under a policy: with the sequential one it is TRL's to the last bit; others carry whole
groups, as the simulator does, and train them against the probabilities that they were sampled with."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from trl import GRPOTrainer

from oppo_real.trl_client import OppoGRPOTrainer
from oppo_sim.errors import OppoError
from oppo_sim.scenario.load import scenario_from_plain
from oppo_sim.simulation import simulate
from oppo_sim.traces.storage import save_trace
from tests.real_trl import toy, toy_grpo

GROUP = toy_grpo.GROUP
FROZEN = {"learning_rate": 0.0}
INTER = ("inter", {"overcommit": GROUP})


@pytest.mark.parametrize(
    "arguments",
    [{"beta": 0.02}, {"steps_per_generation": 4, "per_device_train_batch_size": 2, "num_iterations": 2}],
    ids=["a reference model", "four updates of a generation"],
)
def test_sequential_is_the_unmodified_trainer(arguments: dict[str, Any], tmp_path: Path) -> None:
    steps = 3 if "beta" in arguments else 8
    ours = toy_grpo.make(OppoGRPOTrainer, tmp_path, steps, arguments, policy="sequential")
    logged = toy_grpo.train(ours)
    theirs = toy_grpo.make(GRPOTrainer, tmp_path, steps, arguments)
    expected = toy_grpo.train(theirs)
    assert len(logged) == len(expected) == steps
    for own, unmodified in zip(logged, expected, strict=True):
        assert {key: own[key] for key in unmodified if key != "step_time"} == {
            key: value for key, value in unmodified.items() if key != "step_time"
        }
    assert all(
        torch.equal(one, other) for one, other in zip(toy.weights(ours), toy.weights(theirs), strict=True)
    )
    generations = 3 if "beta" in arguments else 2
    assert len(ours.steps) == generations
    for number, record in enumerate(ours.steps):
        assert record.trained == tuple(range(number * toy.BATCH, (number + 1) * toy.BATCH))
        assert (record.deferred, set(record.staleness)) == (0, {0})
        stages = [record.timing_s[stage] for stage in ("gen", "reward", "update_actor")]
        assert min(stages) > 0


def by_id(trainer: Any) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    return {
        rollout_id: (prompt, response)
        for record in trainer.steps
        for rollout_id, prompt, response in zip(record.trained, record.prompts, record.responses, strict=True)
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Every rollout in one go, under weights that stay: what others carry must come out the same."""
    folder = tmp_path_factory.mktemp("whole")
    trainer = toy_grpo.make(OppoGRPOTrainer, folder, 6, FROZEN, policy="sequential", generation="continuous")
    toy_grpo.train(trainer)
    return trainer


@pytest.mark.parametrize(
    "policy",
    [
        INTER,
        ("inter", {"overcommit": 2 * GROUP, "max_deferrals": 1}),
        ("partial-rollout", {"token_budget": 12}),
        ("april", {}),
        ("tail-batching", {}),
    ],
    ids=["inter", "inter, waits for the overdue", "partial-rollout", "april", "tail-batching"],
)
def test_groups_are_carried_as_the_simulator_carries_them(policy: Any, whole: Any, tmp_path: Path) -> None:
    steps = 4
    trainer = toy_grpo.make(OppoGRPOTrainer, tmp_path, steps, FROZEN, policy=policy)
    logged = toy_grpo.train(trainer)
    records = trainer.steps
    expected, found = by_id(whole), by_id(trainer)
    # A carried response keeps its tokens: it is the one made in one go, and of the prompt that TRL deals out.
    assert all(found[rollout_id] == expected[rollout_id] for rollout_id in found)
    # Tail batching makes what it drops anew.
    assert (max(max(record.staleness) for record in records) > 0) == (policy[0] != "tail-batching")
    for record, entry in zip(records, logged, strict=True):
        assert len(record.trained) == toy.BATCH
        for first in range(0, toy.BATCH, GROUP):
            group = record.trained[first : first + GROUP]
            assert group == tuple(range(group[0], group[0] + GROUP)) and group[0] % GROUP == 0
        assert entry["completions/mean_length"] == pytest.approx(sum(record.response_lengths) / toy.BATCH)
        # The reward functions were given these responses.
        rewards = toy_grpo.reward([list(response) for response in record.responses])
        assert entry["reward"] == pytest.approx(sum(rewards) / toy.BATCH, abs=1e-6)
        assert entry["rollouts/deferred"] == record.deferred

    ids = sorted(expected)
    lengths = [len(expected[rollout_id][1]) for rollout_id in ids]
    trace = pd.DataFrame(
        {"response_length": lengths, "prompt_length": 4, "prompt_id": [f"p{i // GROUP}" for i in ids]}
    )
    save_trace(trace, tmp_path / "lengths.parquet")
    name, settings = policy
    scenario = scenario_from_plain(
        {
            "format": "oppo-scenario/1",
            "name": "lockstep",
            "steps": steps,
            "rollout_batch_size": toy.BATCH,
            "group_size": GROUP,
            "max_response_length": toy.RESPONSE_LENGTH,
            "trace": {"path": str(tmp_path / "lengths.parquet"), "sampling": "in_order"},
            "costs": {"kind": "linear", "decode": {"fixed": 1.0}},
            "policy": {"name": name, **settings},
        }
    )
    simulated = simulate(scenario)
    for record in records:
        rows = simulated.rollouts[simulated.rollouts["trained_step"] == record.step]
        assert sorted(rows["rollout_id"]) == sorted(record.trained)
    assert simulated.steps["rollouts/deferred"].tolist() == [record.deferred for record in records]


def test_behaviour_probabilities_are_those_that_trl_computes_again(tmp_path: Path) -> None:
    """Weights that do not change: the ratio to what was stored is 1, of carried tokens too. The loss is then
    what it is without stored ones."""
    seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    class Looking(OppoGRPOTrainer):  # type: ignore[misc]
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
            mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
            width = inputs["completion_ids"].shape[1]
            with torch.no_grad():
                now = self._get_per_token_logps_and_entropies(model, ids, mask, width)[0]
            seen.append((inputs["old_per_token_logps"], now, inputs["completion_mask"].bool()))
            return super()._compute_loss(model, inputs)

    trainer = toy_grpo.make(Looking, tmp_path, 4, FROZEN, policy=INTER)
    toy_grpo.train(trainer)
    assert max(max(record.staleness) for record in trainer.steps) > 0
    for stored, now, mask in seen:
        assert torch.allclose(stored[mask], now[mask], atol=1e-4)


def test_weights_learn_and_staleness_is_seen_in_the_ratio(tmp_path: Path) -> None:
    trainer = toy_grpo.make(OppoGRPOTrainer, tmp_path, 4, {"learning_rate": 1e-2}, policy=INTER)
    before = [tensor.clone() for tensor in toy.weights(trainer)]
    logged = toy_grpo.train(trainer)
    assert any(not one.equal(other) for one, other in zip(before, toy.weights(trainer), strict=True))
    stale = [max(record.staleness) > 0 for record in trainer.steps]
    # One update a generation: only a carried token's probability can have left the clipped region.
    clipped = [entry["clip_ratio/region_mean"] > 0 for entry in logged]
    assert any(stale) and not any(far for far, old in zip(clipped, stale, strict=True) if not old)
    assert any(far for far, old in zip(clipped, stale, strict=True) if old)


def test_what_trls_loop_cannot_follow_is_refused(tmp_path: Path) -> None:
    def refused(**extra: Any) -> str:
        with pytest.raises(OppoError) as caught:
            toy_grpo.make(OppoGRPOTrainer, tmp_path, 1, extra.pop("arguments", None), **extra)
        return str(caught.value)

    assert "'async' generates while it trains" in refused(policy="async")
    assert "'oracle' is an oracle" in refused(policy="oracle")
    assert "take a policy with batch scoring" in refused(policy="oppo")
    assert "leave it out" in refused(policy="inter", rollout_func=lambda prompts, trainer: {})
    assert "samples by temperature alone" in refused(policy="inter", arguments={"top_p": 0.9})
    assert "choose one of auto, trl, continuous" in refused(generation="vllm")
    trainer = toy_grpo.make(OppoGRPOTrainer, tmp_path, 1, policy=INTER, generation="trl")
    with pytest.raises(OppoError, match="set generation='continuous'"):
        trainer.train()
    with pytest.raises(OppoError, match="in no checkpoint"):
        trainer.train(resume_from_checkpoint=True)
