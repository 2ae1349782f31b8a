"""PipelineRL's file streams."""

from pathlib import Path
from typing import Any

from oppo_sim.traces.importers import import_log
from tests.import_cases import column, refused, simulated, write_lines


def text(length: int, finished: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "text": "qqqaaa", "n_predicted": 3, "reward": 1.0, "logprobs": [-0.1] * length, "ref_logprobs": [], "input_ids": [1] * (9 + length),
        "labels": [-100] * 9 + [1] * length, "group_id": "g", "finished": finished, "prompt_tokens": 9, "output_tokens": length,
        "visual_features": None, "metadata": {"model_version": 40, "rollout_index": 2}, **more,
    }  # fmt: skip


def test_texts_alone_and_in_groups(tmp_path: Path) -> None:
    folder = tmp_path / "actor" / "0"
    write_lines(
        folder / "0.jsonl",
        [
            text(20),
            [text(30, False), text(40)],
            {"training_texts": [text(50)], "metrics": {}, "latency": 1.0},
        ],
    )
    frame, provenance = import_log("auto", tmp_path / "actor")
    assert provenance["framework"] == "pipelinerl"
    assert column(frame, "response_length") == [20, 30, 40, 50]
    assert column(frame, "prompt_length") == [9] * 4
    assert column(frame, "finish_reason") == ["stop", "length", "stop", "stop"]
    assert column(frame, "prompt_id") == ["g"] * 4
    assert column(frame, "sample_id") == ["2"] * 4
    assert column(frame, "head_version") == [40] * 4
    simulated(frame, provenance, tmp_path)
    assert "there is no step" in refused("pipelinerl", tmp_path / "actor", steps=(1, 2))


def test_counts_that_were_not_filled_in_come_from_the_ids(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "0.jsonl", [text(20, output_tokens=0, prompt_tokens=0)])
    frame, _ = import_log("pipelinerl", path)
    assert frame[["prompt_length", "response_length"]].to_numpy().tolist() == [[9, 20]]
    path = write_lines(tmp_path / "1.jsonl", [text(20), text(20, output_tokens=0, logprobs=[])])
    assert "line 2: there is neither output_tokens nor logprobs" in refused("pipelinerl", path)
    path = write_lines(tmp_path / "2.jsonl", [text(20), [3]])
    assert "line 2: this is not a training text" in refused("pipelinerl", path)
    (tmp_path / "3.jsonl").write_text("")
    assert "holds no rollouts" in refused("pipelinerl", tmp_path / "3.jsonl")
