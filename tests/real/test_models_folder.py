"""Models of a process that was killed, which cannot remove them itself."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from oppo_real.models_folder import models_folder

HOLDS = """
import sys, time
from oppo_real.models_folder import models_folder
with models_folder() as folder:
    (folder / "model.safetensors").write_bytes(bytes(1000))
    print(folder, flush=True)
    time.sleep(600)
"""


def test_the_next_run_removes_what_a_killed_one_left_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    others = tmp_path / "oppo-models-of-mine"  # no lock of ours: somebody's own
    others.mkdir()
    process = subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    left = Path(process.stdout.readline().strip())
    try:
        with models_folder() as mine:
            assert mine.is_dir() and mine != left
            assert (left / "model.safetensors").is_file(), "its process lives"
        assert not mine.exists()
    finally:
        process.kill()
        process.communicate()
    assert left.is_dir()
    shared = tmp_path / "shared"
    shared.mkdir()
    with models_folder(shared) as mine:
        assert mine.parent == shared
        assert left.is_dir()
    with models_folder() as mine:
        assert sorted(os.listdir(tmp_path)) == sorted([mine.name, others.name, shared.name])
