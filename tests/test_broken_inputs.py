"""A few of the broken inputs of ``experiments/attacks``, in this process; the script runs thousands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiments.attacks.corpus import FILES, make_files
from experiments.attacks.mutate import run_case

SEED = 1
CASES = 24


def test_broken_inputs_end_with_a_result_or_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, wrong = tmp_path / "corpus", []
    corpus.mkdir()
    make_files(corpus)
    for number in range(CASES):
        folder = tmp_path / str(number)
        shutil.copytree(corpus, folder)
        monkeypatch.chdir(folder)
        result = run_case(number, SEED, folder, FILES)
        if result["wrong"]:
            wrong.append(result)
    assert wrong == []
