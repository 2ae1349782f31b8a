"""Attacks on the writing of ``oppo simulate``, ``compare``, ``sweep`` and ``tune``: what each leaves on the disk
and what comes of it. ``test_attacks.py`` makes some of them, ``experiments/attacks/run.py`` all."""

from __future__ import annotations

import io
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Final

import pytest

from oppo_sim.cli.main import run
from oppo_sim.given_command import COMMAND
from oppo_sim.run_files import JOURNAL
from oppo_sim.runs import execute
from oppo_sim.runs.evaluate import evaluate
from oppo_sim.runs.request import RunRequest, RunResult
from tests import power_cut
from tests.broken_disk import Change, Crash, OnChange, broken_disk, crash_at, full_from, once
from tests.cli_runs import Printed, assert_refused, contents, write_scenario

OUT: Final = "out"
NAME: Final = "Größe Δ"
"""Of the scenario: in figures, tables and sentences."""
_QUICK: Final = ("--no-figures", "-o", OUT)


@dataclass(frozen=True)
class Command:
    """A command that writes the folder ``OUT``, from ``tiny.yaml`` in the current one."""

    arguments: tuple[str, ...]
    older: tuple[str, ...]
    """What is different about an earlier run, which ``--force`` replaces."""
    mark: str
    """The file that says that the folder is finished."""
    goes_on: bool = True
    """The same command goes on; False: it begins anew, with ``--force``."""
    goes_on_beside: bool = False
    """What is not finished lies beside the folder; a finished folder is refused."""

    @property
    def again(self) -> tuple[str, ...]:
        """After an attack."""
        return self.arguments if self.goes_on else (*self.arguments, "--force")


COMMANDS: Final = {
    "simulate": Command(("simulate", "tiny.yaml", *_QUICK), ("--steps", "4"), "manifest.json", goes_on=False),
    "compare": Command(
        (
            "compare", "tiny.yaml", "--policies", "intra", "--seeds", "2", "--draws", "2", "--no-attribution",
            "--jobs", "1", *_QUICK,
        ),
        ("--steps", "4"),
        "manifest.json",
        goes_on_beside=True,
    ),
    "sweep": Command(
        ("sweep", "tiny.yaml", "--grid", "policy.overcommit=0,2", "--seeds", "2", "--jobs", "1", *_QUICK),
        ("--set", "seed=9"),
        "sweep.json",
    ),
    "tune": Command(
        (
            "tune", "tiny.yaml", "--policies", "intra", "--trials", "3", "--seeds", "2", "--fresh-seeds", "2",
            "--jobs", "1", *_QUICK,
        ),
        ("--set", "seed=9"),
        "tune.json",
    ),
}  # fmt: skip


def say(folder: Path, arguments: Sequence[str]) -> Printed:
    """``oppo ARGUMENTS`` in this process and that folder."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(err):
        code = run(list(arguments))
    return Printed(code, out.getvalue(), err.getvalue())


def fine(folder: Path, arguments: Sequence[str]) -> None:
    """As ``say``; it must work."""
    printed = say(folder, arguments)
    assert printed.code == 0, (arguments, printed)


@contextmanager
def counted() -> Iterator[list[RunRequest]]:
    """Every run that is simulated inside, in this process."""
    made: list[RunRequest] = []

    def counting(request: RunRequest) -> RunResult:
        made.append(request)
        return evaluate(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "evaluate", counting)
        yield made


class Scene:
    """A command, what lay in the folder before it, and what it leaves when nobody disturbs it."""

    def __init__(self, home: Path, name: str, *, replaces: bool = False) -> None:
        """``replaces``: an older run of other content lies there, and the command has ``--force``."""
        self.command = COMMANDS[name]
        self.home = home
        force = ("--force",) if replaces else ()
        self.arguments = (*self.command.arguments, *force)
        self.again = self.command.again if not replaces else (*self.command.arguments, "--force")
        self._start = home / "start"
        self._start.mkdir(parents=True)
        write_scenario(self._start, name=NAME)
        if replaces:
            fine(self._start, (*self.command.arguments, *self.command.older))
        self.before = contents(self._start / OUT) if replaces else {}
        reference = self.set_up()
        with broken_disk(reference) as disk, counted() as made:
            fine(reference, self.arguments)
        self.runs = len(made)
        self.changes = list(disk.changes)
        self.whole = everything(reference)
        self.result = contents(reference / OUT)
        self._number = 0

    def set_up(self) -> Path:
        """The folder as the command finds it; of an earlier attack nothing is left."""
        folder = self.home / "stage"
        if folder.exists():
            shutil.rmtree(folder)
        shutil.copytree(self._start, folder)
        return folder

    def attacked(self, folder: Path, on_change: OnChange) -> Printed | None:
        """The command on a disk that breaks; None: it crashed."""
        with broken_disk(folder, on_change=on_change):
            try:
                return say(folder, self.arguments)
            except Crash:
                return None

    def attack_with(self, folder: Path, more: Sequence[str] = ()) -> Printed:
        """The command as it is, with more options."""
        return say(folder, (*self.arguments, *more))

    def assert_marked_only_if_whole(self, folder: Path) -> None:
        """A folder that says it is finished holds all that it says it holds."""
        self._assert_marked_only_if_whole(contents(folder / OUT))

    def _assert_marked_only_if_whole(self, found: Mapping[str, bytes]) -> None:
        if self.command.mark in found:
            wholes = [results_of(self.result), results_of(self.before)]
            assert any(whole and whole.items() <= found.items() for whole in wholes), sorted(found)

    def assert_goes_on(self, folder: Path) -> None:
        """The command is given again, and everything is as if nothing had happened."""
        finished = self.command.goes_on_beside and (folder / OUT / self.command.mark).is_file()
        if finished and "--force" not in self.again:
            # The last moments: the folder is whole, and refused as any finished one.
            assert contents(folder / OUT).items() >= self.result.items()
            assert_refused(say(folder, self.again), "holds a finished run")
            return
        printed = say(folder, self.again)
        assert printed.code == 0, printed
        assert contents(folder / OUT) == self.result
        assert set(everything(folder)) == set(self.whole)

    def assert_kept(self, made: Sequence[RunRequest]) -> None:
        """Of all runs at most the one is made twice that was being written."""
        if "--force" not in self.again:
            assert len(made) <= self.runs + 1, f"{len(made)} runs were made of {self.runs}"

    # ---- attacks -------------------------------------------------------------------------------------------

    def crash(self, at: int, *, torn: bool = False) -> None:
        """Dead at that change; ``torn``: half way through it."""
        folder = self.set_up()
        with counted() as made:
            assert self.attacked(folder, crash_at(at, torn=torn)) is None
            self.assert_marked_only_if_whole(folder)
            self.assert_goes_on(folder)
        self.assert_kept(made)

    def crash_twice(self, first: int, second: int) -> None:
        """Dead again while it goes on."""
        folder = self.set_up()
        assert self.attacked(folder, crash_at(first)) is None
        with broken_disk(folder, on_change=crash_at(second)):
            try:
                say(folder, self.again)
            except Crash:
                self.assert_marked_only_if_whole(folder)
        self.assert_goes_on(folder)

    def full(self, at: int, *, times: float = float("inf")) -> None:
        """No space left from that change on, for so many changes; then there is some."""
        folder = self.set_up()
        with counted() as made:
            printed = self.attacked(folder, full_from(at, to=at + times))
            assert printed is not None
            if printed.code != 0:  # otherwise nothing that a full disk refuses came after it
                assert_refused(printed, "no space left for")
                self.assert_marked_only_if_whole(folder)
                self.assert_goes_on(folder)
            else:
                assert contents(folder / OUT) == self.result
        self.assert_kept(made)

    def vanish(self, at: int) -> None:
        """The folder is deleted before that change."""
        folder = self.set_up()

        def delete(_change: Change) -> None:
            shutil.rmtree(folder / OUT, ignore_errors=True)

        printed = self.attacked(folder, once(at, delete))
        assert printed is not None
        if printed.code != 0:
            assert_refused(printed, OUT)
        if not (folder / OUT / self.command.mark).is_file() or printed.code != 0:
            self.assert_goes_on(folder)
        else:
            assert contents(folder / OUT) == self.result

    def cuts(self) -> Iterator[tuple[int, str, power_cut.Found]]:
        """What a power cut may leave: after how many changes, what was lost, and what is found."""
        disk = power_cut.Disk(self.home / "stage", everything(self._start))
        for change in self.changes:
            disk.make(change)
            for label, found in disk.states():
                yield change.number, label, found

    def assert_cut_is_honest(self, number: int, found: power_cut.Found) -> None:
        """Finished only if whole; and there, once the command has ended."""
        left = power_cut.files(found, OUT)
        self._assert_marked_only_if_whole(left)
        if number == len(self.changes):
            assert results_of(left) == results_of(self.result)

    def cut(self, found: power_cut.Found) -> None:
        """The command is given again after a power cut."""
        folder = self.set_up()
        shutil.rmtree(folder)
        folder.mkdir()
        power_cut.put(found, folder)
        with counted() as made:
            self.assert_goes_on(folder)
        self.assert_kept(made)

    def meet(self, at: int, other: Scene) -> tuple[int, int]:
        """The whole of another command in the same folder, before that change; the exit codes of both."""
        folder = self.set_up()
        met: list[Printed] = []
        printed = self.attacked(folder, once(at, lambda _: met.append(say(folder, other.arguments))))
        assert printed is not None
        codes = printed.code, met[0].code
        for one in (printed, met[0]):
            if one.code != 0:
                assert_refused(one, OUT)
        assert 0 in codes
        winners = [scene.result for scene, code in zip((self, other), codes, strict=True) if code == 0]
        assert contents(folder / OUT) in winners
        return codes


def kill_a_worker(folder: Path, arguments: Sequence[str], journal: str, lines: int) -> Printed:
    """The command, one of whose processes is killed when its journal has so many lines."""

    def kill() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            path = folder / journal
            if path.is_file() and path.read_bytes().count(b"\n") >= lines and (found := workers()):
                os.kill(found[lines % len(found)], signal.SIGKILL)
                return
            time.sleep(0.002)

    killer = Thread(target=kill)
    killer.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(execute, "WORTHWHILE_SECONDS", 0.0)
            patch.setattr(execute, "HANDING_SECONDS", 0.0)
            return say(folder, arguments)
    finally:
        killer.join()


def workers() -> list[int]:
    """Processes of this one that simulate."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            status = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            command = (entry / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue
        if int(status[1]) == os.getpid() and status[0] != "Z" and b"popen_loky" in command:
            found.append(int(entry.name))
    return sorted(found)


def everything(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


_NO_RESULT: Final = (JOURNAL, "runs.jsonl", COMMAND)


def results_of(found: Mapping[str, bytes]) -> dict[str, bytes]:
    """What a finished folder promises: neither journals nor what is half written."""
    return {
        name: data for name, data in found.items() if name not in _NO_RESULT and not name.endswith(".partial")
    }
