"""A PPO loop of one's own; the example of docs/real.md is run as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from oppo_real.wrapper import rollout_stream
from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.scenario.yaml_text import dump_yaml
from tests.real.real_scenario import real_scenario

DOCS = Path(__file__).parents[2] / "docs" / "real.md"


def test_the_documented_loop_runs_and_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = next(
        block
        for block in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
        if "rollout_stream" in block
    )
    assert len(example.splitlines()) < 40
    real = {"mode": "train", "models": {}, "sft": {"steps": 6, "batch_size": 8}}
    (tmp_path / "scenario.yaml").write_text(
        dump_yaml(real_scenario(real, steps=3, max_prompt_length=51).to_plain())
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "docs/real.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_weights_and_rewards_reach_replicas_and_policy() -> None:
    prompts: list[int] = []

    def prompt(number: int) -> list[int]:
        prompts.append(number)
        return [number % 7 + 1, 5]

    scenario = real_scenario(
        {"mode": "train", "temperature": 1.0},
        policy={"name": "oppo", "overcommit": 2, "chunk_size": 4},
        steps=3,
    )
    with rollout_stream(scenario, prompts=prompt, stop_token_id=9) as stream:
        for batch in stream:
            assert len(batch.rollouts) == 4
            for rollout in batch.rollouts:
                assert rollout.prompt == (rollout.rollout_id % 7 + 1, 5)
                assert set(rollout.weight_versions) <= set(range(batch.weight_version + 1))
                assert 9 not in rollout.response[:-1]
            weights = dict(stream.policy.state_dict())
            weights["lm_head.weight"] = torch.zeros_like(weights["lm_head.weight"])
            stream.update(weights, rewards=[float(batch.step)] * 4, timing_s={"values": 0.25})
            assert stream.steps()[c.timing("values")].tolist() == [0.25] * (batch.step + 1)
        assert list(stream.steps()[c.REWARD_MEAN]) == [0.0, 1.0, 2.0]
        assert list(stream.steps()[c.WEIGHT_VERSION]) == [0, 1, 2]
        fresh = [rollout for rollout in batch.rollouts if rollout.weight_versions[0] > 0]
        assert fresh
        # All logits are 0, so every token has probability 1 / 64.
        assert all(
            value == pytest.approx(-4.158883, abs=1e-5) for rollout in fresh for value in rollout.log_probs
        )
    assert prompts == list(range(len(prompts)))


def test_a_round_without_an_update_and_impossible_updates_are_refused() -> None:
    with rollout_stream(real_scenario(steps=2)) as stream:
        with pytest.raises(OppoError, match="no batch to update for"):
            stream.update({})
        rounds = iter(stream)
        next(rounds)
        with pytest.raises(OppoError, match="3 rewards for a batch of 4"):
            stream.update(stream.policy.state_dict(), rewards=[0.0] * 3)
        with pytest.raises(OppoError, match=r"step 0 was not trained: call stream\.update"):
            next(rounds)
    with (
        pytest.raises(OppoError, match="a loop of your own cannot"),
        rollout_stream(
            real_scenario({"lock_step": True}, policy="async", placement={"training": "separate"})
        ),
    ):
        pass
