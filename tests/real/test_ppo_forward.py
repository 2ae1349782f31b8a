"""The trainer's packed forwards against unmodified models of transformers, one sequence at a time: values and
gradients."""

from typing import Any

import pytest
import torch

from oppo_real.engines.interface import Request, Sampling
from oppo_real.engines.torch_actor import TorchActor
from oppo_real.ppo import forward
from oppo_real.ppo.forward import policy_outputs, state_values
from oppo_real.ppo.rollout import TokenRow
from tests.real.tiny import full_log_probs, random_tokens, single_thread, tiny_actor, tiny_critic

single_thread()


def ragged(count: int = 7, seed: int = 0) -> list[TokenRow]:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 30, (count, 2), generator=generator).tolist()
    return [
        TokenRow(random_tokens(generator, prompt), random_tokens(generator, response))
        for prompt, response in sizes
    ]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_and_entropies_equal_one_forward_a_sequence(
    grad: bool, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "_LOGIT_ROWS", 11)
    reference: Any = tiny_actor()
    rows = ragged()
    with torch.set_grad_enabled(grad):
        found = policy_outputs(tiny_actor(), rows, temperature)
    assert found.log_probs.requires_grad == grad and not found.entropies.requires_grad
    expected = [full_log_probs(reference, row.prompt, row.response, temperature) for row in rows]
    torch.testing.assert_close(found.log_probs, torch.cat(expected), atol=1e-4, rtol=1e-4)
    entropies = []
    for row in rows:
        with torch.no_grad():
            logits = reference(input_ids=torch.tensor([row.prompt + row.response])).logits[0]
        logits = logits[len(row.prompt) - 1 : -1] / temperature
        entropies.append(torch.distributions.Categorical(logits=logits).entropy())  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found.entropies, torch.cat(entropies), atol=1e-4, rtol=1e-4)


def test_old_log_probs_equal_those_the_actor_sampled_with() -> None:
    engine = TorchActor(tiny_actor(), Sampling(temperature=0.8, seed=3))
    prompts = [row.prompt for row in ragged(5, seed=4)]
    engine.submit([Request(i, prompt, 15) for i, prompt in enumerate(prompts)])
    tokens: dict[int, list[int]] = {i: [] for i in range(5)}
    behaviour: dict[int, list[float]] = {i: [] for i in range(5)}
    while made := engine.step():
        for new in made:
            tokens[new.rollout_id].extend(new.tokens)
            behaviour[new.rollout_id].extend(new.log_probs)
    rows = [TokenRow(prompts[i], tuple(tokens[i])) for i in range(5)]
    found = policy_outputs(tiny_actor(), rows, temperature=0.8).log_probs
    sampled = torch.tensor([one for i in range(5) for one in behaviour[i]])
    torch.testing.assert_close(found, sampled, atol=1e-4, rtol=1e-4)


def test_values_are_read_before_each_response_token() -> None:
    reference: Any = tiny_critic()
    critic: Any = tiny_critic()
    rows = ragged(6, seed=1)
    expected = []
    for row in rows:
        with torch.no_grad():
            hidden = reference.model(input_ids=torch.tensor([row.prompt + row.response])).last_hidden_state
        expected.append(reference.score(hidden[0]).squeeze(1)[len(row.prompt) - 1 : -1])
    found = state_values(critic, critic.score, rows)
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-4, rtol=1e-4)
    # A value head on the policy reads the same states as the logits do.
    actor, head = tiny_actor(), torch.nn.Linear(64, 1)
    outputs = policy_outputs(actor, rows, 1.0, head)
    assert outputs.values is not None
    torch.testing.assert_close(outputs.values, state_values(actor, head, rows), atol=1e-6, rtol=1e-6)


def test_gradients_equal_those_of_unpacked_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "_LOGIT_ROWS", 9)
    rows = ragged(5, seed=2)
    packed: Any = tiny_actor(3)
    plain: Any = tiny_actor(3)
    policy_outputs(packed, rows, 0.9).log_probs.sum().backward()
    for row in rows:
        ids = torch.tensor([row.prompt + row.response])
        log_all = (plain(input_ids=ids).logits[0, len(row.prompt) - 1 : -1] / 0.9).log_softmax(-1)
        log_all.gather(1, torch.tensor(row.response).unsqueeze(1)).sum().backward()
    gradients_agree(packed, plain)


def test_critic_gradients_equal_those_of_unpacked_forwards() -> None:
    rows = ragged(6, seed=5)
    packed: Any = tiny_critic(4)
    plain: Any = tiny_critic(4)
    state_values(packed, packed.score, rows).pow(2).sum().backward()
    for row in rows:
        hidden = plain.model(input_ids=torch.tensor([row.prompt + row.response])).last_hidden_state[0]
        plain.score(hidden[len(row.prompt) - 1 : -1]).pow(2).sum().backward()
    gradients_agree(packed, plain)


def gradients_agree(packed: torch.nn.Module, plain: torch.nn.Module) -> None:
    largest = max(float(one.grad.abs().max()) for one in plain.parameters() if one.grad is not None)
    for (name, ours), theirs in zip(packed.named_parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None, name
        torch.testing.assert_close(ours.grad, theirs.grad, atol=2e-5 * largest, rtol=1e-3)
