"""The vLLM actor in free-running mode: chunks through vLLM's streaming interval."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oppo_real.engines.interface import Request, Sampling
from oppo_sim.errors import OppoError

from .conftest import causal_model
from .drive import QUIET, finish, forced, gather, greedy, prompt

pytestmark = [pytest.mark.filterwarnings(one) for one in QUIET]


@pytest.fixture(scope="module")
def engine(actor_folder: Path) -> Iterator[Any]:
    from oppo_real.engines.vllm_actor import VllmActor
    from oppo_real.engines.vllm_engine import KvMemory

    kv = KvMemory(memory_bytes=1 << 24, block_tokens=32)
    actor = VllmActor(
        actor_folder,
        Sampling(temperature=0.0),
        mode="free-running",
        dtype="float32",
        max_num_seqs=8,
        enforce_eager=True,
        stream_interval=8,
        kv=kv,
    )
    yield actor
    actor.close()


@pytest.fixture
def actor(engine: Any) -> Iterator[Any]:
    yield engine
    engine.abort(list(engine.running()))
    engine.load_weights(causal_model(seed=1).state_dict(), 0, keep_kv=False)


def test_a_chunk_gives_each_rollout_a_chunk_of_tokens_or_its_rest(actor: Any) -> None:
    model = causal_model(seed=1)
    before = actor.counts()
    actor.submit([forced(0, 30), forced(1, 11, prompt_length=50)])
    sizes: list[dict[int, int]] = []
    tokens: dict[int, list[int]] = {}
    reasons: dict[int, str | None] = {}
    while actor.running():
        if len(sizes) == 2:
            actor.submit([forced(2, 9)])
        news = actor.step_chunk(8)
        sizes.append({one.rollout_id: len(one.tokens) for one in news})
        assert all(len(one.tokens) == len(one.log_probs) for one in news)
        gather(news, tokens)
        reasons.update({one.rollout_id: one.finish_reason for one in news})
    assert sizes == [{0: 8, 1: 8}, {0: 8, 1: 3}, {0: 8, 2: 8}, {0: 6, 2: 1}]
    assert tokens == {
        0: greedy(model, prompt(0, 9), 30),
        1: greedy(model, prompt(1, 50), 11),
        2: greedy(model, prompt(2, 9), 9),
    }
    assert reasons == {0: "stop", 1: "stop", 2: "stop"}
    counts = actor.counts()
    assert counts.prefilled - before.prefilled == 9 + 50 + 9
    assert counts.decoded - before.decoded == 50
    assert counts.iterations - before.iterations == 8 + 8 + 8 + 6


def test_vllm_itself_streams_at_the_interval(actor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    actor.submit([forced(0, 41)])
    actor.step_chunk(8)
    streamed: list[int] = []
    step = actor._engine.step

    def watched() -> list[Any]:
        outputs: list[Any] = step()
        streamed.extend(len(one.outputs[0].token_ids) for one in outputs)
        return outputs

    monkeypatch.setattr(actor._engine, "step", watched)
    for _ in range(4):
        actor.step_chunk(8)
    # Four chunks, four outputs of eight tokens, where a token at a time would have been 32 outputs.
    assert streamed == [8, 8, 8, 8]


def test_the_chunk_can_change_and_single_steps_still_work(actor: Any) -> None:
    actor.submit([forced(0, 40), forced(1, 40)])
    tokens: dict[int, list[int]] = {}
    for chunk in (3, 1, 10, 5):
        news = actor.step_chunk(chunk)
        assert [len(one.tokens) for one in news] == [chunk, chunk]
        gather(news, tokens)
    assert [len(one.tokens) for one in gather_and_return(actor.step(), tokens)] == [1, 1]
    finish(actor, tokens)
    assert tokens == {i: greedy(causal_model(seed=1), prompt(i, 9), 40) for i in (0, 1)}
    with pytest.raises(OppoError, match="at least 1 token"):
        actor.step_chunk(0)


def test_a_carried_rollout_goes_on_under_new_weights(actor: Any) -> None:
    old, new = causal_model(seed=1), causal_model(seed=11)
    actor.submit([forced(0, 25)])
    first = actor.step_chunk(10)
    before = actor.counts()
    actor.load_weights(new.state_dict(), 1, keep_kv=False)
    late = actor.step_chunk(30)
    head = greedy(old, prompt(0, 9), 10)
    assert [(one.weight_version, one.tokens) for one in first] == [(0, tuple(head))]
    assert [(one.weight_version, one.tokens) for one in late] == [
        (1, tuple(greedy(new, [*prompt(0, 9), *head], 15)))
    ]
    assert actor.counts().recomputed - before.recomputed == 19


def test_hold_keeps_every_token_made(actor: Any) -> None:
    actor.submit([forced(0, 20), Request(1, prompt(1, 9), 20)])
    tokens = gather(actor.step_chunk(5), {})
    actor.hold([0])
    gather(actor.step_chunk(5), tokens)
    assert {i: len(made) for i, made in tokens.items()} == {0: 5, 1: 10}
    actor.resume([0])
    finish(actor, tokens)
    assert tokens == {i: greedy(causal_model(seed=1), prompt(i, 9), 20) for i in (0, 1)}


def gather_and_return(news: Any, into: dict[int, list[int]]) -> Any:
    gather(news, into)
    return news
