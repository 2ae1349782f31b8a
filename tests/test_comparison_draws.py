"""Comparisons over draws of the machine: intervals worked out by hand, the same draws for everybody, today's
numbers without draws, going on after an interruption."""

from __future__ import annotations

import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from oppo_sim import columns as c
from oppo_sim import compare, load_scenario
from oppo_sim.cli.main import run
from oppo_sim.comparison.plan import make_cells, plan_comparison
from oppo_sim.costs.terms import CostTerms
from oppo_sim.errors import OppoError
from oppo_sim.finished_run import read_run_folder
from oppo_sim.progress import Progress
from oppo_sim.report.labels import significant
from oppo_sim.report.ranges import around, ends_text, few_seeds_sentence
from oppo_sim.runs.execute import Executor
from oppo_sim.runs.machine import on_machine
from oppo_sim.runs.ranges import (
    SPEEDUP_ENDS,
    SPEEDUP_PER_TOKEN_ENDS,
    best_shares,
    both,
    explained,
    machine_interval,
    told_apart,
)
from oppo_sim.runs.store import RunStore
from tests.cli_runs import TINY, Oppo, contents, write_scenario

COSTS: dict[str, Any] = {**TINY["costs"], "draws": "draws.csv"}
POLICIES = ("intra", "oppo")


def write_drawn(folder: Path, draws: str, **changes: Any) -> Path:
    """The tiny scenario whose machine is known up to these draws."""
    (folder / "draws.csv").write_text(draws)
    return write_scenario(folder, **{"costs": COSTS, **changes})


def constant(folder: Path, draws: str) -> Path:
    """Ten tokens each, decoded in a second an iteration, no prefill, no scoring, four seconds of training on
    a group of its own: sequential takes 10 · decode + 4 · training a step, one-step-off the longer of the
    two."""
    (folder / "ten.csv").write_text("prompt_length,response_length\n1,10\n1,10\n")
    costs = {
        "kind": "linear",
        "decode": {"fixed": 1.0},
        "prefill": {"fixed": 0.0},
        "score": {"fixed": 0.0},
        "stages": {"update_actor": {"fixed": 4.0}},
        "draws": "draws.csv",
    }
    return write_drawn(folder, draws, trace={"path": "ten.csv"}, costs=costs, policy={"name": "sequential"})


# ---- by hand -----------------------------------------------------------------------------------------------


def test_two_draws_worked_out_by_hand(tmp_path: Path) -> None:
    path = constant(tmp_path, "decode,training\n1,1\n1,4\n")
    found = compare(path, ["one-step-off"], seeds=2, attribution=False)
    row = found.table.loc["one-step-off"]
    # As given, and in the first draw: 14 s against 10 s. In the second: 26 s against 16 s.
    first, second = 1.4, 1.625
    assert row[c.SPEEDUP] == pytest.approx(first)
    assert row[c.STEP_S] == pytest.approx(10.0)
    ends = first, second  # of two draws: the least and the largest
    assert (row[c.SPEEDUP_MACHINE_LOW], row[c.SPEEDUP_MACHINE_HIGH]) == pytest.approx(ends)
    # Responses are equally long, so that tokens are as many times as fast.
    assert row[list(SPEEDUP_PER_TOKEN_ENDS)].tolist() == pytest.approx(row[list(SPEEDUP_ENDS)].tolist())
    assert row[c.STEP_S_MACHINE_LOW] == pytest.approx(10.0)
    assert row[c.STEP_S_MACHINE_HIGH] == pytest.approx(16.0)
    # All rollouts are alike, so the seeds add nothing; the point lies below the draws and is an end itself.
    assert (row[c.SPEEDUP_LOW], row[c.SPEEDUP_HIGH]) == pytest.approx((first, first))
    assert (row[c.SPEEDUP_BOTH_LOW], row[c.SPEEDUP_BOTH_HIGH]) == pytest.approx((first, ends[1]))
    assert (row[c.MACHINE_WIDEST], row[c.MACHINE_WIDEST_SHARE]) == ("training", pytest.approx(1.0))
    assert found.table[c.P_BEST].to_dict() == {"sequential": 0.0, "one-step-off": 1.0}
    assert found.ranges is not None
    assert found.ranges.machine.source == "fitted"
    assert "draws.csv" in found.ranges.machine.sentence
    base = found.table.loc["sequential"]
    assert (base[c.SPEEDUP_MACHINE_LOW], base[c.SPEEDUP_MACHINE_HIGH]) == (1.0, 1.0)


def test_by_the_time_to_a_reward_another_policy_is_the_best(tmp_path: Path) -> None:
    # An update of staleness leaves two thirds of a step's worth. As given and in the first draw: 14 s against
    # 10 s of which 2/3 count, so 15. With decoding at 0.4 s: 8 s against 4 s, so 6.
    path = constant(tmp_path, "decode,training\n1,1\n0.4,1\n")
    effect = {"kind": "none", "staleness_effect": {"staleness": math.log(1.5)}}
    quickest, soonest = (
        compare(
            path, ["one-step-off"], seeds=2, attribution=False, objective=each, overrides={"rewards": effect}
        )
        for each in ("rollouts", "time_to_reward")
    )
    assert (quickest.best, quickest.alike) == ("one-step-off", [])
    assert quickest.table[c.P_BEST].to_dict() == {"sequential": 0.0, "one-step-off": 1.0}
    assert (soonest.best, soonest.alike) == ("sequential", ["one-step-off"])
    assert soonest.table[c.P_BEST].to_dict() == {"sequential": 0.5, "one-step-off": 0.5}
    assert soonest.table.loc["one-step-off", c.REWARD_SPEEDUP] == pytest.approx(14 / 15)
    assert soonest.ranges is not None
    steps = load_scenario(path).steps
    drawn = soonest.ranges.runs.set_index(["policy", c.DRAW, "seed"])[c.TIME_TO_REWARD_S] / steps
    found = [drawn[policy, draw, 0] for policy in ("sequential", "one-step-off") for draw in (0, 1)]
    assert found == pytest.approx([14.0, 8.0, 15.0, 6.0])


def test_what_policies_share_cancels_in_the_speed_up_and_not_in_the_step(tmp_path: Path) -> None:
    """A machine that is twice as slow in everything is as much faster under a policy as before."""
    path = constant(tmp_path, "decode,training\n1,1\n2,2\n3,3\n")
    row = compare(path, ["one-step-off"], seeds=1, attribution=False).table.loc["one-step-off"]
    assert (row[c.SPEEDUP_MACHINE_LOW], row[c.SPEEDUP_MACHINE_HIGH]) == pytest.approx((1.4, 1.4))
    assert row[c.STEP_S_MACHINE_HIGH] > 2.5 * row[c.STEP_S_MACHINE_LOW]
    assert row[c.MACHINE_WIDEST] is None


def test_fewer_draws_are_the_first_of_the_file(tmp_path: Path) -> None:
    path = constant(tmp_path, "training\n1\n4\n9\n")
    for count, expected in ((2, 2), (3, 3), (32, 3)):
        found = compare(path, ["one-step-off"], seeds=1, draws=count, attribution=False).ranges
        assert found is not None
        drawn = [terms.training for terms in found.machine.draws]
        assert drawn == [1.0, 4.0, 9.0][:expected]
    with pytest.raises(OppoError, match="draws -1 is out of range"):
        compare(path, ["one-step-off"], draws=-1)


# ---- the same draws for everybody --------------------------------------------------------------------------


def test_every_policy_and_seed_runs_on_the_same_draws(tmp_path: Path) -> None:
    path = write_drawn(tmp_path, "decode,score\n1,1\n1.5,2\n0.8,1\n")
    plan = plan_comparison(load_scenario(path), POLICIES, 2, None, True, 3)
    terms = {json.dumps(draw.changed()) for draw in plan.machine.draws}
    seen: dict[tuple[str, int], set[str]] = {}
    for cell in plan.drawn:
        assert cell.variant == "actual"
        seen.setdefault((cell.label, cell.request.seed), set()).add(cell.request.terms)
    assert set(seen) == {(label, seed) for label in ("sequential", *POLICIES) for seed in (0, 1)}
    assert all(found == terms for found in seen.values())


def test_a_draw_is_a_scenario_with_these_terms(tmp_path: Path) -> None:
    path = write_drawn(tmp_path, "decode,gen_phase_s\n1,0\n1.5,3\n")
    ranges = compare(path, ["oppo"], seeds=2, attribution=False).ranges
    assert ranges is not None
    runs = ranges.runs.set_index(["policy", c.DRAW, "seed"])
    given = write_scenario(
        tmp_path, "there.yaml", costs={**TINY["costs"], "terms": {"decode": 1.5, "gen_phase_s": 3.0}}
    )
    there = compare(given, ["oppo"], seeds=2, attribution=False, draws=0)
    cells = there.cells.set_index(["policy", "seed"])
    for policy in ("sequential", "oppo"):
        for seed in (0, 1):
            assert runs.loc[(policy, 1, seed), c.TIMING_STEP] == cells.loc[(policy, seed), c.TIMING_STEP], (
                policy
            )


# ---- none, and what is said --------------------------------------------------------------------------------


@pytest.fixture
def oppo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Oppo:
    monkeypatch.chdir(tmp_path)
    return Oppo(capsys)


def compared(oppo: Oppo, folder: str, *more: str) -> Any:
    arguments = ("--policies", ",".join(POLICIES), "--seeds", "2", "--no-figures", "--jobs", "1")
    return oppo("compare", "tiny.yaml", *arguments, "-o", folder, *more)


def test_without_draws_everything_is_as_on_an_exact_machine(oppo: Oppo, tmp_path: Path) -> None:
    write_drawn(tmp_path, "decode\n1\n2\n")
    assert compared(oppo, "none", "--draws", "0").code == 0
    exact = compared(oppo, "exact", "--set", "costs.draws=none")
    assert "the machine is taken as given (costs.draws none)" in exact.out
    for name in ("comparison.parquet", "comparison.json", "attribution.parquet", "cells.parquet"):
        assert Path("none", name).read_bytes() == Path("exact", name).read_bytes()
    assert set(contents(Path("none"))) == set(contents(Path("exact")))
    assert "machine" not in read_run_folder("none").manifest
    # With draws the columns of before stay as they are.
    assert compared(oppo, "drawn").code == 0
    before = read_run_folder("none").frame("comparison.parquet")
    after = read_run_folder("drawn").frame("comparison.parquet")
    # What a reward takes has one interval, of the seeds and the machine.
    both = [name for name in before if "_to_reward_" in name and name.endswith(("_low", "_high"))]
    same = before.columns.drop(both)
    pd.testing.assert_frame_equal(before[same], after[same])


def test_the_terminal_shows_both_intervals_at_80_columns_and_json_has_all(
    oppo: Oppo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_drawn(tmp_path, "decode,score\n1,1\n1.5,0.1\n0.7,3\n")
    monkeypatch.setenv("COLUMNS", "80")
    printed = compared(oppo, "drawn")
    tables = [line for line in printed.out.splitlines() if "×" in line or " / " in line]
    assert tables
    assert all(len(line.rstrip()) <= 80 for line in tables)
    assert "3 fitted draws of the machine (draws.csv)" in " ".join(printed.out.split())
    # Narrower, columns leave, and are named; no number is broken.
    monkeypatch.setenv("COLUMNS", "60")
    narrow = compared(oppo, "narrow").out
    assert "not shown at 60 columns: of rollouts, best (--json has them)" in " ".join(narrow.split())
    assert all(len(line.rstrip()) <= 60 for line in narrow.splitlines() if "×" in line)
    gains = r"\d× \[\d+\.\d+, \d+\.\d+\]"
    table = narrow.partition("not shown at 60 columns")[0]
    assert re.findall(gains, table) == re.findall(gains, printed.out.partition("best: in so many")[0])
    record = json.loads(compared(oppo, "json", "--json").out)
    assert record["machine"]["draws"] == 3
    row = record["comparison"]["oppo"]
    assert row[c.SPEEDUP_MACHINE_LOW] < row[c.SPEEDUP_MACHINE_HIGH]
    assert row[c.SPEEDUP_BOTH_LOW] <= min(row[c.SPEEDUP_MACHINE_LOW], row[c.SPEEDUP_LOW])
    # The folder holds the draws in the form that a scenario takes.
    again = tmp_path / "again"
    again.mkdir()
    (again / "draws.csv").write_bytes(Path("drawn", "draws.csv").read_bytes())
    write_scenario(again, costs=COSTS)
    redrawn = compare(again / "tiny.yaml", POLICIES, seeds=2, attribution=False)
    assert redrawn.table.loc["oppo", c.SPEEDUP_MACHINE_LOW] == row[c.SPEEDUP_MACHINE_LOW]


def test_an_interval_holds_the_number_beside_it_as_both_are_printed() -> None:
    assert ends_text(1.5, 3.2, 2.3) == "[1.5, 3.2]"
    assert ends_text(2.06, 2.4, 2.08) == "[2.06, 2.40]"
    assert ends_text(1.96, 2.04, 2.0) == "[1.96, 2.04]"
    assert ends_text(math.nan, 1.0, 1.0) == ""
    two = partial(significant, digits=2)
    assert around(49.9, 49.7, 50.2, two, significant) == "[49.7, 50.2]"
    assert around(50.4, 41.3, 55.1, two, significant) == "[41, 55]"
    assert around(1230.4, 1228.0, 1234.0, two, significant) == "[1,228, 1,234]"


def test_one_seed_without_draws_has_no_intervals(oppo: Oppo, tmp_path: Path) -> None:
    write_scenario(tmp_path)
    one = compared(oppo, "one", "--seeds", "1", "--draws", "0").out
    table = one.partition("\nbest: ")[0]
    assert "[" not in table
    assert "to the target reward\n" in "\n".join(map(str.rstrip, table.splitlines()))
    several = compared(oppo, "several", "--draws", "0").out
    assert "to the target reward [95 %]" in several


def test_linear_costs_are_taken_as_given(oppo: Oppo, tmp_path: Path) -> None:
    write_scenario(tmp_path)
    printed = compared(oppo, "cmp")
    assert "the machine is taken as given (costs.kind linear has no priors)" in printed.out
    assert compare("tiny.yaml", ["oppo"], seeds=1).ranges is None


def test_a_page_tells_both_intervals(oppo: Oppo, tmp_path: Path) -> None:
    write_drawn(tmp_path, "decode,score\n1,1\n1.5,0.1\n0.7,3\n")
    compared(oppo, "drawn")
    assert run(["report", "drawn", "-o", "page.html"]) == 0
    page = Path("page.html").read_text()
    assert "Two intervals" in page
    assert "of rollouts and machine; rollouts alone" in page
    assert "95 %, machine" in page or "dashed of the machine" in page


def test_a_run_has_ranges_of_its_means_where_draws_are_wanted(oppo: Oppo, tmp_path: Path) -> None:
    constant(tmp_path, "training\n1\n4\n")
    arguments = ("simulate", "tiny.yaml", "--no-figures", "--no-rollouts")
    plain = oppo(*arguments, "-o", "plain")
    assert "draws of the machine" not in plain.out
    assert "machine" not in read_run_folder("plain").manifest
    drawn = oppo(*arguments, "--draws", "8", "-o", "drawn")
    # 14 s and 26 s.
    ends = 14.0, 26.0
    manifest = read_run_folder("drawn").manifest
    intervals = manifest["machine"]["intervals"]
    assert intervals[c.TIMING_STEP] == pytest.approx(ends)
    assert "mean on draws" in drawn.out and "14.0 s to 26.0 s" in drawn.out
    # Training takes 4 and 16 s, generation the same on both.
    update = intervals[c.timing("update_actor")]
    assert update == pytest.approx((4.0, 16.0))
    assert intervals[c.timing("gen")][0] == pytest.approx(intervals[c.timing("gen")][1])
    # A slower step is fewer tokens and more hours.
    steps = pd.read_parquet("drawn/steps.parquet").iloc[manifest["warmup_steps"] :]
    gpus, tokens = manifest["num_gpus"], steps[c.TOKENS_TRAINED].mean()
    assert intervals[c.TOKENS_PER_S_PER_GPU] == pytest.approx(
        (tokens / ends[1] / gpus, tokens / ends[0] / gpus)
    )
    assert intervals[c.GPU_HOURS_PER_1K_STEPS] == pytest.approx([end * gpus / 3.6 for end in ends])
    for name in ("steps.parquet", "summary.json"):
        assert Path("plain", name).read_bytes() == Path("drawn", name).read_bytes()
    found = json.loads(oppo(*arguments, "--draws", "8", "-o", "json", "--json").out)
    assert found["machine"]["intervals"][c.TIMING_STEP] == pytest.approx(ends)


# ---- where it runs -----------------------------------------------------------------------------------------


def test_results_do_not_depend_on_processes(oppo: Oppo, tmp_path: Path) -> None:
    write_drawn(tmp_path, "decode,score\n1,1\n1.5,0.1\n0.7,3\n")
    assert compared(oppo, "one").code == 0
    assert compared(oppo, "two", "--jobs", "2").code == 0
    assert contents(Path("one")) == contents(Path("two"))


def test_runs_on_draws_are_kept_and_taken_up_again(tmp_path: Path) -> None:
    plan = plan_comparison(
        load_scenario(write_drawn(tmp_path, "decode\n1\n2\n3\n")), POLICIES, 2, None, False, 3
    )
    assert plan.runs == 3 * 2 * (1 + 3) == len({request.key for request in plan.requests})
    path = tmp_path / "runs.jsonl"

    class EnoughError(Exception):
        pass

    def stop(at: Progress) -> None:
        if at.done == 10:
            raise EnoughError

    with RunStore(path) as store, pytest.raises(EnoughError):
        make_cells(plan, store, Executor("serial"), stop)
    seen: list[int] = []
    with RunStore(path) as store:
        assert 9 <= len(store) < plan.runs
        kept = len(store)
        make_cells(plan, store, Executor("serial"), lambda at: seen.append(at.done))
    assert seen[0] == kept
    assert seen[-1] == plan.runs


# ---- statistics --------------------------------------------------------------------------------------------


def test_both_intervals_together_are_the_root_of_the_squares() -> None:
    low, high = both(2.0, (2.0 / math.e**0.3, 2.0 * math.e**0.3), (2.0 / math.e**0.4, 2.0 * math.e**0.4))
    assert (math.log(2.0 / low), math.log(high / 2.0)) == pytest.approx((0.5, 0.5))
    nothing = (math.nan, math.nan)
    assert both(2.0, nothing, (1.5, 3.0)) == pytest.approx((1.5, 3.0))
    assert both(2.0, (1.5, 3.0), nothing) == pytest.approx((1.5, 3.0))
    assert all(map(math.isnan, both(2.0, nothing, nothing)))
    assert both(2.0, nothing, (2.5, 3.0)) == pytest.approx((2.0, 3.0))
    assert all(map(math.isnan, machine_interval([1.5])))


@pytest.mark.parametrize(("draws", "held"), [(8, 7 / 9), (39, 0.95), (40, 0.95), (100, 0.95), (400, 0.95)])
def test_a_range_of_few_draws_holds_as_many_machines_as_it_says(draws: int, held: float) -> None:
    """Another draw, of any distribution; here of one that is uniform on the logarithm."""
    generator = np.random.default_rng(1)
    inside = []
    for _ in range(4000):
        low, high = machine_interval(np.exp(generator.random(draws)).tolist())
        inside.append(math.log(high) - math.log(low))
    assert float(np.mean(inside)) == pytest.approx(held, abs=0.006)


@pytest.mark.parametrize(("groups", "each", "held"), [(26, 4, 25 / 27), (60, 2, 0.95), (80, 1, 0.95)])
def test_a_range_of_draws_that_repeat_counts_the_independent_ones(
    groups: int, each: int, held: float
) -> None:
    """Alike within a group, so a group is one draw."""
    generator = np.random.default_rng(2)
    inside = []
    for _ in range(3000):
        values = np.repeat(generator.random(groups), each) + 1e-9 * generator.random(groups * each)
        low, high = machine_interval(np.exp(values).tolist(), groups)
        inside.append(math.log(high) - math.log(low))
    assert held - 0.006 < float(np.mean(inside)) < held + 0.02  # no end lies between two that are alike


def test_each_term_has_its_share_of_the_variance() -> None:
    # Ranks of a and b are orthogonal, and the value grows with a alone.
    terms = pd.DataFrame({"a": range(1, 10), "b": [3, 8, 4, 9, 1, 6, 2, 7, 5], "same": [2.0] * 9})
    found = explained(terms, [1.1**x for x in range(9)])
    assert next(iter(found)) == "a"
    assert found["a"] == pytest.approx(1.0)
    assert found["b"] < 0.1
    assert "same" not in found
    assert explained(terms, [1.0] * 9) == {}
    # Two draws cannot tell two terms apart; one term alone needs no telling.
    assert explained(terms.iloc[:2], [1.0, 2.0]) == {}
    assert explained(terms.iloc[:2, :1], [1.0, 2.0]) == pytest.approx({"a": 1.0})


def test_the_probability_to_be_the_best_counts_draws_and_seeds() -> None:
    seconds = {"x": [[1.0, 3.0], [1.0, 1.0]], "y": [[2.0, 2.0], [2.0, 2.0]], "z": [[2.0, 2.0], [9.0, 9.0]]}
    assert best_shares(seconds) == pytest.approx({"x": 0.75, "y": 0.125, "z": 0.125})


def test_what_is_best_everywhere_and_still_not_told_apart_says_why(oppo: Oppo, tmp_path: Path) -> None:
    """Two seeds: a policy that wins in every draw and seed need not win under others."""
    write_drawn(tmp_path, "decode\n1\n1.01\n", max_response_length=400)
    more = "so few seeds (2) say little of others: --seeds 5 tells more"
    few = oppo("compare", "tiny.yaml", "--policies", "oppo", "--seeds", "2", "--no-figures", "-o", "few")
    record = json.loads(Path("few", "comparison.json").read_text())
    assert record["comparison"][record["best"]][c.P_BEST] == 1.0
    assert record["alike"]
    assert f"it is the best in 100.0 % of draws and seeds, but {more}" in few.out
    assert run(["report", "few", "-o", "few.html", "--quiet"]) == 0
    assert more in Path("few.html").read_text()
    assert few_seeds_sentence(0.97, 2) == few_seeds_sentence(1.0, 2, 0.01) == ""


def test_draws_keep_apart_less_than_seeds_alone() -> None:
    assert told_apart([1.10, 1.11, 1.09], [])
    assert told_apart([1.10, 1.11, 1.09], [1.05, 1.12, 1.2])
    assert not told_apart([1.10, 1.11, 1.09], [0.9, 1.12, 1.2])
    assert not told_apart([1.0, 1.0], [1.0, 1.0])


def test_terms_are_part_of_a_runs_key_only_where_they_are_drawn(tmp_path: Path) -> None:
    scenario = load_scenario(write_scenario(tmp_path))
    request = plan_comparison(scenario, ["oppo"], 1, None, False).cells[0].request
    drawn = [request.on(CostTerms(decode=factor)) for factor in (1.0, 1.1)]
    assert len({request.key, *(each.key for each in drawn)}) == 3


def test_draws_of_a_shipped_scenario_are_those_of_its_priors() -> None:
    """What draws share is built once: a run on a draw is still that of the scenario with these terms."""
    scenario = load_scenario("h200-single", ["steps=3", "warmup_steps=0"])
    ranges = compare(scenario, ["oppo"], seeds=1, draws=3, attribution=False).ranges
    assert ranges is not None
    assert ranges.machine.source == "priors"
    assert "`oppo fit` on a log of 20 steps would narrow them" in ranges.machine.sentence
    runs = ranges.runs.set_index(["policy", c.DRAW])[c.TIMING_STEP]
    for number, terms in enumerate(ranges.machine.draws):
        alone = compare(on_machine(scenario, terms), ["oppo"], seeds=1, draws=0, attribution=False)
        for policy in ("sequential", "oppo"):
            assert runs[policy, number] == pytest.approx(alone.table.loc[policy, c.STEP_S], rel=1e-12)


@pytest.mark.parametrize("name", ["h200-single", "paper-gsm8k-7b", "a100x16-10b"])
def test_the_point_of_an_unfitted_scenario_lies_inside_its_machine(name: str) -> None:
    row = compare(name, ["inter"], seeds=2, steps=20, draws=16, attribution=False).table.loc["inter"]
    assert row[c.SPEEDUP_MACHINE_LOW] < row[c.SPEEDUP] < row[c.SPEEDUP_MACHINE_HIGH]
    assert row[c.STEP_S_MACHINE_LOW] < row[c.STEP_S] < row[c.STEP_S_MACHINE_HIGH]
