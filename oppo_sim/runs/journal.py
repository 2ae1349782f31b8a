"""Entries of finished work, one JSON line each, appended as they come: what interrupted work goes on from."""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

from oppo_sim.errors import OppoError
from oppo_sim.files import (
    lock,
    make_durable,
    make_folder,
    sync_folder,
    whole_file,
    whole_lines,
    write_errors,
)

FORMAT: Final = "oppo-runs/1"
SYNC_SECONDS: Final = 1.0
"""Lines are in the file at once, and on the disk at most once in so long: a killed process loses none, a
power cut those of one such span at most."""

Entry = Mapping[str, Any]


class Journal:
    """A file of entries, held by one process at a time. A context manager."""

    def __init__(
        self,
        path: Path | None,
        what: str,
        take: Callable[[Entry], None],
        about: Entry | None = None,
        differs: Callable[[Entry], str | None] = lambda head: None,
        *,
        replace: bool = False,
    ) -> None:
        """Open the file, or make it, and read what is there; half a line at its end, left by a process that
        was killed, is cut off.

        Args:
            path: None: nothing is written.
            what: whose entries they are, such as ``sweep``, for sentences.
            take: takes an entry that is there; raises KeyError, TypeError or ValueError for one that is none.
            about: what the first line says of the whole.
            differs: takes the first line of a file that is there; gives a sentence if it is about something
                else.
            replace: empty a file of another format or about something else, instead of refusing it.

        Raises OppoError for a file of another format or about something else, a damaged one, one that another
        process writes, and a disk that refuses.
        """
        self.path = path or Path()
        self._file: BinaryIO | None = None
        self._synced = monotonic()
        self._first = _line({"format": FORMAT, **(about or {})})
        if path is None:
            return
        with write_errors(path):
            make_folder(path.parent)
            self._file = path.open("a+b")  # better refused now than after the first hour
            try:
                lock(self._file, f"another {what} is writing {path}: wait for it, or choose another folder")
                sync_folder(path.parent)
                lines = whole_lines(self._file)
                head = next(lines, b"")
                refusal = self._refusal(head, what, differs) if head else None
                if refusal is not None and not replace:
                    raise OppoError(refusal)
                if head and refusal is None:
                    for number, line in enumerate(lines, 2):
                        self._read(line, number, take)
                else:
                    self._file.truncate(0)
                    self._file.write(self._first)
                    make_durable(self._file)
            except BaseException:
                self._file.close()
                raise

    def _refusal(self, line: bytes, what: str, differs: Callable[[Entry], str | None]) -> str | None:
        head = _head(line)
        if head is not None:
            with suppress(ValueError, KeyError, TypeError, AttributeError):  # a head with other contents
                return differs(head)
        return (
            f"{self.path} does not begin as the runs of a {what} of this version do: delete it, or choose"
            " another folder with -o"
        )

    def _read(self, line: bytes, number: int, take: Callable[[Entry], None]) -> None:
        try:
            take(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RecursionError):
            raise OppoError(
                f"{self.path}, line {number} is no finished run: delete the line, or delete the file to start"
                " anew"
            ) from None

    def append(self, entries: Iterable[Entry]) -> None:
        """Keep finished work. Raises OppoError when the disk refuses."""
        if self._file is None:
            return
        with write_errors(self.path):
            self._file.write(b"".join(map(_line, entries)))
            if monotonic() - self._synced >= SYNC_SECONDS:
                make_durable(self._file)
                self._synced = monotonic()
            else:
                self._file.flush()

    def keep_only(self, entries: Iterable[Entry]) -> None:
        """Have these alone in the file, or leave it as it is where the disk refuses, with OppoError. Nothing
        can be appended then."""
        if self._file is not None:
            with whole_file(self.path) as file:
                file.write(self._first)
                file.writelines(map(_line, entries))

    def remove(self) -> None:
        """Delete the file: what it holds stands elsewhere, or is nothing."""
        if self._file is not None:
            with write_errors(self.path):
                self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        with write_errors(self.path):
            try:
                make_durable(self._file)
            finally:
                self._file.close()


def read_head(path: Path) -> Entry | None:
    """The first line of a journal, read without holding it; None where it is none."""
    with write_errors(path), path.open("rb") as file:
        return _head(file.readline())


def known_keys(path: Path) -> set[str]:
    """Keys of the entries of a journal, read without holding it; empty where there is none."""
    if not path.is_file():
        return set()
    found = set()
    with write_errors(path), path.open("rb") as file:
        for line in file:
            try:
                found.add(str(json.loads(line)["key"]))
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
    return found


def _line(entry: Entry) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _head(line: bytes) -> Entry | None:
    try:
        head = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return head if isinstance(head, dict) and head.get("format") == FORMAT else None
