"""A recorder: what is written down comes back, of many processes, after restarts and crashes; a fit takes it."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from oppo_sim.cli.main import run
from oppo_sim.errors import OppoError
from oppo_sim.fit.log_lengths import lengths_of_logs
from oppo_sim.fit.sources import open_log
from oppo_sim.fit.terms.features import build_features
from oppo_sim.simulation import Run, simulate
from oppo_sim.traces.journal import read_journal, seal
from oppo_sim.traces.journal_format import journal_of
from oppo_sim.traces.opening import open_trace
from oppo_sim.traces.recorded import read_recorded_run
from oppo_sim.traces.recorder import Recorder
from tests.fit_logs import fit_scenario


def test_a_run_comes_back(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", framework="mine", about={"model": "tiny"}) as recorder:
        for step in (0, 1):
            recorder.start_step(step)
            recorder.stage("gen", 2.0)
            recorder.stage("old_log_prob+ref", 0.5)
            recorder.stage("gen", 0.25)
            recorder.stage("step", 4.0)
            recorder.rollout_finished(
                7,
                prompt_length=3,
                prompt_id="b",
                finish_reason="length",
                reward=0.5,
                started_at=100.0 + step,
                finished_at=103.5 + step,
            )
            recorder.rollout_finished(5 + step, started_at=99.0 + step, finished_at=101.0 + step)
    assert not journal_of(tmp_path / "run").exists()
    recorded = read_recorded_run(tmp_path / "run")
    assert recorded.manifest["framework"] == "mine"
    assert recorded.manifest["about"] == {"model": "tiny"}
    trace = recorded.as_trace()
    assert trace["step"].tolist() == [0, 0, 1, 1]
    # In order of when they started.
    assert trace["response_length"].tolist() == [5, 7, 6, 7]
    assert trace["admitted_s"].tolist() == [0, 1, 1, 2]
    assert trace["finished_s"].tolist() == [2, 4.5, 3, 5.5]
    assert trace["finish_reason"].tolist()[1::2] == ["length", "length"]
    assert recorded.steps is not None
    assert recorded.steps.drop(columns="cold_start").to_dict("list") == {
        "step": [0, 1],
        "timing_s/gen": [2.25, 2.25],
        "timing_s/old_log_prob+ref": [0.5, 0.5],
        "timing_s/step": [4.0, 4.0],
    }
    log = open_log(tmp_path / "run")
    assert log.framework == "mine"
    assert log.covers == {
        "timing_s/gen": ("gen",),
        "timing_s/old_log_prob+ref": ("old_log_prob", "ref"),
    }
    assert log.lengths == {0: [5, 7], 1: [6, 7]}
    assert log.frame["cold_start"].tolist() == [True, False]


def test_a_journal_is_read_while_it_is_written_and_its_last_line_may_be_cut(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run")
    recorder.start_step(0)
    recorder.rollout_finished(4)
    recorder.rollout_finished(6)
    journal = journal_of(tmp_path / "run")
    assert open_trace(str(journal)).frame["response_length"].tolist() == [4, 6]
    (file,) = journal.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    assert open_trace(str(journal)).frame["response_length"].tolist() == [4]
    with pytest.raises(OppoError, match="no seconds of any stage"):
        open_log(journal)


def test_workers_of_their_own_record_into_one_run(tmp_path: Path) -> None:
    """They know no step: so many rollouts make one, in the order in which they finished."""
    code = (
        "import sys; from oppo_sim.traces.recorder import Recorder\n"
        "recorder = Recorder(sys.argv[1], rollouts_per_step=4)\n"
        "for at in range(int(sys.argv[2]), 9, 2): recorder.rollout_finished(10 + at, finished_at=float(at))\n"
        "assert 'pandas' not in sys.modules and 'torch' not in sys.modules\n"
    )
    for first in ("1", "0"):
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "run"), first], check=True)
    recorded = read_journal(journal_of(tmp_path / "run"))
    assert recorded.outcomes["response_length"].tolist() == [10, 11, 12, 13, 14, 15, 16, 17]
    assert recorded.workload["step"].tolist() == [0] * 4 + [1] * 4
    assert recorded.manifest["processes"] == 2
    assert recorded.manifest["left_out"] == {"rollout that fills no step": 1}
    assert seal(journal_of(tmp_path / "run"), tmp_path / "run") == tmp_path / "run"
    assert len(read_recorded_run(tmp_path / "run").outcomes) == 8


def test_after_a_restart_the_later_attempt_counts(tmp_path: Path) -> None:
    for steps, length in (((0, 1, 2), 5), ((1, 2), 9)):
        recorder = Recorder(tmp_path / "run")
        for step in steps:
            recorder.start_step(step)
            recorder.rollout_finished(length)
            recorder.stage("gen", float(length))
        recorder.stop()
    recorded = read_journal(journal_of(tmp_path / "run"))
    assert recorded.outcomes["response_length"].tolist() == [5, 9, 9]
    assert recorded.steps is not None
    assert recorded.steps["timing_s/gen"].tolist() == [5, 9, 9]
    assert recorded.steps["cold_start"].tolist() == [True, True, False]
    assert list(recorded.manifest["left_out"].values()) == [2]


def test_processes_that_run_at_once_start_the_same_steps(tmp_path: Path) -> None:
    """As under data parallelism: a step that another process starts, too, is no restart."""
    ranks = [Recorder(tmp_path / "run") for _ in range(2)]
    for step in (0, 1, 2, 1, 2):  # the second time after a restart inside the processes
        for rank in ranks:
            rank.start_step(step)
        for length, rank in enumerate(ranks, start=5):
            rank.rollout_finished(length)
        ranks[0].stage("gen", 10.0)
    for rank in ranks:
        rank.stop()
    recorded = read_journal(journal_of(tmp_path / "run"))
    assert recorded.workload["step"].tolist() == [0, 0, 1, 1, 2, 2]
    assert sorted(recorded.outcomes["response_length"]) == [5, 5, 5, 6, 6, 6]
    assert recorded.manifest["left_out"] == {
        "rollout of a step that was started again, as after a restart": 4
    }
    assert recorded.steps is not None
    assert recorded.steps["timing_s/gen"].tolist() == [10, 10, 10]
    assert recorded.steps["cold_start"].tolist() == [True, True, False]


def test_a_later_process_that_starts_no_step_counts_by_the_steps_of_its_rollouts(tmp_path: Path) -> None:
    """Workers of verl: two of a run that was killed in step 4, one that went on behind step 2."""
    for name, workers, steps in (("first", 2, (1, 2, 3, 4)), ("again", 1, (3, 4, 5))):
        began = time.time()
        recorders = [Recorder(tmp_path / "run") for _ in range(workers)]
        for step in steps:
            for recorder in recorders:
                recorder.rollout_finished(step, step=step, sample_id=name, started_at=time.time())
    # The recorder of a worker is made when its first rollout is complete, be the others at their end.
    slow = Recorder(tmp_path / "run")
    slow.rollout_finished(99, step=3, sample_id="again", started_at=began)
    recorded = read_journal(journal_of(tmp_path / "run"))
    trace = recorded.as_trace()
    assert trace.groupby("step")["sample_id"].apply(list).to_dict() == {
        1: ["first"] * 2,
        2: ["first"] * 2,
        3: ["again"] * 2,
        4: ["again"],
        5: ["again"],
    }
    assert sum(recorded.manifest["left_out"].values()) == 4


@pytest.mark.parametrize("seconds", [True, False])
def test_a_last_step_that_is_not_finished_is_left_out(tmp_path: Path, seconds: bool) -> None:
    recorder = Recorder(tmp_path / "run")
    for step, rollouts in ((0, 4), (1, 4), (2, 4), (3, 2)):
        recorder.start_step(step)
        if seconds:
            recorder.stage("gen", 10.0)
        for _ in range(rollouts):
            recorder.rollout_finished(5)
        if seconds and step < 3:
            recorder.stage("update_actor", 3.0)
            recorder.stage("step", 14.0)
    journal = journal_of(tmp_path / "run")
    recorded = read_journal(journal)
    assert recorded.workload.groupby("step").size().to_dict() == {0: 4, 1: 4, 2: 4}
    assert recorded.manifest["left_out"] == {"unfinished last step": 1}
    if seconds:
        log = open_log(journal)
        assert log.frame["step"].tolist() == [0, 1, 2]
        assert log.left_out["unfinished last step"] == 1
        with pytest.raises(OppoError, match="leave --from, --field and --unit out"):
            open_log(journal, unit="ms")
        # Once its seconds are there it counts, though it is smaller than the others.
        recorder.stage("update_actor", 3.0)
        recorder.stage("step", 14.0)
    else:
        recorder.rollout_finished(5)
        recorder.rollout_finished(5)
    assert read_journal(journal).workload["step"].max() == 3
    assert read_journal(journal).manifest["left_out"] == {}


def test_numbers_of_numpy_are_numbers_and_ids_are_text(tmp_path: Path) -> None:
    recorder: Any  # frameworks that are typed otherwise
    with Recorder(tmp_path / "run") as recorder:
        recorder.start_step(np.int64(3))
        recorder.stage("gen", np.float32(1.5))
        recorder.stage("step", 2.0, step=np.int64(3))
        recorder.rollout_finished(
            np.int64(5),
            prompt_length=np.int32(4),
            prompt_id=7,
            reward=np.float32(0.5),
            started_at=np.float64(2.0),
            head_version=np.int64(1),
        )
        recorder.rollout_finished(np.int64(6), step=np.int64(3), prompt_id="b", sample_id=np.int64(2))
    run = read_recorded_run(tmp_path / "run")
    trace = run.as_trace().sort_values("response_length")
    assert trace["step"].tolist() == [3, 3]
    assert trace["prompt_id"].tolist() == ["7", "b"]
    assert trace["reward"].tolist()[0] == 0.5
    assert run.steps is not None and run.steps["timing_s/gen"].tolist() == [1.5]


def test_bad_use_is_one_sentence(tmp_path: Path) -> None:
    recorder: Any = Recorder(tmp_path / "run")
    for call, told in (
        (lambda: recorder.stage("gen", 1.0), "belongs to no step"),
        (lambda: recorder.stage("generate", 1.0, step=0), "there is no stage 'generate'"),
        (lambda: recorder.stage("gen", float("nan"), step=0), "gen took nan seconds"),
        (lambda: recorder.start_step(-1), "-1 is no step"),
        (lambda: recorder.start_step(None), "None is no step"),
        (lambda: recorder.stage("gen", "long", step=0), "gen took 'long' seconds"),
        (lambda: recorder.rollout_finished(float("nan")), "response_length of a recorded rollout is nan"),
        (lambda: recorder.rollout_finished("5"), "response_length of a recorded rollout is '5'"),
        (lambda: recorder.rollout_finished(5, head_version="v1"), "head_version .* is 'v1': give updates"),
        (lambda: recorder.rollout_finished(5, reward={"x": 1}), "reward of a recorded rollout is {'x': 1}"),
        (lambda: recorder.rollout_finished(5, started_at=float("nan")), "started_at .* is nan: give Unix"),
        (lambda: recorder.rollout_finished(5, tool_seconds=[None]), r"tool_seconds .* is \[None\]: give a"),
        (lambda: recorder.rollout_finished(-3), "response_length of a recorded rollout is -3"),
        (lambda: recorder.rollout_finished(3, finish_reason="eos"), "give one of stop, length, abort"),
        (lambda: recorder.rollout_finished(3, started_at=5.0, finished_at=4.0), "finished 1 s before it"),
        (lambda: recorder.rollout_finished(3, turn_response_lengths=[2, 2]), "none of a response of 3"),
        (
            lambda: recorder.rollout_finished(3, turn_response_lengths=[2, 1], tool_seconds=[1.0]),
            "2 turns has 1 tool_seconds and 0 tool_tokens",
        ),
        (
            lambda: recorder.rollout_finished(
                3, turn_response_lengths=[2, 1], tool_seconds=[-1.0], tool_tokens=[4]
            ),
            "below 0",
        ),
        (recorder.close, "holds no rollout"),
        (lambda: Recorder(tmp_path / "other", about={"x": object()}), "no plain JSON|not plain JSON"),
        (lambda: Recorder(tmp_path / "other", rollouts_per_step=0), "rollouts_per_step is 0"),
        (lambda: Recorder(tmp_path), "never overwritten"),
    ):
        with pytest.raises(OppoError, match=told):
            call()
    assert journal_of(tmp_path / "run").is_dir()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "a.jsonl").write_text(json.dumps({"format": "oppo-recording/1"}) + "\n[]\n")
    with pytest.raises(OppoError, match="line 2: this is no line of a recorder"):
        read_journal(tmp_path / "odd")


def test_a_full_disk_ends_the_recording_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path / "run")
    recorder.rollout_finished(3, step=0)
    monkeypatch.setattr("os.write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.warns(UserWarning, match="recording has ended: no space left"):
        recorder.rollout_finished(4, step=0)
    recorder.rollout_finished(5, step=0)
    monkeypatch.undo()
    recorder.close()
    assert read_recorded_run(tmp_path / "run").outcomes["response_length"].tolist() == [3]


def test_a_recorded_run_is_fitted_and_simulated_with_every_length_known(tmp_path: Path) -> None:
    """Seconds of a stage, and lengths of every rollout, of a simulated run: the fit finds the truth of it."""
    scenario = fit_scenario()
    made = simulate(scenario, policy="sequential", steps=4)
    record(made, tmp_path / "run")
    log = open_log(tmp_path / "run")
    assert log.lengths is not None
    assert {step: sum(each) for step, each in log.lengths.items()} == {
        int(step): int(group["response_length"].sum())
        for step, group in made.rollouts.groupby("trained_step")
    }
    features, kept = build_features(log, scenario)
    # Every length is known: nothing is drawn, and the model's seconds are those of the run.
    assert features.spread.max() == 0
    assert (features.decode[0, 0] + features.prefill[0]).tolist() == pytest.approx(
        kept.frame["timing_s/gen"].tolist(), rel=1e-9
    )
    assert "rollouts of the log" in lengths_of_logs([log], scenario, seed=0).said
    replayed = ["--trace", str(tmp_path / "run"), "--set", "trace.sampling=by_step", "--steps", "2"]
    (tmp_path / "mine.yaml").write_text(scenario.to_yaml())
    assert run(["simulate", str(tmp_path / "mine.yaml"), *replayed, "-o", str(tmp_path / "again")]) == 0
    again = pd.read_parquet(tmp_path / "again" / "rollouts.parquet")
    assert sorted(again["response_length"][:64]) == sorted(log.lengths[0])


def record(made: Run, folder: Path) -> None:
    with Recorder(folder, framework="simulated") as recorder:
        for row in made.steps.to_dict("records"):
            step = int(row["step"])
            recorder.start_step(step)
            for stage in ("gen", "reward", "old_log_prob", "ref", "update_actor", "step"):
                if row.get(f"timing_s/{stage}", 0.0) > 0:
                    recorder.stage(stage, float(row[f"timing_s/{stage}"]))
            for rollout in made.rollouts[made.rollouts["trained_step"] == step].to_dict("records"):
                recorder.rollout_finished(
                    int(rollout["response_length"]), prompt_length=int(rollout["prompt_length"])
                )
