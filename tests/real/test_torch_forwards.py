"""The trainer's packed forwards against unmodified models, values and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from oppo_real.engines.forwards import PromptResponse, micro_batches, response_log_probs, response_values
from oppo_real.engines.interface import Request, Sampling
from oppo_real.engines.torch_actor import TorchActor
from oppo_sim.errors import OppoError
from tests.real.tiny import full_log_probs, random_tokens, single_thread, tiny_actor, tiny_critic

single_thread()


def ragged(count: int = 7, seed: int = 0) -> list[PromptResponse]:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 30, (count, 2), generator=generator).tolist()
    return [
        PromptResponse(random_tokens(generator, prompt), random_tokens(generator, response))
        for prompt, response in sizes
    ]


@pytest.mark.parametrize("max_tokens", [1, 40, 10_000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_and_entropies_equal_one_forward_a_sequence(max_tokens: int, temperature: float) -> None:
    reference: Any = tiny_actor()
    sequences = ragged()
    found = response_log_probs(
        tiny_actor(), sequences, temperature, max_tokens, entropy=True, logit_tokens=11
    )
    assert found.entropies is not None and len(found.log_probs) == len(found.entropies) == len(sequences)
    for sequence, log_probs, entropies in zip(sequences, found.log_probs, found.entropies, strict=True):
        assert not log_probs.requires_grad
        torch.testing.assert_close(
            log_probs,
            full_log_probs(reference, sequence.prompt, sequence.response, temperature),
            atol=1e-4,
            rtol=1e-4,
        )
        ids = torch.tensor([[*sequence.prompt, *sequence.response]])
        with torch.no_grad():
            logits = reference(input_ids=ids).logits[0, len(sequence.prompt) - 1 : -1] / temperature
        expected = torch.distributions.Categorical(logits=logits).entropy()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(entropies, expected, atol=1e-4, rtol=1e-4)


def test_old_log_probs_equal_those_the_actor_sampled_with() -> None:
    engine = TorchActor(tiny_actor(), Sampling(temperature=0.8, seed=3))
    prompts = [sequence.prompt for sequence in ragged(5, seed=4)]
    engine.submit([Request(i, tuple(prompt), 15) for i, prompt in enumerate(prompts)])
    tokens: dict[int, list[int]] = {i: [] for i in range(5)}
    behaviour: dict[int, list[float]] = {i: [] for i in range(5)}
    while made := engine.step():
        for new in made:
            tokens[new.rollout_id].extend(new.tokens)
            behaviour[new.rollout_id].extend(new.log_probs)
    found = response_log_probs(
        tiny_actor(), [PromptResponse(prompts[i], tokens[i]) for i in range(5)], temperature=0.8
    ).log_probs
    for i in range(5):
        torch.testing.assert_close(found[i], torch.tensor(behaviour[i]), atol=1e-4, rtol=1e-4)


def test_values_are_read_before_each_response_token() -> None:
    reference: Any = tiny_critic()
    sequences = ragged(6, seed=1)
    for sequence, values in zip(
        sequences, response_values(tiny_critic(), sequences, max_tokens=64), strict=True
    ):
        ids = torch.tensor([[*sequence.prompt, *sequence.response]])
        with torch.no_grad():
            expected = reference.score(reference.model(input_ids=ids).last_hidden_state[0]).squeeze(1)
        torch.testing.assert_close(values, expected[len(sequence.prompt) - 1 : -1], atol=1e-4, rtol=1e-4)


def test_gradients_equal_those_of_unpacked_forwards() -> None:
    sequences = ragged(5, seed=2)
    packed, plain = tiny_actor(3), tiny_actor(3)
    found = response_log_probs(packed, sequences, 0.9, entropy=True, grad=True, logit_tokens=9)
    assert found.entropies is not None
    loss = sum((log_probs.sum() for log_probs in found.log_probs), torch.zeros(()))
    loss = loss + 0.3 * sum((entropies.sum() for entropies in found.entropies), torch.zeros(()))
    loss.backward()  # type: ignore[no-untyped-call]
    for sequence in sequences:
        ids = torch.tensor([[*sequence.prompt, *sequence.response]])
        log_all = (plain(input_ids=ids).logits[0, len(sequence.prompt) - 1 : -1] / 0.9).log_softmax(-1)
        chosen = log_all.gather(1, torch.tensor(list(sequence.response)).unsqueeze(1)).sum()
        (chosen - 0.3 * (log_all.exp() * log_all).sum()).backward()
    largest = max(
        float(parameter.grad.abs().max()) for parameter in plain.parameters() if parameter.grad is not None
    )
    for (name, ours), theirs in zip(packed.named_parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None, name
        torch.testing.assert_close(ours.grad, theirs.grad, atol=2e-5 * largest, rtol=1e-3)


def test_critic_gradients_flow_through_micro_batches() -> None:
    sequences = ragged(6, seed=5)
    whole, parts = tiny_critic(4), tiny_critic(4)
    torch.cat(response_values(whole, sequences, grad=True)).pow(2).sum().backward()  # type: ignore[no-untyped-call]
    for batch in micro_batches(sequences, 50):
        torch.cat(response_values(parts, [sequences[i] for i in batch], grad=True)).pow(2).sum().backward()  # type: ignore[no-untyped-call]
    for ours, theirs in zip(parts.parameters(), whole.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-3, rtol=1e-3)


def test_micro_batches_keep_order_and_size() -> None:
    sequences = ragged(20, seed=6)
    lengths = [len(sequence.prompt) + len(sequence.response) for sequence in sequences]
    batches = micro_batches(sequences, 60)
    assert [number for batch in batches for number in batch] == list(range(20))
    assert all(sum(lengths[number] for number in batch) <= 60 or len(batch) == 1 for batch in batches)
    assert len(micro_batches(sequences, 1)) == 20


def test_what_cannot_be_computed_is_refused() -> None:
    model = tiny_actor()
    with pytest.raises(OppoError, match="Sequence 1 has an empty response"):
        response_log_probs(model, [PromptResponse((1,), (2,)), PromptResponse((1,), ())])
    with pytest.raises(OppoError, match="temperature"):
        response_log_probs(model, ragged(1), temperature=-1)
    with pytest.raises(OppoError, match="values a token"):
        response_values(model, ragged(1))
    with pytest.raises(OppoError, match="max_tokens"):
        micro_batches(ragged(1), 0)
    assert response_log_probs(model, []).log_probs == [] and response_values(tiny_critic(), []) == []
