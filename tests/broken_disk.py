"""A disk that breaks: every change that this process asks of the files below some folders is counted, and at
the n-th one something happens — the process dies, the disk is full from there on, or whatever a test does.

Only Python asks the operating system here: pyarrow and matplotlib write through Python's files.
``experiments/attacks/counted.py`` holds the count against strace's.

    python -m tests.broken_disk --at 7 --die before ROOT -- sweep tiny.yaml …

runs ``oppo sweep …`` in this process and kills it (SIGKILL) instead of its seventh change below ROOT.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from oppo_sim.cli.main import main as oppo_main
from oppo_sim.runs import journal

Kind = Literal["create", "write", "truncate", "sync", "rename", "delete", "folder"]
GROWS: tuple[Kind, ...] = ("create", "write", "sync", "folder")
"""What a full disk refuses; renames and deletions it does."""


class Change(NamedTuple):
    """One change of the disk that is about to be made."""

    number: int
    """From 1."""
    kind: Kind
    path: Path
    data: bytes = b""
    """What is written."""
    source: Path | None = None
    """What is renamed."""
    size: int = 0
    """Bytes left after a cut."""


class Crash(BaseException):
    """The process is dead: nothing it still asks of the disk is done."""


OnChange = Callable[[Change], None]
"""Told before a change is made; may raise, and it is not made."""


@dataclass
class Disk:
    """What was asked below the roots so far."""

    roots: tuple[Path, ...]
    on_change: OnChange = lambda change: None
    changes: list[Change] = field(default_factory=list)
    watching: bool = True
    """False: something happens, and what that asks of the disk is not counted."""

    def below(self, path: Any) -> Path | None:
        """The path, if it is one of those that are watched."""
        if not self.watching or isinstance(path, int):
            return None
        where = Path(os.path.abspath(os.fsdecode(path)))
        return where if any(where == root or root in where.parents for root in self.roots) else None

    def ask(self, kind: Kind, path: Any, data: bytes = b"", *, source: Any = None, size: int = 0) -> None:
        where = self.below(path)
        if where is None:
            return
        change = Change(
            len(self.changes) + 1, kind, where, data, None if source is None else self.below(source), size
        )
        self.changes.append(change)
        self.watching = False
        try:
            self.on_change(change)
        finally:
            self.watching = True


class _File(io.FileIO):
    """A file whose changes are told."""

    disk: Disk
    where: str

    def write(self, data: Any) -> int:
        self.disk.ask("write", self.where, bytes(data))
        return super().write(data) or 0

    def truncate(self, size: int | None = None) -> int:
        self.disk.ask("truncate", self.where, size=self.tell() if size is None else size)
        return super().truncate(size)


@contextmanager
def broken_disk(*roots: Path, on_change: OnChange = lambda change: None) -> Iterator[Disk]:
    """Inside every change below the roots is counted and told to ``on_change``."""
    disk = Disk(tuple(Path(os.path.abspath(root)) for root in roots), on_change)
    files: dict[int, str] = {}
    asked = {
        name: getattr(os, name)
        for name in ("open", "fsync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir")
    }

    def opened(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
        if disk.below(file) is None or not set(mode) & set("wax+"):
            return plain_open(file, mode, buffering, *rest, **named)
        assert "b" in mode, "the product writes bytes"
        path = os.fsdecode(file)
        if "w" in mode or not os.path.exists(path):
            disk.ask("create", path)
        raw = _File(path, mode.replace("b", ""))
        raw.disk, raw.where = disk, path
        files[raw.fileno()] = path
        if buffering == 0:
            return raw
        return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)  # type: ignore[arg-type]

    def os_open(path: Any, flags: int, mode: int = 0o777, **named: Any) -> int:
        if flags & os.O_CREAT and not os.path.exists(path):
            disk.ask("create", path)
        number = asked["open"](path, flags, mode, **named)
        files[number] = os.fsdecode(path)
        return int(number)

    def fsync(file: Any) -> None:
        number = file if isinstance(file, int) else file.fileno()
        disk.ask("sync", files.get(number, number))
        asked["fsync"](number)

    def renaming(name: str) -> Callable[..., None]:
        def rename(source: Any, target: Any, **named: Any) -> None:
            disk.ask("rename", target, source=source)
            asked[name](source, target, **named)

        return rename

    def told(name: str, kind: Kind) -> Callable[..., None]:
        def change(path: Any, *rest: Any, **named: Any) -> None:
            disk.ask(kind, path)
            asked[name](path, *rest, **named)

        return change

    plain_open = io.open
    with pytest.MonkeyPatch.context() as patch:
        # At once, not once a second: the changes must not hang on how fast the machine is.
        patch.setattr(journal, "SYNC_SECONDS", 0.0)
        patch.setattr(io, "open", opened)
        patch.setattr(builtins, "open", opened)
        patch.setattr(os, "open", os_open)
        patch.setattr(os, "fsync", fsync)
        for name in ("replace", "rename"):
            patch.setattr(os, name, renaming(name))
        for name in ("unlink", "remove", "rmdir"):
            patch.setattr(os, name, told(name, "delete"))
        patch.setattr(os, "mkdir", told("mkdir", "folder"))
        yield disk


# ---- what happens at the n-th change -----------------------------------------------------------------------


def full_from(at: int, *, to: float = float("inf")) -> OnChange:
    """No space left from a change on, until change ``to``."""

    def on_change(change: Change) -> None:
        if at <= change.number < to and change.kind in GROWS:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(change.path))

    return on_change


def crash_at(at: int, *, torn: bool = False) -> OnChange:
    """As SIGKILL, for whoever looks at the disk: that change is not made (``torn``: half of it is), and none
    after it, whatever handlers still ask for."""

    def on_change(change: Change) -> None:
        if change.number == at and torn:
            _write_half(change)
        if change.number >= at:
            raise Crash(f"at change {at}")

    return on_change


def kill_at(at: int, *, torn: bool = False) -> OnChange:
    """SIGKILL to this process."""

    def on_change(change: Change) -> None:
        if change.number == at:
            if torn:
                _write_half(change)
            os.kill(os.getpid(), signal.SIGKILL)

    return on_change


def once(at: int, do: Callable[[Change], None]) -> OnChange:
    """``do`` before a change, which is then made."""

    def on_change(change: Change) -> None:
        if change.number == at:
            do(change)

    return on_change


def _write_half(change: Change) -> None:
    """Files are written from front to back."""
    if change.kind == "write" and change.path.exists():
        number = os.open(change.path, os.O_WRONLY | os.O_APPEND)
        os.write(number, change.data[: len(change.data) // 2])
        os.close(number)


def main() -> None:
    """``--at N --die before|torn ROOT… -- OPPO ARGUMENTS``."""
    cut = sys.argv.index("--")
    _, at, _, die, *roots = sys.argv[1:cut]
    sys.argv[1:] = sys.argv[cut + 1 :]
    with broken_disk(*map(Path, roots), on_change=kill_at(int(at), torn=die == "torn")):
        oppo_main()


if __name__ == "__main__":
    main()
