"""The plain attention path, the key-value store under it, and the indices a CUDA kernel is given."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oppo_real.engines import attention_check, packed_kernels, packed_store
from oppo_real.engines.attention_check import verify_attention
from oppo_real.engines.packed_graphs import rows_bucket
from oppo_real.engines.packed_kernels import FlashIndex, flash_index, plain_attention
from oppo_real.engines.packed_plan import Span, make_plan, whole_spans
from oppo_real.engines.packed_store import KVStore
from oppo_sim.errors import OppoError
from tests.real.tiny import single_thread

single_thread()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("shape", [(8, 2, 64), (4, 4, 16), (3, 1, 32)])
def test_plain_path_equals_a_textbook_softmax(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    report = verify_attention("cpu", dtype, *shape)
    assert report.path == "plain"
    assert report.failures == {}
    assert 0 < report.max_abs_error["plain"] <= report.tolerance


def test_verification_rejects_an_attention_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: object, scale: float
    ) -> torch.Tensor:
        return torch.zeros_like(query)

    monkeypatch.setattr(packed_kernels, "plain_attention", blind)
    with pytest.raises(OppoError, match="differs by"):
        verify_attention("cpu", torch.float32)


def test_verification_takes_nan_for_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        packed_kernels,
        "plain_attention",
        lambda query, key, value, plan, scale: torch.full_like(query, float("nan")),
    )
    with pytest.raises(OppoError, match="differs by nan"):
        verify_attention("cpu", torch.float32)


lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=9)


def _as_the_kernel_reads(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, index: FlashIndex
) -> torch.Tensor:
    """Sequence i: queries between its offsets, keys from its start, as many as its length; causal, aligned at
    the end."""
    out = []
    for i in range(len(index.key_lengths)):
        rows = slice(int(index.query_offsets[i]), int(index.query_offsets[i + 1]))
        start, count = int(index.key_starts[i]), int(index.key_lengths[i])
        queries = rows.stop - rows.start
        assert queries <= index.max_queries and count <= index.max_keys
        scores = (
            torch.einsum("qhd,khd->hqk", query[rows], key[start : start + count]) * query.shape[2] ** -0.5
        )
        seen = torch.ones(queries, count, dtype=torch.bool).tril(count - queries)
        out.append(
            torch.einsum(
                "hqk,khd->qhd",
                scores.masked_fill(~seen, float("-inf")).softmax(-1),
                value[start : start + count],
            )
        )
    return torch.cat(out)


@settings(max_examples=25, deadline=None)
@given(lengths, st.integers(0, 10_000))
def test_kernel_indices_describe_the_same_attention_as_the_plan(
    shape: list[tuple[int, int]], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    spans, size = attention_check._shuffled_spans(shape, generator)
    query = torch.randn(sum(new for new, _ in shape), 2, 8, generator=generator)
    key, value = torch.randn(size, 2, 8, generator=generator), torch.randn(size, 2, 8, generator=generator)
    index = flash_index(spans, torch.device("cpu"))
    assert index.key_starts.dtype == index.query_offsets.dtype == index.key_lengths.dtype == torch.int32
    assert len(index.key_starts) == len(spans) + 1
    # Both ways of the plan: gathered groups, and (with keys declared enormous) one call a sequence.
    for bytes_per_key in (1, 1 << 20):
        plan = make_plan(spans, bytes_per_key, torch.float32, torch.device("cpu"))
        assert bool(plan.groups) == (bytes_per_key == 1)
        found = plain_attention(query, key, value, plan, 8**-0.5)
        torch.testing.assert_close(
            found, _as_the_kernel_reads(query, key, value, index), atol=1e-5, rtol=1e-4
        )


def test_long_pieces_behind_a_context_are_cut_into_query_slices_exactly() -> None:
    generator = torch.Generator().manual_seed(5)
    query = torch.randn(1300, 2, 8, generator=generator)
    key, value = torch.randn(1500, 2, 8, generator=generator), torch.randn(1500, 2, 8, generator=generator)
    span = Span(0, 1300, 0, 1500)
    plan = make_plan([span], 1 << 20, torch.float32, torch.device("cpu"))
    assert len(plan.singles) > 1
    expected = _as_the_kernel_reads(query, key, value, flash_index([span], torch.device("cpu")))
    torch.testing.assert_close(
        plain_attention(query, key, value, plan, 8**-0.5), expected, atol=1e-5, rtol=1e-4
    )


def test_similar_sequences_go_together_and_little_is_padded() -> None:
    def groups(lengths: list[int]) -> list[tuple[int, int]]:
        """(sequences, query-key pairs with padding) of each group."""
        starts = [sum(lengths[:place]) for place in range(len(lengths))]
        spans = [Span(start, length, start, length) for start, length in zip(starts, lengths, strict=True)]
        plan = make_plan(spans, 1, torch.float32, torch.device("cpu"))
        assert not plan.singles
        return [(group.rows, group.rows * group.queries * group.keys) for group in plan.groups]

    assert groups([30] * 64) == [(64, 64 * 900)]
    drawn = torch.randint(1, 300, (200,), generator=torch.Generator().manual_seed(3)).tolist()
    left = sorted(drawn)
    found = groups(drawn)
    for rows, pairs in found:
        own, left = left[:rows], left[rows:]
        assert pairs <= 1.3 * sum(length**2 for length in own) + (1 << 14)
    assert not left
    assert len(found) < 20


def test_gradients_of_the_plain_path_are_those_of_dense_attention() -> None:
    generator = torch.Generator().manual_seed(1)
    spans = whole_spans((3, 1, 20, 9))
    for bytes_per_key in (1, 1 << 20):
        leaves = [
            torch.randn(33, heads, 8, generator=generator, dtype=torch.float64, requires_grad=True)
            for heads in (4, 2, 2)
        ]
        plan = make_plan(spans, bytes_per_key, torch.float64, torch.device("cpu"))
        out = plain_attention(leaves[0], leaves[1], leaves[2], plan, 8**-0.5)
        dense = attention_check._textbook(leaves[0], leaves[1], leaves[2], spans)
        toward = torch.randn(out.shape, generator=generator, dtype=torch.float64)
        for found, expected in zip(
            torch.autograd.grad(out, leaves, toward), torch.autograd.grad(dense, leaves, toward), strict=True
        ):
            torch.testing.assert_close(found, expected)


@settings(max_examples=50, deadline=None)
@given(st.data(), st.integers(1, 8), st.booleans(), st.integers(0, 600))
def test_store_keeps_what_was_written_whatever_moves(
    data: st.DataObject, block: int, shrink: bool, room: int
) -> None:
    store = KVStore(2, block, shrink, room)
    assert room <= store.size < room + 2 * block
    limits = dict.fromkeys(range(6), 250) if data.draw(st.booleans()) else None
    truth: dict[int, list[float]] = {}
    counter = 0.0
    for _ in range(data.draw(st.integers(1, 25))):
        rollouts = data.draw(st.sets(st.integers(0, 5), min_size=1))
        if data.draw(st.booleans()):
            for rollout in rollouts:
                store.free(rollout)
                truth.pop(rollout, None)
        else:
            new = {rollout: data.draw(st.integers(1, 9)) for rollout in rollouts}
            store.reserve({rollout: store.length(rollout) + count for rollout, count in new.items()}, limits)
            places: list[int] = []
            values: list[float] = []
            for rollout, count in new.items():
                start = store.start(rollout) + store.length(rollout)
                assert store.start(rollout) >= block, "the scratch block must stay free"
                places.extend(range(start, start + count))
                written = [counter + i for i in range(count)]
                counter += count
                truth.setdefault(rollout, []).extend(written)
                values.extend(written)
            for layer in range(2):
                key = torch.tensor(values).view(-1, 1, 1) + 0.25 * layer
                store.write(layer, torch.tensor(places), key, -key)
            for rollout, count in new.items():
                store.advance(rollout, count)
        for rollout, expected in truth.items():
            assert store.length(rollout) == len(expected)
            for layer in range(2):
                found = store.keys(layer)[store.start(rollout) : store.start(rollout) + len(expected), 0, 0]
                assert found.tolist() == [value + 0.25 * layer for value in expected]
                assert torch.equal(
                    store.values(layer)[store.start(rollout) : store.start(rollout) + len(expected), 0, 0],
                    -found,
                )
        assert store.tokens == sum(map(len, truth.values())) <= store.size


def test_store_gives_memory_back_and_bounds_headroom() -> None:
    store = KVStore(1, block_tokens=4)
    for rollout in range(8):
        store.reserve({rollout: 100}, {rollout: 101})
        store.write(
            0,
            torch.arange(store.start(rollout), store.start(rollout) + 100),
            torch.ones(100, 1, 2),
            torch.ones(100, 1, 2),
        )
        store.advance(rollout, 100)
    full, generation = store.size, store.generation
    assert 8 * 104 < full <= 8 * 104 * 1.3 + 8
    for rollout in range(7):
        store.free(rollout)
    assert store.size < full / 3
    assert store.generation > generation
    store.free(7)
    assert store.size == 4
    assert store.bytes_per_token() == 16


def test_an_arena_with_room_keeps_its_address() -> None:
    """Captured steps hold addresses: as long as the tokens fit one and a half times, nothing is captured
    again."""
    store = KVStore(1, block_tokens=4, shrink=False, room=600)
    store.reserve({0: 1})
    store.write(0, torch.tensor([store.start(0)]), torch.ones(1, 1, 2), torch.ones(1, 1, 2))
    store.advance(0, 1)
    address = store.keys(0).data_ptr()
    for tokens in range(2, 51):
        store.reserve(dict.fromkeys(range(8), tokens))
        for rollout in range(8):
            store.advance(rollout, tokens - store.length(rollout))
    store.free(3)
    store.reserve({9: 50})
    assert (store.size, store.generation) == (600, 0)
    assert store.keys(0).data_ptr() == address


def test_rows_moved_at_once_are_those_moved_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU does it."""

    def made() -> list[list[float]]:
        store = KVStore(1, block_tokens=2, shrink=False, room=40)
        for rollout in range(12):
            others = {3: 9, 5: 14} if rollout == 8 else {}
            needs = {rollout: 3, **others}
            store.reserve(needs)
            for one, need in needs.items():
                new = range(store.length(one), need)
                at = torch.tensor([store.start(one) + place for place in new])
                values = torch.tensor([100.0 * one + place for place in new]).view(-1, 1, 1)
                store.write(0, at, values, -values)
                store.advance(one, len(new))
            if rollout == 6:
                store.free(2)
                store.free(4)
        return [
            store.keys(0)[store.start(one) : store.start(one) + store.length(one), 0, 0].tolist()
            for one in store.rollouts()
        ]

    expected = made()
    of_a_gpu, moved = packed_store._rows_of, []
    monkeypatch.setattr(packed_store, "to_device", lambda values, device: moved.append(len(values)) or values)
    monkeypatch.setattr(packed_store, "_rows_of", lambda moves, _: of_a_gpu(moves, torch.device("cuda")))
    assert made() == expected and moved


def test_a_rollout_gets_its_greatest_length_at_once_as_long_as_there_is_room() -> None:
    store = KVStore(1, block_tokens=4, shrink=False, room=404)
    limits = dict.fromkeys(range(6), 100)
    store.reserve(dict.fromkeys(range(4), 10), limits)
    first = {rollout: store.start(rollout) for rollout in range(4)}
    for rollout in range(4):
        store.advance(rollout, 10)
    store.reserve(dict.fromkeys(range(4), 100), limits)
    assert {rollout: store.start(rollout) for rollout in range(4)} == first, "nobody is moved"
    # There is no room for a fifth until the others give up what they do not need.
    store.reserve({4: 60, 5: 40}, limits)
    assert (store.size, store.generation) == (404, 0)
    store.reserve({4: 60, 5: 100, 0: 90}, limits)
    assert store.size == 404
    spans = sorted((store.start(rollout), store.length(rollout)) for rollout in range(6))
    assert all(start >= 4 for start, _ in spans)


def test_captured_row_counts_waste_little() -> None:
    assert [rows_bucket(rows) for rows in (1, 2, 3, 4, 5, 9, 64, 65, 112, 257)] == [
        1,
        2,
        4,
        4,
        8,
        16,
        64,
        80,
        112,
        288,
    ]
    assert all(rows <= rows_bucket(rows) < rows + max(4, rows * 0.25) + 4 for rows in range(1, 600))
