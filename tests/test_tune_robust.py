"""Several worlds: what they are, and a choice that holds up in all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import oppo_sim
from oppo_sim import columns as c
from oppo_sim.costs.terms import CostTerms
from oppo_sim.errors import OppoError
from oppo_sim.runs.machine import on_machine
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import simulate
from oppo_sim.tune.trials import together
from oppo_sim.tune.worlds import WorldSpec, build_worlds
from tests.tuning import CHEAP_SCORE, SEEDS, choices, cost_of, scenario, search

PREFILL_MATTERS = {
    "kind": "linear",
    "decode": {"fixed": 0.1, "per_rollout": 0.001},
    "prefill": {"per_token": 0.01},
    "stages": {"update_actor": {"fixed": 0.1}},
}
DRAWS = """decode,prefill,score,training
5.284,0.008,5.163,0.508
1.03,0.806,1.232,2.716
1.168,12.809,3.845,6.603
"""
OVERCOMMITS = (0, 1, 2, 4, 8, 16)


def _regrets(given: Scenario, spec: WorldSpec, seeds: range) -> dict[int, list[float]]:
    """Overcommit → regret in each world, from single runs."""
    costs = {
        extra: [
            cost_of(world.scenario, "inter", {"overcommit": extra}, seeds)
            for world in build_worlds(given, spec)
        ]
        for extra in OVERCOMMITS
    }
    least = [min(each[world] for each in costs.values()) for world in range(len(costs[0]))]
    return {
        extra: [cost / best - 1 for cost, best in zip(each, least, strict=True)]
        for extra, each in costs.items()
    }


@pytest.mark.parametrize("how", ["mean", "worst", "quantile"])
def test_the_robust_choice_is_that_of_brute_force_and_not_the_nominal_one(tmp_path: Path, how: Any) -> None:
    # Carrying rollouts costs a prefill: where that is dear, a large overcommit that is best as given is a
    # mistake.
    (tmp_path / "draws.csv").write_text(DRAWS)
    given = scenario(tmp_path, costs={**PREFILL_MATTERS, "draws": "draws.csv"}, steps=30)
    spec = WorldSpec(cost_worlds=3)
    knobs = (choices("policy.overcommit", *OVERCOMMITS), choices("policy.max_deferrals", None))
    found = search(given, policies=("inter",), space=knobs, trials=12, worlds=spec, robust=how)
    known = _regrets(given, spec, range(SEEDS))
    wanted = min(OVERCOMMITS, key=lambda extra: together(known[extra], how))
    assert found.chosen is not None
    assert found.chosen.checked.setting.knobs["policy.overcommit"] == wanted
    nominal = min(OVERCOMMITS, key=lambda extra: known[extra][0])
    assert nominal != wanted
    worlds = found.record["regrets"]
    assert [one["world"] for one in worlds] == found.record["world_names"]
    assert worlds[0]["nominal"] < worlds[0]["chosen"]
    assert together([one["chosen"] for one in worlds], how) < together(
        [one["nominal"] for one in worlds], how
    )
    assert any(f"overcommit {nominal}" in sentence for sentence in found.advised["sections"]["Robustness"])


def test_worlds_are_the_first_draws_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "draws.csv").write_text("decode,score\n1.2,0.9\n0.8,1.3\n")
    given = scenario(tmp_path, costs={**CHEAP_SCORE, "draws": "draws.csv"})
    first, second = build_worlds(given, WorldSpec(cost_worlds=2))[1:]
    assert first.name == "machine 1: decode × 1.20, score × 0.90"
    assert second.scenario.costs.terms == CostTerms(decode=0.8, score=1.3)
    assert build_worlds(given, WorldSpec(cost_worlds=1))[1].scenario == first.scenario
    with pytest.raises(OppoError, match="only 2 draws are known"):
        build_worlds(given, WorldSpec(cost_worlds=3))


def test_bounds_hold_in_every_world(tmp_path: Path) -> None:
    from oppo_sim.tune import Constraints

    given = scenario(tmp_path)
    spec = WorldSpec(drifts=(2.0,))
    found = search(
        given,
        policies=("sequential", "oppo"),
        trials=12,
        worlds=spec,
        constraints=Constraints(kv_capacity=90),
    )
    assert found.chosen is not None
    worst = max(row["kv_peak_tokens"] for row in found.chosen.checked.rows)
    assert worst <= 90
    assert found.chosen.checked.measures["kv_peak_tokens"] == worst


def test_other_traces_and_longer_lengths_are_worlds(tmp_path: Path) -> None:
    given = scenario(tmp_path, max_response_length=4000)
    worlds = build_worlds(given, WorldSpec(traces=("math_gsm8k_gpt3",), drifts=(0.5, 2.0)))
    assert [world.name for world in worlds] == [
        "as given",
        "trace math_gsm8k_gpt3",
        "lengths × 0.5",
        "lengths × 2",
    ]
    means = [
        simulate(world.scenario, policy="sequential", policy_settings={}).steps[c.TRACE_LENGTH_MEAN].mean()
        for world in worlds
    ]
    assert means[2] == pytest.approx(0.5 * means[0], rel=0.05)
    assert means[3] == pytest.approx(2.0 * means[0], rel=0.01)
    assert means[1] > 3 * means[0]


@pytest.mark.parametrize(
    ("activity", "column"), [("decode", "gen"), ("score", "reward"), ("training", "update_actor")]
)
def test_a_factor_multiplies_the_seconds_of_its_activity(tmp_path: Path, activity: str, column: str) -> None:
    costs = {
        "kind": "linear",
        "decode": {"fixed": 0.1, "per_rollout": 0.01},
        "score": {"fixed": 0.2, "per_token": 0.02},
        "stages": {"update_actor": {"fixed": 0.5, "per_token": 0.001}},
    }
    given = scenario(tmp_path, costs=costs)
    changed = on_machine(given, CostTerms(**{activity: 1.5}))
    before, after = (
        simulate(each, policy="sequential", policy_settings={}).steps for each in (given, changed)
    )
    for stage in ("gen", "reward", "update_actor"):
        factor = 1.5 if stage == column else 1.0
        assert after[c.timing(stage)].to_numpy() == pytest.approx(factor * before[c.timing(stage)].to_numpy())


def test_factors_multiply_whole_stages_of_a_roofline() -> None:
    given = load_scenario("h200-single", ["steps=3", "warmup_steps=0", "costs.draws=none"])
    before = simulate(given, policy="sequential", policy_settings={}).steps
    for activity, column in (
        ("training", "update_actor"),
        ("training", "old_log_prob"),
        ("training", "update_weights"),
        ("score", "reward"),
    ):
        changed = on_machine(given, CostTerms(**{activity: 1.25}))
        after = simulate(changed, policy="sequential", policy_settings={}).steps
        assert after[c.timing(column)].to_numpy() == pytest.approx(
            1.25 * before[c.timing(column)].to_numpy(), rel=1e-6
        )
        assert after[c.timing("gen")].to_numpy() == pytest.approx(before[c.timing("gen")].to_numpy())
    slower = on_machine(given, CostTerms(decode=1.25, host=1.25))
    ratio = (
        simulate(slower, policy="sequential", policy_settings={}).steps[c.timing("gen")]
        / before[c.timing("gen")]
    )
    assert ratio.min() > 1.15
    assert ratio.max() < 1.2501


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"traces": ("math_gsm8k",)}, "did you mean"),
        ({"traces": ("math_gsm8k_gpt3", "math_gsm8k_gpt3")}, "twice"),
        ({"cost_profiles": (Path("missing.json"),)}, "cannot read the cost profile"),
        ({"cost_worlds": 2}, "cost_worlds 2 asks for as many draws .* the machine is taken as given"),
    ],
)
def test_worlds_that_cannot_be(tmp_path: Path, spec: dict[str, Any], words: str) -> None:
    with pytest.raises(OppoError, match=words):
        search(scenario(tmp_path), trials=2, worlds=WorldSpec(**spec))


@pytest.mark.parametrize(
    "spec", [{"drifts": (1.0,)}, {"drifts": (-2.0,)}, {"cost_worlds": -1}, {"cost_worlds": 1001}]
)
def test_worlds_that_are_none(spec: dict[str, Any]) -> None:
    with pytest.raises(OppoError):
        WorldSpec(**spec)


def test_quantiles_of_regret() -> None:
    assert together([0.0, 0.1], "mean") == pytest.approx(0.05)
    assert together([0.0, 0.1], "worst") == pytest.approx(0.1)
    assert together([i / 10 for i in range(11)], "quantile") == pytest.approx(0.9)
    assert together([0.0, 1.0], "quantile") == pytest.approx(0.9)


def test_one_other_world_needs_no_list_in_python(tmp_path: Path) -> None:
    """A name was taken letter by letter, and a factor was a traceback."""
    found = oppo_sim.tune(
        scenario(tmp_path, max_response_length=4000),
        policies=["sequential"],
        other_traces="math_gsm8k_gpt3",
        drifts=0.5,
        trials=1,
        seeds=1,
        fresh_seeds=1,
        draws=0,
    )
    worlds = [each["world"] for each in found.record["regrets"]]
    assert worlds == ["as given", "trace math_gsm8k_gpt3", "lengths × 0.5"]
