"""Finished runs of a sweep, one JSON line each, appended as they come: what an interrupted sweep goes on
from."""

import fcntl
import json
from array import array
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, BinaryIO, Final

from oppo_sim.errors import OppoError
from oppo_sim.files import make_durable, write_errors
from oppo_sim.runs.request import RunRequest, RunResult

FORMAT: Final = "oppo-sweep-runs/1"
SYNC_SECONDS: Final = 1.0
"""Lines are in the file at once, and on the disk after this long: a killed process loses none, a power cut at
most this much."""


class FinishedRuns:
    """Finished runs by key, in memory."""

    def __init__(self) -> None:
        self._results: dict[str, tuple[array[float] | None, str]] = {}
        self._names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self._results)

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def get(self, key: str) -> RunResult | None:
        """A finished run, from this attempt or an earlier one."""
        if key not in self._results:
            return None
        numbers, text = self._results[key]
        if numbers is None:
            return RunResult(key, None, error=text)
        return RunResult(key, dict(zip(self._names, numbers, strict=True)), text)

    def add(self, result: RunResult) -> None:
        """Keep one. Raises ValueError for totals that are not those of the others."""
        if result.totals is None:
            self._results[result.key] = None, result.error or ""
            return
        if not self._names:
            self._names = tuple(result.totals)
        if set(result.totals) != set(self._names):
            raise ValueError("totals with other names than those before")
        # Hundreds of thousands of runs fit into memory as bare numbers.
        self._results[result.key] = array("d", [result.totals[name] for name in self._names]), result.engine


class RunJournal:
    """Finished runs, and the file that they are appended to, held by one sweep at a time. A context
    manager."""

    def __init__(
        self, path: Path | None, about: Mapping[str, Any], differs: Callable[[Mapping[str, Any]], str | None]
    ) -> None:
        """Open the file, or make it, and read what is there; half a line at its end, left by a process that
        was killed, is cut off.

        Args:
            path: None: runs are kept in memory only.
            about: what the first line says of the sweep.
            differs: takes the first line of a file that is there; gives a sentence if its sweep is another
                one.

        Raises OppoError for a file of another sweep, a damaged one, one that another process writes, and a
        disk that refuses.
        """
        self.runs = FinishedRuns()
        self._path = path or Path()
        self._file: BinaryIO | None = None
        self._synced = monotonic()
        if path is None:
            return
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")  # better refused now than after the first hour
        try:
            with write_errors(path):
                self._read(self._file, about, differs)
        except BaseException:
            self._file.close()
            raise

    @classmethod
    def in_memory(cls) -> "RunJournal":
        """Without a file."""
        return cls(None, {}, lambda _: None)

    def _read(
        self, file: BinaryIO, about: Mapping[str, Any], differs: Callable[[Mapping[str, Any]], str | None]
    ) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OppoError(
                f"another sweep is writing {self._path}: wait for it, or choose another folder with -o"
            ) from None
        head, whole = False, 0
        file.seek(0)
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            if head:
                self._take(line, number)
            else:
                self._check_head(line, differs)
                head = True
        file.truncate(whole)
        if not head:
            file.write(json.dumps({"format": FORMAT, **about}).encode() + b"\n")
            make_durable(file)

    def _check_head(self, line: bytes, differs: Callable[[Mapping[str, Any]], str | None]) -> None:
        try:
            head = json.loads(line)
            known = head["format"] == FORMAT
        except (ValueError, KeyError, TypeError):
            known = False
        if not known:
            raise OppoError(
                f"{self._path} does not begin as the runs of a sweep do: choose another folder with -o"
            )
        sentence = differs(head)
        if sentence is not None:
            raise OppoError(sentence)

    def _take(self, line: bytes, number: int) -> None:
        try:
            entry = json.loads(line)
            if "error" in entry:
                self.runs.add(RunResult(str(entry["key"]), None, error=str(entry["error"])))
            else:
                totals = {
                    str(name): float("nan") if value is None else float(value)
                    for name, value in entry["totals"].items()
                }
                self.runs.add(RunResult(str(entry["key"]), totals, str(entry["engine"])))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise OppoError(
                f"{self._path}, line {number} is no finished run: remove that line, or start anew with"
                " --force"
            ) from None

    def add(self, finished: Iterable[tuple[RunRequest, RunResult]]) -> None:
        """Keep finished runs. Raises OppoError when the disk refuses."""
        lines = []
        for request, result in finished:
            self.runs.add(result)
            entry: dict[str, Any] = {"key": result.key, "policy": request.policy, "seed": request.seed}
            if result.totals is None:
                entry["error"] = result.error
            else:
                entry["engine"] = result.engine
                # NaN is no JSON.
                entry["totals"] = {
                    name: value if isfinite(value) else None for name, value in result.totals.items()
                }
            lines.append(json.dumps(entry, allow_nan=False).encode() + b"\n")
        if self._file is None:
            return
        with write_errors(self._path):
            self._file.write(b"".join(lines))
            if monotonic() - self._synced >= SYNC_SECONDS:
                make_durable(self._file)
                self._synced = monotonic()
            else:
                self._file.flush()

    def __enter__(self) -> "RunJournal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        with write_errors(self._path):
            try:
                make_durable(self._file)
            finally:
                self._file.close()
