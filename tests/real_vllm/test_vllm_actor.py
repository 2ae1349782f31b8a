"""The vLLM actor in lock-step, against transformers and against itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oppo_real.engines.interface import Request, Sampling
from oppo_sim.errors import OppoError

from .conftest import causal_model
from .drive import QUIET, finish, forced, gather, greedy, prompt

pytestmark = [pytest.mark.filterwarnings(one) for one in QUIET]


ENGINE_ARGS = {"enforce_eager": True, "kv_cache_memory_bytes": 1 << 24, "block_size": 32}


def start(folder: Path, sampling: Sampling, **changes: Any) -> Any:
    from oppo_real.engines.vllm_actor import VllmActor

    arguments = {**ENGINE_ARGS, **changes.pop("engine_args", {})}
    if "kv_capacity_tokens" in changes:
        del arguments["kv_cache_memory_bytes"]
    return VllmActor(folder, sampling, dtype="float32", max_num_seqs=8, engine_args=arguments, **changes)


@pytest.fixture(scope="module")
def engine(actor_folder: Path) -> Iterator[Any]:
    actor = start(actor_folder, Sampling(temperature=0.0))
    yield actor
    actor.close()


@pytest.fixture
def actor(engine: Any) -> Iterator[Any]:
    """The shared greedy engine with the weights it started with and nothing in it."""
    yield engine
    engine.abort(engine.running())
    engine.load_weights(causal_model(seed=1).state_dict(), 0, keep_kv=False)


@pytest.fixture(scope="module")
def sampler(actor_folder: Path) -> Iterator[Any]:
    actor = start(actor_folder, Sampling(temperature=0.7, seed=5))
    yield actor
    actor.close()


def test_greedy_tokens_are_those_of_generate(actor: Any) -> None:
    actor.submit([forced(i, 12 + 3 * i, prompt_length=5 + 7 * i) for i in range(4)])
    tokens = finish(actor)
    model = causal_model(seed=1)
    assert tokens == {i: greedy(model, prompt(i, 5 + 7 * i), 12 + 3 * i) for i in range(4)}


def test_every_step_gives_every_running_rollout_one_token_and_rollouts_join_mid_run(actor: Any) -> None:
    before = actor.counts()
    assert actor.step() == []
    actor.submit([forced(0, 6), forced(3, 9)])
    given: list[list[int]] = []
    for number in range(12):
        if number == 2:
            actor.submit([forced(2, 4, prompt_length=40), forced(1, 2)])
        running = actor.running()
        news = actor.step()
        assert tuple(one.rollout_id for one in news) == running
        assert all(len(one.tokens) == len(one.log_probs) == 1 for one in news)
        given.append([one.rollout_id for one in news if one.finish_reason is not None])
    # Rollout i joins at step s and is finished by the step s + length - 1.
    assert given == [[], [], [], [1], [], [0, 2], [], [], [3], [], [], []]
    counts = actor.counts()
    assert counts.decoded - before.decoded == 6 + 9 + 4 + 2
    assert counts.prefilled - before.prefilled == 9 + 9 + 40 + 9
    assert counts.iterations - before.iterations == 9
    assert (counts.recomputed, counts.preemptions) == (before.recomputed, before.preemptions)


def test_lengths_are_exact_and_say_why_they_ended(actor: Any) -> None:
    actor.submit([forced(0, 1), forced(1, 30, limit=30), Request(7, prompt(7, 9), 20)])
    reasons: dict[int, str] = {}
    tokens: dict[int, list[int]] = {}
    while actor.running():
        news = actor.step()
        gather(news, tokens)
        reasons.update({one.rollout_id: one.finish_reason for one in news if one.finish_reason is not None})
    assert {i: len(made) for i, made in tokens.items()} == {0: 1, 1: 30, 7: 20}
    assert reasons == {0: "stop", 1: "length", 7: "length"}


def test_stop_tokens_end_responses_but_not_forced_ones(actor_folder: Path) -> None:
    answer = greedy(causal_model(seed=1), prompt(7, 9), 20)
    stop = answer[4]
    actor = start(actor_folder, Sampling(temperature=0.0, stop_token_id=stop))
    try:
        actor.submit([Request(7, prompt(7, 9), 20), Request(8, prompt(7, 9), 20, forced_length=20)])
        reasons = {}
        tokens: dict[int, list[int]] = {}
        while actor.running():
            news = actor.step()
            gather(news, tokens)
            reasons.update({one.rollout_id: one.finish_reason for one in news})
        assert tokens == {7: answer[: answer.index(stop) + 1], 8: answer}
        assert reasons == {7: "stop", 8: "length"}
    finally:
        actor.close()


def test_log_probs_are_those_of_the_distribution_sampled_from(sampler: Any) -> None:
    import torch

    sampler.submit([forced(0, 10, prompt_length=6)])
    tokens: list[int] = []
    log_probs: list[float] = []
    while sampler.running():
        for one in sampler.step():
            tokens += one.tokens
            log_probs += one.log_probs
    with torch.no_grad():
        logits = causal_model(seed=1)(torch.tensor([[*prompt(0, 6), *tokens]])).logits[0, 5:-1].float()
    expected = torch.log_softmax(logits / 0.7, dim=-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert log_probs == pytest.approx(expected.tolist(), abs=1e-4)


def test_sampling_depends_on_seed_and_rollout_not_on_company(sampler: Any) -> None:
    def alone(*ids: int) -> dict[int, list[int]]:
        sampler.submit([Request(i, prompt(0, 8), 50, forced_length=20) for i in ids])
        return finish(sampler)

    first = alone(0)
    together = alone(0, 1, 2)
    assert together[0] == first[0]
    assert len({tuple(made) for made in together.values()}) == 3


def test_clearing_the_kv_does_not_shift_the_draws(sampler: Any) -> None:
    sampler.submit([Request(0, prompt(0, 8), 50, forced_length=20)])
    plain = finish(sampler)
    sampler.submit([Request(0, prompt(0, 8), 50, forced_length=20)])
    tokens = gather([one for _ in range(7) for one in sampler.step()], {})
    sampler.load_weights(causal_model(seed=1).state_dict(), 1, keep_kv=False)
    assert finish(sampler, tokens) == plain


def test_carried_rollouts_with_recomputed_kv_go_on_as_the_new_weights_would(actor: Any) -> None:
    old, new = causal_model(seed=1), causal_model(seed=11)
    actor.submit([forced(i, 20, prompt_length=8 + i) for i in range(3)])
    news = [one for _ in range(8) for one in actor.step()]
    tokens = gather(news, {})
    assert {one.weight_version for one in news} == {0}
    before = actor.counts()
    actor.load_weights(new.state_dict(), 1, keep_kv=False)
    late = actor.step()
    assert {one.weight_version for one in late} == {1}
    finish(actor, gather(late, tokens))
    for i in range(3):
        start_tokens = prompt(i, 8 + i)
        head = greedy(old, start_tokens, 8)
        assert tokens[i] == head + greedy(new, [*start_tokens, *head], 12)
    counts = actor.counts()
    assert counts.recomputed - before.recomputed == sum(8 + i + 8 for i in range(3))
    assert counts.prefilled == before.prefilled
    assert counts.preemptions == before.preemptions


def test_kept_kv_keeps_the_tokens_and_recomputes_nothing(actor: Any) -> None:
    old, new = causal_model(seed=1), causal_model(seed=11)
    actor.submit([forced(0, 16)])
    tokens = gather([one for _ in range(6) for one in actor.step()], {})
    before = actor.counts()
    actor.load_weights(new.state_dict(), 1, keep_kv=True)
    finish(actor, tokens)
    head = greedy(old, prompt(0, 9), 6)
    assert tokens[0][:6] == head
    assert len(tokens[0]) == 16
    # New weights over the old cache: neither the old continuation nor that of a recomputed cache.
    assert tokens[0] != greedy(old, prompt(0, 9), 16)
    assert actor.counts().recomputed == before.recomputed
    # A kept cache serves its own rollout only: what is submitted later sees the new weights alone.
    actor.submit([forced(0, 10)])
    assert finish(actor)[0] == greedy(new, prompt(0, 9), 10)


def test_the_kept_cache_is_the_one_the_old_weights_made(actor: Any) -> None:
    import torch

    old, new = causal_model(seed=1), causal_model(seed=11)
    actor.submit([forced(0, 16)])
    tokens = gather([one for _ in range(6) for one in actor.step()], {})
    actor.load_weights(new.state_dict(), 1, keep_kv=True)
    finish(actor, tokens)
    with torch.no_grad():
        seen = [*prompt(0, 9), *tokens[0][:5]]
        cache = old(torch.tensor([seen]), use_cache=True).past_key_values
        token, expected = tokens[0][5], []
        for _ in range(10):
            output = new(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
            cache, token = output.past_key_values, int(output.logits[0, -1].argmax())
            expected.append(token)
    assert tokens[0][6:] == expected


def test_a_tied_head_left_out_is_updated_all_the_same(actor: Any) -> None:
    new = causal_model(seed=11)
    actor.load_weights(dict(new.named_parameters()), 1, keep_kv=False)
    actor.submit([forced(0, 10)])
    assert finish(actor)[0] == greedy(new, prompt(0, 9), 10)


def test_incomplete_or_foreign_weights_are_refused(actor: Any) -> None:
    weights = causal_model(seed=11).state_dict()
    some = {name: tensor for name, tensor in weights.items() if "layers.1." not in name}
    with pytest.raises(OppoError, match=r"lack model\.layers\.1\..*12 missing"):
        actor.load_weights(some, 1, keep_kv=False)
    with pytest.raises(OppoError, match="unknown v_head"):
        actor.load_weights({**weights, "v_head": weights["model.norm.weight"]}, 1, keep_kv=False)
    actor.submit([forced(0, 5)])
    assert finish(actor)[0] == greedy(causal_model(seed=1), prompt(0, 9), 5)


def test_aborted_rollouts_are_forgotten_and_may_come_again(actor: Any) -> None:
    model = causal_model(seed=1)
    actor.submit([forced(0, 12), forced(1, 12), forced(2, 12)])
    tokens = gather([one for _ in range(3) for one in actor.step()], {})
    actor.abort([2])
    actor.abort([2, 77])
    assert actor.running() == (0, 1)
    finish(actor, tokens)
    assert tokens[0] == greedy(model, prompt(0, 9), 12)
    assert tokens[1] == greedy(model, prompt(1, 9), 12)
    assert len(tokens[2]) == 3
    actor.submit([forced(2, 4)])
    assert finish(actor)[2] == greedy(model, prompt(2, 9), 4)


def test_a_rollout_goes_on_from_tokens_made_elsewhere(actor: Any) -> None:
    whole = greedy(causal_model(seed=1), prompt(0, 9), 15)
    before = actor.counts()
    actor.submit([forced(0, 15, generated=whole[:6])])
    assert finish(actor)[0] == whole[6:]
    counts = actor.counts()
    assert (counts.prefilled - before.prefilled, counts.decoded - before.decoded) == (15, 9)


def test_bad_requests_are_refused_in_one_sentence(actor: Any) -> None:
    actor.submit([forced(0, 5)])
    with pytest.raises(OppoError, match="already has it"):
        actor.submit([forced(0, 5)])
    with pytest.raises(OppoError, match="rollout 1: the actor already has it"):
        actor.submit([forced(1, 5), forced(1, 5)])
    with pytest.raises(OppoError, match="prompt is empty"):
        actor.submit([Request(1, (), 5)])
    with pytest.raises(OppoError, match="exceed max_model_len 256"):
        actor.submit([Request(1, prompt(1, 200), 57)])
    with pytest.raises(OppoError, match="end after 3"):
        actor.submit([forced(1, 3, generated=(1, 2, 3))])
    assert actor.running() == (0,)


def test_a_join_beyond_the_token_budget_still_gives_one_token_a_step(actor_folder: Path) -> None:
    model = causal_model(seed=1)
    # vLLM wants a budget of at least max_model_len; four joiners of 60 tokens do not fit into one iteration.
    actor = start(
        actor_folder,
        Sampling(temperature=0.0),
        max_model_len=100,
        engine_args={"max_num_batched_tokens": 100},
    )
    try:
        actor.submit([forced(0, 20, limit=20)])
        news = [one for _ in range(3) for one in actor.step()]
        actor.submit([forced(i, 10, prompt_length=60, limit=20) for i in range(1, 5)])
        tokens = gather(news, {})
        while actor.running():
            running = actor.running()
            step = actor.step()
            assert tuple(one.rollout_id for one in step) == running
            assert all(len(one.tokens) == 1 for one in step)
            gather(step, tokens)
        assert tokens[0] == greedy(model, prompt(0, 9), 20)
        assert all(tokens[i] == greedy(model, prompt(i, 60), 10) for i in range(1, 5))
        assert actor.counts().iterations == 20
        assert actor.counts().prefilled == 9 + 4 * 60
    finally:
        actor.close()


def test_scarce_kv_preempts_the_highest_id_and_counts_what_is_prefilled_again(actor_folder: Path) -> None:
    model = causal_model(seed=1)
    actor = start(
        actor_folder,
        Sampling(temperature=0.0),
        max_model_len=128,
        kv_capacity_tokens=192,
    )
    try:
        config = actor.resolved_config()
        assert (config["kv_blocks"], config["kv_block_tokens"], config["kv_capacity_tokens"]) == (6, 32, 192)
        # Six blocks of 32: a third block each, from 65 tokens on, leaves rollout 2 no room; a fourth, from 97
        # on, none to rollout 1.
        actor.submit([forced(i, 50, prompt_length=60, limit=60) for i in range(3)])
        tokens: dict[int, list[int]] = {}
        seen: set[tuple[int, ...]] = set()
        while actor.running():
            news = actor.step()
            seen.add(tuple(one.rollout_id for one in news))
            gather(news, tokens)
        assert seen == {(0, 1, 2), (0, 1), (0,), (1,), (2,)}
        assert tokens == {i: greedy(model, prompt(i, 60), 50) for i in range(3)}
        counts = actor.counts()
        assert counts.preemptions == 2
        assert (counts.prefilled, counts.recomputed, counts.decoded) == (180, 65 + 97, 150)
    finally:
        actor.close()


def test_the_resolved_config_tells_what_runs(actor: Any) -> None:
    import torch
    import vllm

    config = actor.resolved_config()
    assert config["vllm_version"] == vllm.__version__
    assert config["torch_version"] == torch.__version__
    assert (config["dtype"], config["num_hidden_layers"], config["vocab_size"], config["mode"]) == (
        "float32",
        2,
        96,
        "lock-step",
    )
    assert config["prefix_caching"] is False
    # 16 MiB of 2 (K, V) x 2 layers x 1 head x 32 numbers x 4 bytes a token, less vLLM's padding block.
    assert config["kv_capacity_tokens"] == (1 << 24) // 512 - 32
    assert config["attention"] != "unknown"


def test_prefix_caching_and_wrong_folders_are_refused(actor_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OppoError, match="without prefix caching"):
        start(actor_folder, Sampling(), engine_args={"enable_prefix_caching": True})
    with pytest.raises(OppoError, match=r"has no config\.json"):
        start(tmp_path, Sampling())
    with pytest.raises(OppoError, match="does not know the engine argument"):
        start(actor_folder, Sampling(), engine_args={"warp_speed": 9})


def test_starting_an_engine_leaves_the_random_states_alone(actor_folder: Path) -> None:
    import random

    import torch

    torch.manual_seed(3)
    random.seed(3)
    expected = torch.rand(3).tolist(), random.random()
    torch.manual_seed(3)
    random.seed(3)
    start(actor_folder, Sampling()).close()
    assert (torch.rand(3).tolist(), random.random()) == expected
