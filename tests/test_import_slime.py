"""slime's rollout dumps, written as torch.save writes them."""

from pathlib import Path
from typing import Any

import pytest

from oppo_sim.traces.importers import import_log
from oppo_sim.traces.turns import waits_of
from oppo_sim.turns import ToolWait
from tests.import_cases import column, refused, simulated, write_archive


def sample(index: int, length: int, status: str = "completed", **more: Any) -> dict[str, Any]:
    return {
        "group_index": index // 2, "index": index, "prompt": "2+2?", "tokens": list(range(5 + length)), "response": "…",
        "response_length": length,
        "label": "4", "reward": 0.5, "loss_mask": None, "weight_versions": ["3", "4"] if length > 20 else [], "status": status,
        "metadata": {},
        "non_generation_time": 0.0, "spec_info": {"spec_accept_token_num": 0}, "prefix_cache_info": {"cached_tokens": 0}, **more,
    }  # fmt: skip


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    folder = tmp_path / "debug"
    folder.mkdir()
    for step in (0, 1, 10):
        samples = [
            sample(0, 10),
            sample(1, 30, "truncated"),
            sample(2, 7, "aborted"),
            sample(3, 0, "pending"),
        ]
        write_archive(folder / f"{step}.pt", {"rollout_id": step, "samples": samples})
    write_archive(folder / "eval_1.pt", {"rollout_id": 1, "samples": [sample(0, 999)]})
    return folder


def test_lengths_versions_and_reasons_come_from_the_dump(dump: Path, tmp_path: Path) -> None:
    frame, provenance = import_log("slime", dump)
    assert column(frame, "step") == [0] * 3 + [1] * 3 + [10] * 3
    assert column(frame, "response_length")[:3] == [10, 30, 7]
    assert column(frame, "prompt_length")[:3] == [5, 5, 5]
    assert column(frame, "finish_reason")[:3] == ["stop", "length", "abort"]
    assert column(frame, "prompt_id")[:3] == ["0", "0", "1"]
    assert column(frame, "sample_id")[:3] == ["0", "1", "2"]
    assert column(frame, "head_version")[:3] == [None, 3, None]
    assert column(frame, "tail_version")[:3] == [None, 4, None]
    assert provenance["rows_left_out"] == {"sample never generated (status pending)": 3}
    assert provenance["files_left_out"] == {"file of an evaluation": 1}
    assert provenance["finish_reasons"] == {"log": 9, "length": 0, "unknown": 0}
    assert provenance["lengths"] == "as logged"
    run = simulated(frame, provenance, tmp_path)
    assert 7 not in set(run.rollouts["response_length"]), "aborted rollouts are not replayed"


def test_a_single_dump_is_recognised(dump: Path) -> None:
    frame, provenance = import_log("auto", dump / "10.pt")
    assert provenance["framework"] == "slime"
    assert provenance["detected"] is True
    assert len(frame) == 3


def test_a_reward_in_parts_is_named(tmp_path: Path) -> None:
    path = write_archive(
        tmp_path / "3.pt", {"rollout_id": 3, "samples": [sample(0, 10, reward={"acc": 1.0, "format": 0.5})]}
    )
    frame, provenance = import_log("slime", path)
    assert column(frame, "reward") == [None]
    assert any("--field reward" in note for note in provenance["notes"])
    frame, _ = import_log("slime", path, fields={"reward": "reward.acc"})
    assert column(frame, "reward") == [1.0]
    assert "no field 'reward.nope'" in refused("slime", path, fields={"reward": "reward.nope"})


def test_damaged_dumps_are_refused(dump: Path, tmp_path: Path) -> None:
    whole = (dump / "1.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    assert "not a whole archive" in refused("slime", tmp_path / "cut.pt")
    (tmp_path / "empty.pt").write_bytes(b"")
    assert "no pickle that can be read" in refused("slime", tmp_path / "empty.pt")
    write_archive(tmp_path / "other.pt", {"model": {}})
    assert "no list 'samples'" in refused("slime", tmp_path / "other.pt")
    write_archive(tmp_path / "none.pt", {"rollout_id": 1, "samples": []})
    assert "holds no rollouts" in refused("slime", tmp_path / "none.pt")
    bad = [sample(0, 10), {**sample(1, 10), "response_length": -4}]
    write_archive(tmp_path / "bad.pt", {"rollout_id": 1, "samples": bad})
    assert "bad.pt, sample 2: response_length is -4" in refused("slime", tmp_path / "bad.pt")


def test_turns_come_from_the_mask_and_the_seconds_of_tools(tmp_path: Path) -> None:
    calls = [1] * 4 + [0] * 3 + [1] * 2 + [0] + [1] * 6 + [0] * 2
    samples = [
        sample(0, 18, loss_mask=calls, non_generation_time=3.0),
        sample(1, 5, loss_mask=[1] * 5, non_generation_time=0.0),
        sample(2, 18, loss_mask=calls),
        sample(3, 4, loss_mask=[0] * 4, remove_sample=True),
    ]
    path = write_archive(tmp_path / "4.pt", {"rollout_id": 4, "samples": samples})
    frame, provenance = import_log("slime", path)
    # The tokens behind the last turn belong to no rollout that went on.
    assert column(frame, "response_length") == [12, 5, 18, 4]
    assert column(frame, "prompt_length") == [5] * 4
    turns = [list(each) for each in frame["turn_response_lengths"]]
    assert turns == [[4, 2, 6], [5], [18], [4]]
    assert list(frame["tool_seconds"][0]) == [1.5, 1.5]
    assert list(frame["tool_tokens"][0]) == [3, 1]
    assert any("equal shares" in note for note in provenance["notes"])
    assert any("--tool-seconds gives those of a wait" in note for note in provenance["notes"])
    frame, provenance = import_log("slime", path, tool_seconds=0.5)
    assert column(frame, "response_length") == [12, 5, 12, 4]
    assert [list(each) for each in frame["tool_seconds"]] == [[1.5, 1.5], [], [0.5, 0.5], []]
    assert provenance["options"]["tool_seconds"] == 0.5
    simulated(frame, provenance, tmp_path)
    waits = waits_of(frame)
    assert waits is not None
    assert waits[2] == (ToolWait(4, 0.5, 3), ToolWait(6, 0.5, 1))
