"""The formulas of PPO against numbers worked out by hand, closed forms, and loops written apart."""

import math
import random

import pytest
import torch

from oppo_real.config import parse_real_config
from oppo_real.ppo.batching import micro_batches, mini_batches, token_positions
from oppo_real.ppo.config import PPOConfig
from oppo_real.ppo.formulas import (
    from_grid,
    generalized_advantages,
    importance_weights,
    kl_estimate,
    policy_losses,
    to_grid,
    value_losses,
    whiten,
)
from oppo_real.ppo.rollout import TrainRollout
from oppo_sim.errors import OppoError


def tensor(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


# ---- advantages --------------------------------------------------------------------------------------------


def test_advantages_by_hand() -> None:
    # One response of 2 tokens, rewards 1 and 2, values 0.5 and 1, gamma 0.9, lam 0.5:
    # delta_1 = 2 - 1 = 1, delta_0 = 1 + 0.9*1 - 0.5 = 1.4, A_1 = 1, A_0 = 1.4 + 0.45*1 = 1.85. A second
    # response of one token: 3 - 4.
    advantages, returns = generalized_advantages(
        tensor(1, 2, 3), tensor(0.5, 1, 4), [2, 1], gamma=0.9, lam=0.5
    )
    assert advantages.tolist() == pytest.approx([1.85, 1.0, -1.0])
    assert returns.tolist() == pytest.approx([2.35, 2.0, 3.0])


def test_advantages_with_lambda_one_are_discounted_rewards_to_go_less_the_value() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = [5, 1, 9, 3]
    rewards, values = torch.randn(2, sum(lengths), generator=generator, dtype=torch.float64)
    advantages, returns = generalized_advantages(rewards, values, lengths, gamma=0.97, lam=1.0)
    expected, start = [], 0
    for length in lengths:
        piece = rewards[start : start + length].tolist()
        expected += [
            sum(0.97 ** (later - now) * piece[later] for later in range(now, length)) for now in range(length)
        ]
        start += length
    assert returns.tolist() == pytest.approx(expected)
    assert (advantages + values).tolist() == pytest.approx(expected)


def test_advantages_with_lambda_zero_are_one_step_errors() -> None:
    rewards, values = tensor(0.1, 0.2, 0.3), tensor(1.0, 2.0, 4.0)
    advantages, _ = generalized_advantages(rewards, values, [3], gamma=0.5, lam=0.0)
    assert advantages.tolist() == pytest.approx([0.1 + 0.5 * 2 - 1, 0.2 + 0.5 * 4 - 2, 0.3 - 4])


def test_a_last_reward_alone_decays_backwards_by_gamma_lambda() -> None:
    advantages, _ = generalized_advantages(
        tensor(0, 0, 0, 1), torch.zeros(4, dtype=torch.float64), [4], gamma=0.9, lam=0.8
    )
    assert advantages.tolist() == pytest.approx([0.72**3, 0.72**2, 0.72, 1.0])


def test_grid_and_flat_are_inverse_and_sums_are_of_single_responses() -> None:
    flat = tensor(1, 2, 3, 4, 5, 6)
    grid = to_grid(flat, [1, 3, 2])
    assert grid.tolist() == [[1, 0, 0], [2, 3, 4], [5, 6, 0]]
    assert torch.equal(from_grid(grid, [1, 3, 2]), flat)


# ---- losses ------------------------------------------------------------------------------------------------


def test_policy_loss_by_hand() -> None:
    # Ratios 1.5 and 0.5, clipped at 0.2 to 1.2 and 0.8; with advantage 1: -min(1.5, 1.2) and -min(0.5, 0.8);
    # with -1: min becomes max.
    new = tensor(math.log(1.5), math.log(0.5), math.log(1.5), math.log(0.5))
    found = policy_losses(new, tensor(0, 0, 0, 0), tensor(1, 1, -1, -1), cliprange=0.2)
    assert found.losses.tolist() == pytest.approx([-1.2, -0.5, 1.5, 0.8])
    assert found.clipped.tolist() == [True, False, False, True]
    weighted = policy_losses(new, tensor(0, 0, 0, 0), tensor(1, 1, -1, -1), 0.2, weights=tensor(2, 0.5, 1, 0))
    assert weighted.losses.tolist() == pytest.approx([-2.4, -0.25, 1.5, 0.0])


def test_clipped_tokens_have_no_gradient_and_the_others_have_the_policy_gradient() -> None:
    new = tensor(math.log(1.5), 0.0).requires_grad_()
    policy_losses(new, tensor(0, 0), tensor(1, 3), 0.2).losses.sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([0.0, -3.0])


def test_value_loss_by_hand() -> None:
    # Old value 0, return 1. Value 0.5: kept near it is 0.2, so 0.5*max(0.25, 0.64). Value -0.5: kept at -0.2,
    # so 0.5*max(2.25, 1.44).
    found = value_losses(tensor(0.5, -0.5, 0.1), tensor(0, 0, 0), tensor(1, 1, 1), cliprange_value=0.2)
    assert found.losses.tolist() == pytest.approx([0.32, 1.125, 0.405])
    assert found.clipped.tolist() == [True, False, False]


def test_losses_agree_with_loops_over_tokens() -> None:
    random.seed(3)
    rows = [[random.gauss(0, 0.5) for _ in range(6)] for _ in range(200)]
    new, old, advantage, value, old_value, ret = (tensor(*column) for column in zip(*rows, strict=True))
    policy = policy_losses(new, old, advantage, 0.15).losses.tolist()
    values = value_losses(value, old_value, ret, 0.3).losses.tolist()
    for index, (n, o, a, v, w, r) in enumerate(rows):
        ratio = math.exp(n - o)
        assert policy[index] == pytest.approx(-min(ratio * a, min(max(ratio, 0.85), 1.15) * a))
        near = min(max(v, w - 0.3), w + 0.3)
        assert values[index] == pytest.approx(max((v - r) ** 2, (near - r) ** 2) / 2)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_kl_estimates_average_to_the_divergence(estimator: str) -> None:
    policy, reference = (
        torch.log_softmax(tensor(0.3, -1.0, 0.8, 0.0), 0),
        torch.log_softmax(tensor(-0.2, 0.1, 0.4, 0.9), 0),
    )
    expected = float((policy.exp() * (policy - reference)).sum())
    tokenwise = kl_estimate(policy, reference, estimator)  # type: ignore[arg-type]
    assert float((policy.exp() * tokenwise).sum()) == pytest.approx(expected)
    assert (tokenwise >= 0).all() == (estimator == "k3")


def test_kl_estimates_by_hand() -> None:
    assert float(kl_estimate(tensor(-1.0), tensor(-1.5), "k1")) == pytest.approx(0.5)
    assert float(kl_estimate(tensor(-1.0), tensor(-1.5), "k3")) == pytest.approx(math.exp(-0.5) - 1 + 0.5)


def test_importance_weights_are_cut_and_carry_no_gradient() -> None:
    old = tensor(math.log(3.0), math.log(0.5), 0.0).requires_grad_()
    weights, cut = importance_weights(old, tensor(0, 0, 0), 2.0)
    assert weights.tolist() == pytest.approx([2.0, 0.5, 1.0])
    assert cut.tolist() == [True, False, False]
    assert not weights.requires_grad
    weights, cut = importance_weights(old, tensor(0, 0, 0), None)
    assert weights.tolist() == [1, 1, 1]
    assert not cut.any()


def test_whitening_looks_at_the_masked_tokens_only() -> None:
    mask = torch.tensor([True, True, True, False])
    whitened = whiten(tensor(1, 2, 3, 1000), mask)
    assert whitened[:3].tolist() == pytest.approx([-1, 0, 1], abs=1e-6)  # unbiased variance of 1, 2, 3 is 1
    assert whiten(tensor(1, 2, 3, 1000), mask, shift_mean=False)[:3].tolist() == pytest.approx(
        [1, 2, 3], abs=1e-6
    )
    assert whiten(tensor(5.0), torch.tensor([True])).tolist() == [0]


# ---- batching ----------------------------------------------------------------------------------------------


def test_micro_batches_hold_everything_once_and_keep_to_their_budget() -> None:
    random.seed(1)
    lengths = [random.randint(1, 60) for _ in range(70)] + [500]
    groups = micro_batches(lengths, 200)
    assert sorted(index for group in groups for index in group) == list(range(71))
    assert groups[0] == [70]  # longer than the budget: alone
    assert all(sum(lengths[index] for index in group) <= 200 for group in groups[1:])


def test_mini_batches_deal_every_rollout_and_differ_between_epochs() -> None:
    first = mini_batches(10, 3, seed=1, update=0, epoch=0)
    assert sorted(index for part in first for index in part) == list(range(10))
    assert sorted(map(len, first)) == [3, 3, 4]
    assert first == mini_batches(10, 3, seed=1, update=0, epoch=0)
    assert (
        len(
            {
                str(mini_batches(10, 3, seed=1, update=update, epoch=epoch))
                for update in range(3)
                for epoch in range(3)
            }
        )
        == 9
    )


def test_token_positions() -> None:
    assert token_positions([2, 0], [2, 1, 3], torch.device("cpu")).tolist() == [3, 4, 5, 0, 1]


# ---- settings and rollouts ---------------------------------------------------------------------------------


def test_defaults_are_those_of_trl() -> None:
    config = PPOConfig()
    trl = {
        "learning_rate": 3e-6, "num_ppo_epochs": 4, "num_mini_batches": 1, "kl_coef": 0.05, "kl_estimator": "k1", "cliprange": 0.2,
        "cliprange_value": 0.2, "vf_coef": 0.1, "gamma": 1.0, "lam": 0.95, "whiten_rewards": False, "temperature": 0.7,
        "missing_eos_penalty": None, "max_grad_norm": 1.0,
    }  # fmt: skip
    assert {name: getattr(config, name) for name in trl} == trl


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cliprnage": 0.2}, "did you mean 'cliprange'"),
        ({"num_ppo_epochs": "4"}, "num_ppo_epochs"),
        ({"kl_estimator": "k2"}, "kl_estimator"),
        ({"carried": "drop"}, "carried"),
        ({"temperature": 0.0}, "temperature"),
        ({"importance_clip": 0.5}, "importance_clip"),
        ({"lr_scheduler_type": "linear"}, "needs total_episodes"),
        (
            {"critic": "value_head", "critic_learning_rate": 1e-4},
            "critic_learning_rate is for critic separate",
        ),
    ],
)
def test_wrong_settings_are_refused_in_one_sentence(settings: dict[str, object], words: str) -> None:
    with pytest.raises(OppoError, match=words) as caught:
        parse_real_config({"ppo": settings})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"log_probs": (-0.1,)}, "1 log_probs for 2 response tokens"),
        ({"weight_versions": (1, 0)}, "weight_versions fall"),
        ({"score": math.nan}, "not finite"),
        ({"response": (), "log_probs": (), "weight_versions": ()}, "at least one token"),
    ],
)
def test_impossible_rollouts_are_refused(changes: dict[str, object], words: str) -> None:
    fields: dict[str, object] = {
        "rollout_id": 3, "prompt": (1,), "response": (2, 3), "log_probs": (-0.5, -0.1), "weight_versions": (0, 1), "score": 1.0,
        "finish_reason": "stop",
    }  # fmt: skip
    with pytest.raises(OppoError, match=f"rollout 3: .*{words}"):
        TrainRollout(**{**fields, **changes})  # type: ignore[arg-type]
