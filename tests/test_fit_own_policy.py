"""Runs that generate while they train, or carry rollouts: generation is fitted to whole steps, under the run's
own policy."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import oppo_sim
from oppo_sim.columns import TIMING_STEP, TRAINING_STAGES, timing
from oppo_sim.fit.call import fit
from oppo_sim.fit.estimate import FitResult
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.schema import Scenario
from tests.fit_logs import short_chains
from tests.import_cases import write_lines

STEPS = 36
TRUE = {"decode": 1.1, "host": 3.0}


def scenario_of(*overrides: str) -> Scenario:
    small = ("rollout_batch_size=64", "max_response_length=4096", f"steps={STEPS}", "warmup_steps=6")
    return load_scenario("h200x8-async", [*small, *overrides])


def under_truth(*overrides: str) -> Scenario:
    return scenario_of(
        "seed=77", *(f"costs.terms.{name}={value}" for name, value in TRUE.items()), *overrides
    )


def async_log(path: Path, run: pd.DataFrame, *, shorter: float = 1.0) -> Path:
    """As verl's fully asynchronous trainer prints it; ``gen`` is what it waited."""
    lines = []
    for number, row in enumerate(run.to_dict("records"), start=1):
        stages = {timing(stage): row[timing(stage)] for stage in TRAINING_STAGES if row[timing(stage)] > 0}
        whole = row[TIMING_STEP] / shorter
        figures = {
            **stages,
            "timing_s/gen": max(0.0, whole - sum(stages.values())) or 0.3 * whole,
            "timing_s/step": whole,
            "fully_async/trainer/idle_ratio": 0.4,
            "response_length/mean": row["response_length/mean"],
            "response_length/max": row["response_length/max"],
            "response_length/clip_ratio": row["response_length/clip_ratio"],
            "prompt_length/mean": 128.0,
        }
        lines.append(f"step:{number} - " + " - ".join(f"{name}:{value}" for name, value in figures.items()))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def fitted(path: Path, scenario: Scenario, **options: Any) -> FitResult:
    with short_chains():
        return fit(path, scenario, draws=100, log_lengths=True, **options)


def step_s(scenario: Scenario | str, policy: str) -> float:
    run = oppo_sim.simulate(scenario, policy=policy, steps=STEPS)
    return float(run.steps[TIMING_STEP].iloc[STEPS // 3 :].mean())


def test_a_synchronous_step_is_known_from_how_long_an_asynchronous_trainer_waits(tmp_path: Path) -> None:
    truth = under_truth()
    log = async_log(tmp_path / "a.log", oppo_sim.simulate(truth, steps=STEPS).steps)
    result = fitted(log, scenario_of(), folder=tmp_path / "fit")
    found = str(tmp_path / "fit" / "scenario.yaml")
    assert step_s(found, "async") == pytest.approx(step_s(truth, "async"), rel=0.06)
    assert step_s(found, "sequential") == pytest.approx(step_s(truth, "sequential"), rel=0.1)
    # The priors alone are far off.
    assert step_s(scenario_of(), "sequential") < 0.85 * step_s(truth, "sequential")
    assert any("generation is fitted to whole steps alone: under async" in note for note in result.notes)
    believed = load_scenario(found).costs.drawn_from_priors
    assert not {"decode", "host", "prefill"} & set(believed)
    assert np.std([np.log(draw.host) for draw in result.draws]) < 0.5


def test_what_a_mixed_run_trained_is_simulated_in_any_order(tmp_path: Path) -> None:
    """Its first steps train the shortest of what was begun."""
    run = oppo_sim.simulate(under_truth("policy.max_staleness=3"), steps=STEPS).steps
    assert run["response_length/mean"].iloc[:3].mean() < 0.8 * run["response_length/mean"].iloc[12:].mean()
    result = fitted(async_log(tmp_path / "a.log", run), scenario_of("policy.max_staleness=3"))
    lengths = result.fitted[0].lengths
    assert lengths is not None and lengths.frame is not None
    assert lengths.trace("l.parquet", tmp_path)["sampling"] == "resample"
    later = run["response_length/mean"].iloc[STEPS // 3 :].mean()
    assert lengths.frame["response_length"].mean() == pytest.approx(later, rel=0.02)
    assert any("without the first ones" in note for note in result.notes)


def test_without_the_policy_of_the_run_generation_stays_at_its_priors(tmp_path: Path) -> None:
    log = async_log(tmp_path / "a.log", oppo_sim.simulate(under_truth(), steps=STEPS).steps)
    result = fitted(log, scenario_of("policy.name=oppo"))
    assert any("with async, with its max_staleness, as the scenario's policy" in n for n in result.notes)
    assert not any("fitted to whole steps" in note for note in result.notes)
    assert "decode" in result.fitted[0].believed
    # ``adv`` held rewards where no metric names them, but not in milliseconds.
    assert "score" not in {each.term for each in result.estimates}


def test_steps_that_the_policy_cannot_have_are_told_and_change_nothing(tmp_path: Path) -> None:
    run = oppo_sim.simulate(under_truth(), steps=STEPS).steps
    result = fitted(async_log(tmp_path / "a.log", run, shorter=20.0), scenario_of())
    assert any("whatever generation takes" in note for note in result.notes)
    assert "decode" in result.fitted[0].believed


def test_generation_of_a_run_that_carries_is_fitted_to_steps_where_it_is_left_out(tmp_path: Path) -> None:
    """slime's partial rollouts: its seconds of generation are not of whole batches."""
    overrides = ("policy.name=partial-rollout", f"steps={STEPS}", "rollout_batch_size=126")
    truth = load_scenario(
        "grpo-h200x8", [*overrides, "seed=7", "costs.terms.decode=1.2", "costs.terms.host=2"]
    )
    lines = []
    for number, row in enumerate(oppo_sim.simulate(truth, steps=STEPS).steps.to_dict("records")):
        lines.append(
            {
                "rollout/step": number,
                "perf/rollout_time": row["timing_s/gen"] + row["timing_s/reward"],
                "perf/actor_train_time": row["timing_s/update_actor"],
                "perf/update_weights_time": row["timing_s/update_weights"],
                "perf/step_time": row["timing_s/step"],
                "rollout/response_len/mean": row["response_length/mean"],
                "rollout/response_len/max": row["response_length/max"],
                "rollout/truncated_ratio": row["response_length/clip_ratio"],
            }
        )
    log = write_lines(tmp_path / "a.jsonl", lines)
    result = fitted(log, load_scenario("grpo-h200x8", overrides), leave_out=["gen"], folder=tmp_path / "fit")
    assert any("whole steps alone: under partial-rollout" in note for note in result.notes)
    found = str(tmp_path / "fit" / "scenario.yaml")
    assert step_s(found, "partial-rollout") == pytest.approx(step_s(truth, "partial-rollout"), rel=0.1)
    # What a long tail costs alone, no step of such a run shows.
    assert step_s(found, "sequential") == pytest.approx(step_s(truth, "sequential"), rel=0.2)
