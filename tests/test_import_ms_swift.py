"""ms-swift's completions and its log."""

from pathlib import Path
from typing import Any

import pytest

from oppo_sim.traces.importers import import_log
from tests.import_cases import column, refused, write_lines


def table(step: int, **more: Any) -> dict[str, Any]:
    """Two prompts, two samples each."""
    return {
        "step": [str(step)] * 4, "prompt": ["p" * 20] * 2 + ["q" * 24] * 2,
        "completion": ["x" * 40 * (row + step) for row in range(4)],
        "MathAccuracy": [1.0, 0.0, 1.0, 0.0], "advantages": [0.5, -0.5, 0.5, -0.5], **more,
    }  # fmt: skip


@pytest.mark.parametrize("named", ["auto", "ms-swift"])
def test_columns_become_rows(named: str, tmp_path: Path) -> None:
    """The log beside them is not taken, since rollouts tell more."""
    folder = tmp_path / "v0-20260822"
    write_lines(folder / "completions.jsonl", [table(1), table(2)])
    write_lines(folder / "logging.jsonl", [{"completions/mean_length": 9.0, "global_step/max_steps": "1/9"}])
    frame, provenance = import_log(named, folder, chars_per_token=4.0)
    assert provenance["framework"] == "ms_swift"
    assert column(frame, "step") == [1] * 4 + [2] * 4
    assert column(frame, "response_length") == [10, 20, 30, 40, 20, 30, 40, 50]
    assert column(frame, "prompt_length") == [5, 5, 6, 6] * 2
    assert column(frame, "reward") == [1.0, 0.0, 1.0, 0.0] * 2
    assert frame["prompt_id"].nunique() == 2


def test_of_several_rewards_one_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "completions.jsonl", [table(1, Format=[0.5] * 4)])
    frame, provenance = import_log("ms_swift", path, chars_per_token=4.0)
    assert column(frame, "reward") == [None] * 4
    assert "MathAccuracy, Format" in str(provenance["notes"])
    frame, _ = import_log("ms_swift", path, chars_per_token=4.0, fields={"reward": "Format"})
    assert column(frame, "reward") == [0.5] * 4


def test_bad_files_are_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "completions.jsonl", [{"step": ["1"]}])
    assert "line 1: there is no list 'completion'" in refused("ms_swift", path)


def test_its_log_tells_steps(tmp_path: Path) -> None:
    lines = [
        {
            "completions/mean_length": 300.0,
            "completions/max_length": 900.0,
            "global_step/max_steps": f"{step}/90",
        }
        for step in (10, 20)
    ]
    frame, _ = import_log("ms_swift", write_lines(tmp_path / "logging.jsonl", lines), rows_per_step=64)
    assert sorted(set(frame["step"])) == [10, 20]
    assert frame["response_length"].mean() == pytest.approx(300.0, rel=0.02)
