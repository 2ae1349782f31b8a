"""``oppo compare`` as a user meets it: the folder, independence of the number of processes, bad input, going
on after an interruption."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from oppo_sim import columns as c
from oppo_sim import compare
from oppo_sim.cli.main import run
from oppo_sim.comparison.result import ATTRIBUTION_COLUMNS
from oppo_sim.finished_run import read_run_folder
from oppo_sim.report.labels import policy_names
from oppo_sim.runs import execute as execution
from oppo_sim.runs.evaluate import evaluate
from oppo_sim.runs.request import RunRequest, RunResult
from tests.cli_runs import Oppo, assert_refused, contents, start_oppo, write_scenario

ARGUMENTS = (
    "compare",
    "tiny.yaml",
    "--policies",
    "intra,oppo",
    "--seeds",
    "2",
    "-o",
    "cmp",
    "--no-figures",
    "--jobs",
    "1",
)
CELLS = 2 * (1 + 2 + 4)
"""Runs of ``ARGUMENTS``: two seeds of the baseline, of intra and its batch scoring, of oppo and its three
counterfactuals."""


@pytest.fixture
def oppo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Oppo:
    """The command, in a folder that holds ``tiny.yaml``."""
    monkeypatch.chdir(tmp_path)
    write_scenario(tmp_path)
    return Oppo(capsys)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[RunRequest]:
    """Every run that is simulated from here on, in this process."""
    made: list[RunRequest] = []

    def counted(request: RunRequest) -> RunResult:
        result = evaluate(request)
        made.append(request)
        return result

    monkeypatch.setattr(execution, "evaluate", counted)
    return made


# ---- what a comparison leaves ------------------------------------------------------------------------------


def test_what_holds_for_several_policies_is_noted_once(oppo: Oppo, tmp_path: Path) -> None:
    given = ["--policies", "intra,oppo,rollout-overlap", "--set", "scoring.streamable=false", "--seeds", "1"]
    printed = oppo("compare", "tiny.yaml", *given, "--jobs", "1", "--no-figures", "-o", "streamed")
    (note,) = [line for line in printed.err.splitlines() if "streams chunks" in line]
    assert note.startswith("note: policy 'intra' streams chunks")
    assert note.endswith("; likewise 'oppo'")


def test_a_comparison_folder_holds_tables_figures_timeline_and_manifest(oppo: Oppo) -> None:
    printed = oppo("compare", "tiny.yaml", "--seeds", "2", "-o", "cmp", "--jobs", "1")
    assert (printed.code, printed.err) == (0, "")
    assert "1.00× [1.00, 1.00]" in printed.out
    assert printed.out.endswith("wrote cmp\n")
    folder = read_run_folder("cmp")
    folder.verify()
    figures = ("attribution", "gantt", "speedup", "step_time")
    tables = (
        "attribution.parquet",
        "cells.parquet",
        "comparison.json",
        "comparison.parquet",
        "timeline.json",
    )
    assert folder.files == tuple(sorted((*tables, *(f"figures/{figure}.png" for figure in figures))))
    policies = ["sequential", "rollout-overlap", "intra", "inter", "oppo"]
    table = folder.frame("comparison.parquet")
    assert table["policy"].tolist() == policies
    assert folder.frame("attribution.parquet").columns.tolist() == ["policy", *ATTRIBUTION_COLUMNS]
    own = {value for name, value in vars(c).items() if isinstance(value, str) and name.isupper()}
    assert set(table.columns) - {"policy"} <= own
    assert folder.manifest["seeds"] == [0, 1]
    assert folder.manifest["baselines"] == dict.fromkeys(policies, "sequential")
    assert folder.manifest["policy_settings"]["inter"] == {"chunk_size": 8, "overcommit": 2}
    assert not list(Path().glob("*.jsonl"))


def test_python_gives_the_tables_of_the_files_and_json_stands_alone(oppo: Oppo) -> None:
    printed = oppo(*ARGUMENTS, "--json", "--set", "policy.overcommit={control: reward_slope}")
    record = json.loads(printed.out)
    assert printed.err.startswith("note: policy 'oppo' controls overcommit by rewards")
    assert {name: value for name, value in record.items() if name != "folder"} == read_run_folder("cmp").json(
        "comparison.json"
    )
    result = compare(
        "tiny.yaml", ["intra", "oppo"], seeds=2, overrides=["policy.overcommit={control: reward_slope}"]
    )
    folder = read_run_folder("cmp")
    for name, frame in (("comparison", result.table), ("attribution", result.attribution)):
        pd.testing.assert_frame_equal(frame, folder.frame(f"{name}.parquet").set_index("policy"))
    pd.testing.assert_frame_equal(result.cells, folder.frame("cells.parquet"))
    assert record["comparison"]["oppo"][c.SPEEDUP] == result.table.loc["oppo", c.SPEEDUP]
    assert (record["best"], record["alike"]) == (result.best, result.alike)


def test_results_do_not_depend_on_the_number_of_processes(oppo: Oppo) -> None:
    assert oppo(*ARGUMENTS).code == 0
    assert oppo(*ARGUMENTS[:-1], "2", "-o", "two").code == 0
    assert contents(Path("cmp")) == contents(Path("two"))


def test_equal_baselines_are_one_row_and_json_has_both(oppo: Oppo) -> None:
    """A chunk that no response is longer than ends rounds where a step ends."""
    arguments = ("--policies", "partial-rollout,intra", "--seeds", "2", "--no-figures", "--jobs", "1")
    long = ("--set", "policy.token_budget=40", "--set", "policy.name=partial-rollout")
    printed = oppo("compare", "tiny.yaml", *arguments, *long, "-o", "long").out
    assert "rounds of 40" not in printed
    assert printed.count("\n  sequential ") >= 3
    labels = json.loads(oppo("compare", "tiny.yaml", *arguments, *long, "-o", "json", "--json").out)
    assert "sequential (rounds of 40)" in labels["comparison"]
    short = ("--set", "policy.token_budget=8", "--set", "policy.name=partial-rollout")
    said = " ".join(oppo("compare", "tiny.yaml", *arguments, *short, "-o", "short").out.split())
    assert "sequential (rounds of 8): stops as partial-rollout does, whose speed-up is against it" in said
    assert "whose speed-up" not in printed


def test_one_policy_alone_is_not_called_faster_than_others(oppo: Oppo) -> None:
    arguments = ("--policies", "sequential", "--seeds", "2", "--no-figures", "--jobs", "1")
    said = " ".join(oppo("compare", "tiny.yaml", *arguments, "-o", "alone").out.split())
    assert "best: sequential; no other policy was compared with it (--policies)" in said


def test_a_policy_of_ones_own_is_called_by_its_class(oppo: Oppo, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "MyVeryLongNamedPolicyOfMine"
    Path("mine.py").write_text(
        "from oppo_sim.policies import Policy\n\n\n"
        f"class {name}(Policy):\n    def plan(self, pool):\n        return self.refill(pool, overcommit=0, chunk_size=8)\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ("--seeds", "2", "--no-figures", "--jobs", "1")
    printed = oppo("compare", "tiny.yaml", "--policies", f"mine.py:{name}", *arguments, "-o", "own").out
    assert f"  {name} " in printed
    assert "mine.py:" not in printed.partition("\nbest: ")[0]
    monkeypatch.setenv("COLUMNS", "100")  # at 80 a name of 27 letters parts at a capital
    swept = oppo(
        "sweep", "tiny.yaml", "--grid", f"policy.name=mine.py:{name},intra", *arguments, "-o", "sw"
    ).out
    assert any(line.split()[:1] == [name] for line in swept.splitlines())
    both = policy_names(["a.py:One", "b.py:One", "c.py:Two", "oppo"])
    assert list(both.values()) == ["a.py:One", "b.py:One", "Two", "oppo"]
    labels = policy_names(["c.py:Two:extra=3", "oppo:chunk_size=4:overcommit=1"])
    assert list(labels.values()) == ["Two:extra=3", "oppo:chunk_size=4:overcommit=1"]


def test_without_attribution_nothing_is_replayed(oppo: Oppo, simulated: list[RunRequest]) -> None:
    assert oppo(*ARGUMENTS, "--no-attribution").code == 0
    assert len(simulated) == 2 * 3
    attribution = read_run_folder("cmp").frame("attribution.parquet").set_index("policy")
    assert attribution.isna().all(axis=None)


def test_warnings_are_those_of_the_compared_policies(oppo: Oppo) -> None:
    scenario = ("--set", "policy.overcommit={control: reward_slope}")
    assert (
        oppo(
            "compare",
            "tiny.yaml",
            "--policies",
            "intra",
            "--seeds",
            "1",
            "-o",
            "a",
            "--no-figures",
            *scenario,
        ).err
        == ""
    )


# ---- bad input ---------------------------------------------------------------------------------------------

BAD: dict[str, tuple[list[str], dict[str, Any], list[str]]] = {
    "policy": (["--policies", "intra,opppo"], {}, ["unknown policy 'opppo'", "did you mean 'oppo'?"]),
    "policy named twice": (["--policies", "oppo,inter,oppo"], {}, ["name oppo twice"]),
    "no policy": (["--policies", " , "], {}, ["--policies ' , '", "names no policy", "leave it out"]),
    "an empty list of policies": (["--policies", ""], {}, ["--policies ''", "names no policy"]),
    "seeds in order": (["--set", "trace.sampling=in_order"], {}, ["in_order", "seeds 1"]),
    "no seeds": (["--seeds", "0"], {}, ["--seeds"]),
    "field": (["--set", "scoring.workers=2"], {}, ["scoring.workers", "num_workers"]),
    "policies section": (
        ["--set", "policies.inter.overcomit=2"],
        {},
        ["overcomit", "did you mean 'overcommit'?"],
    ),
    "async on shared devices": (
        ["--policies", "intra,async", "--set", "placement.training=rollout"],
        {},
        ["async", "separate"],
    ),
    "a KV that cannot hold one rollout": (
        ["--set", "rollout.kv_capacity_tokens=40"],
        {},
        ["kv_capacity_tokens 40"],
    ),
    "negative lengths": ([], {"trace": {"path": "negative.csv"}}, ["negative.csv", "-5"]),
    "folder with other files": (["-o", "thesis"], {}, ["thesis holds no run"]),
    "folder with other files, by force": (["-o", "thesis", "--force"], {}, ["thesis holds no run"]),
    "a cluster without ray": (["--ray-address", "auto"], {}, ["executor ray"]),
    "output below a file": (
        ["-o", "tiny.yaml/cmp"],
        {},
        ["tiny.yaml/cmp", "a file stands where a folder is needed"],
    ),
    "output in the root of all folders": (["-o", "/", "--force"], {}, ["/ has nothing beside it", "-o"]),
    "a threshold that is no number": (["--practical", "nan"], {}, ["'nan' is not a finite number"]),
    "output where none can be": (["-o", "/proc/none/cmp"], {}, ["/proc/none"]),
    "here, where the scenario is": (["-o", "."], {}, [". holds no run"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_before_anything_is_simulated(
    case: str, oppo: Oppo, tmp_path: Path, simulated: list[RunRequest]
) -> None:
    arguments, changes, words = BAD[case]
    write_scenario(tmp_path, **changes)
    (tmp_path / "negative.csv").write_text("prompt_length,response_length\n4,7\n4,-5\n")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    before = contents(tmp_path)
    assert_refused(oppo("compare", "tiny.yaml", "--jobs", "1", *arguments), *words)
    assert contents(tmp_path) == before
    assert simulated == []


def test_a_comparison_that_exists_is_replaced_only_by_force(oppo: Oppo) -> None:
    oppo(*ARGUMENTS)
    before = contents(Path("cmp"))
    assert_refused(oppo(*ARGUMENTS), "cmp holds a finished run", "--force")
    assert contents(Path("cmp")) == before
    assert oppo(*ARGUMENTS, "--force", "--steps", "3").code == 0
    assert read_run_folder("cmp").manifest["steps"] == 3


def test_another_comparison_without_a_folder_leaves_the_first_and_takes_a_number(oppo: Oppo) -> None:
    plain = ["compare", "tiny.yaml", "--policies", "intra", "--seeds", "1", "--jobs", "1", "--no-figures"]
    assert oppo(*plain).code == 0
    first = Path("runs/tiny-compare")
    before = contents(first)
    for number, steps in ((2, "3"), (3, "4")):
        again = oppo(*plain, "--steps", steps)
        assert again.code == 0
        said = f"runs/tiny-compare holds a finished run, which stays: this one goes to {first}-{number}"
        assert said in " ".join(again.err.split())
        assert read_run_folder(f"{first}-{number}").manifest["steps"] == int(steps)
    assert contents(first) == before
    assert oppo(*plain, "--steps", "2", "--force").code == 0
    assert read_run_folder(first).manifest["steps"] == 2
    assert not Path(f"{first}-4").exists()


def test_an_empty_folder_can_be_written_from_inside(
    oppo: Oppo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert (
        oppo("compare", "../tiny.yaml", "--policies", "intra", "--seeds", "1", "--no-figures", "-o", ".").code
        == 0
    )
    assert read_run_folder(".").manifest["policies"] == ["intra"]


# ---- interruption ------------------------------------------------------------------------------------------


def uninterrupted(folder: Path, *arguments: str) -> dict[str, bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_scenario(folder)
        assert run([*arguments, "-o", "whole", "--jobs", "1"]) == 0
    return contents(folder / "whole")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What ``ARGUMENTS`` writes without an interruption."""
    return uninterrupted(tmp_path_factory.mktemp("whole"), *ARGUMENTS)


@pytest.fixture(scope="module")
def whole_long(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What ``LONG`` writes without an interruption."""
    return uninterrupted(tmp_path_factory.mktemp("whole"), *LONG)


def interrupt_after(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    """Ctrl-C when that many cells have been simulated."""
    evaluated, done = execution.evaluate, 0

    def interrupted(request: RunRequest) -> RunResult:
        nonlocal done
        if done == cells:
            raise KeyboardInterrupt
        done += 1
        return evaluated(request)

    monkeypatch.setattr(execution, "evaluate", interrupted)


def test_ctrl_c_keeps_finished_runs_and_the_same_command_goes_on(
    oppo: Oppo, whole: dict[str, bytes], simulated: list[RunRequest]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_after(patch, 5)
        printed = oppo(*ARGUMENTS)
    sentence = (
        "oppo: interrupted: finished runs are kept in cmp.cells.jsonl, the same command goes on from there\n"
    )
    assert (printed.code, printed.out, printed.err) == (130, "", sentence)
    assert not Path("cmp").exists()
    assert oppo(*ARGUMENTS).code == 0
    assert len(simulated) == len(set(simulated)) == CELLS
    assert contents(Path("cmp")) == whole
    assert not Path("cmp.cells.jsonl").exists()


def test_a_torn_last_line_is_run_again_however_often(
    oppo: Oppo, whole: dict[str, bytes], simulated: list[RunRequest]
) -> None:
    journal = Path("cmp.cells.jsonl")
    for finished in (3, 2):
        with pytest.MonkeyPatch.context() as patch:
            interrupt_after(patch, finished)
            oppo(*ARGUMENTS)
        journal.write_bytes(journal.read_bytes()[:-40])
    assert oppo(*ARGUMENTS).code == 0
    # 3 + 2 runs, of which each tear cost one.
    assert len(simulated) == CELLS + 2
    assert contents(Path("cmp")) == whole


def test_a_damaged_line_is_refused_with_its_number(oppo: Oppo) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_after(patch, 3)
        oppo(*ARGUMENTS)
    journal = Path("cmp.cells.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    for damaged in (
        b"{}\n",
        b"\xff\xfe\n",
        b"[1]\n",
        b'{"key": "a", "engine": "x", "totals": {"steps": "x"}}\n',
        lines[1][:20] + b"\n",
    ):
        journal.write_bytes(lines[0] + damaged + lines[2])
        assert_refused(oppo(*ARGUMENTS), "cmp.cells.jsonl, line 2 is no finished run", "delete the file")
        assert journal.read_bytes() == lines[0] + damaged + lines[2]
    assert not Path("cmp").exists()


def test_runs_that_an_older_version_kept_are_refused_in_one_sentence(oppo: Oppo) -> None:
    journal = Path("cmp.cells.jsonl")
    journal.write_text('{"key": "00c1", "totals": {"steps": 5.0}}\n')
    assert_refused(
        oppo(*ARGUMENTS), "cmp.cells.jsonl does not begin as the runs of a comparison", "delete it"
    )
    assert journal.read_text().startswith('{"key"')


@pytest.mark.parametrize("change", ["trace file", "policy file", "scenario", "steps"])
def test_finished_runs_of_other_inputs_are_not_taken(
    change: str, oppo: Oppo, tmp_path: Path, simulated: list[RunRequest]
) -> None:
    trace, policy = tmp_path / "lengths.csv", tmp_path / "mine.py"
    trace.write_text("prompt_length,response_length\n4,7\n4,30\n4,12\n")
    policy.write_text("from oppo_sim import Policy\n\nclass Mine(Policy):\n    pass\n")
    write_scenario(tmp_path, trace={"path": "lengths.csv"})
    arguments = [
        "compare",
        "tiny.yaml",
        "--policies",
        "mine.py:Mine",
        "--seeds",
        "1",
        "-o",
        "cmp",
        "--jobs",
        "1",
        "--no-figures",
    ]
    with pytest.MonkeyPatch.context() as patch:
        interrupt_after(patch, 2)
        oppo(*arguments)
    again = 1  # the counterfactual that was never run
    if change == "trace file":
        trace.write_text("prompt_length,response_length\n4,7\n4,31\n4,12\n")
        again = 3
    elif change == "policy file":
        policy.write_text(policy.read_text() + "    chunk_size = 3\n")
        again = 2  # the baseline is not theirs
    elif change == "scenario":
        arguments += ["--set", "costs.decode.fixed=0.2"]
        again = 3
    else:
        arguments += ["--steps", "5"]
        again = 3
    simulated.clear()
    assert oppo(*arguments).code == 0
    assert len(simulated) == again


def test_killed_while_the_folder_is_written_the_same_command_writes_it_again(
    oppo: Oppo, whole: dict[str, bytes], simulated: list[RunRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "oppo_sim.comparison.folder.timelines_of", lambda *_: signal.raise_signal(signal.SIGINT)
        )
        printed = oppo(*ARGUMENTS)
    assert (printed.code, printed.err.count("\n")) == (130, 1)
    assert Path("cmp/unfinished.jsonl").is_file()
    simulated.clear()
    assert oppo(*ARGUMENTS).code == 0
    assert simulated == []
    assert contents(Path("cmp")) == whole


def wait_for_lines(journal: Path, lines: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if journal.is_file() and journal.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.01)
    raise AssertionError("no run was finished in time")


LONG = (
    "compare",
    "tiny.yaml",
    "--policies",
    "intra",
    "--seeds",
    "4",
    "--steps",
    "20000",
    "--no-figures",
    "--no-attribution",
)


def alive(process_group: int) -> bool:
    try:
        os.killpg(process_group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_comparison_in_two_processes_goes_on_after(
    number: signal.Signals,
    oppo: Oppo,
    tmp_path: Path,
    whole_long: dict[str, bytes],
    simulated: list[RunRequest],
) -> None:
    process = start_oppo(*LONG, "-o", "cmp", "--jobs", "2", cwd=tmp_path, start_new_session=True)
    journal = tmp_path / "cmp.cells.jsonl"
    wait_for_lines(journal, 1 + 2)
    if number == signal.SIGKILL:
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the command
    _, err = process.communicate(timeout=30)
    sentence = (
        "oppo: interrupted: finished runs are kept in cmp.cells.jsonl, the same command goes on from there\n"
    )
    assert (process.returncode, err) == (
        (-signal.SIGKILL, "") if number == signal.SIGKILL else (130, sentence)
    )
    deadline = time.monotonic() + 20
    while alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(process.pid)  # no worker is left behind
    kept = journal.read_bytes().count(b"\n") - 1
    assert 2 <= kept < 8
    assert oppo(*LONG, "-o", "cmp", "--jobs", "1").code == 0
    assert len(simulated) == 8 - kept
    assert contents(Path("cmp")) == whole_long


def test_the_tracks_of_a_comparison_start_together(oppo: Oppo) -> None:
    """Each policy reaches the steps that are shown at another time of its own."""
    assert oppo(*ARGUMENTS).code == 0
    events = json.loads(Path("cmp/timeline.json").read_text())["traceEvents"]
    first: dict[int, int] = {}
    for event in events:
        if event["ph"] == "X":
            first.setdefault(event["pid"] // 100, event["ts"])
    assert list(first.values()) == [0, 0, 0]


def test_a_best_policy_that_trains_shorter_responses_is_warned_of(oppo: Oppo) -> None:
    options = ("--steps", "12", "--seeds", "2", "--draws", "0", "--no-figures", "-o", "few")
    printed = oppo("compare", "h200-single", "--policies", "tail-batching", *options)
    warning = "shorter than sequential does, so part of its gain is shorter work"
    assert "tail-batching: in these steps it trains responses" in " ".join(printed.out.split())
    assert warning in " ".join(printed.out.split())
    assert run(["report", "few", "-o", "few.html"]) == 0
    assert warning in Path("few.html").read_text()


def test_seeds_that_replay_the_same_rollouts_are_said_to(oppo: Oppo, tmp_path: Path) -> None:
    """Steps of a trace under every seed alike: their interval is almost a point, and not one of rollouts."""
    rows = pd.DataFrame({c.STEP: [step for step in range(4) for _ in range(40)]})
    rows[c.RESPONSE_LENGTH] = [5 + (7 * row) % 30 for row in rows.index]
    rows.to_csv("steps.csv", index=False)
    given = (
        "compare",
        "tiny.yaml",
        "--policies",
        "inter",
        "--trace",
        "steps.csv",
        "--no-figures",
        "--jobs",
        "1",
    )
    said = "every seed replays the responses of the trace's steps"
    by_step = ("--set", "trace.sampling=by_step", "--set", "trace.prompt_length=4")
    assert said in " ".join(oppo(*given, "--seeds", "2", *by_step, "-o", "two").out.split())
    assert said not in " ".join(oppo(*given, "--seeds", "1", *by_step, "-o", "one").out.split())
    resampled = ("--set", "trace.sampling=resample", "--set", "trace.prompt_length=4")
    assert said not in " ".join(oppo(*given, "--seeds", "2", *resampled, "-o", "other").out.split())
    assert oppo("report", "two", "-o", "two.html").code == 0
    assert "every seed replays" in Path("two.html").read_text(encoding="utf-8").lower()


def test_intervals_without_draws_are_said_to_be_of_the_rollouts_alone(oppo: Oppo) -> None:
    said = "95 % of the rollouts alone: without draws the machine is taken as given"
    assert said in oppo(*ARGUMENTS).out
    one = (
        "compare",
        "tiny.yaml",
        "--policies",
        "intra",
        "--seeds",
        "1",
        "--no-figures",
        "--jobs",
        "1",
        "-o",
        "one",
    )
    assert said not in oppo(*one).out
