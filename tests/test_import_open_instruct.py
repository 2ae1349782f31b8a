"""open-instruct's rollouts: token ids in shards."""

from pathlib import Path
from typing import Any

from oppo_sim.traces.importers import import_log
from tests.import_cases import column, refused, simulated, write_lines


def record(step: int, sample: int, length: int, reason: str | None = "stop", **more: Any) -> dict[str, Any]:
    return {
        "step": step, "sample_idx": sample, "prompt_idx": sample // 2, "prompt_tokens": [1] * 12, "response_tokens": [2] * length,
        "reward": 1.0, "advantage": 0.1, "finish_reason": reason, "dataset": "math", "request_info": {"num_calls": 0}, **more,
    }  # fmt: skip


def test_ids_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "rollouts"
    write_lines(
        folder / "run1_rollouts_000000.jsonl",
        [record(1, 0, 30), record(1, 1, 40, "length"), record(1, 2, 5, "abort")],
    )
    write_lines(
        folder / "run1_rollouts_000001.jsonl",
        [record(2, 0, 6, None, dataset=["code"]), record(2, 1, 7, "confused")],
    )
    write_lines(folder / "run1_metadata.jsonl", [{"run_name": "run1"}])
    frame, provenance = import_log("auto", folder)
    assert provenance["framework"] == "open_instruct"
    assert column(frame, "response_length") == [30, 40, 5, 6, 7]
    assert column(frame, "prompt_length") == [12] * 5
    assert column(frame, "finish_reason") == ["stop", "length", "abort", None, None]
    assert column(frame, "source") == ["open_instruct/math"] * 3 + [
        "open_instruct/code",
        "open_instruct/math",
    ]
    assert column(frame, "prompt_id") == ["0", "0", "1", "0", "0"]
    assert provenance["finish_reasons"] == {"log": 3, "length": 0, "unknown": 2}
    assert any("'confused'" in note for note in provenance["notes"])
    simulated(frame, provenance, tmp_path)
    frame, _ = import_log("open_instruct", folder, max_response_length=40, steps=(2, 2))
    assert column(frame, "finish_reason") == ["stop", "stop"]


def test_bad_records_are_named(tmp_path: Path) -> None:
    path = tmp_path / "r_rollouts_000000.jsonl"
    assert "line 2: there is no field 'response_tokens'" in refused(
        "open_instruct", write_lines(path, [record(1, 0, 3), {"step": 1}])
    )
    bad = write_lines(path, [record(1, 0, 3, response_tokens="text")])
    assert "line 1: response_tokens is 'text' but must be a whole number" in refused("open_instruct", bad)
    path.write_text("")
    assert "holds no rollouts" in refused("open_instruct", path)
