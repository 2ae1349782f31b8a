"""``oppo sweep`` as a user meets it: the folder, going on after a kill, executors, bad input."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest

import oppo_sim
from oppo_sim import columns as c
from oppo_sim.runs import execute as execution
from oppo_sim.runs.evaluate import evaluate
from oppo_sim.runs.request import RunRequest, RunResult
from oppo_sim.scenario.yaml_text import dump_yaml
from tests.cli_runs import Oppo, assert_refused, contents, start_oppo, write_scenario

GRID = ("--grid", "policy.chunk_size=4,8", "--grid", "policy.overcommit=0:4:+2")
ARGUMENTS = (
    "sweep",
    "tiny.yaml",
    *GRID,
    "--seeds",
    "3",
    "-o",
    "swept",
    "--no-figures",
    "--executor",
    "serial",
)
RUNS = 3 * (6 + 1)
"""Runs of ``ARGUMENTS``: three seeds of six points and of their baseline."""


@pytest.fixture
def oppo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Oppo:
    """The command, in a folder that holds ``tiny.yaml``."""
    monkeypatch.chdir(tmp_path)
    write_scenario(tmp_path)
    return Oppo(capsys)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[RunRequest]:
    """Every run that is made from here on, in this process."""
    made: list[RunRequest] = []

    def counted(request: RunRequest) -> RunResult:
        made.append(request)
        return evaluate(request)

    monkeypatch.setattr(execution, "evaluate", counted)
    return made


def interrupt_after(monkeypatch: pytest.MonkeyPatch, runs: int) -> None:
    """Ctrl-C when that many runs have been made."""
    done = 0

    def interrupted(request: RunRequest) -> RunResult:
        nonlocal done
        if done == runs:
            raise KeyboardInterrupt
        done += 1
        return evaluate(request)

    monkeypatch.setattr(execution, "evaluate", interrupted)


def results(folder: str | Path) -> dict[str, bytes]:
    """Every file of a sweep but its runs, whose order is that in which they finished."""
    return {name: data for name, data in contents(Path(folder)).items() if name != "runs.jsonl"}


def record(folder: str | Path, name: str = "sweep.json") -> Any:
    return json.loads((Path(folder) / name).read_text())


# ---- what a sweep leaves -----------------------------------------------------------------------------------


def test_points_that_are_not_shown_are_told_and_what_ranks_unequal_batches(oppo: Oppo) -> None:
    given = ["--seeds", "2", "--jobs", "1", "--no-figures"]
    alike = oppo("sweep", "tiny.yaml", "--grid", "policy.overcommit=0,2,4", *given, "--top", "2", "-o", "a")
    assert "3 points, 2 seeds × 6 steps (simulated): the 2 best" in alike.out
    assert "a trained rollout" not in alike.out
    grid = ("--grid", "rollout_batch_size=4,8,16")
    batches = oppo("sweep", "tiny.yaml", *grid, *given, "-o", "b")
    assert "the best has the fewest seconds a trained rollout" in batches.out
    assert "(simulated): the" not in batches.out


def test_the_folder_holds_runs_tables_the_best_point_and_what_made_them(oppo: Oppo) -> None:
    printed = oppo(*ARGUMENTS)
    assert printed.code == 0
    assert [line for line in printed.err.splitlines() if "compiling" not in line] == []
    assert printed.out.endswith("wrote swept\n")
    assert "6 points, 3 seeds × 6 steps" in printed.out
    assert json.loads(Path("swept/sweep.json").read_text())["engines"] == {"compiled": 21}
    assert set(contents(Path("swept"))) == {
        "best.json",
        "points.csv",
        "points.parquet",
        "runs.jsonl",
        "runs.parquet",
        "sweep.json",
    }
    points = pd.read_parquet("swept/points.parquet")
    assert list(points["policy.chunk_size"]) == [4, 4, 4, 8, 8, 8]
    assert list(points["policy.overcommit"]) == [0, 2, 4] * 2
    own = {value for name, value in vars(c).items() if isinstance(value, str) and name.isupper()}
    assert set(points.columns) - {"policy.chunk_size", "policy.overcommit"} <= own
    assert points.notna().drop(columns=[c.ERROR]).all(axis=None)
    again = pd.read_csv("swept/points.csv")
    assert list(again.columns) == list(points.columns)
    assert list(again[c.STEP_S]) == list(points[c.STEP_S])
    lines = [json.loads(line) for line in Path("swept/runs.jsonl").read_text().splitlines()]
    assert lines[0]["format"] == "oppo-runs/1"
    assert len(lines) == 1 + RUNS
    assert len({line["key"] for line in lines[1:]}) == RUNS
    best, sweep = record("swept", "best.json"), record("swept")
    assert best["best"]["point"] == int(points[c.S_PER_ROLLOUT].idxmin()) == sweep["best"]
    assert best["best"]["values"] == {"policy.chunk_size": 4, "policy.overcommit": [0, 2, 4][sweep["best"]]}
    assert sweep["best"] in best["region"]["points"]
    assert sweep["seeds"] == [0, 1, 2]
    assert sweep["statuses"] == {"ok": 6, "stopped": 0, "failed": 0}
    assert sweep["engines"] == {"compiled": RUNS}
    assert sweep["baselines"] == {"sequential": 6}
    runs = pd.read_parquet("swept/runs.parquet")
    assert list(runs[c.POINT]) == sorted(list(range(6)) * 3)


def test_figures_are_drawn(oppo: Oppo) -> None:
    assert oppo(*(part for part in ARGUMENTS if part != "--no-figures")).code == 0
    assert (Path("swept") / "figures" / "step_time.png").is_file()


def test_json_and_python_say_what_the_files_say(oppo: Oppo) -> None:
    printed = json.loads(oppo(*ARGUMENTS, "--json").out)
    assert printed["best"] == record("swept", "best.json")["best"]
    points = oppo_sim.sweep(
        "tiny.yaml", grid={"policy.chunk_size": [4, 8], "policy.overcommit": "0:4:+2"}, seeds=3
    ).points
    assert [row[c.STEP_S] for row in printed["table"]] == list(points[c.STEP_S])
    stored = pd.read_parquet("swept/points.parquet").astype(points.dtypes.to_dict())
    pd.testing.assert_frame_equal(stored, points, check_exact=True)


def test_a_file_and_options_are_the_same_sweep(oppo: Oppo, tmp_path: Path) -> None:
    assert oppo(*ARGUMENTS).code == 0
    (tmp_path / "below").mkdir()
    file = {
        "format": "oppo-sweep/1",
        "scenario": "../tiny.yaml",
        "grid": {"policy.chunk_size": [4, 8], "policy.overcommit": {"from": 0, "to": 4, "add": 2}},
        "seeds": 7,
    }
    (tmp_path / "below" / "spec.yaml").write_text(dump_yaml(file))
    assert (
        oppo(
            "sweep", "below/spec.yaml", "--seeds", "3", "-o", "file", "--no-figures", "--executor", "serial"
        ).code
        == 0
    )
    assert (Path("file") / "points.parquet").read_bytes() == (Path("swept") / "points.parquet").read_bytes()
    schema = json.loads(oppo("sweep", "--schema").out)
    jsonschema.validate(file, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**file, "seed": 1}, schema)


def test_a_dry_run_counts_and_writes_nothing(oppo: Oppo, simulated: list[RunRequest]) -> None:
    printed = oppo(*ARGUMENTS, "--dry-run", "--grid", "policy.name=oppo,sequential")
    assert printed.code == 0
    assert "points: 12 over" in printed.out
    assert "6 cannot run" in printed.out
    assert f"runs: {RUNS} with baselines, of which 0 are in swept; {6 * RUNS} training steps" in printed.out
    assert not Path("swept").exists()
    oppo(*ARGUMENTS)
    plan = json.loads(oppo(*ARGUMENTS, "--dry-run", "--json").out)
    assert (plan["points"], plan["runs"], plan["known_runs"], plan["steps"], plan["seconds"]) == (
        6,
        RUNS,
        RUNS,
        0,
        None,
    )


def test_failed_points_do_not_fail_the_sweep(oppo: Oppo) -> None:
    printed = oppo(*ARGUMENTS, "--grid", "policy.name=oppo,sequential")
    assert printed.code == 0
    assert "6 of 12 points failed:" in printed.out
    assert (
        "2 ×: unknown field policy.overcommit of policy 'sequential'" not in printed.out
    )  # one reason for all six
    assert "6 ×: unknown field policy.overcommit of policy 'sequential'" in printed.out
    assert record("swept")["failures"][0]["points"] == 6
    points = pd.read_parquet("swept/points.parquet")
    assert list(points[c.STATUS]).count("failed") == 6


BAD: dict[str, tuple[list[str], list[str]]] = {
    "field": (["--grid", "scoring.workers=1,2"], ["unknown field scoring.workers", "num_workers"]),
    "values": (["--grid", "policy.max_deferrals=5:1:+1"], ["5:1:+1", "swap"]),
    "assignment": (["--grid", "policy.max_deferrals"], ["FIELD=VALUES"]),
    "field twice": (["--grid", "policy.overcommit=3"], ["policy.overcommit is given twice"]),
    "in both": (["--random", "policy.overcommit=0..3"], ["policy.overcommit is varied twice"]),
    "setting": (["--set", "policy.overcomit=2"], ["overcomit", "did you mean 'overcommit'?"]),
    "all fail": (
        ["--grid", "rollout.kv_capacity_tokens=30,40"],
        ["none of the 12 points", "kv_capacity_tokens 30", "1 other reason"],
    ),
    "other files": (["-o", "thesis"], ["thesis holds no sweep"]),
    "other files, by force": (["-o", "thesis", "--force"], ["thesis holds no sweep"]),
    "a file": (["-o", "tiny.yaml"], ["tiny.yaml is a file"]),
    "jobs without": (["--ray-address", "auto"], ["executor ray"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_before_anything_is_simulated(
    case: str, oppo: Oppo, tmp_path: Path, simulated: list[RunRequest]
) -> None:
    arguments, words = BAD[case]
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    before = contents(tmp_path)
    assert_refused(oppo(*ARGUMENTS, *arguments), *words)
    assert contents(tmp_path) == before
    assert simulated == []


BAD_FILES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "field": ({"seed": 3}, ["spec.yaml", "unknown field seed", "did you mean 'seeds'?"]),
    "format": ({"format": "oppo-sweep/2"}, ["oppo-sweep/2", "must be oppo-sweep/1"]),
    "type": ({"seeds": "3"}, ["seeds", '"3"', "whole number"]),
    "range": ({"samples": 0}, ["samples", "at least 1"]),
    "scenario": ({"scenario": "none.yaml"}, ["none"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_mistake_in_a_file_is_one_sentence(case: str, oppo: Oppo, tmp_path: Path) -> None:
    changes, words = BAD_FILES[case]
    file = {"format": "oppo-sweep/1", "scenario": "tiny.yaml", "grid": {"policy.overcommit": [0, 2]}}
    (tmp_path / "spec.yaml").write_text(dump_yaml(file | changes))
    assert_refused(oppo("sweep", "spec.yaml", "-o", "swept"), *words)


# ---- going on ----------------------------------------------------------------------------------------------


def test_ctrl_c_keeps_finished_runs_and_the_same_command_goes_on(
    oppo: Oppo, simulated: list[RunRequest]
) -> None:
    oppo(*ARGUMENTS[:7], *ARGUMENTS[9:], "-o", "whole", "--seeds", "3")
    simulated.clear()
    for finished in (5, 4):
        with pytest.MonkeyPatch.context() as patch:
            interrupt_after(patch, finished)
            printed = oppo(*ARGUMENTS)
        sentence = "oppo: interrupted: finished runs are kept in swept, the same command goes on from there\n"
        assert (printed.code, printed.out, printed.err) == (130, "", sentence)
        assert not (Path("swept") / "sweep.json").exists()
    assert oppo(*ARGUMENTS).code == 0
    assert len(simulated) == RUNS - 9
    assert results("swept") == results("whole")
    simulated.clear()
    assert oppo(*ARGUMENTS).code == 0  # finished: nothing is left to do
    assert simulated == []
    assert results("swept") == results("whole")


def test_a_torn_last_line_is_run_again(oppo: Oppo, simulated: list[RunRequest]) -> None:
    oppo(*ARGUMENTS)
    before = results("swept")
    journal = Path("swept/runs.jsonl")
    journal.write_bytes(journal.read_bytes()[:-30])
    simulated.clear()
    assert oppo(*ARGUMENTS).code == 0
    assert len(simulated) == 1
    assert results("swept") == before
    assert len(journal.read_bytes().splitlines()) == 1 + RUNS


def test_a_damaged_line_is_refused_with_its_number(oppo: Oppo) -> None:
    oppo(*ARGUMENTS)
    journal = Path("swept/runs.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    for damaged in (
        b"{}\n",
        b"\xff\xfe\n",
        b"[1]\n",
        b'{"key": "a", "engine": "x", "totals": {"steps": "x"}}\n',
        lines[2][:20] + b"\n",
    ):
        journal.write_bytes(b"".join([*lines[:2], damaged, *lines[3:]]))
        assert_refused(oppo(*ARGUMENTS), "runs.jsonl, line 3 is no finished run")
    journal.write_bytes(b"hello\n")
    assert_refused(oppo(*ARGUMENTS), "does not begin as the runs of a sweep")


def test_more_seeds_values_and_samples_reuse_what_is_there(oppo: Oppo, simulated: list[RunRequest]) -> None:
    assert oppo(*ARGUMENTS).code == 0
    simulated.clear()
    more = [part.replace("4,8", "4,8,16") for part in ARGUMENTS]
    assert oppo(*more).code == 0
    assert len(simulated) == 3 * 3
    simulated.clear()
    assert oppo(*more, "--seeds", "4").code == 0
    assert len(simulated) == 9 + 1
    fresh = [part.replace("swept", "fresh") for part in more]
    assert oppo(*fresh, "--seeds", "4").code == 0
    assert results("swept") == results("fresh")


def test_another_sweep_is_refused_and_replaced_by_force(oppo: Oppo) -> None:
    oppo(*ARGUMENTS)
    before = contents(Path("swept"))
    assert_refused(
        oppo(*ARGUMENTS, "--grid", "rollout.num_replicas=1,2"),
        "swept holds a sweep over other fields",
        "--force",
    )
    assert_refused(
        oppo(*ARGUMENTS, "--set", "costs.decode.fixed=0.3"),
        "swept holds a sweep of another scenario (costs.decode.fixed is 0.1 there and 0.3 here)",
        "--force",
    )
    assert contents(Path("swept")) == before
    (Path("swept") / "notes.txt").write_text("mine")
    assert oppo(*ARGUMENTS, "--set", "costs.decode.fixed=0.3", "--force").code == 0
    assert (Path("swept") / "notes.txt").read_text() == "mine"
    assert len(Path("swept/runs.jsonl").read_bytes().splitlines()) == 1 + RUNS


LONG = ("sweep", "tiny.yaml", "--grid", "policy.name=async,intra", "--grid", "policy.chunk_size=1:5", "--seeds", "4", "--steps", "100",
        "--no-figures")  # fmt: skip
LONG_RUNS = 4 * (10 + 1)


def wait_for_lines(journal: Path, lines: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if journal.is_file() and journal.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.005)
    raise AssertionError("no run was finished in time")


def group_is_alive(process_group: int) -> bool:
    try:
        os.killpg(process_group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("executor", "number"),
    [
        ("serial", signal.SIGKILL),
        ("processes", signal.SIGKILL),
        ("processes", signal.SIGINT),
        ("processes", signal.SIGTERM),
    ],
)
def test_a_sweep_that_is_killed_goes_on_and_gives_the_same_numbers(
    executor: str, number: signal.Signals, oppo: Oppo, tmp_path: Path, simulated: list[RunRequest]
) -> None:
    assert oppo(*LONG, "-o", "whole", "--executor", "serial").code == 0
    assert len(simulated) == LONG_RUNS
    # Runs are slowed down, so that the kill falls in the middle whatever the machine.
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    environment = slowed(tmp_path)
    process = start_oppo(
        *LONG,
        "-o",
        "swept",
        "--executor",
        executor,
        "--jobs",
        "2",
        cwd=tmp_path,
        env=environment,
        start_new_session=True,
    )
    journal = tmp_path / "swept" / "runs.jsonl"
    wait_for_lines(journal, 6)
    if number == signal.SIGKILL:
        process.kill()
    elif number == signal.SIGTERM:
        process.terminate()
    else:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the command
    _, err = process.communicate(timeout=60)
    sentence = "oppo: interrupted: finished runs are kept in swept, the same command goes on from there\n"
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        assert "Traceback" not in err  # loky's own tracker may say what it cleans up
    else:
        # Nothing else: loky's tracker would say so of semaphores that are left behind.
        assert (process.returncode, err) == (128 + number, sentence)
    deadline = time.monotonic() + 20
    while group_is_alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not group_is_alive(process.pid)  # no worker is left behind
    kept = journal.read_bytes().count(b"\n") - 1
    assert 5 <= kept < LONG_RUNS
    simulated.clear()
    assert oppo(*LONG, "-o", "swept", "--executor", "serial").code == 0
    assert len(simulated) == LONG_RUNS - kept
    assert results("swept") == results("whole")


SLOW = """
import importlib.abc, importlib.util, sys

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "oppo_sim.runs.evaluate":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            evaluate = module.evaluate
            def slow(request):
                import dataclasses, time
                time.sleep(0.15)
                result = evaluate(request)
                return dataclasses.replace(result, seconds=result.seconds + 0.15)
            module.evaluate = slow
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Slow())
"""


def slowed(folder: Path) -> dict[str, str]:
    """The environment, with ``sitecustomize.py`` of a folder found first."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def test_two_sweeps_do_not_write_one_folder(oppo: Oppo, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    process = start_oppo(
        *LONG,
        "-o",
        "swept",
        "--executor",
        "serial",
        cwd=tmp_path,
        env=slowed(tmp_path),
    )
    try:
        wait_for_lines(tmp_path / "swept" / "runs.jsonl", 2)
        assert_refused(oppo(*LONG, "-o", "swept"), "another sweep is writing")
    finally:
        process.kill()
        process.communicate()


# ---- executors ---------------------------------------------------------------------------------------------


def test_results_do_not_depend_on_where_the_runs_are_made(
    oppo: Oppo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "WORTHWHILE_SECONDS", 0.0)
    for folder, executor in (("one", ["serial"]), ("four", ["processes", "--jobs", "4"])):
        assert oppo(*LONG, "--steps", "20", "-o", folder, "--executor", *executor).code == 0
    assert results("one") == results("four")


def test_help_shows_an_example(oppo: Oppo) -> None:
    printed = oppo("sweep", "--help")
    assert printed.code == 0
    assert "--grid policy.chunk_size=64:1536:+64 --grid policy.overcommit=0:30:+2" in printed.out


# ---- what is called worse, and what stays ------------------------------------------------------------------


def test_differences_below_what_matters_in_practice_are_not_called_worse(oppo: Oppo) -> None:
    grid = ("sweep", "tiny.yaml", "--grid", "policy.overcommit=0,2,4", "--jobs", "1", "--no-figures")
    strict = oppo(*grid, "-o", "strict", "--seeds", "8")
    region = json.loads(Path("strict/best.json").read_text())["region"]["points"]
    table = pd.read_parquet("strict/points.parquet")
    worse = table[c.DIFFERENCE].drop(index=region)
    assert len(worse)
    if len(region) == 1:
        least = f"{100 * worse.min():.1f} %"
        assert f"significantly worse than the best over the seeds, by {least} or more" in strict.out
    wide = oppo(*grid, "-o", "wide", "--seeds", "8", "--practical", f"{worse.max() + 0.001:.3f}")
    assert "significantly worse" not in wide.out
    assert "2 other points (≈) cannot be told apart from the best over the seeds, or are within " in wide.out
    assert json.loads(Path("wide/best.json").read_text())["region"]["points"] == [0, 1, 2]
    assert wide.out.count("≈") == 3  # two rows and the sentence
    assert "with the best, overcommit" in " ".join(wide.out.split()), (
        "three values, of two others and the best"
    )


def test_no_figures_keeps_the_figures_of_a_finished_sweep_while_they_show_it(oppo: Oppo) -> None:
    sweep = ("sweep", "tiny.yaml", "--grid", "policy.overcommit=0,2", "--jobs", "1", "-o", "sw", "--seeds")
    assert oppo(*sweep, "2").code == 0
    drawn = contents(Path("sw/figures"))
    assert drawn
    assert oppo(*sweep, "2", "--no-figures").code == 0
    assert contents(Path("sw/figures")) == drawn
    assert oppo(*sweep, "3", "--no-figures").code == 0  # they would show other numbers than the tables
    assert not Path("sw/figures").exists()
