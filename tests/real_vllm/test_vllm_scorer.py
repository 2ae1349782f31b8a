"""The vLLM scorer: streamed pieces against one shot, and against transformers."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oppo_real.engines.interface import Sampling, ScorePiece, prefix_caching
from oppo_sim.errors import OppoError
from oppo_sim.model.formulas import prefilled_tokens
from oppo_sim.model.scorer_cache import PrefixCache

from .drive import QUIET, finish, forced, prompt

pytestmark = [pytest.mark.filterwarnings(one) for one in QUIET]
BLOCK = 32


def start(folder: Path, capacity: int = 4096, **further: int) -> Any:
    from oppo_real.engines.vllm_scorer import VllmScorer

    arguments = {"enforce_eager": True, "block_size": BLOCK, **further}
    return VllmScorer(
        folder, dtype="float32", max_num_seqs=8, kv_capacity_tokens=capacity, engine_args=arguments
    )


@pytest.fixture(scope="module")
def scorer(scorer_folder: Path) -> Iterator[Any]:
    one = start(scorer_folder)
    yield one
    one.close()


@pytest.fixture(scope="module")
def reference(scorer_folder: Path) -> Any:
    """Scores of whole sequences, by transformers."""
    import torch
    from transformers import Qwen2ForSequenceClassification

    model = Qwen2ForSequenceClassification.from_pretrained(scorer_folder).eval()

    def score(tokens: tuple[int, ...]) -> float:
        with torch.no_grad():
            return float(model(torch.tensor([tokens])).logits[0, 0])

    return score


def cut(tokens: tuple[int, ...], seed: int) -> list[tuple[int, ...]]:
    """The tokens in random pieces, none empty."""
    draws = random.Random(seed)
    bounds = sorted(draws.sample(range(1, len(tokens)), k=min(len(tokens) - 1, draws.randint(0, 7))))
    return [tokens[a:b] for a, b in zip([0, *bounds], [*bounds, len(tokens)], strict=True)]


def test_streamed_scores_equal_one_shot_and_each_token_is_prefilled_once(scorer: Any, reference: Any) -> None:
    sequences = {
        i: prompt(100 + i, length) for i, length in enumerate((2, 31, 32, 33, 64, 65, 128, 150, 200, 255))
    }
    before = scorer.counts()
    pieces = {i: cut(tokens, seed=i) for i, tokens in sequences.items()}
    scores: dict[int, float] = {}
    round_number = 0
    while len(scores) < len(sequences):
        batch = [
            ScorePiece(i, parts[round_number], last=round_number == len(parts) - 1)
            for i, parts in pieces.items()
            if round_number < len(parts)
        ]
        given = scorer.append(batch)
        assert set(given) == {piece.rollout_id for piece in batch if piece.last}
        scores.update(given)
        round_number += 1
    streamed = scorer.counts()
    shot = scorer.append([ScorePiece(1000 + i, tokens, last=True) for i, tokens in sequences.items()])
    for i, tokens in sequences.items():
        assert scores[i] == pytest.approx(shot[1000 + i], abs=1e-4)
        assert scores[i] == pytest.approx(reference(tokens), abs=1e-4)
    appended = sum(len(tokens) for tokens in sequences.values())
    assert streamed.appended - before.appended == appended
    assert streamed.pieces - before.pieces == sum(len(parts) for parts in pieces.values())
    # Not only within a block: with whole blocks submitted and room for all of them, exactly once.
    assert streamed.prefilled - before.prefilled == appended
    assert streamed.extra["evicted"] == before.extra["evicted"] == 0
    assert scorer.counts().prefilled - streamed.prefilled == appended


@pytest.mark.parametrize("seed", range(4))
def test_any_chunking_gives_the_same_score(scorer: Any, seed: int) -> None:
    tokens = prompt(7, 190)
    parts = cut(tokens, seed=50 + seed)
    before = scorer.counts()
    score = {}
    for place, part in enumerate(parts):
        score = scorer.append([ScorePiece(seed, part, last=place == len(parts) - 1)])
    counts = scorer.counts()
    assert abs(counts.prefilled - before.prefilled - 190) <= BLOCK
    assert score[seed] == pytest.approx(scorer.append([ScorePiece(99, tokens, last=True)])[99], abs=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_each_piece_prefills_what_the_simulator_says(scorer: Any, seed: int) -> None:
    """docs/model.md, C9b: whole blocks that leave one token over; the last piece prefills all."""
    block = scorer.resolved_config()["prefill_block_tokens"]
    assert block == BLOCK
    ids = {i: cut(prompt(500 + i, 60 + 70 * i), 10 * seed + i) for i in range(3)}
    given = dict.fromkeys(ids, 0)
    while ids:
        pieces, expected = [], 0
        for i, left in list(ids.items()):
            piece, last = left.pop(0), not left
            past, given[i] = given[i], given[i] + len(piece)
            end = given[i] if last else prefilled_tokens(given[i], block)
            expected += end - prefilled_tokens(past, block)
            pieces.append(ScorePiece(800 + 10 * seed + i, piece, last))
            if last:
                del ids[i]
        before = scorer.counts().prefilled
        scorer.append(pieces)
        assert scorer.counts().prefilled - before == expected


def test_release_forgets_a_rollout_and_its_id_can_start_again(scorer: Any, reference: Any) -> None:
    assert scorer.append([ScorePiece(5, prompt(1, 70), last=False)]) == {}
    scorer.release([5, 12345])
    tokens = prompt(2, 40)
    assert scorer.append([ScorePiece(5, tokens, last=True)])[5] == pytest.approx(reference(tokens), abs=1e-4)


def test_pieces_of_one_rollout_in_one_batch_are_joined_and_a_last_piece_may_be_empty(
    scorer: Any, reference: Any
) -> None:
    tokens = prompt(3, 90)
    assert (
        scorer.append([ScorePiece(1, tokens[:40], last=False), ScorePiece(1, tokens[40:], last=False)]) == {}
    )
    assert scorer.append([ScorePiece(1, (), last=True)])[1] == pytest.approx(reference(tokens), abs=1e-4)


def test_bad_pieces_are_refused_and_leave_no_trace(scorer: Any, reference: Any) -> None:
    tokens = prompt(4, 60)
    scorer.append([ScorePiece(1, tokens[:50], last=False)])
    before = scorer.counts()
    for pieces, words in (
        ([ScorePiece(1, tokens[50:], last=False), ScorePiece(2, (), last=False)], "no tokens yet"),
        ([ScorePiece(1, prompt(5, 207), last=False)], "257 tokens exceed max_model_len 256"),
        ([ScorePiece(1, (3,), last=True), ScorePiece(1, (4,), last=False)], "last piece came before"),
    ):
        with pytest.raises(OppoError, match=words):
            scorer.append(pieces)
    assert scorer.counts() == before
    assert scorer.append([ScorePiece(1, tokens[50:], last=True)])[1] == pytest.approx(
        reference(tokens), abs=1e-4
    )


def test_scarce_kv_evicts_and_the_counts_say_so(scorer_folder: Path, reference: Any) -> None:
    small = start(scorer_folder, capacity=256)
    try:
        assert small.resolved_config()["kv_capacity_tokens"] == 256
        sequences = {i: prompt(200 + i, 180) for i in range(4)}
        for i, tokens in sequences.items():
            small.append([ScorePiece(i, tokens[:130], last=False)])
        scores = {}
        for i, tokens in sequences.items():
            scores.update(small.append([ScorePiece(i, tokens[130:], last=True)]))
        assert all(scores[i] == pytest.approx(reference(tokens), abs=1e-4) for i, tokens in sequences.items())
        counts = small.counts()
        assert counts.extra["evicted"] > 0
        assert counts.prefilled == counts.appended + counts.extra["evicted"]
    finally:
        small.close()


def test_rollouts_that_begin_alike_share_nothing(scorer: Any) -> None:
    before = scorer.counts()
    for i in range(3):
        scorer.append([ScorePiece(500 + i, (*prompt(9, 97), *prompt(20 + i, 30)), last=True)])
    assert scorer.counts().prefilled - before.prefilled == 3 * 127


def test_actor_and_scorer_live_in_one_process_and_close_apart(
    scorer: Any, actor_folder: Path, reference: Any
) -> None:
    from oppo_real.engines.vllm_actor import VllmActor

    arguments = {"enforce_eager": True, "block_size": BLOCK, "kv_cache_memory_bytes": 1 << 22}
    actor = VllmActor(
        actor_folder, Sampling(temperature=0.0), dtype="float32", max_num_seqs=4, engine_args=arguments
    )
    actor.submit([forced(0, 40)])
    streamed: list[int] = []
    scorer.append([ScorePiece(0, prompt(0, 9), last=False)])
    while actor.running():
        for one in actor.step():
            streamed += one.tokens
            score = scorer.append([ScorePiece(0, one.tokens, last=one.finish_reason is not None)])
    assert score[0] == pytest.approx(reference((*prompt(0, 9), *streamed)), abs=1e-4)
    actor.submit([forced(1, 5)])
    assert len(finish(actor)[1]) == 5
    actor.close()
    actor.close()
    tokens = prompt(6, 77)
    assert scorer.append([ScorePiece(8, tokens, last=True)])[8] == pytest.approx(reference(tokens), abs=1e-4)


def test_a_model_with_several_labels_is_refused(tmp_path: Path) -> None:
    from transformers import Qwen2ForSequenceClassification

    from .conftest import tiny_config

    Qwen2ForSequenceClassification(tiny_config(num_labels=3, pad_token_id=0)).save_pretrained(tmp_path)
    with pytest.raises(OppoError, match="has 3 labels"):
        start(tmp_path)


@pytest.mark.parametrize("iteration", [128, 2048])
def test_a_scarce_cache_loses_what_the_simulator_says(scorer_folder: Path, iteration: int) -> None:
    """docs/model.md, C9c: batch by batch the tokens that vLLM prefills, those again that it had lost included."""
    blocks, draws, again = 16, random.Random(iteration), 0
    small = start(scorer_folder, capacity=blocks * BLOCK, max_num_batched_tokens=iteration)
    try:
        assert prefix_caching(small.resolved_config()) == (BLOCK, blocks * BLOCK, iteration)
        cache = PrefixCache(blocks, BLOCK, iteration)
        going: dict[int, tuple[int, list[tuple[int, ...]]]] = {}
        for batch in range(60):
            while len(going) < 7:
                new = 1000 + 10 * batch + len(going)
                going[new] = 0, cut(prompt(new, draws.randint(20, 250)), new)
            pieces, expected = [], 0
            for i in draws.sample(sorted(going), draws.randint(1, 6)):
                given, left = going.pop(i)
                parts = [left.pop(0) for _ in range(min(len(left), draws.choice([1, 1, 2])))]
                past, end = prefilled_tokens(given, BLOCK), given + sum(map(len, parts))
                upto = prefilled_tokens(end, BLOCK) if left else end
                pieces += [ScorePiece(i, part, not left and part is parts[-1]) for part in parts]
                if upto > past:
                    kept = cache.prefill(i, upto)
                    expected += upto - kept
                    again += past - kept
                if left:
                    going[i] = end, left
            cache.end_iteration()
            before = small.counts()
            small.append(pieces)
            assert small.counts().prefilled - before.prefilled == expected, batch
        assert small.counts().extra["evicted"] == again > 20 * BLOCK
    finally:
        small.close()
