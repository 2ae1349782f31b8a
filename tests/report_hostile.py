"""Run folders in which every text that a user or a stranger can choose is markup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from oppo_sim.cli.main import run
from tests.cli_runs import write_scenario
from tests.report_page import HOSTILE

NASTY = (
    HOSTILE + "</style><svg onload=window.hacked=1>\"' onmouseover=window.hacked=1 javascript:window.hacked=1"
    " \u202etxt $\\frac{^$"
)
"""Less than the 200 letters of a scenario's name."""
_FILE = "<img src=x onerror=window.hacked=1>\"'\u202e$^$"
_POLICY = """from oppo_sim.policies.shipped.oppo import Oppo


class Own(Oppo):
    name = "own"
"""
_JSON = ("manifest.json", "sweep.json", "tune.json", "comparison.json", "summary.json", "timeline.json")
_NAMED = ("scenario", "description", "scenario_yaml", "hardware", "version", "trace_name", "error", "text")


def hostile_folders(root: Path) -> list[Path]:
    """A run, a comparison, a sweep in which points fail, and a tuning; ``root`` is the current folder."""
    write_scenario(root, name=NASTY, description=NASTY)
    trace, policy = f"{_FILE}.csv", f"{_FILE}.py"
    lengths = "".join(f'{3 + at % 30},"{_FILE.replace(chr(34), chr(34) * 2)}"\n' for at in range(64))
    (root / trace).write_text("response_length,source\n" + lengths)
    (root / policy).write_text(_POLICY)
    few = ("--seeds", "2", "--steps", "3", "--jobs", "1", "--trace", trace)
    commands = (
        ("simulate", "tiny.yaml", "--trace", trace, "--policy", f"{policy}:Own", "-o", "simulated"),
        ("compare", "tiny.yaml", "--policies", f"oppo,{policy}:Own", *few, "-o", "compared"),
        (
            *("sweep", "tiny.yaml", "--grid", "policy.chunk_size=4,8", "--grid"),
            *("rollout.kv_capacity_tokens=40,4000", *few, "-o", "swept"),
        ),
        ("tune", "tiny.yaml", *few, "--trials", "3", "-o", "tuned"),
    )
    for command in commands:
        assert run([*command, "--quiet", "--no-figures"]) == 0, command
    folders = [root / command[-1] for command in commands]
    for folder in folders:
        (folder / "command.txt").write_text(f"oppo {NASTY}")
        for name in _JSON:
            if (folder / name).is_file():
                path = folder / name
                path.write_text(json.dumps(_with_texts(json.loads(path.read_text()))))
    return folders


def _with_texts(value: Any, key: str = "") -> Any:
    """Sentences, and what is free to choose, become markup; what the program looks for stays."""
    if isinstance(value, dict):
        return {name: _with_texts(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_texts(item) for item in value]
    if (
        isinstance(value, str)
        and key != "kind"
        and (key in _NAMED or " " in value.strip())
        and " · " not in value
    ):
        return value + NASTY
    return value
