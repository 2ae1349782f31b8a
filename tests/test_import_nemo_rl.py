"""NeMo-RL's train_data_stepN.jsonl: every line is a batch of one."""

from pathlib import Path
from typing import Any

from oppo_sim.traces.importers import import_log
from tests.import_cases import column, refused, simulated, write_lines


def record(index: int, prompt: int, response: int, padding: int = 3, **more: Any) -> dict[str, Any]:
    length = prompt + response
    return {
        "content": [["What is it?" if index < 2 else "And that?", "It is."]], "rewards": [0.25 * index], "input_lengths": [length],
        "token_ids": [list(range(length + padding))], "token_loss_mask": [[0] * prompt + [1] * response + [0] * padding],
        "sample_loss_mask": [1.0], "advantages": [[0.5]], "generation_logprobs": [[-0.1]], "prev_logprobs": [[-0.1]], "idx": index, **more,
    }  # fmt: skip


def test_masks_are_summed(tmp_path: Path) -> None:
    folder = tmp_path / "exp_001"
    for step in (1, 12, 2):
        write_lines(folder / f"train_data_step{step}.jsonl", [record(row, 10, 20 + row) for row in range(4)])
    write_lines(folder / "val_data_step1.jsonl", [{"content": ["q"], "rewards": [1.0], "idx": 0}])
    frame, provenance = import_log("auto", folder)
    assert provenance["framework"] == "nemo_rl"
    assert column(frame, "step") == [1] * 4 + [2] * 4 + [12] * 4
    assert column(frame, "response_length")[:4] == [20, 21, 22, 23]
    assert column(frame, "prompt_length") == [10] * 12, "padding is no prompt"
    assert column(frame, "reward")[:4] == [0.0, 0.25, 0.5, 0.75]
    prompts = column(frame, "prompt_id")
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]
    assert column(frame, "sample_id")[:4] == ["0", "1", "2", "3"]
    simulated(frame, provenance, tmp_path, sampling="by_step")


def test_values_that_are_not_batches_of_one(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "train_data_step3.jsonl",
        [{"token_loss_mask": [0, 0, 1, 1, 1], "rewards": 1.0, "input_lengths": 5}],
    )
    frame, _ = import_log("nemo_rl", path, max_response_length=3)
    assert frame[["step", "prompt_length", "response_length"]].to_numpy().tolist() == [[3, 2, 3]]
    assert column(frame, "finish_reason") == ["length"]


def test_a_dump_without_masks_is_refused(tmp_path: Path) -> None:
    old = {key: value for key, value in record(0, 3, 4).items() if key != "token_loss_mask"}
    path = write_lines(tmp_path / "train_data_step1.jsonl", [record(0, 3, 4), old])
    assert "line 2: there is no token_loss_mask" in refused("nemo_rl", path)
    path = write_lines(tmp_path / "train_data_step2.jsonl", [record(0, 3, 4, input_lengths=[2])])
    assert "marks 4 tokens but input_lengths is 2" in refused("nemo_rl", path)
    path = write_lines(tmp_path / "train_data_step3.jsonl", [record(0, 3, 4, token_loss_mask=[["a"]])])
    assert "not a list of numbers" in refused("nemo_rl", path)
    (tmp_path / "train_data_step4.jsonl").write_text("")
    assert "holds no rollouts" in refused("nemo_rl", tmp_path / "train_data_step4.jsonl")


def test_turns_come_from_the_mask(tmp_path: Path) -> None:
    mask = (
        [0] * 5 + [1] * 4 + [0] * 3 + [1] * 2 + [0] * 6
    )  # with an answer that nothing followed, and padding
    path = write_lines(
        tmp_path / "train_data_step3.jsonl",
        [record(0, 5, 9, input_lengths=[16], token_loss_mask=[mask]), record(1, 5, 7)],
    )
    frame, provenance = import_log("nemo_rl", path)
    assert column(frame, "response_length") == [6, 7]
    assert column(frame, "prompt_length") == [10, 5]
    assert "turn_response_lengths" not in frame
    assert any("rollout of several turns counts as one response" in note for note in provenance["notes"])
    frame, provenance = import_log("nemo_rl", path, tool_seconds=2.0, max_response_length=9)
    assert column(frame, "response_length") == [6, 7]
    assert column(frame, "prompt_length") == [5, 5]
    assert [list(each) for each in frame["turn_response_lengths"]] == [[4, 2], [7]]
    assert [list(each) for each in frame["tool_seconds"]] == [[2.0], []]
    assert [list(each) for each in frame["tool_tokens"]] == [[3], []]
    # The bound is one on response and answers together, as in a replay.
    assert column(frame, "finish_reason") == ["length", "stop"]
    simulated(frame, provenance, tmp_path)


def test_seconds_of_tools_without_a_wait_are_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "train_data_step3.jsonl", [record(0, 5, 9)])
    assert "--tool-seconds has no effect on this log of nemo_rl" in refused("nemo_rl", path, tool_seconds=1.0)
    assert "must lie between 0 and 1,000,000" in refused("nemo_rl", path, tool_seconds=-1.0)
