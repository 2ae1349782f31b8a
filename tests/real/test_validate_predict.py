"""What ``oppo validate`` predicts is what a simulation with the same scenario and profile says."""

import json
from pathlib import Path
from typing import Any

import pytest

from oppo_real.config import real_config
from oppo_real.validate.measure import MeasuredRun, Turn
from oppo_real.validate.predict import check_places, predict
from oppo_sim import columns as c
from oppo_sim.costs.profile import load_profile
from oppo_sim.errors import OppoError
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.policy_label import labelled_policy
from oppo_sim.simulation import simulate
from tests.test_costs_profile import content

ENGINE = {"kv_capacity_tokens": None, "kv_block_tokens": 16, "max_num_seqs": None}


def scenario_file(folder: Path, name: str, **placement: Any) -> Path:
    plain = {
        "format": "oppo-scenario/1", "steps": 4, "rollout_batch_size": 8, "max_response_length": 400,
        "max_prompt_length": 64,
        "trace": {"synth": {"mean": 60, "p99": 300, "rows": 200}, "prompt_length": 32},
        "scoring": {"max_scoring_tokens": 128},
        "costs": {"kind": "profile", "path": "profile.json"},
        "policy": {"name": "rollout-overlap"},
        "placement": {"training": "separate", **placement},
        "rewards": {"kind": "saturating"},
        "real": {},
    }  # fmt: skip
    (folder / name).write_text(json.dumps(plain))
    return folder / name


@pytest.mark.filterwarnings("ignore::oppo_sim.costs.profile.ProfileRangeWarning")
def test_cores_of_one_machine_slow_each_other_in_a_simulation_as_in_a_prediction(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(json.dumps({**content(), "contention_factor": 1.4}))
    path = scenario_file(tmp_path, "scenario.yaml")
    scenario, profile = load_scenario(path), load_profile(tmp_path / "profile.json")
    run = MeasuredRun(Turn("rollout-overlap", 0), (), {"actors": [ENGINE]}, None, None, 1.0, (), {})

    def predicted(**placement: Any) -> list[float]:
        told = load_scenario(scenario_file(tmp_path, "told.yaml", **placement)) if placement else scenario
        views = predict(told, real_config(told), labelled_policy(told, "rollout-overlap"), 4, profile, run)
        return [view.seconds[stage] for view in views for stage in ("gen", "reward")]

    def simulated(*overrides: str) -> list[float]:
        steps = simulate(path, overrides=overrides).steps
        return [float(row[c.timing(stage)]) for _, row in steps.iterrows() for stage in ("gen", "reward")]

    together = simulated("placement.shares_host=true")
    assert predicted() == pytest.approx(together, rel=1e-12)
    assert predicted(shares_host=False) == pytest.approx(simulated(), rel=1e-12)
    assert sum(together) > 1.02 * sum(simulated())


@pytest.mark.filterwarnings("ignore::oppo_sim.costs.profile.ProfileRangeWarning")
def test_a_scorer_with_blocks_is_predicted_as_it_is_simulated(tmp_path: Path) -> None:
    """The profile says what its blocks are; the scenario, when it is to be another."""
    (tmp_path / "profile.json").write_text(json.dumps({**content(), "scoring_block_tokens": 48}))
    path, profile = scenario_file(tmp_path, "scenario.yaml"), load_profile(tmp_path / "profile.json")
    run = MeasuredRun(Turn("intra", 0), (), {"actors": [ENGINE]}, None, None, 1.0, (), {})
    chunks = ("policy.name=intra", "policy.chunk_size=16")

    def rewards(*overrides: str) -> tuple[list[float], list[float]]:
        told = load_scenario(path, overrides=(*chunks, "placement.shares_host=false", *overrides))
        views = predict(
            told, real_config(told), labelled_policy(told, "intra:chunk_size=16"), 4, profile, run
        )
        return [view.seconds["reward"] for view in views], list(simulate(told).steps[c.timing("reward")])

    predicted, simulated = rewards()
    assert predicted == pytest.approx(simulated, rel=1e-12)
    every_token, alike = rewards("scoring.kv_block_tokens=1")
    assert every_token == pytest.approx(alike, rel=1e-12)
    assert sum(predicted) > 1.1 * sum(every_token)


@pytest.mark.filterwarnings("ignore::oppo_sim.costs.profile.ProfileRangeWarning")
def test_a_scorer_that_keeps_prefixes_as_long_as_there_is_room_is_predicted_with_its_room(
    tmp_path: Path,
) -> None:
    """The engine says it; in a simulation the profile of such an engine, or the scenario."""
    setting = "oppo:chunk_size=16:overcommit=24"
    chosen = (
        "policy.name=oppo",
        "policy.chunk_size=16",
        "policy.overcommit=24",
        "placement.shares_host=false",
    )
    path = scenario_file(tmp_path, "scenario.yaml")

    def profile_file(**fields: int) -> Any:
        (tmp_path / "profile.json").write_text(
            json.dumps({**content(), "scoring_block_tokens": 16, **fields})
        )
        return load_profile(tmp_path / "profile.json")

    def predicted(*scorers: Any) -> float:
        told = load_scenario(path, overrides=chosen)
        resolved = {"actors": [ENGINE], "scorers": scorers}
        run = MeasuredRun(Turn(setting, 0), (), resolved, None, None, 1.0, (), {})
        views = predict(told, real_config(told), labelled_policy(told, setting), 4, profile_file(), run)
        return sum(view.seconds[stage] for view in views for stage in ("gen", "reward"))

    def simulated(*overrides: str) -> float:
        steps = simulate(path, overrides=(*chosen, *overrides)).steps
        return float(steps[[c.timing("gen"), c.timing("reward")]].to_numpy().sum())

    vllm = {"prefill_block_tokens": 16, "kv_capacity_tokens": 480}
    short = predicted(vllm, {**vllm, "kv_capacity_tokens": 640})
    assert short > predicted({**vllm, "kv_capacity_tokens": 10**6})
    assert simulated("scoring.prefix_cache_tokens=480") == pytest.approx(short, rel=1e-12)
    profile_file(scoring_cache_tokens=480)
    assert simulated() == pytest.approx(short, rel=1e-12)
    with pytest.raises(OppoError, match=r"prefix_cache_tokens 320 .*20 blocks of 16.* cannot hold a rollout"):
        simulated("scoring.prefix_cache_tokens=320")


def test_cores_that_belie_the_placement_are_refused(tmp_path: Path) -> None:
    def check(driver: list[int], workers: list[list[int]], **placement: Any) -> None:
        told = load_scenario(scenario_file(tmp_path, "told.yaml", **placement))
        cores = {"driver": driver, "rollout": [[0]], "scoring": workers}
        real = told.model_copy(update={"real": {"placement": {"kind": "processes", "cores": cores}}})
        check_places(real, real_config(real))

    check([1], [[1]], training="separate", scoring="separate")
    check([0], [[0]], training="rollout", scoring="rollout")
    with pytest.raises(OppoError, match="the driver, which trains, cores of their own: say placement"):
        check([1], [[1]], training="rollout")
    with pytest.raises(OppoError, match=r"say placement\.scoring: rollout, or bind them otherwise"):
        check([1], [[0]], training="separate")
