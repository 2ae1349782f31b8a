"""Bounds: they hold on the choice when it is simulated by itself, and where nothing holds them, that is
said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.scenario.load import load_scenario
from oppo_sim.simulation import simulate
from oppo_sim.tune import Constraints
from tests.tuning import choices, scenario, search

CARRYING = ("inter", "oppo", "april", "partial-rollout")


def _simulated(folder: Path) -> list[Any]:
    """The choice of a folder, simulated by its scenario file alone on the fresh seeds."""
    best = load_scenario(folder / "best.yaml")
    return [simulate(best, seed=seed) for seed in range(3, 7)]


def test_staleness_and_kv_and_deferrals_hold_on_the_choice(tmp_path: Path) -> None:
    given = scenario(tmp_path, steps=30)
    free = search(given, policies=CARRYING, trials=24)
    assert free.chosen is not None
    assert free.chosen.checked.measures["staleness_max"] > 1
    bounds = Constraints(max_staleness=1, max_mean_staleness=0.6, kv_capacity=110, max_deferrals=2)
    found = search(given, tmp_path / "bound", policies=CARRYING, trials=32, constraints=bounds)
    assert found.chosen is not None
    for run in _simulated(tmp_path / "bound"):
        kept = run.steps[given.warmup_steps :]
        assert kept[c.STALENESS_MAX].max() <= 1
        assert kept[c.KV_PEAK_TOKENS].max() <= 110
        assert run.rollouts["deferrals"].max() <= 2
    mean = (
        sum(
            run.steps[given.warmup_steps :][c.STALENESS_MEAN].mean() for run in _simulated(tmp_path / "bound")
        )
        / 4
    )
    assert mean <= 0.6
    assert (found.trials["status"] == "infeasible").any()
    broken = found.trials[found.trials["status"] == "infeasible"]
    assert (broken["broken"] != "").all()


def test_length_bias_is_measured_against_sequential_on_the_same_seeds(tmp_path: Path) -> None:
    given = scenario(tmp_path, steps=30)
    found = search(
        given,
        tmp_path / "bias",
        policies=("sequential", *CARRYING),
        trials=24,
        constraints=Constraints(max_length_bias=0.02),
    )
    assert found.chosen is not None
    ratios = []
    for seed, run in zip(range(3, 7), _simulated(tmp_path / "bias"), strict=True):
        plain = simulate(given, policy="sequential", policy_settings={}, seed=seed)
        ratios.append(
            run.steps[c.LENGTH_MEAN][given.warmup_steps :].mean()
            / plain.steps[c.LENGTH_MEAN][given.warmup_steps :].mean()
        )
    assert abs(sum(ratios) / 4 - 1) <= 0.02
    assert found.chosen.checked.measures["length_bias_paired"] == pytest.approx(sum(ratios) / 4 - 1, abs=1e-9)


def test_sequential_keeps_a_bound_of_zero(tmp_path: Path) -> None:
    bounds = Constraints(max_staleness=0, max_length_bias=0)
    found = search(scenario(tmp_path), policies=("sequential", "april"), trials=12, constraints=bounds)
    assert found.chosen is not None
    assert found.chosen.checked.setting.policy == "sequential"


def test_nothing_feasible_names_the_nearest_and_what_binds(tmp_path: Path) -> None:
    knobs = (choices("policy.overcommit", 4, 8), choices("policy.max_deferrals", None))
    bounds = Constraints(max_staleness=0, kv_capacity=10_000)
    found = search(
        scenario(tmp_path), tmp_path / "none", policies=("april",), space=knobs, trials=4, constraints=bounds
    )
    assert found.chosen is None
    assert found.best is None
    assert found.infeasible is not None
    assert found.infeasible.binding == ("max_staleness",)
    sentence = found.infeasible.sentence
    assert "april, overcommit 4" in sentence  # the less stale of the two
    assert "where 0 is allowed" in sentence
    assert "max_staleness is kept by 0 of 2" in sentence
    assert "kv_capacity is kept by 2 of 2" in sentence
    assert not (tmp_path / "none" / "best.yaml").exists()
    assert sentence in (tmp_path / "none" / "advice.md").read_text()


def test_a_bound_that_breaks_on_the_fresh_seeds_alone_is_told_by_what_they_show(tmp_path: Path) -> None:
    given = scenario(tmp_path)
    options: dict[str, Any] = {
        "policies": ("april",),
        "space": (choices("policy.overcommit", 4), choices("policy.max_deferrals", None)),
        "trials": 1,
    }
    free = search(given, **options)
    assert free.chosen is not None
    seen, fresh = int(free.trials.iloc[0]["kv_peak_tokens"]), free.chosen.checked.measures["kv_peak_tokens"]
    assert seen < fresh
    found = search(given, **options, constraints=Constraints(kv_capacity=seen))
    assert (found.trials["status"] == "ok").all()
    assert found.infeasible is not None
    assert found.infeasible.binding == ("kv_capacity",)
    sentence = found.infeasible.sentence
    assert "on 4 fresh seeds, on which 1 setting ran again" in sentence
    assert f"{fresh:,.0f} where {seen} is allowed" in sentence
    assert "kv_capacity is kept by 0 of 1" in sentence


def test_loosened_bounds_need_another_folder(tmp_path: Path) -> None:
    given = scenario(tmp_path)
    search(given, tmp_path / "one", policies=("oppo",), trials=4, constraints=Constraints(max_staleness=2))
    with pytest.raises(
        OppoError, match=r"another search \(constraints.max_staleness is 2 there and 3 here\)"
    ):
        search(
            given, tmp_path / "one", policies=("oppo",), trials=4, constraints=Constraints(max_staleness=3)
        )
    again = search(
        given,
        tmp_path / "one",
        policies=("oppo",),
        trials=4,
        constraints=Constraints(max_staleness=3),
        force=True,
    )
    assert len(again.trials) == 4


def test_kv_auto_needs_a_cost_model_that_knows_memory(tmp_path: Path) -> None:
    with pytest.raises(OppoError, match="kv_capacity auto needs a cost model that knows device memory"):
        search(scenario(tmp_path), trials=2, constraints=Constraints(kv_capacity="auto"))


@pytest.mark.parametrize(
    "bad",
    [{"max_staleness": -1}, {"max_length_bias": float("nan")}, {"kv_capacity": 0}, {"max_deferrals": -1}],
)
def test_bounds_that_are_none(bad: dict[str, Any]) -> None:
    with pytest.raises(OppoError, match="is no bound"):
        Constraints(**bad)
