"""The trainer: one update against a loop written apart, what carried rollouts do, restarts, and what is
refused."""

import copy
import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from oppo_real.ppo.config import PPOConfig
from oppo_real.ppo.formulas import TokenLosses, policy_losses
from oppo_real.ppo.forward import policy_outputs, state_values
from oppo_real.ppo.rollout import TokenRow, TrainRollout
from oppo_real.ppo.trainer import PPOTrainer
from oppo_real.task.tiny import critic_from, new_actor, new_classifier, tiny_config
from oppo_sim.columns import timing
from oppo_sim.errors import OppoError

Weights = dict[str, torch.Tensor]
TEMPERATURE = 0.8


@pytest.fixture(autouse=True)
def _single_thread() -> None:
    torch.set_num_threads(1)


def config(**changes: Any) -> PPOConfig:
    return PPOConfig(
        **{"learning_rate": 1e-3, "temperature": TEMPERATURE, "kl_coef": 0.1, "num_ppo_epochs": 1, **changes}
    )


def small_config() -> Any:
    return tiny_config(hidden_size=32, initializer_range=0.2)


def tokens(generator: torch.Generator, count: int) -> tuple[int, ...]:
    return tuple(torch.randint(3, 30, (count,), generator=generator).tolist())


def log_probs_of(model: torch.nn.Module, prompt: Sequence[int], response: Sequence[int]) -> torch.Tensor:
    """One row, nothing padded, the model's own logits."""
    row = torch.tensor([[*prompt, *response]])
    logits = model(input_ids=row).logits[0, len(prompt) - 1 : -1] / TEMPERATURE
    return torch.log_softmax(logits, -1).gather(1, row[0, len(prompt) :, None]).squeeze(1)


def batch(
    policy: torch.nn.Module, lengths: Sequence[int] = (5, 2, 9, 4), version: int = 0
) -> list[TrainRollout]:
    """On-policy rollouts with made-up tokens and scores."""
    generator = torch.Generator().manual_seed(5)
    found = []
    for index, length in enumerate(lengths):
        row = TokenRow(tokens(generator, 2 + index), tokens(generator, length))
        with torch.no_grad():
            log_probs = log_probs_of(policy, row.prompt, row.response)
        score = float(torch.randn((), generator=generator))
        found.append(
            TrainRollout(
                index,
                row.prompt,
                row.response,
                tuple(log_probs.tolist()),
                (version,) * length,
                score,
                "length" if index == 1 else "stop",
            )
        )
    return found


def carried_batch(policy: torch.nn.Module, version: int = 2) -> list[TrainRollout]:
    """Rollout 0 is all older, rollout 2 half: their older tokens came from weights that gave them other
    probabilities."""
    found = batch(policy, version=version)
    found[0] = _older(found[0], 5, version)
    found[2] = _older(found[2], 4, version)
    return found


def _older(rollout: TrainRollout, count: int, version: int) -> TrainRollout:
    shift = [0.4 if position % 2 else -0.9 for position in range(count)]
    log_probs = (
        tuple(min(one + change, -1e-3) for one, change in zip(rollout.log_probs, shift, strict=False))
        + rollout.log_probs[count:]
    )
    return replace(
        rollout, log_probs=log_probs, weight_versions=(version - 1,) * count + rollout.weight_versions[count:]
    )


def trainer(settings: PPOConfig, policy: Any = None) -> PPOTrainer:
    policy = policy or new_actor(0, small_config())
    critic = new_classifier(3, small_config()) if settings.critic == "separate" else None
    if critic is not None:
        torch.nn.init.normal_(critic.score.weight, std=0.1, generator=torch.Generator().manual_seed(2))
    return PPOTrainer(policy, new_actor(1, small_config()), critic, settings)


def change_of(
    settings: PPOConfig, rollouts: Sequence[TrainRollout], version: int, **others: Any
) -> tuple[Weights, dict[str, float]]:
    """By how much one update moves the policy's weights."""
    made = trainer(settings, **others)
    before = {name: tensor.clone() for name, tensor in made.weights().items()}
    found = made.update(rollouts, version)
    return {name: tensor - before[name] for name, tensor in made.weights().items()}, found


def distance(one: Weights, other: Weights) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def plain_gradient(
    policy: Any, reference: Any, critic: Any, rollouts: Sequence[TrainRollout], settings: PPOConfig
) -> tuple[Weights, float]:
    """Gradient and loss of the first step on policy, rollout by rollout and token by token, with the models'
    own logits."""
    rows, advantages = [], []
    for rollout in rollouts:
        with torch.no_grad():
            ref = log_probs_of(reference, rollout.prompt, rollout.response).tolist()
            hidden = critic.model(
                input_ids=torch.tensor([[*rollout.prompt, *rollout.response]])
            ).last_hidden_state[0]
            values = critic.score(hidden)[len(rollout.prompt) - 1 : -1, 0].tolist()
        score = rollout.score - (settings.missing_eos_penalty or 0.0) * (rollout.finish_reason == "length")
        rewards = [
            -settings.kl_coef * (own - other) for own, other in zip(rollout.log_probs, ref, strict=True)
        ]
        rewards[-1] += score
        following, next_value, found = 0.0, 0.0, []
        for reward, value in zip(reversed(rewards), reversed(values), strict=True):
            following = (
                reward + settings.gamma * next_value - value + settings.gamma * settings.lam * following
            )
            next_value = value
            found.append(following)
        rows.append(rollout)
        advantages.append(found[::-1])
    flat = [one for row in advantages for one in row]
    mean = sum(flat) / len(flat)
    deviation = math.sqrt(sum((one - mean) ** 2 for one in flat) / (len(flat) - 1) + 1e-8)
    losses = []
    for rollout, row in zip(rows, advantages, strict=True):
        new = log_probs_of(policy, rollout.prompt, rollout.response)
        for log_prob, old, advantage in zip(new, rollout.log_probs, row, strict=True):
            ratio = torch.exp(log_prob - old)
            white = (advantage - mean) / deviation
            losses.append(
                -torch.minimum(
                    ratio * white, ratio.clamp(1 - settings.cliprange, 1 + settings.cliprange) * white
                )
            )
    loss = torch.stack(losses).mean()
    policy.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in policy.named_parameters()}, float(
        loss.detach()
    )


class GradientOf:
    """Sees the gradients of a policy before its weights move."""

    def __init__(self, made: PPOTrainer, policy: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[Weights] = []
        step = made._actor_stepper.step

        def seen() -> float:
            self.steps.append(
                {
                    name: parameter.grad.clone()
                    for name, parameter in policy.named_parameters()
                    if parameter.grad is not None
                }
            )
            return step()

        monkeypatch.setattr(made._actor_stepper, "step", seen)


@pytest.mark.parametrize("micro_batch_tokens", [12, 10_000])
def test_gradient_is_that_of_a_plain_loop(micro_batch_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(
        micro_batch_tokens=micro_batch_tokens, missing_eos_penalty=0.7, gamma=0.98, max_grad_norm=None
    )
    policy = new_actor(0, small_config())
    rollouts = batch(policy)
    made = trainer(settings, policy)
    seen = GradientOf(made, policy, monkeypatch)
    twin, critic = new_actor(0, small_config()), new_classifier(3, small_config())
    assert made._critic is not None
    critic.load_state_dict(made._critic.state_dict())  # a copy would have packed attention
    expected, loss = plain_gradient(twin, new_actor(1, small_config()), critic, rollouts, settings)
    found = made.update(rollouts, 0)
    assert distance(seen.steps[0], expected) < 1e-5
    assert max(float(tensor.abs().max()) for tensor in expected.values()) > 1e-2
    assert found["loss/policy_avg"] == pytest.approx(loss, abs=1e-5)
    assert found["val/ratio"] == pytest.approx(1, abs=1e-5)


def test_micro_batches_do_not_change_what_a_value_head_learns() -> None:
    found = []
    for micro_batch_tokens in (12, 10_000):
        settings = config(
            critic="value_head", micro_batch_tokens=micro_batch_tokens, num_ppo_epochs=2, num_mini_batches=2
        )
        made = trainer(settings)
        seen = [made.update(batch(new_actor(0, small_config())), step) for step in range(2)]
        found.append((made.state_dict(), seen))
    (small, metrics), (whole, also) = found
    assert distance(small["policy"], whole["policy"]) < 1e-5
    assert distance(small["critic"], whole["critic"]) < 1e-5
    assert float(whole["critic"]["weight"].abs().max()) > 0
    for one, other in zip(metrics, also, strict=True):
        assert one["loss/value_avg"] == pytest.approx(other["loss/value_avg"], abs=1e-5)


def in_float64(model: Any) -> Any:
    """A model whose norms keep float64 too; transformers' own round to float32, which no finite difference
    survives."""
    for module in model.double().modules():
        if type(module).__name__ == "Qwen2RMSNorm":
            module.forward = functools.partial(_norm, module)
    return model


def _norm(norm: Any, states: torch.Tensor) -> torch.Tensor:
    scaled = states * torch.rsqrt(states.square().mean(-1, keepdim=True) + norm.variance_epsilon)
    return scaled * norm.weight


def test_gradient_agrees_with_finite_differences_of_the_loss() -> None:
    # In float64 a central difference over 2·10⁻⁵ is off by about 10⁻¹⁰ (the loss's third derivative) and
    # 10⁻¹¹ (rounding): 10⁻⁶ leaves room for a loss that bends more, and none for a wrong term.
    policy = in_float64(new_actor(0, small_config()))
    rows = [rollout.row for rollout in batch(new_actor(0, small_config()))]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        old = policy_outputs(policy, rows, TEMPERATURE).log_probs
    assert old.dtype == torch.float64
    # Some tokens are clipped, and none lies where the loss has a corner.
    old = old + 0.3 * torch.randn(old.shape, generator=generator, dtype=torch.float64)
    advantages = torch.randn(old.shape, generator=generator, dtype=torch.float64)

    def loss() -> TokenLosses:
        return policy_losses(policy_outputs(policy, rows, TEMPERATURE).log_probs, old, advantages, 0.2)

    first = loss()
    assert 0 < int(first.clipped.sum()) < len(old)
    first.losses.sum().backward()  # type: ignore[no-untyped-call]
    step = 1e-5
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None
        place = int(parameter.grad.abs().argmax())
        sides = []
        for change in (step, -step):
            with torch.no_grad():
                parameter.view(-1)[place] += change
                sides.append(float(loss().losses.sum()))
                parameter.view(-1)[place] -= change
        slope = float(parameter.grad.view(-1)[place])
        assert (sides[0] - sides[1]) / (2 * step) == pytest.approx(slope, rel=1e-6), name


def test_a_float64_policy_is_trained_in_float64() -> None:
    models = [new_actor(0, small_config()), new_actor(1, small_config()), new_classifier(3, small_config())]
    made = PPOTrainer(*[in_float64(model) for model in models], config(carried="recompute", num_ppo_epochs=2))
    found = made.update(carried_batch(new_actor(0, small_config())), 2)
    assert all(tensor.dtype == torch.float64 for tensor in made.weights().values())
    single = trainer(config(carried="recompute", num_ppo_epochs=2))
    also = single.update(carried_batch(new_actor(0, small_config())), 2)
    assert found["objective/kl"] == pytest.approx(also["objective/kl"], rel=1e-4)


# ---- what is reported --------------------------------------------------------------------------------------


def test_metrics_by_hand() -> None:
    settings = config(missing_eos_penalty=0.5)
    policy = new_actor(0, small_config())
    rollouts = batch(policy)
    reference = new_actor(1, small_config())
    found = trainer(settings, policy).update(rollouts, 0)
    with torch.no_grad():
        kl = [
            sum(one.log_probs) - float(log_probs_of(reference, one.prompt, one.response).sum())
            for one in rollouts
        ]
    scores = [one.score - 0.5 * (one.finish_reason == "length") for one in rollouts]
    assert found["objective/kl"] == pytest.approx(sum(kl) / 4, rel=1e-4)
    assert found["objective/non_score_reward"] == pytest.approx(-0.1 * sum(kl) / 4, rel=1e-4)
    assert found["objective/scores"] == pytest.approx(sum(scores) / 4, rel=1e-5)
    assert found["objective/rlhf_reward"] == pytest.approx(sum(scores) / 4 - 0.1 * sum(kl) / 4, rel=1e-4)
    assert found["objective/entropy"] == pytest.approx(
        -sum(sum(one.log_probs) for one in rollouts) / 4, rel=1e-5
    )
    assert found["val/num_eos_tokens"] == 3
    assert found["episode"] == 4
    assert found["lr"] == 1e-3
    assert found["policy/approxkl_avg"] == pytest.approx(0, abs=1e-9)
    assert 0 < found["policy/entropy_avg"] < math.log(34)
    assert found["eps"] > 0


def test_ratio_variance_is_over_optimizer_steps() -> None:
    found = trainer(config(num_ppo_epochs=3, num_mini_batches=2, learning_rate=5e-3)).update(
        batch(new_actor(0, small_config())), 0
    )
    assert found["val/ratio_var"] > 0
    assert found["policy/clipfrac_avg"] > 0
    assert found["policy/approxkl_avg"] > 0


@pytest.mark.parametrize(
    ("changes", "idle"),
    [
        ({}, {"old_log_prob"}),
        ({"carried": "recompute"}, set()),
        ({"critic": "value_head"}, {"old_log_prob", "update_critic"}),
        ({"critic": "value_head", "carried": "recompute"}, {"update_critic", "values"}),
    ],
)
def test_stage_times_are_those_of_the_stages_that_ran(changes: dict[str, Any], idle: set[str]) -> None:
    found = trainer(config(**changes)).update(batch(new_actor(0, small_config())), 0)
    stages = {"old_log_prob", "ref", "values", "adv", "update_critic", "update_actor"}
    assert {name for name in found if name.startswith("timing_s/")} == {timing(stage) for stage in stages}
    for stage in stages:
        assert (found[timing(stage)] < 1e-3) if stage in idle else (found[timing(stage)] > 1e-5), stage


def test_learning_rate_falls_linearly_with_trained_rollouts() -> None:
    made = trainer(config(lr_scheduler_type="linear", total_episodes=16))
    rollouts = batch(new_actor(0, small_config()))
    assert [made.update(rollouts, version)["lr"] for version in range(5)] == pytest.approx(
        [1e-3, 7.5e-4, 5e-4, 2.5e-4, 0]
    )


# ---- carried rollouts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("critic", ["separate", "value_head"])
def test_the_ways_to_treat_carried_rollouts_agree_on_policy(critic: str) -> None:
    rollouts = batch(new_actor(0, small_config()))
    changes, found = zip(
        *(
            change_of(
                config(carried=carried, critic=critic, num_ppo_epochs=2, num_mini_batches=2), rollouts, 0
            )
            for carried in ("behaviour", "recompute", "mask")
        ),
        strict=True,
    )
    # Adam divides by the gradient's size, so single weights with hardly any gradient follow rounding: compare
    # the loss as well.
    scale = max(float(tensor.abs().max()) for tensor in changes[0].values())
    for change, metrics in zip(changes[1:], found[1:], strict=True):
        assert distance(change, changes[0]) < 0.05 * scale
        assert metrics["loss/policy_avg"] == pytest.approx(found[0]["loss/policy_avg"], abs=1e-5)
        assert metrics["loss/value_avg"] == pytest.approx(found[0]["loss/value_avg"], rel=1e-4)
    for metrics in found:
        assert metrics["carried/importance_mean"] == pytest.approx(1, abs=1e-5)
        assert metrics["carried/importance_max"] == pytest.approx(1, abs=1e-5)
        assert metrics["carried/token_ratio"] == 0


def test_first_gradient_is_the_same_on_policy_in_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = []
    for carried in ("behaviour", "recompute", "mask"):
        policy = new_actor(0, small_config())
        made = trainer(config(carried=carried, max_grad_norm=None), policy)
        seen = GradientOf(made, policy, monkeypatch)
        made.update(batch(new_actor(0, small_config())), 0)
        gradients.append(seen.steps[0])
    assert distance(gradients[1], gradients[0]) < 1e-6
    assert distance(gradients[2], gradients[0]) < 1e-6


def test_masked_tokens_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other stored log-probabilities of the older tokens leave every gradient as it was; without a mask they
    # do not.
    for carried, same in (("mask", True), ("behaviour", False)):
        gradients = []
        for shift in (0.0, -0.3):
            policy = new_actor(0, small_config())
            rollouts = carried_batch(policy)
            older = [one.weight_versions.count(1) for one in rollouts]
            changed = [
                replace(
                    one,
                    log_probs=tuple(
                        value + shift * (position < count) for position, value in enumerate(one.log_probs)
                    ),
                )
                for one, count in zip(rollouts, older, strict=True)
            ]
            made = trainer(config(carried=carried, kl_coef=0.0, max_grad_norm=None), policy)
            seen = GradientOf(made, policy, monkeypatch)
            found = made.update(changed, 2)
            gradients.append(seen.steps[0])
        assert found["carried/token_ratio"] == pytest.approx(9 / 20)
        assert found["carried/masked_ratio"] == pytest.approx(9 / 20 if same else 0)
        assert (distance(*gradients) == 0) == same


def test_a_batch_of_older_tokens_alone_teaches_nothing_when_masked() -> None:
    made = trainer(config(carried="mask"))
    made.update(batch(new_actor(0, small_config())), 0)  # so that the optimizer has momentum
    before = {name: tensor.clone() for name, tensor in made.weights().items()}
    found = made.update(batch(new_actor(0, small_config())), 1)
    assert all(torch.equal(before[name], tensor) for name, tensor in made.weights().items())
    assert found["carried/masked_ratio"] == 1
    assert found["loss/policy_avg"] == 0


def test_older_tokens_are_weighted_by_how_much_likelier_the_weights_at_the_start_make_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The decoupled objective: with one mini-batch, stored log-probabilities give what recomputing and
    weighting gives."""
    gradients, found = [], []
    for carried in ("behaviour", "recompute"):
        policy = new_actor(0, small_config())
        rollouts = carried_batch(policy)
        made = trainer(
            config(carried=carried, kl_coef=0.0, importance_clip=1.8, num_ppo_epochs=2, max_grad_norm=None),
            policy,
        )
        seen = GradientOf(made, policy, monkeypatch)
        found.append(made.update(rollouts, 2))
        gradients.append(seen.steps[0])
    assert distance(*gradients) < 1e-5
    with torch.no_grad():
        ratios = [
            math.exp(now - then)
            for one in carried_batch(new_actor(0, small_config()))
            for now, then in zip(
                log_probs_of(new_actor(0, small_config()), one.prompt, one.response).tolist(),
                one.log_probs,
                strict=True,
            )
        ]
    for metrics in found:
        assert metrics["carried/importance_mean"] == pytest.approx(
            sum(min(ratio, 1.8) for ratio in ratios) / len(ratios), rel=1e-4
        )
        assert metrics["carried/importance_max"] == pytest.approx(1.8)
        assert metrics["carried/importance_clip_ratio"] == pytest.approx(
            sum(ratio > 1.8 for ratio in ratios) / len(ratios)
        )


def test_without_correction_the_ratio_is_against_the_stored_log_probabilities() -> None:
    policy = new_actor(0, small_config())
    rollouts = carried_batch(policy)
    _, found = change_of(config(importance_clip=None, kl_coef=0.0), rollouts, 2, policy=policy)
    with torch.no_grad():
        fresh = new_actor(0, small_config())
        moved = [
            log_probs_of(fresh, one.prompt, one.response) - torch.tensor(one.log_probs) for one in rollouts
        ]
    assert found["val/ratio"] == pytest.approx(float(torch.cat(moved).exp().mean()), rel=1e-4)
    assert found["carried/importance_max"] == 1


# ---- restarts and hand-over --------------------------------------------------------------------------------


@pytest.mark.parametrize("critic", ["separate", "value_head"])
def test_the_next_update_after_a_restart_is_the_same_to_the_last_bit(critic: str, tmp_path: Any) -> None:
    settings = config(critic=critic, num_ppo_epochs=2, num_mini_batches=2)
    rollouts = batch(new_actor(0, small_config()))
    made = trainer(settings)
    made.update(rollouts, 0)
    torch.save(made.state_dict(), tmp_path / "state.pt")
    restarted = trainer(settings, new_actor(8, small_config()))
    restarted.load_state_dict(torch.load(tmp_path / "state.pt"))
    one, other = made.update(rollouts, 1), restarted.update(rollouts, 1)
    clocks = ("timing_s/", "eps")
    assert {name: value for name, value in one.items() if not name.startswith(clocks)} == {
        name: value for name, value in other.items() if not name.startswith(clocks)
    }
    assert all(torch.equal(tensor, restarted.weights()[name]) for name, tensor in made.weights().items())
    assert restarted.episode == 8
    assert restarted.state_dict()["updates"] == 2


@pytest.mark.parametrize("critic", ["value_head", "separate"])
@pytest.mark.parametrize("room", [4, 11, 16384])
def test_asking_for_memory_before_changes_nothing(critic: str, room: int) -> None:
    settings = config(critic=critic, micro_batch_tokens=room)
    trainers = [trainer(settings), trainer(settings)]
    before = torch.get_rng_state()
    trainers[1].preallocate(3, 2, 6)
    assert torch.equal(torch.get_rng_state(), before)
    rollouts = batch(new_actor(0, small_config()))
    first, second = (
        {name: number for name, number in made.update(rollouts, 0).items() if "timing" not in name}
        for made in trainers
    )
    del first["eps"], second["eps"]
    assert first == second
    one, other = (made.weights() for made in trainers)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_largest_micro_batch_without_memory_is_told_before_the_first_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    made = trainer(config())
    monkeypatch.setattr("oppo_real.ppo.trainer.policy_outputs", full)
    with pytest.raises(OppoError, match="no memory on cpu to train 3 rollouts of 8 tokens at once"):
        made.preallocate(3, 2, 6)


def test_a_saved_state_does_not_change_afterwards() -> None:
    made = trainer(config())
    state = made.state_dict()
    kept = copy.deepcopy(state["policy"])
    made.update(batch(new_actor(0, small_config())), 0)
    assert all(torch.equal(kept[name], tensor) for name, tensor in state["policy"].items())


def test_weights_fit_an_actor_and_name_a_tied_head() -> None:
    tied = tiny_config(hidden_size=32, tie_word_embeddings=True)
    made = PPOTrainer(new_actor(0, tied), new_actor(1, tied), new_classifier(2, tied), config())
    weights = made.weights()
    assert "lm_head.weight" in weights
    actor = new_actor(5, tied)
    actor.load_state_dict(weights)
    assert torch.equal(actor.lm_head.weight, weights["lm_head.weight"])


def test_reference_log_probabilities_of_the_scorer_replace_the_forward() -> None:
    policy, reference = new_actor(0, small_config()), new_actor(1, small_config())
    rollouts = batch(policy)
    plain = trainer(config(), policy).update(rollouts, 0)
    with torch.no_grad():
        known = [
            replace(one, ref_log_probs=tuple(log_probs_of(reference, one.prompt, one.response).tolist()))
            for one in rollouts
        ]
    for given in (known, [*known[:2], *rollouts[2:]]):
        found = trainer(config()).update(given, 0)
        assert found["objective/kl"] == pytest.approx(plain["objective/kl"], rel=1e-5)
        assert found["loss/policy_avg"] == pytest.approx(plain["loss/policy_avg"], abs=1e-5)


def test_a_critic_made_from_the_actor_starts_at_value_zero() -> None:
    actor = new_actor(0, small_config())
    critic = critic_from(actor, 4)
    values = state_values(critic, critic.score, [TokenRow((1, 4), (5, 6, 7))])
    assert values.tolist() == [0, 0, 0]
    assert torch.equal(critic.model.layers[1].mlp.up_proj.weight, actor.model.layers[1].mlp.up_proj.weight)


# ---- what is refused ---------------------------------------------------------------------------------------


def test_models_that_do_not_fit_the_settings_are_refused() -> None:
    policy, critic = new_actor(0, small_config()), new_classifier(3, small_config())
    three_labels = copy.deepcopy(critic)
    three_labels.score = torch.nn.Linear(32, 3)
    for arguments, words in (
        ((policy, None, critic, config()), "kl_coef 0.1 needs a reference model"),
        ((policy, policy, critic, config()), "the reference model is the policy itself"),
        ((policy, new_actor(1, small_config()), None, config()), "critic separate needs a critic model"),
        (
            (policy, new_actor(1, small_config()), critic, config(critic="value_head")),
            "takes no critic model",
        ),
        ((policy, new_actor(1, small_config()), policy, config()), "has no score head"),
        ((policy, new_actor(1, small_config()), three_labels, config()), "gives 3 numbers a token"),
        ((critic, new_actor(1, small_config()), critic, config()), "has no output embeddings"),
    ):
        with pytest.raises(OppoError, match=words):
            PPOTrainer(*arguments)
    PPOTrainer(policy, None, critic, config(kl_coef=0.0))


def test_batches_that_cannot_be_trained_are_refused_and_leave_the_weights() -> None:
    made = trainer(config(num_mini_batches=2))
    before = {name: tensor.clone() for name, tensor in made.weights().items()}
    rollouts = batch(new_actor(0, small_config()), version=1)
    for given, version, words in (
        (rollouts[:1], 1, "cannot fill num_mini_batches 2"),
        ([rollouts[0], rollouts[0]], 1, "occurs twice"),
        (rollouts, 0, "weight version 1, but version 0"),
        ([replace(one, score=1e38 * (-1) ** one.rollout_id) for one in rollouts], 1, "not finite"),
    ):
        with pytest.raises(OppoError, match=words):
            made.update(given, version)
    assert all(torch.equal(before[name], tensor) for name, tensor in made.weights().items())


def test_states_that_do_not_fit_are_refused() -> None:
    state = trainer(config()).state_dict()
    with pytest.raises(OppoError, match="has format 'other'"):
        trainer(config()).load_state_dict({**state, "format": "other"})
    with pytest.raises(OppoError, match="critic separate, the settings say value_head"):
        trainer(config(critic="value_head")).load_state_dict(state)
    wide = tiny_config(hidden_size=64)
    with pytest.raises(OppoError, match="models of another shape"):
        PPOTrainer(new_actor(0, wide), new_actor(1, wide), new_classifier(2, wide), config()).load_state_dict(
            state
        )


def test_a_model_that_changes_its_logits_behind_the_head_is_refused() -> None:
    policy = new_actor(0, small_config())
    policy.register_forward_hook(
        lambda _module, _args, output: setattr(output, "logits", 3 * torch.tanh(output.logits / 3))
    )
    with pytest.raises(OppoError, match="computes something else with packed attention"):
        trainer(config(), policy)
