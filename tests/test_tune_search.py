"""The search: it finds what brute force finds, goes on where it was killed, and gives the same whatever the
processes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from oppo_sim.errors import OppoError
from oppo_sim.tune import Constraints, Knob
from oppo_sim.tune.space import Setting
from tests.cli_runs import start_oppo, write_scenario
from tests.tuning import SEEDS, choices, cost_of, scenario, search

COLUMNS = ["trial", "policy.name", "policy.chunk_size", "policy.overcommit", "s_per_rollout", "status"]


def run_keys(journal: bytes) -> list[str]:
    """Of the runs that a journal holds."""
    entries = [json.loads(line) for line in journal.splitlines()[1:]]
    return [entry["key"] for entry in entries if "key" in entry]


def test_finds_the_optimum_of_a_grid_that_is_known(tmp_path: Path) -> None:
    given = scenario(tmp_path)
    sizes, overcommits = (1, 2, 3, 4, 6, 8, 12, 16, 24, 40), (0, 1, 2, 3, 4, 6)
    costs = {
        (size, extra): cost_of(given, "oppo", {"chunk_size": size, "overcommit": extra}, range(SEEDS))
        for size in sizes
        for extra in overcommits
    }
    knobs = (
        choices("policy.chunk_size", *sizes),
        choices("policy.overcommit", *overcommits),
        choices("policy.max_deferrals", None),
    )
    found = search(given, policies=("oppo",), space=knobs, trials=30)
    assert len(found.trials) == 30 < len(costs)
    assert found.trials["s_per_rollout"].min() <= 1.01 * min(costs.values())
    for row in found.trials[found.trials["status"] == "ok"].itertuples():
        chunk, extra = (
            json.loads(row[found.trials.columns.get_loc("policy.chunk_size") + 1]),
            json.loads(row[found.trials.columns.get_loc("policy.overcommit") + 1]),
        )
        assert row.s_per_rollout == pytest.approx(costs[chunk, extra], rel=1e-9)


def test_a_small_space_is_searched_whole_and_no_further(tmp_path: Path) -> None:
    knobs = (
        choices("policy.chunk_size", 4, 8, 16),
        choices("policy.overcommit", 0, 2),
        choices("policy.max_deferrals", None),
    )
    found = search(scenario(tmp_path), policies=("oppo", "sequential"), space=knobs, trials=50)
    assert len(found.trials) == 7
    assert found.record["ended"] == "space"
    assert (
        found.trials[["policy.name", "policy.chunk_size", "policy.overcommit"]].drop_duplicates().shape[0]
        == 7
    )


def test_policies_without_knobs_are_tried_once(tmp_path: Path) -> None:
    found = search(scenario(tmp_path), policies=("sequential", "rollout-overlap"), trials=20)
    assert list(found.trials["policy.name"]) == ["sequential", "rollout-overlap"]
    assert found.chosen is not None
    assert found.chosen.checked.setting.policy == "rollout-overlap"
    assert found.knobs == []


def test_trials_do_not_depend_on_processes_or_pauses(tmp_path: Path) -> None:
    given = scenario(tmp_path)
    options = {"policies": ("oppo", "inter"), "constraints": Constraints(max_staleness=2)}
    whole = search(given, tmp_path / "whole", trials=26, **options)
    search(given, tmp_path / "parts", trials=17, **options)
    parts = search(given, tmp_path / "parts", trials=26, jobs=2, **options)
    assert parts.trials.equals(whole.trials)
    assert parts.record["chosen"] == whole.record["chosen"]
    assert parts.record["knobs"] == whole.record["knobs"]


def test_nothing_is_simulated_twice(tmp_path: Path) -> None:
    given = scenario(tmp_path)
    search(given, tmp_path / "runs", policies=("oppo",), trials=8)
    before = (tmp_path / "runs" / "runs.jsonl").read_bytes()
    search(given, tmp_path / "runs", policies=("oppo",), trials=8)
    assert (tmp_path / "runs" / "runs.jsonl").read_bytes() == before
    keys = run_keys(before)
    assert len(keys) == len(set(keys))


def test_a_trial_that_was_deleted_is_made_again_without_a_run(tmp_path: Path) -> None:
    given, journal = scenario(tmp_path), tmp_path / "t" / "runs.jsonl"
    whole = search(given, tmp_path / "t", policies=("oppo",), trials=8)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(line for line in lines if not line.startswith(b'{"trial": {"number": 2,')))
    keys = run_keys(journal.read_bytes())
    for _ in range(2):
        again = search(given, tmp_path / "t", policies=("oppo",), trials=8)
        assert again.trials.equals(whole.trials)
        assert run_keys(journal.read_bytes()) == keys


def test_goes_on_after_a_kill(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, steps=60)
    command = (
        "tune",
        path,
        "--policies",
        "oppo,inter",
        "--trials",
        "24",
        "--seeds",
        "3",
        "--fresh-seeds",
        "4",
        "--jobs",
        "1",
        "--no-figures",
    )
    reference = start_oppo(*command, "-o", tmp_path / "whole")
    assert reference.wait(timeout=300) == 0, reference.communicate()[1]
    killed = start_oppo(*command, "-o", tmp_path / "killed")
    journal = tmp_path / "killed" / "runs.jsonl"
    end = time.monotonic() + 200
    while not (journal.is_file() and journal.read_bytes().count(b'{"trial":') >= 5):
        assert time.monotonic() < end
        assert killed.poll() is None, killed.communicate()[1]
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    killed.communicate()
    journal.write_bytes(journal.read_bytes() + b'{"trial": {"number": 9, "half a li')
    again = start_oppo(*command, "-o", tmp_path / "killed")
    assert again.wait(timeout=300) == 0, again.communicate()[1]
    for name in ("trials.csv", "advice.md", "best.yaml"):
        expected = (tmp_path / "whole" / name).read_text().replace(str(tmp_path / "whole"), "")
        assert (tmp_path / "killed" / name).read_text().replace(str(tmp_path / "killed"), "") == expected
    keys = run_keys(journal.read_bytes())
    assert len(keys) == len(set(keys))
    for process in (reference, again):
        process.communicate()


def test_clearly_worse_settings_get_no_further_seeds(tmp_path: Path) -> None:
    given = scenario(tmp_path, steps=40)
    found = search(given, policies=("oppo", "intra"), seeds=6, trials=24)
    stopped = found.trials[found.trials["status"] == "stopped"]
    assert len(stopped)
    assert (stopped["seeds"] == 3).all()
    assert (found.trials.loc[found.trials["status"] == "ok", "seeds"] == 6).all()
    assert (
        stopped["s_per_rollout"].min()
        > 1.01 * found.trials.loc[found.trials["status"] == "ok", "s_per_rollout"].min()
    )


def test_settings_that_cannot_run_are_told_apart(tmp_path: Path) -> None:
    given = scenario(tmp_path, rollout={"num_replicas": 2, "kv_capacity_tokens": 64})
    capacity = choices("rollout.kv_capacity_tokens", 64, 16)
    found = search(
        given, policies=("sequential", "intra"), space=(capacity, choices("policy.chunk_size", 8)), trials=10
    )
    failed = found.trials[found.trials["status"] == "failed"]
    assert len(failed) == 2
    assert failed["error"].str.contains("kv_capacity_tokens 16").all()
    assert found.record["statuses"]["failed"] == 2
    assert any("Cannot run (2)" in sentence for sentence in found.advised["sections"]["What was searched"])


def test_nothing_that_can_run_is_an_error(tmp_path: Path) -> None:
    given = scenario(tmp_path, rollout={"num_replicas": 2, "kv_capacity_tokens": 16})
    with pytest.raises(OppoError, match="kv_capacity_tokens 16"):
        search(given, trials=4)


def test_no_time_for_a_single_trial(tmp_path: Path) -> None:
    with pytest.raises(OppoError, match="--timeout-s"):
        search(scenario(tmp_path), trials=4, timeout_s=1e-9)


def test_time_that_is_up_keeps_what_there_is(tmp_path: Path) -> None:
    given = scenario(tmp_path)
    search(given, tmp_path / "t", policies=("oppo",), trials=4)
    found = search(given, tmp_path / "t", policies=("oppo",), trials=400, timeout_s=1e-9)
    assert len(found.trials) == 4
    assert found.record["ended"] == "time"
    assert found.chosen is not None


def test_seconds_per_token_is_another_objective(tmp_path: Path) -> None:
    given = scenario(tmp_path)
    found = search(given, policies=("sequential", "oppo"), trials=10, objective="tokens")
    assert "s_per_token" in found.trials
    assert found.chosen is not None
    ok = found.trials[found.trials["status"] == "ok"]
    assert found.chosen.checked.number == int(ok.loc[ok["s_per_token"].idxmin(), "trial"])


def test_traces_in_order_have_one_exact_run(tmp_path: Path) -> None:
    trace = {
        "synth": {"parameters": {"mu": 2.5, "sigma": 0.6}, "rows": 200},
        "prompt_length": 4,
        "sampling": "in_order",
    }
    given = scenario(tmp_path, trace=trace)
    found = search(given, policies=("oppo",), trials=6, seeds=None, fresh_seeds=None)
    assert found.record["fresh_seeds"] == []
    assert "exact" in found.advised["sections"]["How sure the choice is"][0]
    with pytest.raises(OppoError, match="in_order"):
        search(given, policies=("oppo",), trials=6)


def test_what_is_reported_was_measured_on_fresh_seeds(tmp_path: Path) -> None:
    given = scenario(tmp_path)
    found = search(given, policies=("oppo",), trials=10)
    assert found.chosen is not None
    assert set(found.record["fresh_seeds"]).isdisjoint(found.record["seeds"])
    fresh = range(found.record["fresh_seeds"][0], found.record["fresh_seeds"][-1] + 1)
    settings = {field.removeprefix("policy."): value for field, value in found.chosen.checked.setting.values}
    assert found.chosen.checked.rows[0]["s_per_rollout"] == pytest.approx(
        cost_of(given, "oppo", settings, fresh), rel=1e-9
    )
    base = cost_of(given, "sequential", {}, fresh)
    assert found.chosen.checked.rows[0]["speedup"] == pytest.approx(
        base / found.chosen.checked.rows[0]["s_per_rollout"], rel=0.02
    )


def test_sensitivity_is_what_single_runs_cost(tmp_path: Path) -> None:
    given = scenario(tmp_path)
    sizes = (2, 8, 40)
    knobs = (
        choices("policy.chunk_size", *sizes),
        choices("policy.overcommit", 2),
        choices("policy.max_deferrals", None),
    )
    found = search(given, policies=("oppo",), space=knobs, trials=3)
    assert found.chosen is not None
    fresh = range(found.record["fresh_seeds"][0], found.record["fresh_seeds"][-1] + 1)
    costs = {size: cost_of(given, "oppo", {"chunk_size": size, "overcommit": 2}, fresh) for size in sizes}
    at = found.chosen.checked.setting.knobs["policy.chunk_size"]
    swept = found.sensitivity.set_index("value")["relative"]
    for size in sizes:
        assert swept[str(size)] == pytest.approx(costs[size] / costs[at] - 1.0, abs=0.01)
    assert [effect.field for effect in found.knobs] == ["policy.chunk_size"]
    assert found.knobs[0].share == pytest.approx(1.0)
    assert found.knobs[0].most == pytest.approx(max(costs.values()) / costs[at] - 1.0, abs=0.01)
    assert found.interactions == []


def test_importance_names_the_knob_that_matters(tmp_path: Path) -> None:
    knobs = (
        Knob("policy.chunk_size", "int", 1, 40),
        choices("policy.overcommit", 0, 1, 2, 3, 4),
        choices("policy.max_deferrals", None),
    )
    found = search(scenario(tmp_path), policies=("oppo",), space=knobs, trials=32)
    importance = {effect.field: effect.importance for effect in found.knobs}
    assert set(importance) == {"policy.chunk_size", "policy.overcommit"}
    assert sum(value or 0.0 for value in importance.values()) == pytest.approx(1.0)
    assert sum(effect.share for effect in found.knobs) == pytest.approx(1.0)
    assert len(found.interactions) == 1


def test_the_same_setting_is_never_tried_twice(tmp_path: Path) -> None:
    found = search(scenario(tmp_path), trials=40)
    fields = [column for column in found.trials.columns if column.startswith("policy.")]
    tried = {
        Setting(str(row["policy.name"]), tuple((name, str(row[name])) for name in fields))
        for row in found.trials.to_dict("records")
    }
    assert len(tried) == len(found.trials)
