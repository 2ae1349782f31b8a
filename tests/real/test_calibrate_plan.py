"""What is measured: it spans the scenario, tells total from longest KV, and its order hides no drift."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oppo_real.calibrate.plan import geometric, make_plan
from oppo_real.calibrate.point import Point
from oppo_real.calibrate.sizes import Sizes, bounded, sizes_of
from oppo_sim.errors import OppoError
from oppo_sim.scenario.build import build_trace
from oppo_sim.scenario.load import load_scenario

SIZES = Sizes(18, 112, 512, 2048, (128, 256, 512), 16384)


def test_decode_spans_rollouts_and_lengths_and_has_long_tails() -> None:
    points = [point for point in make_plan(SIZES).points if point.kind == "decode"]
    assert {1, 18} <= {point.n for point in points}
    even = [point for point in points if point.cell is not None]
    ragged = [point for point in points if point.cell is None]
    assert max(point.longest for point in even) >= 0.99 * SIZES.max_length
    twins = {(point.n, point.kv_tokens): point for point in even}
    assert len(ragged) >= 4
    for point in ragged:
        twin = twins[point.n, point.kv_tokens]
        assert point.longest > 1.5 * twin.longest, "the same total, another longest"


def test_every_small_batch_size_is_measured_and_others_by_ratio() -> None:
    """Kernels take rows by twos or more: three rollouts can take longer than four."""
    decoded: dict[int, set[float]] = {}
    for point in make_plan(Sizes(64, 56, 96, 320, (64,), 1024)).points:
        if point.kind == "decode" and point.cell is not None:
            decoded.setdefault(point.n, set()).add(point.kv_tokens / point.n)
    assert sorted(decoded) == [*range(1, 13), 23, 64]
    assert {n for n, contexts in decoded.items() if len(contexts) > 2} == {1, 3, 8, 23, 64}
    assert all(min(contexts) < 30 and max(contexts) > 400 for contexts in decoded.values())
    few = make_plan(Sizes(3, 4, 96, 320, (64,), 1024)).points
    assert {point.n for point in few if point.kind == "decode"} == {1, 2, 3}


def test_decode_tables_are_measured_on_unequal_contexts() -> None:
    even = [point for point in make_plan(SIZES).points if point.kind == "decode" and point.cell is not None]
    for point in even:
        assert point.cell == (point.n, point.kv_tokens)
        mean, contexts = point.kv_tokens / point.n, [context for context, _ in point.rows]
        if point.n > 1 and 40 < mean < 0.7 * SIZES.max_length:
            assert min(contexts) == pytest.approx(0.7 * mean, rel=0.05)
            assert max(contexts) == pytest.approx(1.3 * mean, rel=0.05)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 200),
    st.integers(1, 300),
    st.integers(1, 4000),
    st.integers(24, 30_000),
    st.lists(st.integers(1, 600), min_size=1, max_size=3),
    st.integers(64, 40_000),
)
def test_every_point_can_be_run(
    running: int, batch: int, prompt: int, response: int, chunks: list[int], scoring: int
) -> None:
    chunk_sizes = tuple(sorted({min(chunk, response) for chunk in chunks}))
    sizes = Sizes(running, batch, prompt, response, chunk_sizes, scoring)
    for point in make_plan(sizes).points:
        for past, new in point.rows:
            assert past >= 0
            assert new >= 1
            assert past + new <= sizes.max_length
        if point.kind in ("decode", "prefill"):
            assert point.n <= max(2, running)
        if point.kind == "train":
            assert point.n == batch
        if point.kind in ("prefill", "score") and point.cell is not None:
            assert point.tokens == point.cell[0]


def test_nothing_is_planned_that_kv_does_not_hold() -> None:
    sizes = Sizes(18, 112, 512, 2048, (128,), 16384, kv_capacity_tokens=8192)
    for point in make_plan(sizes).points:
        if point.kind == "decode":
            assert point.kv_tokens <= 8192
        if point.kind == "prefill":
            assert point.tokens <= 8192


def test_scored_batches_have_as_many_pieces_as_rollouts_and_as_a_scorer_has_kv_for() -> None:
    """Twenty tokens a piece, 1,024 a batch: 51 pieces, of 18 rollouts."""
    sizes = Sizes(18, 14, 96, 320, (20, 60), 1024)
    assert max(point.n for point in make_plan(sizes).points if point.kind == "score") == 18
    actor, scorer = {"kv_capacity_tokens": 16256}, {"kv_capacity_tokens": 8064, "kv_block_tokens": 128}
    for point in make_plan(bounded(sizes, actor, scorer)).points:
        if point.kind == "score":
            assert sum(-(-(past + new) // 128) * 128 for past, new in point.rows) <= 8064


def test_of_a_scorer_with_blocks_pieces_behind_whole_blocks_are_measured() -> None:
    """It never prefills behind anything else; and of smaller chunks, what it prefills is a block."""
    sizes = Sizes(18, 14, 96, 320, (20, 60), 1024)
    scorer = {"kv_capacity_tokens": 8064, "kv_block_tokens": 128, "prefill_block_tokens": 128}
    scored = [
        point for point in make_plan(bounded(sizes, {}, scorer)).points if point.kind in ("score", "piece")
    ]
    assert all(past % 128 == 0 and past + new <= 416 for point in scored for past, new in point.rows)
    assert {past for point in scored for past, _ in point.rows} == {0, 128, 256, 384}
    chunks = [point.n for point in scored if {new for _, new in point.rows} == {128}]
    assert {1, 8} <= set(chunks), "a block alone and several together"


def test_chunk_sizes_are_measured_alone_and_together() -> None:
    score = [point for point in make_plan(SIZES).points if point.kind == "score"]
    for chunk in SIZES.chunk_sizes:
        same = {point.n for point in score if {new for _, new in point.rows} == {chunk}}
        assert 1 in same
        assert len(same) > 1, chunk


def test_the_order_is_shuffled_anew_each_pass_and_repeatable() -> None:
    plan = make_plan(SIZES, seed=3)
    order = [(point.key, number) for point, number in plan.visits(3)]
    assert order == [(point.key, number) for point, number in make_plan(SIZES, seed=3).visits(3)]
    passes = [[key for key, number in order if number == visit] for visit in range(3)]
    assert all(sorted(one) == sorted(point.key for point in plan.points) for one in passes)
    assert passes[1] != passes[2]
    assert order != [(point.key, number) for point, number in make_plan(SIZES, seed=4).visits(3)]
    essential = [point.essential for point, number in plan.visits(1)]
    assert essential == sorted(essential, reverse=True), "without these there is no profile"


def test_sizes_come_from_the_scenario() -> None:
    scenario = load_scenario("paper-gsm8k-7b")
    sizes = sizes_of(scenario)
    assert sizes.rollout_batch_size == scenario.rollout_batch_size == 112
    assert sizes.max_running * scenario.rollout.num_replicas >= 112 + 112 // 8
    assert sizes.chunk_sizes == (128, 256, 512)
    assert sizes.max_length == scenario.max_prompt_length + scenario.max_response_length


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 500), st.integers(0, 5000), st.integers(2, 6))
def test_geometric_grids_rise_and_hold_both_ends(low: int, more: int, count: int) -> None:
    grid = geometric(low, low + more, count)
    assert grid[0] == low
    assert grid[-1] == low + more
    assert grid == sorted(set(grid))
    assert len(grid) <= count


def test_too_short_rollouts_are_refused() -> None:
    with pytest.raises(OppoError, match="too short"):
        make_plan(Sizes(4, 4, 4, 4, (4,), 64))


def test_training_is_measured_on_batches_shaped_like_the_trace() -> None:
    scenario = load_scenario("h200-single")
    sizes = sizes_of(scenario)
    assert len(sizes.trained_lengths) == scenario.rollout_batch_size
    drawn = sorted(build_trace(scenario).response_lengths)
    told = [response for _, response in sizes.trained_lengths]
    assert told[len(told) // 2] == pytest.approx(drawn[len(drawn) // 2], rel=0.05)
    assert sum(told) / len(told) == pytest.approx(sum(drawn) / len(drawn), rel=0.05)
    shortest = _trained(sizes)[0]
    one, other = (shortest.rows[place][1] / told[place] for place in (10, 50))
    assert one == pytest.approx(other, rel=0.1), "the same shape"


def _trained(sizes: Sizes) -> list[Point]:
    return [point for point in make_plan(sizes).points if point.kind == "train"]


@given(
    st.lists(st.tuples(st.integers(1, 64), st.integers(1, 300)), min_size=1, max_size=12),
)
@example([(64, 1)])
@example([(1, 300), (64, 300)])
def test_scaled_batches_keep_within_the_limits(lengths: list[tuple[int, int]]) -> None:
    sizes = Sizes(16, len(lengths), 64, 300, (20,), 400, trained_lengths=tuple(lengths))
    shaped = [point for point in _trained(sizes) if point.cell is not None]
    cells = [point.tokens for point in shaped]
    assert cells == sorted(set(cells))
    assert len(cells) >= 2
    for point in shaped:
        assert point.n == len(lengths)
        assert all(1 <= prompt <= 64 and 1 <= response <= 300 for prompt, response in point.rows)
