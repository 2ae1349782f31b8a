"""A comparison also says how much faster its best policy is than the one that the scenario has."""

import json
from math import exp, log
from pathlib import Path
from statistics import fmean

import pandas as pd
import pytest

import oppo_sim
from oppo_sim import columns as c
from oppo_sim.comparison.own import own_record
from tests.cli_runs import Oppo, write_scenario

ARGUMENTS = ("--policies", "rollout-overlap,oppo,inter", "--seeds", "3", "--no-figures", "--no-attribution")


@pytest.fixture
def oppo(capsys: pytest.CaptureFixture[str]) -> Oppo:
    return Oppo(capsys)


def test_it_is_the_paired_ratio_by_trained_rollouts(tmp_path: Path, oppo: Oppo) -> None:
    scenario = write_scenario(tmp_path, policy={"name": "rollout-overlap"})
    code, out, err = oppo("compare", str(scenario), *ARGUMENTS, "--json", "-o", str(tmp_path / "one"))
    assert code == 0, err
    told = json.loads(out)
    cells = pd.read_parquet(tmp_path / "one" / "cells.parquet")
    seconds = cells[cells[c.VARIANT] == "actual"].pivot(
        index=c.RUN_SEED, columns=c.RUN_POLICY, values=c.S_PER_ROLLOUT
    )
    own = told["against_own"]
    assert own["policy"] == "rollout-overlap"
    assert set(own["speedups"]) == {"oppo", "inter"}
    for policy, gain in own["speedups"].items():
        ratios = seconds["rollout-overlap"] / seconds[policy]
        assert gain["speedup"] == pytest.approx(exp(fmean(map(log, ratios))))
        assert gain["speedup_low"] <= gain["speedup"] <= gain["speedup_high"]


def test_a_person_reads_it_in_the_terminal_and_in_the_report(tmp_path: Path, oppo: Oppo) -> None:
    scenario = write_scenario(tmp_path, policy={"name": "rollout-overlap"})
    code, out, err = oppo("compare", str(scenario), *ARGUMENTS, "-o", str(tmp_path / "one"))
    assert code == 0, err
    best = json.loads((tmp_path / "one" / "comparison.json").read_text())["best"]
    assert best != "rollout-overlap"
    assert "against rollout-overlap, the scenario's own policy, it is " in " ".join(out.split())
    page = tmp_path / "one.html"
    assert oppo("report", str(tmp_path / "one"), "-o", str(page)).code == 0
    told = page.read_text(encoding="utf-8").replace("&#x27;", "'").replace("&#39;", "'")
    assert "Against rollout-overlap, the scenario's own policy, it is " in told


def test_the_machine_is_drawn_for_both() -> None:
    found = oppo_sim.compare("h200-single", ["oppo", "inter"], seeds=2, steps=6, draws=5)
    own = own_record(found)
    assert own["policy"] == "oppo"
    assert list(own["speedups"]) == ["inter"]
    gain = own["speedups"]["inter"]
    assert gain["speedup_both_low"] <= gain["speedup"] <= gain["speedup_both_high"]
    assert gain["speedup_both_low"] <= gain["speedup_low"]


def test_a_baseline_that_nobody_is_compared_with_is_not_run(tmp_path: Path) -> None:
    """``partial-rollout`` stands beside sequential in rounds. Plain sequential, in no table, was named among
    what cannot be told apart from the best: a traceback in the terminal."""
    scenario = write_scenario(tmp_path, policy={"name": "partial-rollout"})
    found = oppo_sim.compare(scenario, ["partial-rollout"], seeds=2, draws=3)
    assert set(found.cells[c.RUN_POLICY]) == set(found.table.index)
    assert set(found.alike) <= set(found.table.index)


def test_a_policy_that_is_slower_than_its_baseline_is_told_so(tmp_path: Path, oppo: Oppo) -> None:
    """Who runs it would be faster without, though nobody asked for ``sequential``."""
    scenario = write_scenario(tmp_path, policy={"name": "partial-rollout"})
    arguments = ("--policies", "partial-rollout", "--seeds", "2", "--no-figures", "--no-attribution")
    code, out, err = oppo("compare", str(scenario), *arguments, "-o", str(tmp_path / "one"))
    assert code == 0, err
    told = json.loads((tmp_path / "one" / "comparison.json").read_text())
    best = told["best"]
    assert best.startswith("sequential (rounds of ")
    assert told["against_own"]["speedups"][best]["speedup"] > 1.0
    assert "against partial-rollout, the scenario's own policy" in " ".join(out.split())


@pytest.mark.parametrize("policy", ["sequential", "tail-batching"])
def test_nothing_is_said_of_the_baseline_and_of_what_was_not_compared(
    policy: str, tmp_path: Path, oppo: Oppo
) -> None:
    scenario = write_scenario(tmp_path, policy={"name": policy})
    code, out, err = oppo("compare", str(scenario), *ARGUMENTS, "--json", "-o", str(tmp_path / "one"))
    assert code == 0, err
    assert "against_own" not in json.loads(out)


def test_settings_and_files_of_ones_own_are_named_as_tables_name_them(tmp_path: Path, oppo: Oppo) -> None:
    """A label with the scenario's settings is its policy; one with others is not."""
    scenario = write_scenario(tmp_path, policy={"name": "oppo", "chunk_size": 64})
    common = ("--seeds", "2", "--no-figures", "--no-attribution")
    for number, size in enumerate((64, 32)):
        told = ("--policies", f"oppo:chunk_size={size},inter", "-o", str(tmp_path / str(number)), "--json")
        code, out, err = oppo("compare", str(scenario), *common, *told)
        assert code == 0, err
        assert json.loads(out).get("against_own", {}).get("policy") == (
            "oppo:chunk_size=64" if size == 64 else None
        )
    own = tmp_path / "mine.py"
    own.write_text(
        "from oppo_sim import Policy\n\n\nclass Mine(Policy):\n    def plan(self, pool):\n"
        "        return self.refill(pool, overcommit=0, chunk_size=64)\n"
    )
    scenario = write_scenario(tmp_path, policy={"name": f"{own}:Mine"})
    told = ("--policies", f"{own}:Mine,inter", "-o", str(tmp_path / "two"))
    code, out, err = oppo("compare", str(scenario), *common, *told)
    assert code == 0, err
    assert "against Mine, the scenario's own policy, it is " in " ".join(out.split())
