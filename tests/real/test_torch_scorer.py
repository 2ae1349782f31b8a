"""Streamed scores equal one-shot scores; each token is prefilled once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oppo_real.engines.interface import ScorePiece
from oppo_real.engines.torch_scorer import TorchScorer
from oppo_sim.errors import OppoError
from tests.real.tiny import (
    full_log_probs,
    one_shot_score,
    random_tokens,
    single_thread,
    tiny_actor,
    tiny_reward,
)

single_thread()


@pytest.fixture(scope="module")
def reward() -> Any:
    return tiny_reward()


@pytest.fixture(scope="module")
def reference() -> Any:
    return tiny_actor(21)


def pieces_of(rollout_id: int, tokens: tuple[int, ...], cuts: list[int]) -> list[ScorePiece]:
    places = [*sorted({cut for cut in cuts if 0 < cut < len(tokens)}), len(tokens)]
    begins = [0, *places[:-1]]
    return [
        ScorePiece(rollout_id, tokens[begin:end], end == len(tokens))
        for begin, end in zip(begins, places, strict=True)
    ]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_streamed_scores_equal_one_shot_scores_in_any_chunking(
    reward: Any, reference: Any, data: st.DataObject
) -> None:
    """Pieces of several rollouts arrive interleaved at random; those that lie still in between are what a
    carry is to the scorer."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10_000)))
    count = data.draw(st.integers(1, 5))
    budget = data.draw(st.sampled_from([None, 5, 64]))
    prompts = {i: random_tokens(generator, data.draw(st.integers(1, 12))) for i in range(count)}
    responses = {i: random_tokens(generator, data.draw(st.integers(1, 40))) for i in range(count)}
    whole = {i: prompts[i] + responses[i] for i in range(count)}
    queues = {}
    for i in range(count):
        # The first piece has the whole prompt and a token of the response at least.
        cuts = data.draw(st.lists(st.integers(len(prompts[i]) + 1, len(whole[i])), max_size=5))
        queues[i] = pieces_of(i, whole[i], cuts)
    scorer = TorchScorer(
        tiny_reward(), max_batched_tokens=budget, kv_block_tokens=4, reference_model=tiny_actor(21)
    )
    scorer.expect({i: len(prompts[i]) for i in range(count)})
    scores: dict[int, float] = {}
    while queues:
        chosen = data.draw(st.lists(st.sampled_from(sorted(queues)), min_size=1, max_size=4))
        batch = []
        for i in chosen:
            if i in queues:
                batch.append(queues[i].pop(0))
                if not queues[i]:
                    del queues[i]
        scores.update(scorer.append(batch))
    assert set(scores) == set(range(count))
    for i in range(count):
        assert scores[i] == pytest.approx(one_shot_score(reward, whole[i]), abs=1e-4)
        found = torch.tensor(scorer.pop_reference_log_probs(i))
        torch.testing.assert_close(
            found, full_log_probs(reference, prompts[i], responses[i]), atol=1e-4, rtol=1e-4
        )
    counts = scorer.counts()
    assert (
        counts.prefilled
        == counts.appended
        == counts.extra["reference_prefilled"]
        == sum(map(len, whole.values()))
    )
    assert scorer._packed.store.tokens == 0


def test_score_is_at_the_true_end_even_after_padding_like_tokens(reward: Any) -> None:
    pad = reward.config.pad_token_id or 0
    tokens = (5, 6, 7, pad, pad)
    assert TorchScorer(tiny_reward()).append([ScorePiece(0, tokens, True)])[0] == pytest.approx(
        one_shot_score(reward, tokens), abs=1e-5
    )


def test_released_rollouts_leave_nothing_and_may_start_again(reward: Any) -> None:
    scorer = TorchScorer(tiny_reward())
    assert scorer.append([ScorePiece(0, (1, 2, 3), False), ScorePiece(1, (4, 5), False)]) == {}
    assert scorer._packed.store.tokens == 5
    scorer.release([0, 8])
    assert scorer._packed.store.tokens == 2
    scores = scorer.append([ScorePiece(0, (9, 9), True), ScorePiece(1, (6,), True)])
    assert scores[0] == pytest.approx(one_shot_score(reward, (9, 9)), abs=1e-5)
    assert scores[1] == pytest.approx(one_shot_score(reward, (4, 5, 6)), abs=1e-5)
    assert (scorer.counts().appended, scorer.counts().pieces, scorer.counts().batches) == (8, 4, 2)


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([ScorePiece(0, (), True)], "empty"),
        ([ScorePiece(0, (97,), True)], "token 97"),
        ([ScorePiece(0, (1,), True), ScorePiece(0, (2,), False)], "after its last"),
    ],
)
def test_pieces_that_make_no_sense_are_refused_before_anything_is_prefilled(
    pieces: list[ScorePiece], message: str
) -> None:
    scorer = TorchScorer(tiny_reward())
    with pytest.raises(OppoError, match=message):
        scorer.append([ScorePiece(3, (1,), False), *pieces])
    assert scorer.counts().prefilled == 0 and scorer._packed.store.tokens == 0


def test_reference_log_probs_need_a_reference_model_and_a_score() -> None:
    with pytest.raises(OppoError, match="no reference model"):
        TorchScorer(tiny_reward()).pop_reference_log_probs(0)
    scorer = TorchScorer(tiny_reward(), reference_model=tiny_actor(21))
    scorer.append([ScorePiece(0, (1, 2), False)])
    with pytest.raises(OppoError, match="no score yet"):
        scorer.pop_reference_log_probs(0)
    scorer.append([ScorePiece(0, (3,), True)])
    assert len(scorer.pop_reference_log_probs(0)) == 2
    scorer.close()


def test_reference_log_probs_skip_the_prompt_without_computing_its_logits() -> None:
    reference = tiny_actor(21)
    rows: list[int] = []
    scorer = TorchScorer(tiny_reward(), reference_model=reference)
    reference.lm_head.register_forward_hook(lambda module, given, out: rows.append(out.shape[0]))  # type: ignore[union-attr]
    scorer.expect({0: 10})
    scorer.append([ScorePiece(0, tuple(range(10)), False)])
    assert rows == []
    scorer.append([ScorePiece(0, (1, 2, 3), True)])
    assert rows == [3]
    assert len(scorer.pop_reference_log_probs(0)) == 3
