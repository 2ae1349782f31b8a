"""The command that made a folder stands in it and on its page, as it was given."""

from __future__ import annotations

import shlex
import shutil
from html import unescape
from pathlib import Path

import pytest

import oppo_sim
from oppo_sim.given_command import COMMAND
from tests.cli_runs import Oppo, contents, write_scenario

COMMANDS = {
    "simulate": "oppo simulate tiny.yaml --set 'policy={name: inter, overcommit: 1}' --no-figures",
    "compare": "oppo compare tiny.yaml --policies inter --seeds 2 --draws 0 --no-figures --jobs 1",
    "sweep": "oppo sweep tiny.yaml --grid policy.overcommit=0,1 --seeds 2 --no-figures --jobs 1",
    "tune": "oppo tune tiny.yaml --policies inter --trials 3 --seeds 2 --fresh-seeds 2 --no-figures --jobs 1",
}


@pytest.fixture
def oppo(capsys: pytest.CaptureFixture[str]) -> Oppo:
    return Oppo(capsys)


@pytest.mark.parametrize("name", COMMANDS)
def test_it_is_kept_shown_and_makes_the_same_folder_again(
    name: str, oppo: Oppo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_scenario(tmp_path)
    given = f"{COMMANDS[name]} -o 'my runs/{name}'"
    made = oppo(*shlex.split(given)[1:])
    assert made.code == 0, made.err
    folder = tmp_path / "my runs" / name
    assert (folder / COMMAND).read_text() == given + "\n"
    assert oppo("report", folder, "-o", "page.html").code == 0
    assert given in unescape(Path("page.html").read_text())
    first = contents(folder)
    words = shlex.split((folder / COMMAND).read_text())
    shutil.rmtree(folder)
    again = oppo(*words[1:])
    assert again.code == 0, again.err
    assert contents(folder) == first


def test_what_python_writes_was_made_by_no_command(
    oppo: Oppo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_scenario(tmp_path)
    sweep = (
        "sweep",
        "tiny.yaml",
        "--grid",
        "policy.overcommit=0,1",
        "--seeds",
        "2",
        "--no-figures",
        "-o",
        "s",
    )
    assert oppo(*sweep, "--jobs", "1").code == 0
    grid = {"policy.overcommit": [0, 1]}
    oppo_sim.sweep(path, grid=grid, seeds=2, figures=False, folder="s", force=True)
    assert not Path("s", COMMAND).exists()
    assert oppo("report", "s", "-o", "page.html").code == 0
    assert "--no-figures -o s" not in Path("page.html").read_text()
