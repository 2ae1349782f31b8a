"""What a sweep varies: ranges, lists, intervals and samples as typed."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oppo_sim.errors import OppoError
from oppo_sim.sweep.axes import GridAxis, SampledAxis, grid_axis, sampled_axis, split_assignment
from oppo_sim.sweep.points import points_of

GRIDS: dict[str, tuple[Any, list[Any]]] = {
    "list": ("128,256, 512", [128, 256, 512]),
    "adding": ("0:32:+8", [0, 8, 16, 24, 32]),
    "end not met": ("0:10:+4", [0, 4, 8]),
    "by one": ("2:5", [2, 3, 4, 5]),
    "multiplying": ("64:1024:*2", [64, 128, 256, 512, 1024]),
    "whole numbers stay whole": ("64:300:*1.5", [64, 96, 144, 216]),
    "shares": ("0.0:0.3:+0.1", [0.0, 0.1, 0.2, 0.3]),
    "mixed": ("0,1,4:16:+4,0.5", [0, 1, 4, 8, 12, 16, 0.5]),
    "text": ("separate, rollout", ["separate", "rollout"]),
    "yaml": (
        "true,null,'1,2',{control: explore, candidates: [1, 2]}",
        [True, None, "1,2", {"control": "explore", "candidates": [1, 2]}],
    ),
    "one": (8, [8]),
    "python list": ([8, "4:6", "a"], [8, 4, 5, 6, "a"]),
    "mapping": ({"from": 1, "to": 8, "times": 2}, [1, 2, 4, 8]),
    "mapping that adds": ({"from": 1, "to": 7, "add": 3}, [1, 4, 7]),
    "a list for a field": ([["a", "b"], ["c"]], [["a", "b"], ["c"]]),
}


@pytest.mark.parametrize("case", GRIDS)
def test_a_grid_has_the_values_that_were_typed(case: str) -> None:
    given_values, wanted = GRIDS[case]
    found = grid_axis("policy.chunk_size", given_values).values
    assert list(found) == wanted
    assert [type(value) for value in found] == [type(value) for value in wanted]


BAD_GRIDS: dict[str, tuple[Any, str]] = {
    "backwards": ("8:2:+1", "swap"),
    "no way up": ("8:16:*1", "factor above 1"),
    "from zero": ("0:16:*2", "above 0"),
    "step": ("0:16:+0", "step above 0"),
    "twice": ("1,2,1", "twice"),
    "nothing": (" , ", "no values"),
    "too many": ("0:9999999:+1", "at most"),
    "broken yaml": ("{a", "policy.chunk_size={a"),
    "mapping": ({"from": 1, "upto": 2}, "a range is"),
    "mapping of text": ({"from": "1", "to": 2}, "no number"),
}


@pytest.mark.parametrize("case", BAD_GRIDS)
def test_values_that_are_none_are_refused(case: str) -> None:
    given_values, word = BAD_GRIDS[case]
    with pytest.raises(OppoError, match=word.replace("{", r"\{")):
        grid_axis("policy.chunk_size", given_values)


SAMPLED: dict[str, tuple[Any, SampledAxis]] = {
    "whole": ("0..32", SampledAxis("f", 0, 32, integer=True)),
    "float": ("0.0..0.5", SampledAxis("f", 0.0, 0.5)),
    "float of whole bounds": ("1..2:float", SampledAxis("f", 1, 2)),
    "log": ("64..1024:log:int", SampledAxis("f", 64, 1024, log=True, integer=True)),
    "choice": ("a,b", SampledAxis("f", choices=("a", "b"))),
    "mapping": ({"low": 1, "high": 8, "log": True}, SampledAxis("f", 1, 8, log=True, integer=True)),
}


@pytest.mark.parametrize("case", SAMPLED)
def test_what_is_drawn_is_as_typed(case: str) -> None:
    given_values, wanted = SAMPLED[case]
    assert sampled_axis("f", given_values) == wanted


@pytest.mark.parametrize(
    ("given_values", "word"),
    [
        ("5..2", "swap"),
        ("0..8:log", "logarithm"),
        ("0.5..8:int", "whole"),
        ("0..8:cube", "cube"),
        ("0..8:int:float", "one of"),
        ("8", "nothing to draw"),
        ({"low": 1}, "low"),
        ({"low": True, "high": 2}, "number"),
    ],
)
def test_intervals_that_are_none_are_refused(given_values: Any, word: str) -> None:
    with pytest.raises(OppoError, match=word):
        sampled_axis("f", given_values)


@given(st.integers(1, 500), st.integers(1, 500), st.booleans(), st.floats(0, 1, exclude_max=True))
@settings(max_examples=50, deadline=None)
def test_a_drawn_whole_number_lies_within_its_bounds(low: int, more: int, log: bool, share: float) -> None:
    axis = SampledAxis("f", low, low + more, log=log, integer=True)
    value = axis.at(share)
    assert isinstance(value, int)
    assert low <= value <= low + more
    assert axis.at(0.0) == low
    assert axis.at(math.nextafter(1.0, 0.0)) == low + more


def test_whole_numbers_are_equally_likely_and_logs_evenly_spread() -> None:
    shares = [(number + 0.5) / 1200 for number in range(1200)]
    drawn = [SampledAxis("f", 0, 3, integer=True).at(share) for share in shares]
    assert [drawn.count(value) for value in range(4)] == [300] * 4
    logs = [SampledAxis("f", 1.0, 100.0, log=True).at(share) for share in shares]
    assert sum(value < 10 for value in logs) == 600


def test_points_are_all_combinations_with_the_same_samples() -> None:
    grid = [GridAxis("a", (1, 2)), GridAxis("b", ("x", "y"))]
    points = points_of(grid, [SampledAxis("c", 0.0, 1.0)], 3)
    assert len(points) == 12
    assert [list(point) for point in points] == [["a", "b", "c"]] * 12
    assert [(point["a"], point["b"]) for point in points[::3]] == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]
    assert [point["c"] for point in points[:3]] == [point["c"] for point in points[9:]]


@pytest.mark.parametrize("sampler", ["random", "sobol"])
def test_more_samples_add_to_those_of_before(sampler: Any) -> None:
    axes = [sampled_axis("a", "0.0..1.0"), sampled_axis("b", "1..1000000:log")]
    few, many = (points_of([], axes, samples, sampler, 3) for samples in (5, 11))
    assert many[:5] == few
    assert len(many) == 11
    assert points_of([], axes, 5, sampler, 4) != few


def test_sobol_covers_evenly_and_equal_points_count_once() -> None:
    points = points_of([], [sampled_axis("a", "0.0..1.0")], 16, "sobol")
    assert sorted(int(point["a"] * 16) for point in points) == list(range(16))
    assert len(points_of([], [sampled_axis("a", "0..3")], 100)) == 4
    assert points_of([GridAxis("a", (1, 1.0))], [], 1) == [{"a": 1}, {"a": 1.0}]


def test_too_many_points_and_none_are_refused() -> None:
    with pytest.raises(OppoError, match="more than 1,000,000"):
        points_of([GridAxis("a", tuple(range(2000))), GridAxis("b", tuple(range(2000)))], [], 1)
    with pytest.raises(OppoError, match="varies nothing"):
        points_of([], [], 1)


@pytest.mark.parametrize("text", ["policy.chunk_size", "=3", "a..b=3", "a="])
def test_what_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(OppoError, match="FIELD=VALUES"):
        split_assignment(text, "--grid")


def test_a_range_to_draw_from_is_no_axis_of_a_grid() -> None:
    with pytest.raises(OppoError, match=r"of a grid it takes a step, f=0:64:\+STEP or :\*FACTOR"):
        grid_axis("f", "0..64")
