"""The command line that made a folder: kept beside what it made, for whoever wants to make it again."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from oppo_sim.files import reading, whole_file, write_errors
from oppo_sim.inside import file_inside

COMMAND: Final = "command.txt"
"""Not among the results: these are the same bytes wherever and in how many processes they were made."""

_given: ContextVar[tuple[str, ...] | None] = ContextVar("given", default=None)


@contextmanager
def given_command(words: Sequence[str]) -> Iterator[None]:
    """Folders written inside were made by this command."""
    token = _given.set(tuple(words))
    try:
        yield
    finally:
        _given.reset(token)


def command_text() -> str:
    """The command that is running, as it was given, quoted for a shell; empty: it is none, but Python."""
    return shlex.join(_given.get() or ())


def flag_given(*names: str) -> str:
    """Of several names of one flag the one that the running command has; else the first."""
    words = {word.partition("=")[0] for word in _given.get() or ()}
    return next((name for name in names if name in words), names[0])


def keep_command(folder: Path) -> None:
    """Write ``command_text``; from Python, where there is none, take away that of an earlier writer. Raises
    OppoError when the disk refuses."""
    path, text = folder / COMMAND, command_text()
    if not text:
        with write_errors(path):
            path.unlink(missing_ok=True)
        return
    with whole_file(path) as file:
        file.write(f"{text}\n".encode())


def kept_command(folder: Path) -> str:
    """The command that made a folder; empty: it was made from Python. Raises OppoError for a file that cannot
    be read."""
    path = file_inside(folder, COMMAND)
    if not path.is_file():
        return ""
    with reading(path, "make the folder again"):
        return path.read_text(encoding="utf-8").strip()
