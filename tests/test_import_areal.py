"""AReaL's dumps: folders of versions, a file a task."""

from pathlib import Path
from typing import Any

from oppo_sim.traces.importers import import_log
from tests.import_cases import column, refused, simulated, write_lines


def record(task: int, sample: int, length: int, head: int, tail: int, **more: Any) -> dict[str, Any]:
    return {
        "task_id": task, "sample_idx": sample, "seqlen": 100 + length, "prompt_len": 100, "head_version": head, "tail_version": tail,
        "reward": 1.0, "prompt": "q", "completion": "a", **more,
    }  # fmt: skip


def test_lengths_and_versions(tmp_path: Path) -> None:
    write_lines(tmp_path / "dump" / "10" / "7.jsonl", [record(7, 0, 50, 8, 10), record(7, 1, 60, 9, 10)])
    write_lines(tmp_path / "dump" / "9" / "3.jsonl", [record(3, 0, 20, 9, 9), record(3, 1, 0, -1, -1)])
    frame, provenance = import_log("auto", tmp_path / "dump", max_response_length=60)
    assert provenance["framework"] == "areal"
    assert column(frame, "response_length") == [20, 0, 50, 60]
    assert column(frame, "prompt_length") == [100] * 4
    assert column(frame, "step") == [9, None, 8, 9], "the step in which a rollout began"
    assert column(frame, "head_version") == [9, None, 8, 9]
    assert column(frame, "tail_version") == [9, None, 10, 10]
    assert column(frame, "finish_reason") == ["stop", "stop", "stop", "length"]
    assert column(frame, "prompt_id") == ["3", "3", "7", "7"]
    assert [file["name"] for file in provenance["files"]] == ["9/3.jsonl", "10/7.jsonl"]
    simulated(frame, provenance, tmp_path)


def test_bad_records_are_named(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "1.jsonl", [record(1, 0, 5, 1, 1), {**record(1, 1, 5, 1, 1), "prompt_len": 500}]
    )
    assert "line 2: prompt_len 500 is above seqlen 105" in refused("areal", path)
    path = write_lines(tmp_path / "2.jsonl", [record(1, 0, 5, 1, 1), {"task_id": 3}])
    assert "line 2: there is no seqlen" in refused("areal", path)
    assert "line 1: there is no step" not in refused("areal", path, steps=(0, 5))
    (tmp_path / "3.jsonl").write_text("")
    assert "holds no rollouts" in refused("areal", tmp_path / "3.jsonl")
