"""The sentence a user reads where TRL cannot be used. Needs no TRL, so it runs everywhere; each case is a
process of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ASK = """
from oppo_real.trl_client.requirements import require_trl
from oppo_sim.errors import OppoError
try:
    require_trl()
except OppoError as error:
    print("SAID", error)
"""


def said(before: str = "", path: Path = ROOT) -> str:
    settings = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", before + ASK],
        capture_output=True,
        text=True,
        env=settings,
        check=True,
        timeout=60,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("SAID ")]
    assert len(lines) == 1, done.stdout + done.stderr
    return lines[0].removeprefix("SAID ")


def package(folder: Path, version: str, ppo: str | None) -> Path:
    """A package in the place of TRL, of this version and with this PPO module."""
    inner = folder / "trl" / "experimental"
    (inner / "ppo").mkdir(parents=True)
    (folder / "trl" / "__init__.py").write_text(f"__version__ = '{version}'\n")
    (inner / "__init__.py").write_text("")
    if ppo is None:
        (inner / "ppo").rmdir()
        return folder
    (inner / "ppo" / "__init__.py").write_text("")
    (inner / "ppo" / "ppo_trainer.py").write_text(ppo)
    return folder


def test_without_trl_the_version_to_install_is_named() -> None:
    sentence = said("import sys; sys.modules['trl'] = None\n")
    assert "TRL cannot be imported" in sentence
    assert "pip install 'trl==1.12.0'" in sentence
    assert "oppo-toolkit[trl]" in sentence


def test_a_trl_that_has_dropped_its_ppo_trainer(tmp_path: Path) -> None:
    sentence = said(path=package(tmp_path, "1.16.0", None))
    assert "TRL 1.16.0 has no PPO trainer" in sentence
    assert "pip install 'trl==1.12.0'" in sentence


def test_a_trainer_of_another_form(tmp_path: Path) -> None:
    loop = "class PPOTrainer:\n    def train(self):\n        return self.dataloader\n"
    assert "its train() does not call batch_generation()" in said(path=package(tmp_path, "1.2.0", loop))
    other = tmp_path / "other"
    other.mkdir()
    assert "no PPOTrainer.train(self)" in said(
        path=package(other, "0.9.0", "class PPOTrainer:\n    def step(self): ...\n")
    )


def test_importing_the_package_needs_no_trl() -> None:
    before = (
        "import sys; sys.modules['trl'] = None; sys.modules['torch'] = None\nimport oppo_real.trl_client\n"
    )
    assert "TRL cannot be imported" in said(before)
