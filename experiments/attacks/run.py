"""Attacks on the writing of ``oppo simulate``, ``compare``, ``sweep`` and ``tune``, at every place.

    python -m experiments.attacks.run [ATTACK…] [--commands NAME,…] [--every N]

Attacks: crash, torn, twice, full, moment, vanish, meet, killed, worker, cut, same, tmpfs; all, where none is
README.md says what each does. Prints a line for each attack and command; exit code 1 where something broke.
Seeds are fixed; only what a killed process had finished by then depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Final

os.environ.setdefault("OPPO_ENGINE", "compiled")

from tests.attack import COMMANDS, NAME, OUT, Scene, fine, kill_a_worker, say
from tests.cli_runs import assert_refused, compile_first, contents, write_scenario
from tests.fit_logs import TRUTH, fit_scenario, verl_log
from tests.locales import PLAIN, compiled_locale
from tests.power_cut import Found
from tests.test_attacks import ALL, environment

Attack = Iterator[tuple[str, Callable[[], object]]]
"""What is tried, and how."""

PAIRS: Final = 40
"""Of a crash and a second one while the command goes on."""


@cache
def scene(name: str, replaces: bool = False) -> Scene:
    return Scene(Path(tempfile.mkdtemp(prefix="attack-")), name, replaces=replaces)


def _at_every_change(how: str, name: str, every: int) -> Attack:
    for replaces in (False, True):
        attacked = scene(name, replaces)
        for change in attacked.changes[::every]:
            label = f"{'--force ' if replaces else ''}{change.number} {change.kind} {change.path.name}"
            if how != "torn":
                yield label, partial(getattr(attacked, how), change.number)
            elif change.kind == "write":
                yield label, partial(attacked.crash, change.number, torn=True)


def crash(name: str, every: int) -> Attack:
    yield from _at_every_change("crash", name, every)


def torn(name: str, every: int) -> Attack:
    yield from _at_every_change("torn", name, every)


def full(name: str, every: int) -> Attack:
    yield from _at_every_change("full", name, every)


def moment(name: str, every: int) -> Attack:
    """Full for one change only."""
    attacked = scene(name)
    for change in attacked.changes[::every]:
        yield f"{change.number} {change.kind}", partial(attacked.full, change.number, times=1)


def vanish(name: str, every: int) -> Attack:
    yield from _at_every_change("vanish", name, every)


def twice(name: str, every: int) -> Attack:
    draws = random.Random(f"twice {name}")
    for replaces in (False, True):
        attacked = scene(name, replaces)
        for _ in range(PAIRS // every or 1):
            first, second = (draws.randint(1, len(attacked.changes)) for _ in range(2))
            yield f"{first} {second}", partial(attacked.crash_twice, first, second)


def meet(name: str, every: int) -> Attack:
    """Every command, as a whole, before every change of this one; and with ``--force`` this one."""
    attacked, replacing = scene(name), scene(name, True)
    for change in attacked.changes[::every]:
        for other in COMMANDS:
            yield f"{other} at {change.number}", partial(attacked.meet, change.number, scene(other))
    for change in replacing.changes[::every]:
        yield f"--force at {change.number}", partial(replacing.meet, change.number, replacing)


def killed(name: str, every: int) -> Attack:
    """A process of its own, ended by SIGKILL; at every fifth change, for a process takes long to start."""
    attacked = scene(name)

    def kill(at: int, how: str) -> None:
        folder = attacked.set_up()
        command = [sys.executable, "-m", "tests.broken_disk", "--at", str(at), "--die", how, str(folder)]
        done = subprocess.run(
            [*command, "--", *attacked.arguments],
            cwd=folder,
            env=environment(),
            check=False,
            capture_output=True,
        )
        assert done.returncode == -signal.SIGKILL, done
        attacked.assert_marked_only_if_whole(folder)
        attacked.assert_goes_on(folder)

    for change in attacked.changes[:: 5 * every]:
        for how in ("before", "torn") if change.kind == "write" else ("before",):
            yield f"{change.number} {how}", partial(kill, change.number, how)


def worker(name: str, every: int) -> Attack:
    """One of two processes killed when the journal has n lines."""
    if name == "simulate":
        return
    arguments = ["2" if word == "1" else word for word in COMMANDS[name].arguments] + ["--steps", "20000"]
    arguments += ["--trials", "12"] if name == "tune" else ["--seeds", "12"]
    journal = f"{OUT}.cells.jsonl" if name == "compare" else f"{OUT}/runs.jsonl"

    def kill(lines: int) -> str:
        home = Path(tempfile.mkdtemp(prefix="attack-"))
        for folder in (home / "whole", home / "killed"):
            folder.mkdir()
            write_scenario(folder)
        fine(home / "whole", arguments)
        printed = kill_a_worker(home / "killed", arguments, journal, lines)
        if printed.code != 0:
            assert_refused(printed, "a process was ended from outside", "finished runs are kept")
            kept = (home / "killed" / journal).read_bytes()
            assert kept.count(b"\n") >= lines
            fine(home / "killed", arguments)
            if name != "compare":
                assert (home / "killed" / journal).read_bytes().startswith(kept)
        assert _sorted(contents(home / "killed" / OUT)) == _sorted(contents(home / "whole" / OUT))
        return "refused" if printed.code else "went on"

    for lines in range(2, 14, 2 * every):
        yield f"{lines} lines", partial(kill, lines)


def cut(name: str, every: int) -> Attack:
    """All that a power cut may leave is looked at; the command is given again on every N-th state that is
    new."""
    for replaces in (False, True):
        attacked = scene(name, replaces)
        seen = set[tuple[tuple[str, bytes | None], ...]]()
        for number, label, found in attacked.cuts():
            yield f"{number} {label}", partial(attacked.assert_cut_is_honest, number, found)
            if (state := tuple(found.items())) not in seen:
                seen.add(state)
                if len(seen) % every == 0:
                    yield f"{number} {label}, again", partial(again, attacked, found)


def again(attacked: Scene, found: Found) -> str:
    attacked.cut(found)
    return "given again"


def same(name: str, every: int) -> Attack:
    """Processes with other hashes, locale, time zone and number of workers; figures, the report and, beside
    ``simulate``, a fit too."""
    plain = [word for word in COMMANDS[name].arguments if word != "--no-figures"]
    home = Path(tempfile.mkdtemp(prefix="attack-"))
    truth = fit_scenario(name=NAME)
    fitting = ["fit", "train.log", "--scenario", "mine.yaml", "-o", "fit", "--draws", "40"]

    def made(label: str, arguments: list[str], **changes: str) -> dict[str, bytes]:
        folder = home / label
        folder.mkdir()
        write_scenario(folder, name=NAME)
        todo = [arguments]
        if arguments == plain:  # a report tells the number of jobs, which the command has
            todo.append(["report", OUT, "-o", "report.html"])
        if name == "simulate":
            (folder / "mine.yaml").write_text(truth.to_yaml(), encoding="utf-8")
            verl_log(folder / "train.log", truth, TRUTH, steps=12)
            todo.append(fitting)
        point = "," if changes.get("LC_ALL", "")[:2] in ("de", "tr") else "."
        commands = json.dumps([(str(folder), each) for each in todo])
        subprocess.run([sys.executable, "-c", ALL, commands, point], env=environment(**changes), check=True)
        return _sorted(contents(folder))

    reference = made("reference", plain, PYTHONHASHSEED="0", TZ="UTC", LC_ALL="C.UTF-8")

    def compare(label: str, arguments: list[str], **changes: str) -> None:
        without = () if arguments == plain else ("report.html",)
        expected = {file: data for file, data in reference.items() if file not in without}
        assert made(label, arguments, **changes) == expected

    surroundings: dict[str, Mapping[str, str]] = {
        "hash seed 1": {"PYTHONHASHSEED": "1"},
        "hash seed 4711": {"PYTHONHASHSEED": "4711"},
        "LC_ALL=C without UTF-8": {**PLAIN, "PYTHONUTF8": "0"},
        "TZ=Asia/Kathmandu": {"TZ": "Asia/Kathmandu"},
        "TZ=America/St_Johns": {"TZ": "America/St_Johns"},
    }
    for language, charset in (
        ("de_DE", "UTF-8"), ("de_DE", "ISO-8859-1"), ("tr_TR", "UTF-8"), ("ja_JP", "EUC-JP"),
    ):  # fmt: skip
        changes = compiled_locale(home / "locales", language, charset)
        if changes is not PLAIN:
            surroundings[changes["LC_ALL"]] = {**changes, "PYTHONUTF8": "0"}
    for label, changes in surroundings.items():
        yield label, partial(compare, label.replace("/", "-"), plain, **changes)
    if name != "simulate":
        for jobs in ("2", "3"):
            many = [*plain, "--jobs", jobs]
            yield f"--jobs {jobs}", partial(compare, f"jobs{jobs}", many)


def tmpfs(name: str, every: int) -> Attack:
    """A disk of 16 KiB and more that is really full. Needs leave to mount."""
    attacked = scene(name)
    size = sum(map(len, attacked.whole.values())) // 1024

    def fill(kilobytes: int) -> str:
        home = Path(tempfile.mkdtemp(prefix="attack-"))
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", home], check=True)
        try:
            write_scenario(home, name=NAME)
            printed = say(home, attacked.arguments)
            if printed.code != 0:
                assert_refused(printed, "no space left for")
                subprocess.run(["mount", "-o", "remount,size=64m", home], check=True)
                attacked.assert_goes_on(home)
            assert contents(home / OUT) == attacked.result
            return "refused" if printed.code else "fitted"
        finally:
            subprocess.run(["umount", home], check=True)

    for kilobytes in range(16, size + 64, 16 * every):
        yield f"{kilobytes} KiB", partial(fill, kilobytes)


ATTACKS: Final = {
    each.__name__: each
    for each in (crash, torn, twice, full, moment, vanish, meet, killed, worker, cut, same, tmpfs)
}


def _sorted(found: dict[str, bytes]) -> dict[str, bytes]:
    """A journal's lines come in the order in which runs were finished."""
    return {
        name: b"\n".join(sorted(data.splitlines())) if name.endswith(".jsonl") else data
        for name, data in found.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("attacks", nargs="*", choices=[[], *ATTACKS], default=list(ATTACKS))
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--every", type=int, default=1, help="only every N-th place")
    asked = parser.parse_args()
    compile_first()
    broke = 0
    for attack in asked.attacks or list(ATTACKS):
        for name in asked.commands.split(","):
            tried, failures, said = 0, [], dict[str, int]()
            for label, attempt in ATTACKS[attack](name, asked.every):
                tried += 1
                try:
                    outcome = attempt()
                except Exception:  # whatever broke is told, and the next place is tried
                    failures.append((label, traceback.format_exc(limit=-1, chain=False)))
                else:
                    if outcome is not None:
                        said[str(outcome)] = said.get(str(outcome), 0) + 1
            if tried:
                more = "; " + ", ".join(f"{what} {times}" for what, times in said.items()) if said else ""
                print(f"{attack} {name}: {tried} places, {len(failures)} broke{more}", flush=True)
            for label, text in failures:
                print(f"  {label}: {' | '.join(text.splitlines()[1:])[:500]}", flush=True)
            broke += len(failures)
    return 1 if broke else 0


if __name__ == "__main__":
    sys.exit(main())
