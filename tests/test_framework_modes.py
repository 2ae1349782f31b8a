"""The table of asynchronous modes in docs/policies.md, held against what experiments/framework_modes.py found
in the frameworks' code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from oppo_sim.scenario.load import load_scenario
from oppo_sim.tune.frameworks.stored import stored_names
from tests.cli_runs import write_scenario

ROOT = Path(__file__).resolve().parent.parent
FOUND: dict[str, Any] = json.loads((ROOT / "tests" / "framework_modes.json").read_text("utf-8"))
PAGE = (ROOT / "docs" / "policies.md").read_text("utf-8")
COLUMNS = {"verl": "verl", "AReaL": "AReaL", "NeMo RL": "NeMo-RL", "slime": "slime"}
OURS = {"`train_order: scored`"}
"""What the columns of others say of ours."""


def table() -> list[dict[str, str]]:
    """Row by row: column → cell."""
    lines = PAGE.split("### Asynchronous training in other frameworks")[1].split("\n\n")[1].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]


def known(framework: str, word: str) -> bool:
    """An option, the last part of one, or a word of the files that were searched."""
    name, _, value = re.sub(r"[:=]\s*", "=", word).partition("=")
    options = set(stored_names(framework).options)
    words = set(FOUND[framework]["names"]) | {name.removesuffix(".py") for name in FOUND[framework]["names"]}
    files = {file.rpartition("/")[2] for file in FOUND[framework]["names"].values()}
    there = options | words | files | {file.removesuffix(".py") for file in files}
    parts = {option.rpartition(".")[2] for option in options | words}
    told = name in there | parts or all(part in words for part in name.split("."))
    return told and (not value or value in {"true", "false", "True", "False"} or value in words)


@pytest.mark.parametrize("column", list(COLUMNS))
def test_every_name_of_a_framework_stands_in_its_code(column: str) -> None:
    cells = " ".join(row[column] for row in table())
    for own in OURS:
        cells = cells.replace(own, "")
    words = re.findall(r"`([^`]+)`", cells)
    assert len(words) >= 2
    assert [word for word in words if not known(COLUMNS[column], word)] == []


def test_a_name_that_does_not_stand_there_is_noticed() -> None:
    assert not known("verl", "async_training.staleness_limit")
    assert not known("AReaL", "max_offpolicyness")
    assert not known("verl", "trainer.v1.trainer_mode=apart")


@pytest.mark.parametrize("framework", list(FOUND))
def test_its_functions_answered_as_the_page_tells_them(framework: str) -> None:
    found, version = FOUND[framework], stored_names(framework)
    assert set(FOUND) == set(COLUMNS.values())
    assert [told for told, so in found["answers"].items() if so is not True] == []
    # The options of the advice, and these, are of one version, and the page says which.
    assert (found["version"], found["date"], found["source"]) == (
        version.version,
        version.date,
        version.source,
    )
    assert f"{framework.replace('-', ' ')} {version.version}" in PAGE


def test_ours_are_settings(tmp_path: Path) -> None:
    for row in table():
        for word in re.findall(r"`([^`]+)`", row["here"]):
            name, _, value = word.partition(": ")
            if name == "rollout_batch_size":
                changes: dict[str, Any] = {name: 4}
            elif name in ("async", "one-step-off"):
                changes = {"policy": {"name": name}}
            elif name == "clear_kv_cache_on_weight_sync":
                changes = {"rollout": {name: False}}
            else:
                settings = {"true": True, "false": False, "": 2}.get(value, value)
                changes = {"policy": {"name": "async", name: settings}}
            load_scenario(write_scenario(tmp_path, **changes))
