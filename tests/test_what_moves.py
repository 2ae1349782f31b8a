"""experiments/what_moves: the page shows the commands that its script runs, each for one of eight costs, and they
are commands of today."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

from oppo_sim.cli.main import run

FOLDER = Path(__file__).resolve().parent.parent / "experiments" / "what_moves"
SCRIPT = runpy.run_path(str(FOLDER / "run.py"))


def test_the_page_shows_the_commands_that_are_run() -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    shown = re.findall(r"^    (oppo .*)$", page, re.MULTILINE)
    assert shown == list(dict.fromkeys(row.command for row in SCRIPT["ROWS"]))
    taken_out = re.findall(r"^\| (\d), [^|]*\| `([^`]*)` \|", page, re.MULTILINE)
    assert taken_out == [(row.number, row.without) for row in SCRIPT["ROWS"]]
    assert {row.number for row in SCRIPT["ROWS"]} == set("12345678")


@pytest.mark.parametrize("row", SCRIPT["ROWS"], ids=lambda row: f"{row.number}, {row.cost}")
def test_each_command_can_run(row: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(f"{row.command} {row.without}")[1:]
    assert run([*words, "--dry-run"]) == 0
