"""verl's rollout dumps and metrics."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from oppo_sim.traces.importers import import_log
from tests.import_cases import column, refused, simulated, write_lines


def record(step: int, prompt: str, characters: int, **more: Any) -> dict[str, Any]:
    return {"input": prompt, "output": "x" * characters, "gts": "4", "score": 1.0, "step": step, **more}


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Steps 2 and 10, two samples a prompt."""
    folder = tmp_path / "rollouts"
    for step in (10, 2):
        write_lines(
            folder / f"{step}.jsonl",
            [record(step, f"question {row // 2}", 40 * (row + 1) + step, acc=row % 2) for row in range(4)],
        )
    return folder


def test_text_is_counted_by_an_estimate_that_is_called_one(dump: Path, tmp_path: Path) -> None:
    frame, provenance = import_log("verl", dump, chars_per_token=4.0)
    assert column(frame, "step") == [2, 2, 2, 2, 10, 10, 10, 10], "numbers in file names count as numbers"
    assert column(frame, "response_length") == [10, 20, 30, 40, 12, 22, 32, 42]
    assert column(frame, "prompt_length") == [2] * 8
    assert column(frame, "reward") == [1.0] * 8
    assert column(frame, "finish_reason") == [None] * 8
    assert frame["prompt_id"].nunique() == 2
    assert not any("question" in each for each in frame["prompt_id"]), "no text is kept"
    assert provenance["lengths"] == "estimated: 4 characters a token; not counted"
    assert provenance["measured"] is False
    simulated(frame, provenance, tmp_path, sampling="by_step")


def test_provenance_names_files_by_content_and_no_folder_of_this_machine(dump: Path) -> None:
    _, provenance = import_log("verl", dump, chars_per_token=4.0, name="run 7")
    data = (dump / "2.jsonl").read_bytes()
    assert provenance["files"][0] == {
        "name": "2.jsonl",
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "rows": 4,
    }
    assert (provenance["framework"], provenance["rows_read"], provenance["rows_kept"]) == ("verl", 8, 8)
    assert provenance["finish_reasons"] == {"log": 0, "length": 0, "unknown": 8}
    assert str(dump.parent) not in str(provenance)


def test_an_estimate_does_not_tell_what_was_cut(dump: Path) -> None:
    frame, provenance = import_log("verl", dump, chars_per_token=4.0, max_response_length=30)
    assert column(frame, "finish_reason") == [None] * 8
    assert frame["response_length"].max() == 30
    assert provenance["finish_reasons"] == {"log": 0, "length": 0, "unknown": 8}
    assert any("cannot tell" in note for note in provenance["notes"])


def test_the_longest_allowed_marks_what_was_cut(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "1.jsonl", [record(1, "q", 8, tokens=[1] * count) for count in (29, 30)])
    frame, provenance = import_log("verl", path, fields={"response_length": "tokens"}, max_response_length=30)
    assert column(frame, "response_length") == [29, 30]
    assert column(frame, "finish_reason") == ["stop", "length"]
    assert provenance["finish_reasons"] == {"log": 0, "length": 2, "unknown": 0}
    assert provenance["measured"] is True


def test_ids_of_the_v1_trainer_name_prompt_and_sample(tmp_path: Path) -> None:
    uids = ["a1-b_0_0", "a1-b_1_0", "c_0_0", "just-a-uid"]
    path = write_lines(tmp_path / "1.jsonl", [record(1, "q", 8, uid=uid) for uid in uids])
    frame, _ = import_log("verl", path, chars_per_token=4.0)
    assert column(frame, "prompt_id") == ["a1-b", "a1-b", "c", "just-a-uid"]
    assert column(frame, "sample_id") == ["0_0", "1_0", "0_0", None]


def test_rows_that_fill_a_batch_up_are_no_rollouts(tmp_path: Path) -> None:
    rows = [record(1, "question", 40, uid=f"ab12_{sample}_0") for sample in range(3)]
    rows.append({**record(1, "", 0, uid=f"pad{'0f' * 16}_0_0"), "score": 0.0})
    frame, provenance = import_log("verl", write_lines(tmp_path / "1.jsonl", rows), chars_per_token=4.0)
    assert column(frame, "response_length") == [10, 10, 10]
    assert provenance["rows_left_out"] == {"row that only fills the batch up": 1}


def test_steps_are_chosen_without_opening_the_other_files(dump: Path) -> None:
    (dump / "3.jsonl").write_text("this is no JSON\n")
    frame, provenance = import_log("verl", dump, chars_per_token=4.0, steps=(5, 20))
    assert set(frame["step"]) == {10}
    assert [file["name"] for file in provenance["files"]] == ["10.jsonl"]


def test_another_field_may_be_the_reward(dump: Path) -> None:
    frame, _ = import_log("verl", dump, chars_per_token=4.0, fields={"reward": "acc"})
    assert column(frame, "reward") == [0.0, 1.0, 0.0, 1.0] * 2


def test_text_without_a_tokenizer_is_estimated_and_says_so(dump: Path) -> None:
    frame, provenance = import_log("verl", dump)
    assert column(frame, "response_length") == [10, 20, 30, 40, 12, 22, 32, 42]
    assert column(frame, "prompt_length") == [2] * 8
    assert provenance["measured"] is False
    (note,) = [note for note in provenance["notes"] if "no tokenizer" in note]
    assert "4 characters a token" in note
    assert "--tokenizer" in note


BAD_LINES = {
    "not json\n": "line 1: this is no JSON",
    '{"input": "a", "output": "b", "score": 1, "step": 1}\n{"input": "a"\n{}\n': "line 2: this is no JSON",
    '{"input": "a", "score": 1, "step": 1}\n': "line 1: there is no field 'output'",
    '{"input": "a", "output": 7, "score": 1, "step": 1}\n': "line 1: output is 7 but must be text",
    '{"input": "a", "output": "b", "score": "good", "step": 1}\n': (
        "line 1: reward is 'good' but must be a number"
    ),
    '{"input": "a", "output": "b", "score": 1, "step": 1.5}\n': (
        "line 1: step is 1.5 but must be a whole number"
    ),
    "[1, 2]\n": "line 1: this is not a JSON object",
}


@pytest.mark.parametrize(("text", "said"), BAD_LINES.items())
def test_bad_lines_are_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text(text)
    message = refused("verl", tmp_path / "1.jsonl", chars_per_token=4.0)
    assert "1.jsonl" in message
    assert said in message


def test_a_run_that_was_stopped_while_writing_loses_its_last_line_only(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "1.jsonl", [record(1, "q", 8), record(1, "q", 12)], end="")
    path.write_text(path.read_text()[:-9])
    frame, provenance = import_log("verl", path, chars_per_token=4.0)
    assert len(frame) == 1
    assert list(provenance["rows_left_out"].values()) == [1]
    assert (provenance["rows_read"], provenance["rows_kept"]) == (2, 1)


def test_packed_and_empty_files(tmp_path: Path) -> None:
    write_lines(tmp_path / "1.jsonl.gz", [record(1, "q", 8)])
    (tmp_path / "2.jsonl").write_text("")
    frame, provenance = import_log("verl", tmp_path, chars_per_token=4.0)
    assert column(frame, "step") == [1]
    assert provenance["files_left_out"] == {"empty file": 1}
    whole = (tmp_path / "1.jsonl.gz").read_bytes()
    (tmp_path / "1.jsonl.gz").write_bytes(whole[: len(whole) - 9])
    assert "not a whole gzip file" in refused("verl", tmp_path, chars_per_token=4.0)


def test_nothing_there_is_said(tmp_path: Path) -> None:
    assert "does not exist" in refused("verl", tmp_path / "no")
    assert "holds no file of verl" in refused("verl", tmp_path, chars_per_token=4.0)
    (tmp_path / "1.jsonl").write_text("")
    assert "holds" in refused("verl", tmp_path / "1.jsonl", chars_per_token=4.0)
    assert "has no effect" in refused(
        "verl",
        write_lines(tmp_path / "5.jsonl", [record(1, "q", 8)]),
        chars_per_token=4.0,
        fields={"median": "x"},
    )
