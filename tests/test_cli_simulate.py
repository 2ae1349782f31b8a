"""``oppo simulate`` as a user meets it: the run folder, what is printed where, bad input, interruption."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from itertools import takewhile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from oppo_sim import columns as c
from oppo_sim import simulate
from oppo_sim.finished_run import read_run_folder
from oppo_sim.run_files import JOURNAL, MANIFEST
from oppo_sim.tables import ParquetTable
from tests.cli_runs import Oppo, assert_refused, contents, start_oppo, write_scenario


@pytest.fixture
def oppo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Oppo:
    """The command, in a folder that holds ``tiny.yaml``."""
    monkeypatch.chdir(tmp_path)
    write_scenario(tmp_path)
    return Oppo(capsys)


PLAIN_NAMES = ("STEP", "WEIGHT_VERSION", "START_S", "OVERCOMMIT", "CHUNK_SIZE")
STAGE_COLUMNS = {c.timing(stage) for stage in (*c.STAGES, "step")}
# Columns of step rows; from STEP_TESTING_S on, those of step logs that are read.
STEP_COLUMNS = STAGE_COLUMNS | {
    value
    for name, value in takewhile(lambda item: item[0] != "STEP_TESTING_S", vars(c).items())
    if isinstance(value, str) and name.isupper() and name[0] != "_" and ("/" in value or name in PLAIN_NAMES)
}


# ---- what a run leaves -------------------------------------------------------------------------------------


def test_a_run_folder_holds_tables_summary_figures_timeline_and_manifest(oppo: Oppo) -> None:
    printed = oppo("simulate", "tiny.yaml", "-o", "run")
    assert (printed.code, printed.err) == (0, "")
    run = read_run_folder("run")
    run.verify()
    figures = ("deferrals", "gantt", "in_flight", "response_length", "stage_times", "staleness")
    tables = ("rollouts.parquet", "steps.parquet", "summary.json", "timeline.json")
    assert run.files == (*(f"figures/{figure}.png" for figure in figures), *tables)
    assert set(contents(Path("run"))) == {*run.files, "manifest.json"}
    steps, rollouts = run.frame("steps.parquet"), run.frame("rollouts.parquet")
    assert set(steps.columns) == STEP_COLUMNS
    assert tuple(rollouts.columns) == c.ROLLOUT_COLUMNS
    assert steps[c.STEP].tolist() == list(range(6))
    assert rollouts.groupby(c.TRAINED_STEP).size().tolist() == [4] * 6
    assert set(rollouts[c.FINISH_REASON]) <= {"stop", "length"}


def test_the_manifest_says_how_to_make_the_run_again(oppo: Oppo) -> None:
    oppo(
        "simulate",
        "tiny.yaml",
        "-o",
        "run",
        "--policy",
        "inter",
        "--seed",
        "7",
        "--steps",
        "3",
        "--no-figures",
    )
    manifest = read_run_folder("run").manifest
    wanted = {
        "policy": "inter",
        "seed": 7,
        "steps": 3,
        "steps_done": 3,
        "interrupted": False,
        "warmup_steps": 1,
    }
    assert {key: manifest[key] for key in wanted} == wanted
    assert manifest["policy_settings"] == {"chunk_size": 8, "overcommit": 2}
    assert manifest["costs"]["measured"] is False
    Path("again.yaml").write_text(manifest["scenario_yaml"])
    again = simulate("again.yaml", policy=manifest["policy"], seed=manifest["seed"], steps=manifest["steps"])
    assert again.manifest["scenario_sha256"] == manifest["scenario_sha256"]
    pd.testing.assert_frame_equal(again.rollouts, read_run_folder("run").frame("rollouts.parquet"))


def test_the_summary_leaves_the_warm_up_out(oppo: Oppo) -> None:
    oppo("simulate", "tiny.yaml", "-o", "run", "--no-figures")
    run = read_run_folder("run")
    kept = run.frame("steps.parquet")[c.TIMING_STEP][1:]
    given = run.json("summary.json")[c.TIMING_STEP]
    wanted = {
        "mean": kept.mean(),
        "std": kept.std(),
        "min": kept.min(),
        "p50": kept.median(),
        "p95": kept.quantile(0.95),
        "max": kept.max(),
    }
    assert given == pytest.approx(wanted)
    assert c.START_S not in run.json("summary.json")


def test_python_gives_the_tables_of_the_files(oppo: Oppo) -> None:
    oppo("simulate", "tiny.yaml", "-o", "run", "--no-figures")
    folder, run = read_run_folder("run"), simulate("tiny.yaml")
    pd.testing.assert_frame_equal(run.rollouts, folder.frame("rollouts.parquet"))
    files = folder.frame("steps.parquet")
    for histogram in c.HISTOGRAMS:
        assert [list(row) for row in files.pop(histogram)] == list(run.steps[histogram])
    pd.testing.assert_frame_equal(run.steps.drop(columns=list(c.HISTOGRAMS)), files)
    assert (
        run.summary.loc[c.TIMING_STEP, "mean"]
        == folder.json("summary.json")[c.TIMING_STEP]["mean"]
        == run.step_s
    )
    manifest = dict(folder.manifest)
    assert [manifest.pop(key) for key in ("steps_done", "interrupted")] == [6, False]
    del manifest["files"]
    assert json.loads(json.dumps(run.manifest)) == manifest
    assert (run.spans, run.markers) == ([], [])


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(oppo: Oppo) -> None:
    for name, *options in (("a", "--seed", "3"), ("b", "--seed", "3"), ("c", "--seed", "4", "--no-figures")):
        oppo("simulate", "tiny.yaml", "-o", name, *options)
    a, b, other = (contents(Path(name)) for name in "abc")
    assert a == b
    assert a["rollouts.parquet"] != other["rollouts.parquet"]


def test_what_is_not_wanted_is_not_written(oppo: Oppo) -> None:
    oppo("simulate", "tiny.yaml", "-o", "run", "--no-figures", "--no-rollouts", "--timeline", "0:1")
    assert read_run_folder("run").files == ("steps.parquet", "summary.json", "timeline.json")
    events = json.loads(Path("run/timeline.json").read_text())["traceEvents"]
    steps = {event["args"]["step"] for event in events if event.get("ph") == "X"}
    assert steps == {0, 1}


def test_a_controlled_run_gets_the_picture_of_its_controls(oppo: Oppo) -> None:
    chunk = "policy.chunk_size={control: explore, candidates: [4, 8], explore_every: 3}"
    oppo("simulate", "tiny.yaml", "-o", "run", "--set", chunk)
    assert "figures/controls.png" in read_run_folder("run").files
    assert read_run_folder("run").frame("steps.parquet")[c.CHUNK_SIZE].tolist()[:2] == [4, 8]


def test_without_output_the_folder_has_a_name_of_its_own_below_runs(oppo: Oppo) -> None:
    assert oppo("simulate", "tiny.yaml", "--no-figures", "--seed", "5").code == 0
    assert [path.name for path in Path("runs").iterdir()] == ["tiny-oppo-seed5"]


# ---- what is printed where ---------------------------------------------------------------------------------


def test_the_table_goes_to_standard_output_and_notes_to_standard_error(oppo: Oppo) -> None:
    printed = oppo(
        "simulate",
        "tiny.yaml",
        "-o",
        "run",
        "--no-figures",
        "--set",
        "policy.overcommit={control: reward_slope}",
    )
    assert "update_actor" in printed.out
    assert (
        "costs: linear (gen, prefill, host, reward, training, phases: given by the scenario); trace: synthetic, lognormal"
        in printed.out
    )
    assert printed.out.endswith("wrote run\n")
    assert printed.err.startswith(
        "note: policy 'oppo' controls overcommit by rewards, but rewards.kind is none"
    )


def test_json_stands_alone_on_standard_output(oppo: Oppo) -> None:
    printed = oppo(
        "simulate",
        "tiny.yaml",
        "-o",
        "run",
        "--json",
        "--no-figures",
        "--set",
        "policy.overcommit={control: reward_slope}",
    )
    record = json.loads(printed.out)
    assert record["summary"] == read_run_folder("run").json("summary.json")
    assert {key: record[key] for key in ("folder", "policy", "steps", "warmup_steps", "interrupted")} == {
        "folder": "run", "policy": "oppo", "steps": 6, "warmup_steps": 1, "interrupted": False,
    }  # fmt: skip
    assert printed.err.startswith("note: ")


def test_a_name_with_brackets_is_no_markup(oppo: Oppo, tmp_path: Path) -> None:
    write_scenario(tmp_path, name="[/b] [red]odd")
    printed = oppo("simulate", "tiny.yaml", "--no-figures")
    assert (printed.code, printed.err) == (0, "")
    assert "[/b] [red]odd" in printed.out


# ---- bad input ---------------------------------------------------------------------------------------------

BAD: dict[str, tuple[list[str], dict[str, Any], list[str]]] = {
    "scenario": (["paper-gsm8k-7c"], {}, ["paper-gsm8k-7c", "did you mean paper-gsm8k-7b"]),
    "policy": (["tiny.yaml", "--policy", "partial-rolout"], {}, ["unknown policy 'partial-rolout'", "did you mean 'partial-rollout'?"]),
    "field": (["tiny.yaml", "--set", "rollout.num_replica=2"], {}, ["rollout.num_replica", "did you mean 'num_replicas'?"]),
    "setting": (["tiny.yaml", "--set", "policy.chunksize=2"], {}, ["policy.chunksize", "did you mean 'chunk_size'?"]),
    "overcommit below": (["tiny.yaml", "--set", "policy.overcommit=-1"], {}, ["policy.overcommit is -1", "at least 0"]),
    "overcommit share": (["tiny.yaml", "--set", "policy.overcommit=1000.5"], {}, ["1000.5 means 1000.5 times the batch", "as a whole number"]),
    "overcommit groups": (["tiny.yaml", "--set", "group_size=2", "--set", "policy.overcommit=3"], {}, ["overcommit 3", "group_size 2"]),
    "controlled overcommit": (
        ["tiny.yaml", "--set", "policy.overcommit={control: reward_slope, initial: 3}"], {}, ["overcommit initial 3", "overcommit.max"],
    ),
    "chunk size": (["tiny.yaml", "--set", "policy.chunk_size=0"], {}, ["policy.chunk_size is 0", "at least 1"]),
    "chunk candidates": (
        ["tiny.yaml", "--set", "policy.chunk_size={control: explore, explore_every: 2}"], {}, ["explore_every 2", "no room"],
    ),
    "a KV that cannot hold one rollout": (
        ["tiny.yaml", "--set", "rollout.kv_capacity_tokens=40"], {}, ["kv_capacity_tokens 40", "4 prompt + 40 response tokens"],
    ),
    "async while training shares the devices": (
        ["tiny.yaml", "--policy", "async", "--set", "placement.training=rollout"], {}, ["async", "placement.training: separate"],
    ),
    "static with a KV capacity": (
        ["tiny.yaml", "--set", "rollout.batching=static", "--set", "rollout.kv_capacity_tokens=4096"], {}, ["static", "kv_capacity_tokens"],
    ),
    "static asynchronous": (["tiny.yaml", "--policy", "one-step-off", "--set", "rollout.batching=static"], {}, ["static", "one-step-off"]),
    "no trace file": (["tiny.yaml"], {"trace": {"path": "none.csv"}}, ["none.csv", "does not exist"]),
    "empty trace file": (["tiny.yaml"], {"trace": {"path": "empty.csv"}}, ["empty.csv"]),
    "malformed trace file": (["tiny.yaml"], {"trace": {"path": "malformed.csv"}}, ["malformed.csv", "response_length"]),
    "negative lengths": (["tiny.yaml"], {"trace": {"path": "negative.csv"}}, ["negative.csv", "response_length", "-5"]),
    "rewards that the trace lacks": (["tiny.yaml", "--set", "rewards={kind: trace}"], {}, ["rewards.kind", "reward column"]),
    "timeline beyond the end": (["tiny.yaml", "--timeline", "4:6"], {}, ["timeline 4:6", "0 to 5"]),
    "timeline backwards": (["tiny.yaml", "--timeline", "4:2"], {}, ["'4:2'", "FIRST:LAST"]),
    "steps below one": (["tiny.yaml", "--steps", "0"], {}, ["--steps"]),
    "seed below zero": (["tiny.yaml", "--seed", "-1"], {}, ["--seed"]),
    "output below a file": (["tiny.yaml", "-o", "tiny.yaml/run"], {}, ["tiny.yaml/run", "a file stands where a folder is needed"]),
    "output is a file": (["tiny.yaml", "-o", "empty.csv", "--force"], {}, ["empty.csv is a file"]),
    "output where none can be": (["tiny.yaml", "-o", "/proc/none/run"], {}, ["/proc/none"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_writes_nothing(case: str, oppo: Oppo, tmp_path: Path) -> None:
    arguments, changes, words = BAD[case]
    write_scenario(tmp_path, **changes)
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "malformed.csv").write_text("prompt_length,response_length\n4,twelve\n")
    (tmp_path / "negative.csv").write_text("prompt_length,response_length\n4,7\n4,-5\n")
    before = contents(tmp_path)
    assert_refused(oppo("simulate", *arguments), *words)
    assert contents(tmp_path) == before


def test_a_run_folder_that_exists_is_replaced_only_by_force(oppo: Oppo) -> None:
    oppo("simulate", "tiny.yaml", "-o", "run", "--seed", "1", "--no-figures")
    before = contents(Path("run"))
    assert_refused(oppo("simulate", "tiny.yaml", "-o", "run"), "run holds a finished run", "--force")
    # Not even by force if the new run cannot begin.
    assert_refused(
        oppo("simulate", "tiny.yaml", "-o", "run", "--force", "--timeline", "0:99"), "timeline 0:99"
    )
    assert_refused(
        oppo("simulate", "tiny.yaml", "-o", "run", "--force", "--policy", "oracl"), "did you mean 'oracle'?"
    )
    assert contents(Path("run")) == before
    assert oppo("simulate", "tiny.yaml", "-o", "run", "--seed", "2", "--no-figures", "--force").code == 0
    assert read_run_folder("run").manifest["seed"] == 2


def test_force_does_not_replace_what_is_no_run(oppo: Oppo) -> None:
    Path("thesis").mkdir()
    Path("thesis/chapter.tex").write_text("years of work")
    for force in ([], ["--force"]):
        assert_refused(
            oppo("simulate", "tiny.yaml", "-o", "thesis", *force),
            "thesis holds no run that could be replaced",
        )
    assert contents(Path("thesis")) == {"chapter.tex": b"years of work"}


@pytest.mark.parametrize("bytes_left", [200, 3000])
def test_a_full_disk_is_one_sentence(tmp_path: Path, bytes_left: int) -> None:
    # A limit on the size of files stands for the disk: the kernel refuses the write just so.
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, bytes_left))

    process = start_oppo(
        *("simulate", write_scenario(tmp_path), "-o", tmp_path / "run"),
        cwd=tmp_path,
        preexec_fn=small_files,
        # Python keeps bytecode that was cut off, and no process could import it again.
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.startswith(f"oppo: error: no space left for {tmp_path / 'run'}")
    assert err.count("\n") == 1
    assert not (tmp_path / "run" / "manifest.json").exists()


# ---- interruption ------------------------------------------------------------------------------------------


def test_ctrl_c_keeps_the_steps_that_are_done(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path, steps=1_000_000)
    process = start_oppo("simulate", scenario, "-o", tmp_path / "run", "--no-figures")
    partial = tmp_path / "run" / "rollouts.parquet.partial"
    deadline = time.monotonic() + 30
    while not partial.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    run = read_run_folder(tmp_path / "run")
    run.verify()
    done = run.manifest["steps_done"]
    assert process.returncode == 130
    assert (
        err
        == f"oppo: interrupted after {done} of 1000000 steps: {tmp_path / 'run'} is complete up to there\n"
    )
    assert f"wrote {tmp_path / 'run'} (interrupted after {done} steps)" in " ".join(out.split())
    assert run.manifest["interrupted"] is True
    assert 1 <= done < 1_000_000
    steps, rollouts = run.frame("steps.parquet"), run.frame("rollouts.parquet")
    assert steps[c.STEP].tolist() == list(range(done))
    assert len(rollouts) == 4 * done
    short = simulate(scenario, steps=max(2, min(done, 50)))
    pd.testing.assert_frame_equal(short.rollouts[: len(rollouts)], rollouts[: len(short.rollouts)])


def interrupt_in_step(monkeypatch: pytest.MonkeyPatch, step: int, times: int = 1) -> None:
    """Ctrl-C while the rows of ``step`` are written: the worst moment."""
    append = ParquetTable.append

    def interrupted(self: ParquetTable, rows: Any) -> None:
        if rows[c.TRAINED_STEP][0] == step:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        append(self, rows)

    monkeypatch.setattr(ParquetTable, "append", interrupted)


def test_ctrl_c_waits_for_the_step_in_progress(oppo: Oppo, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_in_step(monkeypatch, 2)
    printed = oppo("simulate", "tiny.yaml", "-o", "run", "--json", "--no-figures")
    assert (printed.code, printed.err) == (
        130,
        "oppo: interrupted after 3 of 6 steps: run is complete up to there\n",
    )
    assert (json.loads(printed.out)["interrupted"], json.loads(printed.out)["steps"]) == (True, 3)
    run = read_run_folder("run")
    assert run.frame("steps.parquet")[c.STEP].tolist() == [0, 1, 2]
    assert run.frame("rollouts.parquet")[c.TRAINED_STEP].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_twice_ends_at_once(oppo: Oppo, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_in_step(monkeypatch, 2, times=2)
    assert oppo("simulate", "tiny.yaml", "-o", "run", "--no-figures").code == 130
    run = read_run_folder("run")
    assert run.frame("rollouts.parquet")[c.TRAINED_STEP].max() == 1
    assert run.frame("steps.parquet")[c.STEP].tolist() == [0, 1]
    assert run.manifest["steps_done"] == 2


def test_ctrl_c_in_the_first_step_keeps_it(oppo: Oppo, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_in_step(monkeypatch, 0)
    assert oppo("simulate", "tiny.yaml", "-o", "run").err.startswith("oppo: interrupted after 1 of 6 steps")
    assert read_run_folder("run").manifest["steps_done"] == 1


def test_a_bad_policy_of_ones_own_is_one_sentence(oppo: Oppo, tmp_path: Path) -> None:
    source = (
        "from oppo_sim import Policy\n\nclass Mine(Policy):\n    def plan(self, pool):\n        return"
        " {}[pool.step]\n"
    )
    (tmp_path / "mine.py").write_text(source)
    printed = oppo("simulate", "tiny.yaml", "--policy", "mine.py:Mine", "-o", "run")
    assert_refused(
        printed, "policy 'mine.py:Mine', step 0: plan() raised KeyError: 0 (mine.py, line 5); mend the policy"
    )
    assert not Path("run").exists()


def test_a_run_that_fails_midway_says_so_and_does_not_stand_in_the_way_of_the_next(
    oppo: Oppo, tmp_path: Path
) -> None:
    late = "from oppo_sim import Policy\n\nclass Mine(Policy):\n    def select(self, pool):\n"
    mistake = "        return [] if pool.step == 3 else super().select(pool)\n"
    (tmp_path / "mine.py").write_text(late + mistake)
    arguments = ("simulate", "tiny.yaml", "--policy", "mine.py:Mine", "-o", "run", "--no-figures")
    for _ in range(2):
        assert_refused(
            oppo(*arguments),
            "step 3: select() must name 4",
            "mend the policy (3 steps were done; nothing of the run is kept in run)",
        )
        assert not Path("run").exists()
    (tmp_path / "mine.py").write_text(late + mistake.replace("== 3", "< 0"))
    assert oppo(*arguments).code == 0


# ---- what the terminal says below the table ----------------------------------------------------------------


def test_a_run_says_its_pace_staleness_and_idle_share_after_the_warm_up(oppo: Oppo) -> None:
    printed = oppo("simulate", "tiny.yaml", "-o", "run", "--no-figures")
    steps = read_run_folder("run").frame("steps.parquet").iloc[1:]
    pace = steps[c.TOKENS_TRAINED].sum() / steps[c.TIMING_STEP].sum()
    assert f"{pace:.1f} tokens trained a second on 5 GPUs\n{pace / 5:.1f} a GPU; " in printed.out
    stale, oldest = steps[c.STALENESS_MEAN].mean(), steps[c.STALENESS_MAX].max()
    assert f"staleness {stale:.3f} on average, {oldest} at most\n" in printed.out
    idle = [1 - steps[column].mean() for column in (c.BUSY_ROLLOUT, c.BUSY_SCORING, c.BUSY_TRAINING)]
    rollout, scoring, training = (f"{100 * share:.1f} %" for share in idle)
    line = f"idle share of the devices: rollout {rollout}, scoring {scoring}, training {training}\n"
    assert line in printed.out
    shared = oppo(
        "simulate", "tiny.yaml", "-o", "shared", "--no-figures", "--set", "placement.training=rollout"
    )
    assert "idle share of the devices: rollout/training " in shared.out


def test_a_numbered_folder_of_a_killed_run_is_passed_over(oppo: Oppo) -> None:
    """``--force`` replaces the first folder, so a run that needed it for the second would cost the first."""
    plain = ("simulate", "tiny.yaml", "--no-figures")
    assert oppo(*plain).code == 0
    (first,) = Path("runs").iterdir()
    second, third = (first.with_name(f"{first.name}-{number}") for number in (2, 3))
    assert oppo(*plain).code == 0
    (second / MANIFEST).unlink()  # as a kill leaves it
    (second / JOURNAL).touch()
    again = oppo(*plain)
    assert f"goes to {third} (--force replaces {first})" in " ".join(again.err.split())
    assert (third / MANIFEST).is_file() and not (second / MANIFEST).exists()
