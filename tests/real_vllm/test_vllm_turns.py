"""The vLLM actor where rollouts call tools, and where samples share their prompt: whole blocks from its prefix
cache, of nobody else's tokens, and the tokens that the model says."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oppo_real.engines.interface import Answer, Request, Sampling
from oppo_real.run.setup import build_real_setup
from oppo_real.run.start import run_real
from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from tests.real.real_scenario import MODEL, real_scenario

from .conftest import causal_model
from .drive import QUIET, finish, greedy, prompt
from .test_vllm_actor import ENGINE_ARGS, start

pytestmark = [pytest.mark.filterwarnings(one) for one in QUIET]

ANSWER = (7, 8, 9, 10, 11)
SHARING: dict[str, Any] = {
    "group_size": 2,
    "max_prompt_length": 80,
    "trace": {
        "synth": {
            "mean": 12, "p99": 36, "rows": 60, "seed": 1,
            "tools": {"mean_calls": 1.2, "max_calls": 3, "mean_s": 0.1, "mean_tokens": 4},
        },
        "prompt_length": 70,
    },
    "rollout": {"enable_prefix_caching": True, "kv_block_tokens": 32},
}  # fmt: skip


@pytest.fixture(scope="module")
def engine(actor_folder: Path) -> Iterator[Any]:
    actor = start(actor_folder, Sampling(temperature=0.0), keep_kv_on_tool_call=True, share_prompts=True)
    yield actor
    actor.close()


@pytest.fixture
def actor(engine: Any) -> Iterator[Any]:
    yield engine
    engine.abort(list(range(20)))
    engine.load_weights(causal_model(seed=1).state_dict(), 0, keep_kv=False)


def first_turn(actor: Any, rollout_id: int, end: int) -> tuple[int, ...]:
    """Of a prompt of 40 tokens."""
    made: list[int] = []
    actor.submit([Request(rollout_id, prompt(rollout_id, 40), 60, end + 6, call_after=end)])
    while len(made) < end:
        (new,) = actor.step()
        made += new.tokens
    assert new.calls_tool
    assert new.finish_reason is None
    assert actor.running() == ()
    return tuple(made)


def back(rollout_id: int, made: tuple[int, ...]) -> Request:
    answers = (Answer(len(made), ANSWER),)
    return Request(rollout_id, prompt(rollout_id, 40), 60, len(made) + 6, made, answers, unseen=len(ANSWER))


def test_the_next_turn_finds_whole_blocks_and_says_what_the_model_says(actor: Any) -> None:
    before = actor.counts()
    made = first_turn(actor, 3, 30)
    model = causal_model(seed=1)
    assert list(made) == greedy(model, prompt(3, 40), 30)
    actor.submit([back(3, made)])
    assert finish(actor) == {3: greedy(model, [*prompt(3, 40), *made, *ANSWER], 6)}
    counts = actor.counts()
    assert counts.prefilled - before.prefilled == 40 + 5
    # Of the 70 tokens before the answer, two blocks of 32 were there.
    assert counts.recomputed - before.recomputed == 6
    assert counts.prefix_cached == before.prefix_cached


@pytest.mark.parametrize("how", ["weights", "abort"])
def test_kv_that_was_given_up_is_prefilled_again(actor: Any, how: str) -> None:
    made = first_turn(actor, 4, 30)
    if how == "weights":
        actor.load_weights(causal_model(seed=11).state_dict(), 1, keep_kv=False)
    else:
        actor.abort([4])
    before = actor.counts()
    actor.submit([back(4, made)])
    model = causal_model(seed=11 if how == "weights" else 1)
    assert finish(actor) == {4: greedy(model, [*prompt(4, 40), *made, *ANSWER], 6)}
    assert actor.counts().recomputed - before.recomputed == 70


def test_samples_of_one_prompt_share_its_whole_blocks_and_others_do_not(actor: Any) -> None:
    before = actor.counts()
    one = prompt(5, 70)
    actor.submit([Request(i, one, 20, 9, prompt_key=1) for i in (5, 6)])
    actor.submit([Request(7, one, 20, 9, prompt_key=2)])
    assert finish(actor) == dict.fromkeys((5, 6, 7), greedy(causal_model(seed=1), one, 9))
    counts = actor.counts()
    assert counts.prefix_cached - before.prefix_cached == 64
    assert counts.prefilled - before.prefilled == 70 + 6 + 70


def test_a_scenario_replays_tools_and_shares_prompts_free_running() -> None:
    model = {**MODEL, "hidden_size": 64}
    real = {"engine": "vllm", "models": {"actor": model, "reward": model}, "actor_args": ENGINE_ARGS}
    run = run_real(real_scenario(real, **SHARING, steps=2))
    rows = run.rollouts
    waited = [
        sum(seconds) for seconds in run.trace.set_index(c.ROLLOUT_ID)[c.TOOL_SECONDS][rows[c.ROLLOUT_ID]]
    ]
    assert max(waited) > 0
    assert (rows[c.FINISHED_S] - rows[c.ADMITTED_S] >= waited).all()
    assert run.steps[c.TOKENS_PREFIX_CACHED].sum() > 0


def test_a_prefix_cache_cannot_give_up_the_kv_of_one_who_calls() -> None:
    with pytest.raises(OppoError, match="keeps the KV of a rollout that calls a tool"):
        cleared = {**SHARING["rollout"], "clear_kv_cache_on_tool_call": True}
        build_real_setup(real_scenario({"engine": "vllm"}, **{**SHARING, "rollout": cleared}))


def test_what_the_engine_is_told_apart_from_that_is_refused(actor_folder: Path) -> None:
    with pytest.raises(OppoError, match="with prefix caching here"):
        start(actor_folder, Sampling(), share_prompts=True, engine_args={"enable_prefix_caching": False})
