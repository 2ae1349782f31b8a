"""Locales that need not be installed: compiled where a test runs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

PLAIN: Mapping[str, str] = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
"""The one that is everywhere; with ``PYTHONUTF8=0`` ASCII."""


def compiled_locale(folder: Path, language: str, charset: str) -> Mapping[str, str]:
    """Environment variables of a locale, which is compiled into ``folder``; ``PLAIN`` where it cannot be."""
    name = f"{language}.{charset}"
    folder.mkdir(exist_ok=True)
    if shutil.which("localedef") and not (folder / name).exists():
        # Warnings about the sources are an exit code, too.
        command = ["localedef", "-i", language, "-f", charset, str(folder / name)]
        subprocess.run(command, capture_output=True, check=False)
    return {"LOCPATH": str(folder), "LC_ALL": name} if (folder / name / "LC_NUMERIC").is_file() else PLAIN
