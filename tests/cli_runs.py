"""A tiny scenario, and the ``oppo`` command run on it in this process or in one of its own."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from oppo_sim.cli.main import oppo as group
from oppo_sim.cli.main import run
from oppo_sim.fast.choose import run_summary
from oppo_sim.given_command import COMMAND
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.schema import Scenario
from oppo_sim.scenario.yaml_text import dump_yaml

TINY: dict[str, Any] = {
    "format": "oppo-scenario/1",
    "name": "tiny",
    "steps": 6,
    "warmup_steps": 1,
    "rollout_batch_size": 4,
    "max_prompt_length": 8,
    "max_response_length": 40,
    "trace": {"synth": {"parameters": {"mu": 2.5, "sigma": 0.6}, "rows": 200}, "prompt_length": 4},
    "rollout": {"num_replicas": 2},
    "placement": {"training": "separate"},
    "costs": {
        "kind": "linear",
        "decode": {"fixed": 0.1, "per_rollout": 0.01},
        "prefill": {"fixed": 0.05, "per_token": 0.01},
        "score": {"fixed": 0.1, "per_token": 0.02},
        "stages": {"update_actor": {"fixed": 1.0}, "update_weights": 0.5},
    },
    "policy": {"name": "oppo", "overcommit": 2, "chunk_size": 8},
}


def write_scenario(folder: Path, file: str = "tiny.yaml", /, **changes: Any) -> Path:
    """The tiny scenario with some sections replaced, as a file."""
    path = folder / file
    path.write_text(dump_yaml({**TINY, **changes}), encoding="utf-8")
    return path


def unknown_options(text: str) -> set[str]:
    """What a command as it is written (``oppo …``) names that there is not: itself, or its options."""
    words, command, context = shlex.split(text)[1:], group, click.Context(group)
    while isinstance(command, click.Group):
        found = command.get_command(context, name := words.pop(0))
        if found is None:
            return {name}
        command = found
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    known.add("--help")
    dashed = (word for word in words if word.lstrip("[").startswith("-") and word != "-")  # - is a file
    given = {word.partition("=")[0].strip("[]") for word in dashed}
    return given - known


def default_of(command: str, option: str) -> str | None:
    """The default of an option, as its help says it; None: it has none."""
    found = group.get_command(click.Context(group), command)
    assert found is not None
    (param,) = (each for each in found.params if option in each.opts)
    told = re.search(r"\[default: (.+?)\]", getattr(param, "help", None) or "")
    value = param.to_info_dict()["default"]
    return (
        told[1]
        if told
        else None
        if value is None
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


class Printed(NamedTuple):
    code: int
    out: str
    err: str


@cache
def compile_first() -> None:
    """What is compiled once is compiled before a test looks at what is printed."""
    scenario = Scenario.model_validate_json(json.dumps(TINY))
    run_summary(build_setup(scenario), engine="compiled")


class Oppo:
    """``oppo …`` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        compile_first()
        capsys.readouterr()
        self._capsys = capsys

    def __call__(self, *arguments: str | Path) -> Printed:
        code = run([str(argument) for argument in arguments])
        printed = self._capsys.readouterr()
        return Printed(code, printed.out, printed.err)


def start_oppo(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    """``oppo …`` in a process of its own."""
    compile_first()
    command = [sys.executable, "-m", "oppo_sim.cli.main", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but the command that made it, which says where."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != COMMAND
    }


def assert_refused(printed: Printed, *words: str) -> None:
    """One sentence on standard error, nothing on standard output, exit code 2."""
    assert printed.code == 2, printed
    assert printed.out == ""
    assert printed.err.startswith("oppo: error: ")
    assert printed.err.endswith("\n")
    assert printed.err.count("\n") == 1, printed.err
    for word in words:
        assert word in printed.err
