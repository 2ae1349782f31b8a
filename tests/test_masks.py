"""Turns from the masks that frameworks keep."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppo_sim.traces.masks import Turns, turns_of_mask


@pytest.mark.parametrize(
    ("mask", "turns"),
    [
        ("", Turns([], [], 0)),
        ("000", Turns([], [], 3)),
        ("111", Turns([3], [], 0)),
        ("0011", Turns([2], [], 2)),
        ("1100", Turns([2], [], 0)),
        ("0110001011", Turns([2, 1, 2], [3, 1], 1)),
    ],
)
def test_by_hand(mask: str, turns: Turns) -> None:
    assert turns_of_mask(int(each) for each in mask) == turns


@given(st.integers(0, 5), st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1))
def test_what_was_put_together_is_taken_apart(before: int, parts: list[tuple[int, int]]) -> None:
    mask = [False] * before
    for made, answered in parts:
        mask += [True] * made + [False] * answered
    turns = turns_of_mask(mask)
    assert turns == Turns([made for made, _ in parts], [n for _, n in parts[:-1]], before)
    columns = turns.columns(6.0)
    assert bool(columns) == (len(parts) > 1)
    if columns:
        assert sum(columns["tool_seconds"]) == pytest.approx(6.0)
        assert len(columns["tool_seconds"]) == len(columns["tool_tokens"]) == len(parts) - 1
