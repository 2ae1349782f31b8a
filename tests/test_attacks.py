"""Commands that die, meet a full disk, lose their folder or a process, or meet each other, at fixed places;
``experiments/attacks/run.py`` tries every place."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from joblib import Parallel
from joblib.externals.loky.process_executor import TerminatedWorkerError

from oppo_sim.errors import HaltError, OppoError
from oppo_sim.finished_run import read_run_folder
from oppo_sim.run_folder import open_run_folder
from oppo_sim.run_kinds import SIMULATED
from oppo_sim.runs import execute
from oppo_sim.runs.request import RunRequest, RunResult
from tests.attack import COMMANDS, OUT, Scene, counted, fine, kill_a_worker
from tests.broken_disk import Crash, broken_disk, crash_at, full_from
from tests.cli_runs import assert_refused, compile_first, contents, write_scenario
from tests.locales import PLAIN, compiled_locale


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Scene]:
    """A command and what it leaves when nobody disturbs it; made once."""
    compile_first()

    @cache
    def make(name: str, replaces: bool = False) -> Scene:
        return Scene(tmp_path_factory.mktemp("scene"), name, replaces=replaces)

    return make


def places(scene: Scene, few: int, offset: int) -> list[int]:
    """So many changes, evenly over all."""
    step = len(scene.changes) / few
    return [1 + (offset + int(step * number)) % len(scene.changes) for number in range(few)]


CASES = [(name, replaces) for name in COMMANDS for replaces in (False, True)]


@pytest.mark.parametrize(("name", "replaces"), CASES)
def test_after_a_crash_the_command_goes_on_as_if_nothing_had_happened(
    name: str, replaces: bool, scene: Callable[..., Scene]
) -> None:
    attacked = scene(name, replaces)
    for at in places(attacked, 1 if replaces else 2, 7):
        attacked.crash(at, torn=attacked.changes[at - 1].kind == "write")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_and_a_folder_that_disappears_are_a_sentence(
    name: str, scene: Callable[..., Scene]
) -> None:
    attacked = scene(name)
    attacked.full(places(attacked, 2, 12)[1])
    attacked.vanish(places(attacked, 2, 20)[1])


def test_a_disk_that_is_full_for_a_moment_is_not_taken_for_a_setting_that_cannot_run(
    scene: Callable[..., Scene],
) -> None:
    search = scene("tune")
    writes = [one for one in search.changes if one.kind == "write"]
    trial = next(at for at, one in enumerate(writes) if one.data.startswith(b'{"trial"'))
    search.full(writes[trial - 1].number, times=1)  # a baseline, when the first trial is judged


@pytest.mark.parametrize(("name", "replaces"), CASES)
def test_after_a_power_cut_a_folder_is_finished_only_if_it_is_whole(
    name: str, replaces: bool, scene: Callable[..., Scene]
) -> None:
    """In every state that what is not synced may be in; and the command goes on in some."""
    attacked = scene(name, replaces)
    states = list(attacked.cuts())
    for number, _, found in states:
        attacked.assert_cut_is_honest(number, found)
    for _, _, found in states[37 :: len(states) // 2]:
        attacked.cut(found)


def test_lines_of_a_journal_after_zeros_are_cut_off(tmp_path: Path, scene: Callable[..., Scene]) -> None:
    """A file may be as long as it was before a power cut, and its last lines not be there, or not wholly."""
    sweep = scene("sweep")
    folder = sweep.set_up()
    fine(folder, sweep.arguments)
    journal = folder / OUT / "runs.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    lost = bytes(len(lines[2])) + lines[3][:40] + b"\n"
    journal.write_bytes(b"".join([*lines[:2], lost, *lines[4:]]))
    with counted() as made:
        fine(folder, sweep.arguments)
    assert len(made) == sweep.runs - 1
    assert contents(folder / OUT) == sweep.result


def test_two_commands_in_one_folder_never_mix(scene: Callable[..., Scene]) -> None:
    simulate, again, sweep, search = scene("simulate"), scene("simulate", True), scene("sweep"), scene("tune")
    assert simulate.meet(1, sweep) == (2, 0)  # before it has begun
    assert simulate.meet(9, sweep) == (0, 2)
    assert sweep.meet(2, simulate) == (2, 0)
    assert sweep.meet(12, search) == (0, 2)
    middle = next(one.number for one in again.changes if one.path.name == "rollouts.parquet.partial")
    assert again.meet(middle + 1, again) == (0, 2)  # --force does not end a run that goes on
    replacing = scene("sweep", True)
    middle = next(one.number for one in replacing.changes if one.path.name == "points.parquet.partial")
    assert replacing.meet(middle + 1, replacing) == (0, 2)


def test_force_does_not_mix_commands(tmp_path: Path, scene: Callable[..., Scene]) -> None:
    for first, second in (("sweep", "tune"), ("tune", "sweep"), ("sweep", "simulate"), ("simulate", "tune")):
        folder = scene(first).set_up()
        fine(folder, scene(first).arguments)
        before = contents(folder / OUT)
        with broken_disk(folder) as disk:
            refused = scene(second).attack_with(folder, ("--force",))
        assert_refused(refused, OUT)
        assert [change for change in disk.changes if change.kind == "delete"] == []
        assert contents(folder / OUT) == before


def test_a_process_that_is_killed_outright_leaves_what_a_crash_leaves(
    tmp_path: Path, scene: Callable[..., Scene]
) -> None:
    """No handler runs: what the disk holds is what the same crash in this process leaves."""
    attacked = scene("sweep")
    at = next(one.number for one in attacked.changes if one.path.name == "points.csv.partial") + 1
    folder = attacked.set_up()
    command = [sys.executable, "-m", "tests.broken_disk", "--at", str(at), "--die", "torn", str(folder)]
    killed = subprocess.run([*command, "--", *attacked.arguments], cwd=folder, env=environment(), check=False)
    assert killed.returncode == -signal.SIGKILL
    found = contents(folder / OUT)
    attacked.assert_goes_on(folder)
    folder = attacked.set_up()
    with broken_disk(folder, on_change=crash_at(at, torn=True)), pytest.raises(Crash):
        attacked.attack_with(folder)
    assert contents(folder / OUT) == found


def environment(**changes: str) -> dict[str, str]:
    root = Path(__file__).parents[1]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
        **changes,
    }


ALL = """
import json, locale, sys
from pathlib import Path
locale.setlocale(locale.LC_ALL, "")
assert locale.localeconv()["decimal_point"] == sys.argv[2]
from oppo_sim.runs import execute
from tests.attack import fine
execute.WORTHWHILE_SECONDS = execute.HANDING_SECONDS = 0.0
for folder, arguments in json.loads(sys.argv[1]):
    fine(Path(folder), arguments)
"""


def test_results_are_the_same_bytes_whatever_hashes_locale_zone_and_processes(
    tmp_path: Path, scene: Callable[..., Scene]
) -> None:
    """Decimal commas, and letters that are other bytes than those of UTF-8."""
    german = compiled_locale(tmp_path / "locales", "de_DE", "ISO-8859-1")
    todo = []
    for name in COMMANDS:
        folder = tmp_path / name
        shutil.copytree(scene(name).set_up(), folder)
        many = ["2" if word == "1" else word for word in scene(name).arguments]
        todo.append((str(folder), many))
    subprocess.run(
        [sys.executable, "-c", ALL, json.dumps(todo), "." if german is PLAIN else ","],
        env=environment(PYTHONHASHSEED="4711", TZ="Asia/Kathmandu", PYTHONUTF8="0", **german),
        check=True,
    )
    for name in COMMANDS:
        found, expected = contents(tmp_path / name / OUT), scene(name).result
        for both in (found, expected):
            if "runs.jsonl" in both:  # in the order in which they were finished
                both["runs.jsonl"] = b"\n".join(sorted(both["runs.jsonl"].splitlines()))
        assert found == expected


def test_a_killed_process_of_a_sweep_is_a_sentence_and_finished_runs_stay(
    tmp_path: Path, scene: Callable[..., Scene]
) -> None:
    write_scenario(tmp_path)
    arguments = ["2" if word == "1" else word for word in COMMANDS["sweep"].arguments]
    arguments += ["--seeds", "8", "--steps", "8000"]
    printed = kill_a_worker(tmp_path, arguments, f"{OUT}/runs.jsonl", 5)
    assert_refused(printed, "a process was ended from outside", "finished runs are kept")
    kept = (tmp_path / OUT / "runs.jsonl").read_bytes()
    assert kept.count(b"\n") >= 5
    fine(tmp_path, arguments)
    assert (tmp_path / OUT / "runs.jsonl").read_bytes().startswith(kept)


def test_a_process_that_is_gone_when_it_gets_work_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """loky tells it at once, if it has noticed by then, and not with the first result."""

    def gone(*_: object) -> None:
        raise TerminatedWorkerError("a worker process was terminated")

    monkeypatch.setattr(Parallel, "__call__", gone)
    monkeypatch.setattr(
        execute, "evaluate", lambda request: RunResult(request.key, None, error="", seconds=9.0)
    )
    requests = [RunRequest("{}", "intra", "{}", seed, 5) for seed in range(4)]
    with pytest.raises(HaltError, match="a process was ended from outside"):
        list(execute.Runner(execute.Executor("processes", 2)).run(requests))


# ---- run folders by themselves, at every place -------------------------------------------------------------


def write_run(root: Path, *, force: bool = False) -> None:
    with open_run_folder(root, SIMULATED, force=force) as folder:
        folder.write_json("summary.json", {"a": 1})
        folder.write_text("figures/one.svg", "<svg/>")
        folder.finish({"kind": SIMULATED})


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("kind", ["crash", "torn", "full"])
def test_a_run_folder_is_whole_or_unfinished_at_every_change(
    kind: str, replaces: bool, tmp_path: Path
) -> None:
    write_run(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    for at in count(1):
        root = tmp_path / str(at)
        if replaces:
            with open_run_folder(root, SIMULATED) as older:
                older.write_text("figures/one.svg", "<svg>older</svg>")
                older.write_text("older.txt", "older")
                older.finish({"kind": SIMULATED, "about": "older"})
        break_it = full_from(at) if kind == "full" else crash_at(at, torn=kind == "torn")
        with broken_disk(root, on_change=break_it) as disk:
            try:
                write_run(root, force=replaces)
            except Crash:
                pass
            except OppoError as error:
                assert "no space left for" in str(error)
        if len(disk.changes) < at:
            assert at > 15
            break
        if (root / "manifest.json").is_file():
            read_run_folder(root).verify()
        else:
            assert not root.exists() or not any(root.iterdir()) or (root / "unfinished.jsonl").is_file()
        write_run(root, force=True)
        assert contents(root) == whole
