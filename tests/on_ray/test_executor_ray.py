"""``--executor ray``: what is found does not depend on where it is simulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli_runs import contents, start_oppo, write_scenario

SWEEP = (
    "--grid",
    "policy.name=async,intra",
    "--grid",
    "policy.chunk_size=1:5",
    "--seeds",
    "4",
    "--steps",
    "20",
)
COMMANDS = {
    "compare": ("--policies", "intra,oppo", "--seeds", "2"),
    "sweep": (*SWEEP, "--jobs", "2"),
    "tune": ("--policies", "oppo", "--trials", "6", "--seeds", "2", "--fresh-seeds", "3", "--jobs", "2"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_ray_gives_what_one_process_gives(command: str, tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    found = {}
    for executor in ("serial", "ray"):
        # In a process of its own, since Ray warns of things that are not ours.
        options = (*COMMANDS[command], "--no-figures", "-o", executor, "--executor", executor)
        process = start_oppo(command, path, *options, cwd=tmp_path)
        _, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
        found[executor] = contents(tmp_path / executor)
    tables = [name for name in found["serial"] if name.endswith((".csv", ".parquet"))]
    assert len(tables) >= 2
    assert [name for name in tables if found["ray"].get(name) != found["serial"][name]] == []
