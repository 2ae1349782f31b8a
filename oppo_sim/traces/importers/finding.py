"""The files of a log: one file, or those of a folder that bear the right names, in the order of their
steps."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from oppo_sim.errors import OppoError
from oppo_sim.files import file_errors
from oppo_sim.traces.importers.lines import plain_name


def files_of(path: Path) -> list[Path]:
    """The file, or all files below the folder, hidden ones left out; numbers in names count as numbers.
    Raises OppoError."""
    if not path.exists():
        raise OppoError(f"{path} does not exist: check the path")
    if path.is_file():
        return [path]
    with file_errors(path):
        return sorted(
            (each for each in _below(path) if each.is_file()),
            key=lambda each: natural(each.relative_to(path).as_posix()),
        )


def _below(folder: Path) -> Iterator[Path]:
    for each in folder.rglob("*"):
        if not any(part.startswith(".") for part in each.relative_to(folder).parts):
            yield each


def matching(files: list[Path], patterns: tuple[str, ...]) -> list[Path]:
    """Those whose name (without ``.gz``) matches a pattern."""
    return [file for file in files if any(fnmatchcase(plain_name(file), pattern) for pattern in patterns)]


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key under which ``2.jsonl`` comes before ``10.jsonl``."""
    parts = re.split(r"(\d+)", text)
    return tuple(
        (0, int(part), "") if part.isdecimal() and len(part) < 30 else (1, 0, part) for part in parts if part
    )


def shown_name(file: Path, root: Path) -> str:
    """The name for the provenance: below the folder that was given, never a path of this machine."""
    return file.relative_to(root).as_posix() if root.is_dir() else file.name
