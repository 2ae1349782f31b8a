"""The check of the paper: that fits see baselines alone, that claims are computed as they are said, and that a
part of it runs."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "paper"))

import claims
import others
import paper_page
import setups
import synthetic
import unknowns

from oppo_sim.fit.observe import read_observation

FOLDER = setups.FOLDER


def test_only_the_comparison_reads_published_results() -> None:
    fit = ("setups", "unknowns", "study", "fitting", "predicting", "oppo_runs", "others", "production")
    for name in fit:
        text = (FOLDER / f"{name}.py").read_text("utf-8")
        assert "claims" not in text and "published.csv" not in text


def test_known_numbers_can_be_observed() -> None:
    for name in setups.SETUPS:
        for definition in unknowns.CHOICES["gpu_use"].values:
            for text in setups.known_of(name, definition):
                read_observation(text)
    for other in others.read_others().values():
        for text in other.observe:
            read_observation(text)


def test_a_world_is_its_number() -> None:
    setup = setups.SETUPS["gsm8k-7b"]
    assert unknowns.world_of(setup, 3) == unknowns.world_of(setup, 3)
    assert unknowns.world_of(setup, 3) != unknowns.world_of(setup, 4)
    assert "reward_dtype" not in unknowns.world_of(setup, 3)  # rules have no weights


def test_claimed_quantities_by_hand() -> None:
    runs = pd.DataFrame(
        {
            "draw": [0, 0, 1, 1],
            "world": [7, 7, 9, 9],
            "run": ["sequential", "oppo"] * 2,
            "step_s": [100.0, 50.0, 90.0, 60.0],
            "utilization": [0.5, 0.8, 0.4, 0.6],
            "kernels": [0.1, 0.2, 0.1, 0.3],
            "own_step": [1.0, 0.9, 1.0, 1.0],
            "one_step": [0.0, 0.08, 0.0, 0.0],
        }
    )
    worlds = pd.DataFrame({"world": [7, 9], "gpu_use": ["utilization/kernels", "unrelated"]})

    def values(quantity: str) -> np.ndarray:
        claim = claims.Claim("X", "x", "x", quantity, "oppo", "sequential", "2", "x")
        return claims.values_of(claim, runs, worlds)

    assert values("speedup") == pytest.approx([2.0, 1.5])
    assert values("slower") == pytest.approx([0.5, 1 / 1.5])
    assert values("minutes 4300") == pytest.approx([2150.0, 4300 / 1.5])
    assert values("gpu_use") == pytest.approx([0.2, np.nan], nan_ok=True)
    assert values("gpu_use_gain") == pytest.approx([2.0, np.nan], nan_ok=True)
    assert values("one_step_of_deferred") == pytest.approx([0.8, np.nan], nan_ok=True)


def test_a_synthetic_case_is_told_by_other_worlds() -> None:
    count = 400
    generator = np.random.default_rng(0)
    seconds = generator.uniform(50, 150, count)
    pool = pd.DataFrame({"world": np.arange(count), "gpu_use": "unrelated", "s_sequential": seconds})
    for at in range(3):
        pool[f"mean_{at}"] = pool[f"told_{at}"] = seconds
        for to in range(at, 3):
            pool[f"cov_{at}{to}"] = 0.0
    for run in synthetic.POLICIES:
        pool[f"s_{run}"] = 50.0  # the gain follows from the seconds alone
    cases = [synthetic.one_case(pool, number) for number in range(100)]
    inside = np.mean([case["oppo_inside"] for case in cases])
    assert 0.88 <= inside <= 1.0
    widths = [case["oppo_high"] / case["oppo_low"] for case in cases]
    assert np.median(widths) < 1.5  # of the prior: 3


def test_the_stored_page_is_what_its_code_gives() -> None:
    stored = paper_page.PAGE.read_text(encoding="utf-8")
    assert paper_page.page_text(claims.compare_all()) == stored, (
        "run 'python experiments/paper/run.py --page'"
    )


def test_a_small_part_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), "--part", "-o", str(tmp_path)],
        env={**os.environ, "OPPO_ENGINE": "simpy"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    runs = pd.read_csv(tmp_path / "runs_gsm8k-7b.csv")
    worlds = pd.read_csv(tmp_path / "worlds_gsm8k-7b.csv")
    assert set(runs["run"]) == {"sequential", "intra", "inter", "oppo", "rollout-overlap"}
    steps = runs.pivot(index="draw", columns="run", values="step_s")
    assert (steps["inter"] < 1.1 * steps["sequential"]).all()
    assert np.isfinite(worlds["log_evidence"]).all()
