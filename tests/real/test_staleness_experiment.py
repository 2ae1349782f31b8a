"""The experiment on staleness: its tasks, the fit of the effect, and a short real run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "staleness"))

import effect
import learner
from cells import DEFAULT_TREATMENT, Cell, cells
from tasks import TASKS, fitted_actor

from oppo_sim.learning import Strength


@pytest.mark.parametrize("name", TASKS)
def test_the_right_answer_has_the_whole_reward_and_a_cut_one_less(name: str) -> None:
    task = TASKS[name]
    for number in range(40):
        right = task.answer(3, number)
        assert task.reward(3, number, right) == 1.0
        assert task.reward(3, number, right[:-1]) < 1.0
        assert len(right) <= task.max_response_length
        assert len(task.prompt(3, number)) <= task.max_prompt_length
    lengths = sorted(len(task.answer(3, number)) for number in range(1000))
    assert lengths[990] > 2 * lengths[500], "answers have a long tail"


def test_the_grid_names_each_run_once_and_the_default_treatment_first() -> None:
    listed = cells()
    assert len(set(listed)) == len(listed) == 280
    assert {cell.treatment for cell in listed[:80]} == {DEFAULT_TREATMENT}
    cell = Cell("countdown", "async 4", "recompute, no correction", 2)
    assert (cell.run_arm().carried, cell.run_arm().corrected) == ("recompute", False)


def made_up(stale: int, bias: float, strength: Strength, noise: np.random.Generator) -> dict[str, Any]:
    """A run of the model itself: all rollouts ``stale`` updates old."""
    worth = float(np.exp(-strength.staleness * stale - strength.length_bias * abs(bias)))
    updates = np.arange(0, learner.STEPS + 1, learner.EVALUATE_EVERY)
    rewards = 0.3 + 0.5 * (1 - np.exp(-updates * worth / 12)) + 0.005 * noise.standard_normal(len(updates))
    rewards[0] = 0.3
    counts = [0] * stale + [learner.BATCH]
    steps = {"staleness": [counts] * learner.STEPS, "bias": [bias] * learner.STEPS}
    return {"curve": list(zip(updates.tolist(), rewards.tolist(), strict=True)), "steps": steps}


def test_the_fit_finds_the_effect_that_made_the_runs() -> None:
    truth, noise = Strength(0.2, 0.6), np.random.default_rng(5)
    arms = {"sequential": (0, 0.0), "oppo B": (1, 0.0), "async 4": (4, 0.0), "shortest 50 %": (0, -0.5)}
    runs = {
        Cell(task, arm, DEFAULT_TREATMENT, seed): made_up(*made, truth, noise)
        for task in TASKS
        for seed in range(4)
        for arm, made in arms.items()
    }
    found = effect.fitted(runs)
    assert found.strength.staleness == pytest.approx(truth.staleness, rel=0.15)
    assert found.strength.length_bias == pytest.approx(truth.length_bias, rel=0.3)
    (low, high), _ = found.interval()
    assert low <= found.strength.staleness <= high
    assert found.pairs == 8


def test_a_short_run_learns_and_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner, "STEPS", 3)
    monkeypatch.setattr(learner, "EVALUATE_EVERY", 3)
    monkeypatch.setattr(learner, "EVALUATED", 8)
    weights = fitted_actor(TASKS["countdown"], 0, tmp_path)
    arm = Cell("countdown", "async 1", DEFAULT_TREATMENT, 0).run_arm()
    first, again = (learner.run("countdown", arm, 0, weights) for _ in range(2))
    assert first["curve"] == again["curve"]
    assert [updates for updates, _ in first["curve"]] == [0, 3]
    assert first["steps"]["staleness"] == again["steps"]["staleness"]
    assert max(first["steps"]["staleness_max"]) >= 1
