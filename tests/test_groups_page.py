"""docs/howto/shared-prompts.md: its command gives its answer."""

from __future__ import annotations

import shlex
from pathlib import Path

import pandas as pd
import pytest

from oppo_sim.cli.main import run
from tests.test_docs_commands import commands

PAGE = Path(__file__).parent.parent / "docs" / "howto" / "shared-prompts.md"


def test_sharing_long_prompts_moves_the_best_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (command,) = commands(PAGE)
    assert run([*shlex.split(command)[1:], "--no-figures"]) == 0
    points = pd.read_parquet("shared/points.parquet").set_index("cluster.split")
    text = PAGE.read_text(encoding="utf-8")
    for shared, best, told in ((False, 3, "best (22.2 s"), (True, 2, "shorter (18.6 s")):
        seconds = points.loc[points["rollout.enable_prefix_caching"] == shared, "step_s"]
        assert seconds.idxmin() == f"rollout:{best}xTP1 scoring:cpu training:{8 - best}"
        assert told in text
        assert f"{seconds.min():.1f} s" in told
