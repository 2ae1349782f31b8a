"""Prompt lengths that an import takes from TRL's own metrics are those of its rollouts."""

from pathlib import Path

import pytest
from trl import GRPOTrainer

from oppo_real.recorders.trl import record_grpo
from oppo_sim.columns import STEP
from oppo_sim.traces.importers import import_log
from oppo_sim.traces.recorded import read_recorded_run
from tests.real_trl import toy, toy_grpo


@pytest.mark.parametrize(("every", "iterations"), [(1, 1), (2, 1), (1, 2)])
def test_prompts_of_a_step_have_the_mean_length_that_the_rollouts_have(
    every: int, iterations: int, tmp_path: Path
) -> None:
    trainer = toy_grpo.make(GRPOTrainer, tmp_path, 4, {"logging_steps": every, "num_iterations": iterations})
    recording = record_grpo(trainer, str(tmp_path / "run"))
    trainer.train()
    recording.close()
    trainer.state.save_to_json(str(tmp_path / "trainer_state.json"))
    means = read_recorded_run(tmp_path / "run").as_trace().groupby(STEP)["prompt_length"].mean()
    frame, _ = import_log("trl", tmp_path / "trainer_state.json", rows_per_step=toy.BATCH)
    drawn = frame.groupby("step")["prompt_length"].first()
    expected = means.to_numpy().reshape(-1, every).mean(axis=1)
    assert drawn.to_numpy() == pytest.approx(expected, abs=0.5)
