"""The commands of README and docs/ that need engines, as they are written and in their order, beside those that
take what they write: each page in a folder that holds a scenario alone. CI has time for the README's;
``OPPO_DOCS_IN_FULL=1`` runs every page (three minutes)."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
import yaml

from oppo_sim.cli.main import run
from tests.real.test_validate_session import SCENARIO
from tests.test_docs_commands import REAL, ROOT, commands

MORE = [ROOT / "docs" / f"{name}.md" for name in ("real", "calibrate", "tutorial")]
PAGES = [ROOT / "README.md", *(MORE if "OPPO_DOCS_IN_FULL" in os.environ else ())]
SMALLER = {
    "run": ("--steps", "3", "--no-figures"),
    "calibrate": ("--repeats", "1", "--budget-s", "60", "--no-contention", "--no-figures"),
    "validate": ("--repeats", "1", "--steps", "3", "--budget-s", "60", "--no-contention", "--no-figures"),
    "tune": ("--trials", "6", "--fresh-seeds", "2", "--draws", "0", "--steps", "3", "--no-figures"),
    "simulate": ("--no-figures",),
}
"""Minutes as written: with these besides, of which the last counts."""
TAKES_THEM = (
    "oppo tune mine.yaml --set",
    "oppo tune my.yaml --set",
    "oppo simulate my.yaml --trace runs/real",
)


pytestmark = pytest.mark.usefixtures("one_thread")


def wanted(page: Path) -> list[list[str]]:
    """Words of a page's commands, each after ``oppo``."""
    found = []
    for command in commands(page):
        words = shlex.split(command)[1:]
        if words[0] in REAL | {"doctor"} or command.startswith(TAKES_THEM):
            found.append(words)
    return found


# So small a calibration does not reach every size that a search asks for.
@pytest.mark.filterwarnings("ignore::oppo_sim.costs.profile.ProfileRangeWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_engines_runs_as_written(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("my", "my-run", "mine", "scenario"):
        Path(f"{name}.yaml").write_text(json.dumps(SCENARIO))
    for words in wanted(page):
        code = run([*words, *SMALLER.get(words[0], ())])
        printed = capsys.readouterr()
        # What doctor finds is the machine's: 1 where something is missing.
        assert code == 0 or (words[0], code) == ("doctor", 1), f"oppo {shlex.join(words)}\n{printed.err}"


def test_the_section_of_the_page_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    block = (ROOT / "docs" / "real.md").read_text().split("```yaml\n")[1].split("```")[0]
    shown = yaml.safe_load(block)
    Path("my.yaml").write_text(json.dumps({**SCENARIO, **shown}))
    assert run(["run", "my.yaml", "--steps", "2", "--no-figures", "-o", "trained"]) == 0
    printed = capsys.readouterr()
    assert "update_actor" in printed.out and "no PPO update" not in printed.err
    del shown["real"]["ppo"]
    Path("my.yaml").write_text(json.dumps({**SCENARIO, **shown}))
    assert run(["run", "my.yaml", "--steps", "2", "--no-figures", "-o", "replayed"]) == 0
    printed = capsys.readouterr()
    assert "update_actor" not in printed.out and "no PPO update is made" in printed.err
