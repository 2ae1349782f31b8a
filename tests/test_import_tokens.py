"""Counting tokens: what is said when no tokenizer can be had. Counting with a real one is tested where the
engines are."""

import json
import sys
from pathlib import Path

import pytest

from oppo_sim.traces.importers import import_log
from tests.import_cases import column, refused, write_lines


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "1.jsonl", [{"input": "a", "output": "b" * 9, "score": 1, "step": 1}])


def test_a_missing_library_is_named(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    (tmp_path / "tokenizer.json").write_text(json.dumps({}))
    assert "pip install 'oppo-toolkit[tokenizers]'" in refused(
        "verl", log, tokenizer=tmp_path / "tokenizer.json"
    )
    assert "pip install 'oppo-toolkit[tokenizers]'" in refused("verl", log, tokenizer=tmp_path), (
        "a folder with the file is as good"
    )
    (tmp_path / "model").mkdir()
    assert "pip install transformers" in refused("verl", log, tokenizer=tmp_path / "model")
    assert "nothing is downloaded" in refused("verl", log, tokenizer="Qwen/Qwen3-8B")


@pytest.mark.parametrize(("chars", "tokens"), [(3.6, 2), (9.0, 1), (100.0, 1), (0.5, 18)])
def test_estimates_round(chars: float, tokens: int, log: Path) -> None:
    frame, provenance = import_log("verl", log, chars_per_token=chars)
    assert column(frame, "response_length") == [tokens], "an estimate adds no end token"
    assert f"{chars:g} characters a token" in provenance["lengths"]


def test_an_empty_answer_has_no_tokens(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "1.jsonl", [{"input": "a", "output": "", "score": 1, "step": 1}])
    assert column(import_log("verl", path, chars_per_token=3.6)[0], "response_length") == [0]
