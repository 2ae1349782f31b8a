"""Sweeps from Python: what the points say, pairing, failures, early stopping, the engines and executors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import oppo_sim
from oppo_sim import columns as c
from oppo_sim import compare, load_scenario
from oppo_sim.errors import OppoError
from oppo_sim.runs import execute as execution
from oppo_sim.runs.evaluate import evaluate, setup_of
from oppo_sim.runs.execute import Executor, Runner
from oppo_sim.runs.request import RunRequest, RunResult, request_of
from oppo_sim.runs.statistics import alike, dominated, looks_of, paired
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.yaml_text import dump_yaml
from tests.cli_runs import write_scenario

COMPARED = [
    c.STEP_S,
    c.STEP_S_LOW,
    c.STEP_S_HIGH,
    c.SPEEDUP,
    c.SPEEDUP_LOW,
    c.SPEEDUP_HIGH,
    c.SPEEDUP_PER_TOKEN,
    c.GEN_S,
    c.REWARD_S,
    c.TRAINING_S,
    c.COMPARED_STALENESS_MEAN,
    c.COMPARED_STALENESS_MAX,
    c.LENGTH_BIAS,
    c.DEFERRED,
    c.UTILIZATION,
    c.HOURS_PER_10K,
]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_scenario(tmp_path)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[RunRequest]:
    """Every run that is made from here on, in this process."""
    made: list[RunRequest] = []

    def counted(request: RunRequest) -> RunResult:
        made.append(request)
        return evaluate(request)

    monkeypatch.setattr(execution, "evaluate", counted)
    return made


# ---- what a point says -------------------------------------------------------------------------------------


def test_a_point_is_the_row_of_a_comparison(tiny: Path) -> None:
    sweep = oppo_sim.sweep(tiny, grid={"policy.name": ["intra", "inter", "oppo"]}, seeds=3)
    compared = compare(tiny, ["intra", "inter", "oppo"], seeds=3, attribution=False).table
    expected = compared.loc[["intra", "inter", "oppo"], COMPARED].reset_index(drop=True)
    pd.testing.assert_frame_equal(sweep.points[COMPARED], expected, rtol=1e-9)
    assert list(sweep.points["policy.name"]) == ["intra", "inter", "oppo"]
    assert list(sweep.points[c.STATUS]) == ["ok"] * 3


def test_every_field_of_a_scenario_can_vary(tiny: Path) -> None:
    sweep = oppo_sim.sweep(
        tiny,
        grid={
            "rollout_batch_size": [4, 8],
            "placement.scoring": ["separate", "rollout"],
            "costs.decode.fixed": [0.1, 0.2],
            "trace.synth.parameters.mu": [2.0, 2.5],
            "policy.overcommit": [2, 0.5],
        },
        seeds=1,
    )
    assert sweep.statuses == {"ok": 32, "stopped": 0, "failed": 0}
    one = sweep.points.iloc[13]
    overrides = [f"{field}={one[field]}" for field in sweep.plan.fields]
    again = compare(tiny, ["oppo"], seeds=1, attribution=False, overrides=overrides).table.loc["oppo"]
    assert one[c.STEP_S] == pytest.approx(again[c.STEP_S], rel=1e-12)
    assert one[c.SPEEDUP] == pytest.approx(again[c.SPEEDUP], rel=1e-12)
    assert len({run.at(0).key for point in sweep.plan.runnable for run in (point.baseline,)}) == 16


def test_another_policy_starts_with_what_it_shares_and_what_policies_has_for_it(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, policies={"april": {"overcommit": 3}})
    sweep = oppo_sim.sweep(
        path, grid={"policy.name": ["april", "intra"], "policy.chunk_size": [4, 8]}, seeds=1
    )
    settings = [(point.request.policy, point.request.settings) for point in sweep.plan.runnable]
    assert settings == [
        ("april", '{"chunk_size": 4, "overcommit": 3}'),
        ("april", '{"chunk_size": 8, "overcommit": 3}'),
        ("intra", '{"chunk_size": 4}'),
        ("intra", '{"chunk_size": 8}'),
    ]


def test_one_rollout_and_the_whole_batch_are_different_values(tiny: Path) -> None:
    sweep = oppo_sim.sweep(tiny, grid={"policy.overcommit": [1, 1.0, {"control": "reward_slope"}]}, seeds=1)
    assert list(sweep.points["policy.overcommit"]) == ["1", "1.0", '{"control": "reward_slope"}']
    assert sweep.points[c.DEFERRED].nunique() > 1


def test_the_oracle_is_no_choice(tiny: Path) -> None:
    sweep = oppo_sim.sweep(
        tiny, grid={"policy.name": ["oracle", "sequential"]}, seeds=3, overrides={"policy": {"name": "intra"}}
    )
    assert sweep.points[c.STEP_S].idxmin() == 0
    assert sweep.best == 1
    assert (
        oppo_sim.sweep(tiny, grid={"policy.name": ["oracle"]}, seeds=1, overrides={"policy": "intra"}).best
        == 0
    )


def test_a_bound_of_a_users_own_is_no_choice_either(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from oppo_sim import Policy\n\nclass Mine(Policy):\n    oracle = True\n\n    def plan(self, pool):\n"
        "        return self.refill(pool, overcommit=4, chunk_size=8)\n"
    )
    tiny = write_scenario(tmp_path)
    seen: list[oppo_sim.Progress] = []
    sweep = oppo_sim.sweep(
        tiny, grid={"policy.name": ["mine.py:Mine", "sequential"]}, seeds=3, progress=seen.append
    )
    assert sweep.points[c.STEP_S].idxmin() == 0
    assert sweep.best == 1
    assert list(sweep.points[c.BOUND_ONLY]) == [True, False]
    assert seen[-1].best.endswith("policy.name sequential")


def test_by_speed_up_each_point_is_held_against_its_own_baseline(tiny: Path) -> None:
    grid = {"trace.synth.parameters.mu": [1.5, 2.5]}
    by_time = oppo_sim.sweep(tiny, grid=grid, seeds=3)
    by_speedup = oppo_sim.sweep(tiny, grid=grid, seeds=3, objective="speedup")
    assert by_time.best == 0  # shorter rollouts
    assert by_speedup.best == by_speedup.points[c.SPEEDUP].idxmax() == 1


# ---- pairing -----------------------------------------------------------------------------------------------


def test_points_and_baselines_run_under_the_same_seeds_and_each_baseline_once(
    tiny: Path, simulated: list[RunRequest]
) -> None:
    sweep = oppo_sim.sweep(tiny, grid={"policy.chunk_size": [4, 8, 16], "policy.overcommit": [0, 2]}, seeds=3)
    assert len(simulated) == len({request.key for request in simulated}) == 3 * (6 + 1)
    by_policy = [(request.policy, request.seed) for request in simulated]
    assert by_policy.count(("sequential", 0)) == by_policy.count(("sequential", 2)) == 1
    assert sorted(sweep.runs["seed"].unique()) == [0, 1, 2]
    best = sweep.runs[sweep.runs[c.POINT] == sweep.best].set_index("seed")
    other = sweep.runs[sweep.runs[c.POINT] == 0].set_index("seed")
    expected = paired(list(other[c.S_PER_ROLLOUT]), list(best[c.S_PER_ROLLOUT]))
    assert tuple(sweep.points.loc[0, [c.DIFFERENCE, c.DIFFERENCE_LOW, c.DIFFERENCE_HIGH]]) == pytest.approx(
        expected
    )


def test_rounds_of_different_length_have_different_baselines(tiny: Path) -> None:
    sweep = oppo_sim.sweep(
        tiny, grid={"policy.chunk_size": [4, 8]}, overrides={"policy.stop_check": "chunk"}, seeds=1
    )
    assert [point.baseline.settings for point in sweep.plan.runnable] == [
        '{"chunk_size": 4, "stop_check": "chunk"}',
        '{"chunk_size": 8, "stop_check": "chunk"}',
    ]


def test_what_cannot_be_told_apart_is_in_the_region() -> None:
    assert alike([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert alike([1.01, 1.98, 3.0], [1.0, 2.0, 3.0])
    assert not alike([1.01, 2.03, 3.02], [1.0, 2.0, 3.0])
    assert not alike([1.1], [1.0])
    assert paired([1.1, 2.2], [1.0, 2.0]) == pytest.approx((0.1, 0.1, 0.1))
    assert math.isnan(paired([1.1], [1.0])[1])


def test_equal_points_are_all_in_the_region(tiny: Path) -> None:
    sweep = oppo_sim.sweep(
        tiny, grid={"policy.max_deferrals": [None, 1000], "costs.decode.fixed": [0.1, 1.0]}, seeds=3
    )
    assert len(sweep.alike) == 2
    assert sweep.best == min(sweep.alike)


# ---- early stopping ----------------------------------------------------------------------------------------


def test_a_point_is_dominated_only_where_every_look_together_errs_five_times_in_a_hundred() -> None:
    best = [1.0, 1.1, 0.9]
    worse = [value * factor for value, factor in zip(best, (1.10, 1.12, 1.08), strict=True)]
    assert dominated(worse, best, 1)
    assert dominated(worse, best, 3)
    assert not dominated(worse, best, 10_000)
    assert not dominated([1.2], [1.0], 1)
    assert not dominated(best, worse, 1)
    assert [looks_of(seeds) for seeds in (3, 4, 5, 10)] == [1, 1, 2, 7]


def test_dominated_points_stop_with_what_they_had_and_the_best_is_the_same(
    tiny: Path, simulated: list[RunRequest]
) -> None:
    grid = {"costs.decode.fixed": [0.1, 0.101, 1.0, 2.0]}
    whole = oppo_sim.sweep(tiny, grid=grid, seeds=6)
    made = len(simulated)
    stopped = oppo_sim.sweep(tiny, grid=grid, seeds=6, stop_dominated=True)
    assert len(simulated) - made < made
    assert stopped.best == whole.best == 0
    assert list(stopped.points[c.STATUS])[2:] == ["stopped", "stopped"]
    assert list(stopped.points[c.SEEDS])[2:] == [3, 3]
    pd.testing.assert_frame_equal(stopped.points.iloc[:1], whole.points.iloc[:1])
    assert stopped.statuses["stopped"] == (stopped.points[c.SEEDS] < 6).sum()


# ---- failures ----------------------------------------------------------------------------------------------


def test_points_that_cannot_run_are_named_and_the_others_run(tiny: Path) -> None:
    sweep = oppo_sim.sweep(
        tiny,
        grid={
            "policy.name": ["oppo", "sequential", "opppo"],
            "policy.overcommit": [0, 2],
            "rollout.kv_capacity_tokens": [40, 4000],
        },
        seeds=2,
    )
    assert sweep.statuses == {"ok": 2, "stopped": 0, "failed": 10}
    assert [(failure.points, failure.first) for failure in sweep.failures[:2]] == [
        (4, {"policy.name": "sequential", "policy.overcommit": 0, "rollout.kv_capacity_tokens": 40}),
        (4, {"policy.name": "opppo", "policy.overcommit": 0, "rollout.kv_capacity_tokens": 40}),
    ]
    reasons = [failure.sentence for failure in sweep.failures]
    assert "policy.overcommit" in reasons[0]
    assert "'sequential'" in reasons[0]
    assert "did you mean 'oppo'?" in reasons[1]
    assert "kv_capacity_tokens 40" in reasons[2]
    failed = sweep.points[sweep.points[c.STATUS] == "failed"]
    assert failed[c.STEP_S].isna().all()
    assert failed[c.ERROR].iloc[0] == reasons[2]


def test_a_policy_that_fails_in_the_middle_of_a_run_is_a_failed_point(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from oppo_sim import Policy\n\nclass Mine(Policy):\n    last: int = 3\n\n    def plan(self, pool):\n"
        "        if pool.step > self.last:\n            raise ValueError('no more')\n"
        "        return self.refill(pool, overcommit=0, chunk_size=8)\n"
    )
    path = write_scenario(tmp_path, policy={"name": "mine.py:Mine"})
    sweep = oppo_sim.sweep(path, grid={"policy.last": [3, 50]}, seeds=2)
    assert list(sweep.points[c.STATUS]) == ["failed", "ok"]
    assert "no more" in sweep.points[c.ERROR][0]
    assert sweep.engines == {"compiled": 4}


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "field": ({"grid": {"scoring.workers": [1, 2]}}, ["unknown field scoring.workers", "num_workers"]),
    "section": (
        {"grid": {"scorring.num_workers": [1]}},
        ["unknown field scorring", "did you mean 'scoring'?"],
    ),
    "not nested": ({"grid": {"overcommit": [1]}}, ["did you mean policy.overcommit?"]),
    "neither nested nor spelled": ({"grid": {"overcomit": [1]}}, ["did you mean policy.overcommit?"]),
    "setting": ({"grid": {"policy.overcomit": [1]}}, ["policy.overcomit", "did you mean 'overcommit'?"]),
    "setting of none": (
        {"grid": {"policy.name": ["intra", "april"], "policy.windows": [1]}},
        ["policy.windows", "intra, april"],
    ),
    "seed": ({"grid": {"seed": [1, 2]}}, ["seed is not varied", "--seeds"]),
    "name": ({"grid": {"name": ["a"]}}, ["name cannot be varied"]),
    "policy": ({"grid": {"policy": ["intra"]}}, ["policy.name"]),
    "twice": ({"grid": {"steps": [5]}, "random": {"steps": "5..6"}}, ["steps is varied twice"]),
    "steps": ({"grid": {"steps": [5]}, "steps": 5}, ["both given and varied"]),
    "nothing": ({}, ["varies nothing"]),
    "executor": ({"grid": {"steps": [5]}, "executor": "threads"}, ["threads", "serial, processes, ray"]),
    "address": ({"grid": {"steps": [5]}, "ray_address": "auto"}, ["executor ray"]),
    "seeds in order": (
        {"grid": {"steps": [5]}, "overrides": {"trace.sampling": "in_order"}},
        ["in_order", "seeds 1"],
    ),
    "all fail": (
        {"grid": {"policy.overcommit": [-1, -2]}},
        ["none of the 2 points", "policy.overcommit is -1", "1 other reason"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused_before_anything_runs(
    case: str, tiny: Path, simulated: list[RunRequest]
) -> None:
    arguments, words = REFUSED[case]
    with pytest.raises(OppoError) as raised:
        oppo_sim.sweep(tiny, **arguments)
    for word in words:
        assert word in str(raised.value)
    assert simulated == []


def test_an_alias_of_another_framework_is_a_field(tiny: Path) -> None:
    sweep = oppo_sim.sweep(tiny, grid={"over_sampling_batch_size": [4, 6], "policy.name": ["oppo"]}, seeds=1)
    pd.testing.assert_frame_equal(
        sweep.points[COMPARED],
        oppo_sim.sweep(tiny, grid={"policy.overcommit": [0, 2]}, seeds=1).points[COMPARED],
        check_exact=True,
    )


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "find_spec", lambda name: None)
    with pytest.raises(OppoError, match=r"oppo-toolkit\[ray\]"):
        Executor("ray")


# ---- one run -----------------------------------------------------------------------------------------------


def test_a_request_builds_what_the_scenario_builds(tiny: Path) -> None:
    scenario = load_scenario(tiny)
    request = request_of(scenario, seed=7)
    ours, theirs = setup_of(request), build_setup(scenario, seed=7)
    assert (ours.machine, ours.batch, ours.steps, ours.warmup_steps, ours.seed) == (
        theirs.machine,
        theirs.batch,
        theirs.steps,
        theirs.warmup_steps,
        theirs.seed,
    )
    assert ours.replay.key == theirs.replay.key
    assert ours.replay.response_lengths == theirs.replay.response_lengths
    assert setup_of(request.at(8)).replay.response_lengths is ours.replay.response_lengths
    first, second = evaluate(request), evaluate(request)
    assert (first.key, dict(first.totals or {})) == (
        second.key,
        pytest.approx(second.totals, nan_ok=True, rel=0, abs=0),
    )


def test_a_key_says_what_runs_and_nothing_else(tiny: Path) -> None:
    scenario = load_scenario(tiny)
    request = request_of(scenario)
    assert (
        request.key == request_of(load_scenario(tiny, ["name=other", "description=x", "seed=3"]), seed=0).key
    )
    others = [
        request.at(1),
        request_of(scenario, "intra"),
        request_of(scenario, steps=5),
        request_of(scenario, inputs="x"),
    ]
    others += [
        request_of(load_scenario(tiny, [text]))
        for text in ("policy.chunk_size=16", "costs.decode.fixed=0.3", "warmup_steps=2")
    ]
    assert len({request.key, *(other.key for other in others)}) == len(others) + 1


def test_a_changed_trace_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("prompt_length,response_length\n4,7\n4,30\n4,12\n")
    path = write_scenario(tmp_path, trace={"path": "lengths.csv"})
    arguments: dict[str, Any] = {
        "grid": {"policy.overcommit": [0]},
        "seeds": 1,
        "folder": tmp_path / "sweep",
        "figures": False,
    }
    before = oppo_sim.sweep(path, **arguments).points[c.STEP_S][0]
    (tmp_path / "lengths.csv").write_text("prompt_length,response_length\n4,17\n4,40\n4,22\n")
    assert oppo_sim.sweep(path, **arguments).points[c.STEP_S][0] > before


# ---- executors ---------------------------------------------------------------------------------------------


def test_processes_give_what_this_process_gives(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "WORTHWHILE_SECONDS", 0.0)
    scenario = load_scenario(tiny)
    requests = [
        request_of(scenario, policy, seed=seed) for policy in ("intra", "april", "async") for seed in range(4)
    ]
    here, there = (
        {
            result.key: json.dumps([result.totals, result.engine])
            for finished in Runner(executor).run(requests)
            for _, result in finished
        }
        for executor in (Executor("serial"), Executor("processes", 2))
    )
    assert len(here) == 12
    assert there == here
    assert {json.loads(text)[1] for text in here.values()} == {"compiled"}


def test_processes_work_where_this_process_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay for the next call, made from another folder."""
    monkeypatch.setattr(execution, "WORTHWHILE_SECONDS", 0.0)
    for number in (1, 2):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        Path(f"mine{number}.py").write_text(
            "from oppo_sim import Policy\n\nclass Mine(Policy):\n    extra: int = 1\n"
        )
        write_scenario(Path(), policy={"name": f"mine{number}.py:Mine"})
        swept = oppo_sim.sweep("tiny.yaml", grid={"steps": [5, 6]}, seeds=2, executor="processes", jobs=2)
        assert swept.statuses["failed"] == 0, swept.failures


def test_a_process_that_is_ended_from_outside_is_said_and_the_rest_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "WORTHWHILE_SECONDS", 0.0)
    (tmp_path / "mine.py").write_text(
        "import multiprocessing\nimport os\nfrom oppo_sim import Policy\n\nclass Mine(Policy):\n    def"
        " plan(self, pool):\n        if multiprocessing.current_process().name != 'MainProcess':\n           "
        " os._exit(9)\n        return self.refill(pool, overcommit=0, chunk_size=8)\n"
    )
    path = write_scenario(tmp_path, policy={"name": "mine.py:Mine"})
    with pytest.raises(OppoError, match=r"ended from outside .* fewer jobs"):
        oppo_sim.sweep(
            path,
            grid={"steps": [5, 6, 7, 8]},
            seeds=3,
            executor="processes",
            jobs=2,
            folder=tmp_path / "swept",
            figures=False,
        )
    assert len((tmp_path / "swept" / "runs.jsonl").read_text().splitlines()) >= 3


def test_progress_counts_every_run_and_names_the_best(tiny: Path) -> None:
    seen: list[oppo_sim.Progress] = []
    sweep = oppo_sim.sweep(tiny, grid={"policy.overcommit": [0, 2]}, seeds=2, progress=seen.append)
    assert [progress.done for progress in seen] == sorted(progress.done for progress in seen)
    assert (seen[-1].done, seen[-1].total) == (6, 6)
    assert seen[-1].simulated_steps == 6 * 6
    assert sweep.best is not None
    assert seen[-1].best.endswith(f"policy.overcommit {sweep.points['policy.overcommit'][sweep.best]}")


def test_a_list_in_python_and_its_text_are_the_same(tiny: Path) -> None:
    import numpy as np

    texts = oppo_sim.sweep(tiny, grid={"policy.chunk_size": "4:16:*2"}, seeds=1).points
    for values in (np.array([4, 8, 16]), (4, 8, 16), {"from": 4, "to": 16, "times": 2}):
        pd.testing.assert_frame_equal(
            oppo_sim.sweep(tiny, grid={"policy.chunk_size": values}, seeds=1).points, texts
        )


def test_overrides_hold_for_every_point(tiny: Path) -> None:
    sweep = oppo_sim.sweep(
        tiny,
        grid={"policy.overcommit": [0]},
        seeds=1,
        overrides={"policy.chunk_size": 4, "rollout.num_replicas": 4},
    )
    text = dump_yaml(sweep.plan.runnable[0].request.settings)
    assert "chunk_size" in text
    assert setup_of(sweep.plan.runnable[0].request).machine.num_replicas == 4


def test_the_length_bias_of_a_point_is_paired_with_its_baseline(tmp_path: Path) -> None:
    sweep = oppo_sim.sweep(write_scenario(tmp_path), grid={"policy.overcommit": [0, 2]}, seeds=3)
    bias = sweep.points[c.LENGTH_BIAS_PAIRED]
    assert bias[0] == 0.0  # trains what sequential trains
    assert bias[1] != 0.0
    assert sweep.points[c.LENGTH_BIAS][0] != 0.0
