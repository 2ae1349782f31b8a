"""A GRPO run of TRL's own trainer, recorded: it trains as it does unrecorded, and the record says what it did."""

from pathlib import Path

import pytest
import torch
from trl import GRPOTrainer

from oppo_real.recorders.trl import record_grpo
from oppo_sim.columns import RESPONSE_LENGTH, STEP
from oppo_sim.errors import OppoError
from oppo_sim.fit.sources import open_log
from oppo_sim.traces.journal import read_journal
from oppo_sim.traces.journal_format import journal_of
from oppo_sim.traces.recorded import read_recorded_run
from tests.real_trl import toy, toy_grpo

STEPS = 3


def test_a_recorded_run_is_the_unrecorded_one_and_every_rollout_of_it_is_known(tmp_path: Path) -> None:
    recorded = toy_grpo.make(GRPOTrainer, tmp_path, STEPS, {"beta": 0.01})
    recording = record_grpo(recorded, str(tmp_path / "run"))
    logged = toy_grpo.train(recorded)
    assert recording.close() == tmp_path / "run"
    plain = toy_grpo.make(GRPOTrainer, tmp_path, STEPS, {"beta": 0.01})
    expected = toy_grpo.train(plain)
    timed = {"step_time"}
    for one, other in zip(logged, expected, strict=True):
        assert {key: one[key] for key in one if key not in timed} == {
            key: other[key] for key in other if key not in timed
        }
    assert all(torch.equal(a, b) for a, b in zip(toy.weights(recorded), toy.weights(plain), strict=True))

    run = read_recorded_run(tmp_path / "run")
    trace = run.as_trace()
    assert run.manifest["about"]["group_size"] == toy_grpo.GROUP
    for step, entry in enumerate(logged):
        rows = trace[trace[STEP] == step]
        lengths = rows[RESPONSE_LENGTH]
        assert len(rows) == toy.BATCH
        assert (lengths.mean(), lengths.max()) == (
            pytest.approx(entry["completions/mean_length"]),
            entry["completions/max_length"],
        )
        assert (rows["finish_reason"] == "length").mean() == pytest.approx(entry["completions/clipped_ratio"])
        assert rows["reward"].mean() == pytest.approx(entry["reward"], abs=1e-6)
        assert set(rows.groupby("prompt_id").size()) == {toy_grpo.GROUP}
        # The longer a response, the later it finished.
        finishes = rows.drop_duplicates(RESPONSE_LENGTH).sort_values(RESPONSE_LENGTH)["finished_s"]
        assert len(finishes) > 1 and (finishes.diff().dropna() > 0).all()
        assert (rows["finished_s"] > rows["admitted_s"]).all()
    # TRL keeps the rewards of the last generation, in its order.
    assert trace["reward"].tolist()[-toy.BATCH :] == pytest.approx(list(recorded._logs["rewards"]["reward"]))
    assert run.steps is not None
    stages = ["timing_s/gen", "timing_s/reward", "timing_s/ref", "timing_s/update_actor"]
    assert (run.steps[stages] > 0).all(axis=None)
    assert run.steps[stages].sum(axis=1).tolist() == pytest.approx(run.steps["timing_s/step"].tolist())
    spent = trace.groupby(STEP)["finished_s"].max() - trace.groupby(STEP)["admitted_s"].min()
    assert (spent.to_numpy() <= run.steps["timing_s/gen"].to_numpy()).all()
    log = open_log(tmp_path / "run")
    assert log.framework == "trl"
    assert log.lengths is not None and len(log.lengths) == STEPS


def test_a_run_that_was_not_closed_and_is_resumed_goes_on_in_its_journal(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 1, "num_iterations": 1}
    first = toy_grpo.make(GRPOTrainer, tmp_path, 2, saving)
    record_grpo(first, str(tmp_path / "run"))
    first.train()
    again = toy_grpo.make(GRPOTrainer, tmp_path, 3, saving)
    recording = record_grpo(again, str(tmp_path / "run"))
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    recording.recorder.stop()
    run = read_journal(journal_of(tmp_path / "run"))
    assert run.steps is not None and run.steps[STEP].tolist() == [0, 1, 2]
    assert run.workload.groupby(STEP).size().to_dict() == {0: toy.BATCH, 1: toy.BATCH, 2: toy.BATCH}
    assert run.manifest["left_out"] == {"rollout of a step that was started again, as after a restart": 8}


def test_what_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    class Other:
        pass

    with pytest.raises(OppoError, match=r"Other is not of the form .*\(it has no _generate\(\)\)"):
        record_grpo(Other(), str(tmp_path / "run"))
    odd = toy_grpo.make(
        GRPOTrainer, tmp_path, 1, {"steps_per_generation": 1, "per_device_train_batch_size": toy.BATCH}
    )
    with pytest.raises(OppoError, match="steps_per_generation=1 is no multiple"):
        record_grpo(odd, str(tmp_path / "run"))
