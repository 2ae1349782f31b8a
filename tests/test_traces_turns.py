"""Traces of rollouts that wait for tools: columns, storage, cuts, and the waits of a replay."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from oppo_sim.errors import OppoError
from oppo_sim.traces.config import TraceConfig
from oppo_sim.traces.replay import build_replay, replay_frame
from oppo_sim.traces.schema import check_frame, content_hash
from oppo_sim.traces.storage import load_trace, save_trace
from oppo_sim.turns import ToolWait


def frame(**changes: Any) -> pd.DataFrame:
    columns: dict[str, Any] = {
        "prompt_length": [8, 8, 8],
        "response_length": [10, 6, 4],
        "turn_response_lengths": [[3, 5, 2], None, [4]],
        "tool_seconds": [[1.5, 20.0], None, []],
        "tool_tokens": [[7, 0], None, []],
    }
    return pd.DataFrame(columns | changes)


def test_a_row_says_its_turns_and_a_row_without_them_has_one() -> None:
    checked = check_frame(frame())
    assert [part.tolist() for part in checked["turn_response_lengths"]] == [[3, 5, 2], [6], [4]]
    made = replay_frame(checked, max_response_length=100, sampling="in_order")
    assert made.waits == [(ToolWait(3, 1.5, 7), ToolWait(8, 20.0, 0)), (), ()]
    assert made.response_lengths == [10, 6, 4]


def test_parquet_gives_the_turns_back_and_csv_refuses_them(tmp_path: Path) -> None:
    path = tmp_path / "tools.parquet"
    save_trace(frame(), path)
    assert content_hash(load_trace(path)) == content_hash(check_frame(frame()))
    with pytest.raises(
        OppoError, match=r"cannot hold turns, which are lists: give it a name that ends in \.parquet"
    ):
        save_trace(frame(), tmp_path / "tools.csv")
    text = tmp_path / "text.csv"
    text.write_text("response_length,turn_response_lengths,tool_seconds,tool_tokens\n5,2 3,1,4\n")
    with pytest.raises(OppoError, match=r"column turn_response_lengths is of type .* must be a list a row"):
        load_trace(text)


def test_the_hash_counts_waits_and_not_columns_that_say_nothing() -> None:
    plain = frame().drop(columns=["turn_response_lengths", "tool_seconds", "tool_tokens"])
    nothing = frame(turn_response_lengths=[None] * 3, tool_seconds=[None] * 3, tool_tokens=[None] * 3)
    assert content_hash(check_frame(nothing)) == content_hash(check_frame(plain))
    longer = frame(tool_seconds=[[1.5, 21.0], None, []])
    hashes = {content_hash(check_frame(each)) for each in (plain, frame(), longer)}
    assert len(hashes) == 3


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tool_tokens": [[7], None, []]}, "data row 1, column tool_tokens has 1 entries for 3 turns"),
        (
            {"response_length": [10, 6, 5]},
            "data row 3: the turns have 4 response tokens but response_length is 5",
        ),
        ({"tool_seconds": [[1.5, -2.0], None, []]}, "data row 1, column tool_seconds has -2"),
        ({"turn_response_lengths": [[3, 5, 0], None, [4]]}, "data row 1, column turn_response_lengths has 0"),
        ({"tool_seconds": [[1.5, None], None, []]}, "column tool_seconds has"),
    ],
)
def test_what_does_not_fit_is_refused_by_row_and_column(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OppoError, match=sentence):
        check_frame(frame(**changes))


def test_one_column_of_turns_alone_is_refused() -> None:
    with pytest.raises(OppoError, match="has turn_response_lengths but no tool_seconds and tool_tokens"):
        check_frame(frame().drop(columns=["tool_seconds", "tool_tokens"]))


@pytest.mark.parametrize(
    ("longest", "response", "waits"),
    [
        # 3 + 7 + 5 + 0 + 2 tokens in all.
        (17, 10, (ToolWait(3, 1.5, 7), ToolWait(8, 20.0, 0))),
        (16, 9, (ToolWait(3, 1.5, 7), ToolWait(8, 20.0, 0))),
        # The second answer leaves no room for another token: the response ends with the second turn.
        (15, 8, (ToolWait(3, 1.5, 7),)),
        (12, 5, (ToolWait(3, 1.5, 7),)),
        # Nor does the first.
        (10, 3, ()),
        (2, 2, ()),
    ],
)
def test_the_longest_response_counts_the_tools_tokens(
    longest: int, response: int, waits: tuple[ToolWait, ...]
) -> None:
    made = replay_frame(check_frame(frame()), max_response_length=longest, sampling="in_order")
    assert (made.response_lengths[0], (made.waits or [()])[0]) == (response, waits)
    assert made.clipped[0] == (response < 10)


def test_a_scenario_scales_lengths_and_waits(tmp_path: Path) -> None:
    path = tmp_path / "tools.parquet"
    save_trace(frame(), path)
    config = TraceConfig(path=str(path), sampling="in_order", length_factor=2.0, tool_seconds_factor=0.5)
    made = build_replay(
        config, max_prompt_length=None, max_response_length=100, group_size=1, seed=0, base_dir=None
    )
    assert made.response_lengths == [20, 12, 8]
    assert made.waits is not None
    assert made.waits[0] == (ToolWait(6, 0.75, 7), ToolWait(16, 10.0, 0))


def test_groups_keep_the_waits_of_their_rows() -> None:
    rows = frame(prompt_id=["a", "b", "a"], turn_response_lengths=[[3, 5, 2], None, [1, 3]],
                 tool_seconds=[[1.5, 20.0], None, [4.0]], tool_tokens=[[7, 0], None, [2]])  # fmt: skip
    made = replay_frame(check_frame(rows), max_response_length=100, group_size=2, sampling="in_order")
    assert made.response_lengths == [10, 4]
    assert made.waits == [(ToolWait(3, 1.5, 7), ToolWait(8, 20.0, 0)), (ToolWait(1, 4.0, 2),)]
    assert np.isfinite(made.mean_response_length(0))
