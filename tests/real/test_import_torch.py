"""Importing what torch really saves, and counting tokens with real tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from oppo_sim.traces.importers import import_log
from oppo_sim.traces.importers.pickles import load_pickle
from tests.import_cases import column, refused, write_lines


def sample(length: int, **more: Any) -> dict[str, Any]:
    return {
        "group_index": 0,
        "index": 1,
        "tokens": list(range(4 + length)),
        "response_length": length,
        "status": "completed",
        "reward": 1.0,
        **more,
    }


def test_a_dump_saved_by_torch(tmp_path: Path) -> None:
    picture = {"pixel_values": torch.rand(3, 500), "half": torch.zeros(2, dtype=torch.bfloat16)}
    samples = [
        sample(10),
        sample(20, tokens=torch.arange(24), reward=torch.tensor(0.5), multimodal_train_inputs=picture),
    ]
    torch.save({"rollout_id": 7, "samples": samples}, tmp_path / "7.pt")
    frame, _ = import_log("auto", tmp_path)
    assert frame[["step", "prompt_length", "response_length"]].to_numpy().tolist() == [[7, 4, 10], [7, 4, 20]]
    assert column(frame, "reward") == [1.0, 0.5]


def test_tensors_are_those_that_were_saved(tmp_path: Path) -> None:
    whole = torch.arange(24).reshape(2, 3, 4)
    for name, value in (
        ("plain", whole),
        ("turned", whole.transpose(0, 2)),
        ("part", whole[1, :, 1:3]),
        ("real", torch.rand(3, 2)),
        ("no", whole[:0]),
    ):
        torch.save({"x": value}, tmp_path / f"{name}.pt")
        assert load_pickle(tmp_path / f"{name}.pt")["x"].values().tolist() == value.tolist()


class _Custom:
    """A class that only the training run has."""


def test_objects_and_the_old_format_are_refused(tmp_path: Path) -> None:
    torch.save({"rollout_id": 1, "samples": [sample(3, metadata={"a": _Custom()})]}, tmp_path / "1.pt")
    message = refused("slime", tmp_path / "1.pt")
    assert "_Custom" in message
    assert "docs/importers.md" in message
    torch.save(
        {"rollout_id": 1, "samples": [sample(3)]}, tmp_path / "2.pt", _use_new_zipfile_serialization=False
    )
    assert "samples" in refused("slime", tmp_path / "2.pt")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Words are tokens; special tokens are added, answers are cut at three tokens and filled up, if one lets
    it."""
    words = {word: at for at, word in enumerate(["[UNK]", "<s>", "a", "b", "c", "d"])}
    made = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made.enable_truncation(3)
    made.enable_padding(length=8)
    (tmp_path / "model").mkdir()
    made.save(str(tmp_path / "model" / "tokenizer.json"))
    return tmp_path / "model" / "tokenizer.json"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    texts = ["a b c d", "a b", ""]
    return write_lines(
        tmp_path / "log" / "1.jsonl",
        [{"input": "a b c", "output": text, "score": 1, "step": 1} for text in texts],
    )


@pytest.mark.parametrize("folder", [False, True])
def test_tokens_are_counted_whole_and_without_special_ones(folder: bool, tokenizer: Path, log: Path) -> None:
    frame, provenance = import_log("verl", log, tokenizer=tokenizer.parent if folder else tokenizer)
    assert column(frame, "response_length") == [5, 3, 1], "one end token each"
    assert column(frame, "prompt_length") == [3, 3, 3]
    assert provenance["lengths"].startswith("counted with tokenizer.json, sha256 ")
    assert "one end token added" in provenance["lengths"]
    assert provenance["measured"] is True


def test_a_cut_answer_has_no_end_token(tokenizer: Path, log: Path) -> None:
    frame, _ = import_log("verl", log, tokenizer=tokenizer, max_response_length=4)
    assert column(frame, "response_length") == [4, 3, 1]
    assert column(frame, "finish_reason") == ["length", "stop", "stop"]
    frame, _ = import_log("verl", log, tokenizer=tokenizer, max_response_length=5)
    assert column(frame, "response_length") == [5, 3, 1]
    assert column(frame, "finish_reason") == ["stop", "stop", "stop"], "four tokens and the end"


def test_files_that_are_no_tokenizer_are_refused(tokenizer: Path, log: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(json.dumps({"version": "1.0"}))
    assert "bad.json is no tokenizer" in refused("verl", log, tokenizer=tmp_path / "bad.json")
    (tmp_path / "none").mkdir()
    assert "holds no tokenizer" in refused("verl", log, tokenizer=tmp_path / "none")


def test_a_tokenizer_of_transformers_without_the_file(log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "byt5"
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "ByT5Tokenizer", "extra_ids": 0})
    )
    frame, provenance = import_log("verl", log, tokenizer=folder)
    assert column(frame, "response_length") == [8, 4, 1], "bytes are tokens there, and one end"
    assert "byt5" in provenance["lengths"]
