"""The PPO update on a CUDA machine without a GPU (tests/real/fake_cuda): the CPU's numbers, and a host that waits
once an optimizer step, however many micro-batches it has."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from oppo_real.engines import attention_check, models
from oppo_real.ppo.config import PPOConfig
from oppo_real.ppo.stopwatch import Stopwatch
from oppo_real.ppo.trainer import PPOTrainer
from tests.real.fake_cuda.covered import covers
from tests.real.fake_cuda.exercises import BATCH, SMALL, same_weights, timeless, trainer
from tests.real.fake_cuda.machine import cuda_machine
from tests.real.tiny import single_thread

single_thread()

SEPARATE: dict[str, Any] = {"critic": "separate", "carried": "mask"}
SHARED: dict[str, Any] = {"critic": "value_head", "carried": "recompute"}


@covers(
    "PPOTrainer.update",
    "PPOTrainer.weights",
    "PPOTrainer.state_dict",
    "PPOTrainer.load_state_dict",
    "PPOTrainer.episode",
)
@pytest.mark.parametrize("settings", [SEPARATE, SHARED])
def test_an_update_is_the_cpus_and_goes_on_from_a_saved_state(settings: dict[str, Any]) -> None:
    on_cpu = trainer("cpu", **settings)
    expected = [timeless(on_cpu.update(BATCH, 1)) for _ in range(2)]
    with cuda_machine():
        learner = trainer("cuda:1", **settings)
        found = [timeless(learner.update(BATCH, 1))]
        state = learner.state_dict()
        assert {str(one.device) for one in state["policy"].values()} == {"cuda:1"}
        again = trainer("cuda:1", **settings)
        again.load_state_dict(state)
        found.append(timeless(again.update(BATCH, 1)))
        assert again.episode == 2 * len(BATCH)
        assert same_weights(again.weights(), on_cpu.weights())
    for here, there in zip(found, expected, strict=True):
        assert here == {name: pytest.approx(value, rel=2e-3, abs=1e-4) for name, value in there.items()}


@covers("PPOTrainer.update")
def test_bf16_trains_through_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_check, "training_path", lambda *shape: "varlen")
    with cuda_machine():
        found = trainer("cuda", "bfloat16", **SHARED).update(BATCH, 1)
    assert all(math.isfinite(value) for value in found.values()) and found["actor/grad_norm"] > 0


@covers("PPOTrainer.update")
@pytest.mark.parametrize("settings", [SEPARATE, SHARED])
def test_micro_batches_cost_no_waits(settings: dict[str, Any]) -> None:
    waits: dict[int, Counter[str]] = {}
    with cuda_machine() as machine:
        for tokens in (8, 1000):
            learner = trainer("cuda", micro_batch_tokens=tokens, **settings)
            machine.waits.clear()
            learner.update(BATCH, 1)
            waits[tokens] = Counter(machine.waits)
    assert waits[8] == waits[1000]
    # The gradient's norm, of each model that is stepped.
    assert waits[8]["ppo/optimize.py:step"] == (2 if settings is SEPARATE else 1)


ONCE_AN_UPDATE = Counter(
    {
        # Constants that are sent, and metrics that are told.
        "ppo/experience.py:make_batch": 3,
        "ppo/experience.py:make_experience": 4,
        "ppo/experience.py:a_response": 3,
        "ppo/formulas.py:whiten": 1,
        "ppo/trainer.py:_ref_log_probs": 1,
        "ppo/trainer.py:_update_actor": 6,
        "ppo/trainer.py:_policy_metrics": 2,
        "ppo/trainer.py:_value_metrics": 1,
    }
)


@covers("PPOTrainer.update")
@pytest.mark.parametrize("settings", [SEPARATE, SHARED])
def test_an_optimizer_step_costs_one_wait_and_an_update_a_known_number(settings: dict[str, Any]) -> None:
    stepped, stages = (2, 6) if settings is SEPARATE else (1, 5)
    with cuda_machine() as machine:
        for epochs in (2, 3):
            learner = trainer("cuda", num_ppo_epochs=epochs, **settings)
            machine.waits.clear()
            learner.update(BATCH, 1)
            per_step = {"ppo/optimize.py:step": epochs * stepped, "engines/device.py:synchronize": 2 * stages}
            assert machine.waits == ONCE_AN_UPDATE + Counter(per_step)


@covers("PPOTrainer.preallocate")
@pytest.mark.parametrize("critic", ["value_head", "separate"])
def test_memory_is_asked_for_before_the_first_update_and_nothing_is_waited_for(critic: str) -> None:
    with cuda_machine() as machine:
        learner = trainer("cuda:1", critic=critic, num_mini_batches=1)
        machine.waits.clear()
        learner.preallocate(4, 3, 5)
        assert not machine.waits
        assert {str(one.device) for one in learner.weights().values()} == {"cuda:1"}


@covers("PPOTrainer.update", "PPOTrainer.weights")
def test_models_built_on_the_cpu_are_trained_where_they_are_wanted() -> None:
    with cuda_machine():
        policy, reference = (models.build_causal_lm(SMALL, seed) for seed in (0, 2))
        critic = models.build_value_model(SMALL, 3)
        learner = PPOTrainer(policy, reference, critic, PPOConfig(num_mini_batches=1), "cuda:1")
        assert math.isfinite(learner.update(BATCH, 1)["actor/grad_norm"])
        assert {str(one.device) for one in learner.weights().values()} == {"cuda:1"}


def test_seconds_of_a_stage_count_the_work_that_is_queued() -> None:
    with cuda_machine() as machine:
        watch = Stopwatch(torch.device("cuda", 0))
        machine.waits.clear()
        with watch.stage("ref"):
            torch.ones(2, device="cuda").add_(1)
        assert machine.waits == {"engines/device.py:synchronize": 2}
