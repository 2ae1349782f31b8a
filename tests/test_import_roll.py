"""ROLL's dumps: one JSON object of columns a file."""

import json
from pathlib import Path
from typing import Any

from oppo_sim.traces.importers import import_log
from tests.import_cases import column, refused, simulated, write_lines


def columns(step: int, rows: int = 3, **more: Any) -> dict[str, Any]:
    return {
        "global_step": [step] * rows, "id": [f"q{row // 2}" for row in range(rows)], "prompt": ["p" * 20] * rows,
        "responses": ["x" * 40 * (row + 1) for row in range(rows)], "scores": [1.0] * rows, "domain": ["math_rule"] * rows,
        "sampling_params": [json.dumps({"temperature": 1.0})] * rows, **more,
    }  # fmt: skip


def test_columns_become_rows(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    for step in (0, 1):
        write_lines(folder / f"rollout_dump_data.step_{step}.jsonl", [columns(step)])
    frame, provenance = import_log("auto", folder, chars_per_token=4.0, max_response_length=30)
    assert provenance["framework"] == "roll"
    assert column(frame, "step") == [0] * 3 + [1] * 3
    assert column(frame, "response_length") == [10, 20, 30] * 2
    assert column(frame, "prompt_length") == [5] * 6
    assert column(frame, "finish_reason") == [None] * 6, "an estimate cannot tell"
    assert column(frame, "prompt_id") == ["q0", "q0", "q1"] * 2
    assert column(frame, "source") == ["roll/math_rule"] * 6
    simulated(frame, provenance, tmp_path)


def test_a_dump_with_token_ids_needs_no_tokenizer(tmp_path: Path) -> None:
    said = [
        json.dumps({"output_token_ids": [1] * length, "finish_reasons": reason})
        for length, reason in ((7, "stop"), (9, "length"), (2, "x"))
    ]
    frame, provenance = import_log(
        "roll", write_lines(tmp_path / "rollout_dump_data.step_4.jsonl", [columns(4, sampling_params=said)])
    )
    assert column(frame, "response_length") == [7, 9, 2]
    assert column(frame, "finish_reason") == ["stop", "length", None]
    assert provenance["lengths"] == "as logged"


def test_bad_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rollout_dump_data.step_0.jsonl"
    assert "column 'scores' does not have one value for each of the 3" in refused(
        "roll", write_lines(path, [columns(0, scores=[1.0])])
    )
    assert "there is no list 'responses'" in refused("roll", write_lines(path, [{"global_step": [1]}]))
    assert "row 1: reward is 'a' but must be a number" in refused(
        "roll", write_lines(path, [columns(0, scores=["a"] * 3)]), chars_per_token=4.0
    )
    path.write_text("")
    assert "holds no rollouts" in refused("roll", path)
