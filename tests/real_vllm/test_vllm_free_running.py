"""The vLLM actor in free-running mode, with vLLM's own schedule: the same tokens, one a step."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oppo_real.engines.interface import Sampling

from .conftest import causal_model
from .drive import QUIET, forced, gather, greedy, prompt

pytestmark = [pytest.mark.filterwarnings(one) for one in QUIET]


@pytest.fixture(scope="module")
def engine(actor_folder: Path) -> Iterator[Any]:
    from oppo_real.engines.vllm_actor import VllmActor

    actor = VllmActor(
        actor_folder,
        Sampling(temperature=0.0),
        lock_step=False,
        dtype="float32",
        max_num_seqs=8,
        engine_args={"enforce_eager": True, "kv_cache_memory_bytes": 1 << 24, "block_size": 32},
    )
    yield actor
    actor.close()


@pytest.fixture
def actor(engine: Any) -> Iterator[Any]:
    yield engine
    engine.abort(list(engine.running()))
    engine.load_weights(causal_model(seed=1).state_dict(), 0, keep_kv=False)


def steps(actor: Any, count: int) -> list[Any]:
    return [one for _ in range(count) for one in actor.step()]


def test_tokens_reasons_and_counts_of_rollouts_that_join_mid_run(actor: Any) -> None:
    model = causal_model(seed=1)
    before = actor.counts()
    assert actor.resolved_config()["mode"] == "free-running"
    actor.submit([forced(0, 30), forced(1, 11, prompt_length=50)])
    news = steps(actor, 16)
    actor.submit([forced(2, 9)])
    while actor.running():
        news += actor.step()
    assert all(len(one.tokens) == len(one.log_probs) == 1 for one in news)
    assert gather(news, {}) == {
        0: greedy(model, prompt(0, 9), 30),
        1: greedy(model, prompt(1, 50), 11),
        2: greedy(model, prompt(2, 9), 9),
    }
    reasons = {one.rollout_id: one.finish_reason for one in news if one.finish_reason is not None}
    assert reasons == {0: "stop", 1: "stop", 2: "stop"}
    counts = actor.counts()
    assert counts.prefilled - before.prefilled == 9 + 50 + 9
    assert counts.decoded - before.decoded == 50
    assert counts.iterations - before.iterations == 30


def test_a_carried_rollout_goes_on_under_new_weights(actor: Any) -> None:
    old, new = causal_model(seed=1), causal_model(seed=11)
    actor.submit([forced(0, 25)])
    first = steps(actor, 10)
    before = actor.counts()
    actor.load_weights(new.state_dict(), 1, keep_kv=False)
    late = steps(actor, 15)
    head = greedy(old, prompt(0, 9), 10)
    assert {one.weight_version for one in first} == {0} and {one.weight_version for one in late} == {1}
    assert gather(first, {}) == {0: head}
    assert gather(late, {}) == {0: greedy(new, [*prompt(0, 9), *head], 15)}
    assert actor.counts().recomputed - before.recomputed == 19


def test_sampled_rollouts_whose_prompts_exceed_an_iteration(actor_folder: Path) -> None:
    # 48 prompts of 60 tokens, 2,880: more than the 2,048 of an iteration, so that one would have to be split.
    from oppo_real.engines.vllm_actor import VllmActor

    actor = VllmActor(
        actor_folder,
        Sampling(temperature=1.0, seed=3),
        lock_step=False,
        dtype="float32",
        max_num_seqs=48,
        engine_args={"enforce_eager": True, "kv_cache_memory_bytes": 1 << 24, "block_size": 32},
    )
    try:
        actor.submit([forced(i, 4, prompt_length=60) for i in range(48)])
        news = []
        while actor.running():
            news += actor.step()
        made = gather(news, {})
        assert {len(tokens) for tokens in made.values()} == {4}
        assert sorted(made) == list(range(48))
        assert actor.counts().prefilled == 48 * 60
    finally:
        actor.close()
