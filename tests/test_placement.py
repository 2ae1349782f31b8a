"""What costs told for one split of the GPUs miss on another: ranges between splits hold it, others do not."""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oppo_sim
from oppo_sim import columns as c
from oppo_sim.cli.main import run
from oppo_sim.costs.terms import FACTORS, CostTerms
from oppo_sim.fast.choose import run_summary
from oppo_sim.report.ranges import placement_sentence
from oppo_sim.results.summary import run_totals
from oppo_sim.runs.machine import machine_of, on_machine
from oppo_sim.runs.placement import PLACEMENT, PLACEMENT_SIGMA, placement_factor, slower
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.cluster import Split
from oppo_sim.scenario.load import load_scenario
from oppo_sim.sweep.show import notes
from oppo_sim.tune.worlds import WorldSpec
from tests.cli_runs import write_scenario
from tests.test_comparison_draws import constant, write_drawn
from tests.tuning import choices, search

REPLICAS = "rollout.num_replicas"
SURE = "decode\n" + "1\n" * 40
"""Nothing is unknown about the costs themselves."""
SMALL = {"seeds": 2}
splits = st.builds(
    Split,
    st.integers(1, 64),
    st.sampled_from([1, 2, 4, 8]),
    st.one_of(st.integers(1, 8), st.sampled_from(["rollout", "training", "cpu"])),
    st.one_of(st.integers(1, 64), st.just("rollout")),
)


def factors(path: Path, replicas: int, count: int = 40) -> list[float]:
    base = load_scenario(path)
    other = load_scenario(path, [f"{REPLICAS}={replicas}"])
    return [placement_factor(other.split, base.split, draw, base.seed) for draw in range(count)]


# ---- by hand -----------------------------------------------------------------------------------------------


@given(splits, splits, st.integers(0, 100), st.integers(0, 100))
def test_a_factor_is_that_of_its_split_draw_and_seed_alone(
    split: Split, base: Split, number: int, seed: int
) -> None:
    found = placement_factor(split, base, number, seed)
    assert found == placement_factor(split, base, number, seed) > 0
    assert placement_factor(base, base, number, seed) == 1.0
    if split != base:
        assert found != placement_factor(split, base, number, seed + 1)
        assert found != placement_factor(split, base, number + 1, seed)
        elsewhere = base._replace(replicas=base.replicas + 100)
        assert found == placement_factor(split, elsewhere, number, seed)


def test_factors_have_the_width_that_was_measured_and_differ_between_splits() -> None:
    base = Split(1, 1, "cpu", "rollout")
    one, two = (
        [log(placement_factor(base._replace(replicas=n), base, draw, 0)) for draw in range(4000)]
        for n in (2, 4)
    )
    assert stdev(one) == pytest.approx(PLACEMENT_SIGMA, rel=0.05)
    assert fmean(one) == pytest.approx(0.0, abs=0.02)
    assert abs(fmean([a * b for a, b in zip(one, two, strict=True)])) < 0.1 * PLACEMENT_SIGMA**2


@pytest.mark.parametrize("engine", ["compiled", "simpy"])
def test_a_slower_run_is_one_whose_costs_are_all_slower(tmp_path: Path, engine: Any) -> None:
    scenario = load_scenario(write_scenario(tmp_path))
    twice = on_machine(scenario, CostTerms(**dict.fromkeys(set(FACTORS) - _STAGES, 2.0)))
    of, wanted = (
        run_totals(run_summary(build_setup(each), engine=engine)[0], scenario.rollout_batch_size, 3)
        for each in (scenario, twice)
    )
    assert slower(of, 2.0) == pytest.approx(wanted, rel=1e-9, nan_ok=True)
    assert slower(of, 1.0) == pytest.approx(of, rel=0, abs=0, nan_ok=True)


_STAGES = frozenset(c.STAGES)
"""``training`` is a factor on all of them."""


def test_the_range_of_another_split_is_that_of_its_factors(tmp_path: Path) -> None:
    path = constant(tmp_path, SURE)
    found = oppo_sim.sweep(path, grid={REPLICAS: [2, 4]}, **SMALL).points.set_index(REPLICAS)
    # Ten tokens in 10 s and 4 s of training, however many engines.
    assert found[c.STEP_S].tolist() == pytest.approx([14.0, 14.0])
    ordered = sorted(factors(path, 4))
    ends = [14.0 * exp(_at(ordered, place)) for place in (0.025, 0.975)]
    assert found.loc[4, [c.STEP_S_MACHINE_LOW, c.STEP_S_MACHINE_HIGH]].tolist() == pytest.approx(ends)
    low, high = (end / 14.0 - 1.0 for end in ends)
    assert found.loc[4, c.DIFFERENCE_BOTH_LOW] == pytest.approx(low)
    assert found.loc[4, c.DIFFERENCE_BOTH_HIGH] == pytest.approx(high)
    won = sum(factor < 1.0 for factor in ordered) / 40
    assert found[c.P_BEST].to_dict() == pytest.approx({2: 1.0 - won, 4: won})
    assert found.loc[2, [c.STEP_S_MACHINE_LOW, c.STEP_S_MACHINE_HIGH]].tolist() == pytest.approx([14.0, 14.0])
    # Over its own baseline, on the same GPUs, it gains what it gained.
    assert found.loc[4, [c.SPEEDUP_MACHINE_LOW, c.SPEEDUP_MACHINE_HIGH]].tolist() == pytest.approx([1.0, 1.0])
    assert (found.loc[4, c.DIFFERENCE_WIDEST], found.loc[4, c.DIFFERENCE_WIDEST_SHARE]) == (PLACEMENT, 1.0)


def _at(ordered: list[float], place: float) -> float:
    """On the log scale, place (n + 1), counted from 1."""
    at = place * (len(ordered) + 1) - 1
    low = min(int(at), len(ordered) - 2)
    return log(ordered[low]) + (at - low) * (log(ordered[low + 1]) - log(ordered[low]))


# ---- what cancels ------------------------------------------------------------------------------------------

DRAWS = "decode,training\n" + "".join(f"{1 + 0.02 * (n % 7)},{1 + 0.03 * (n % 5)}\n" for n in range(40))


def test_points_on_the_split_that_costs_were_told_for_stay_as_they_are(tmp_path: Path) -> None:
    path = write_drawn(tmp_path, DRAWS)
    grid = {"policy.chunk_size": [4, 40]}
    alone = oppo_sim.sweep(path, grid=grid, **SMALL).points
    beside = oppo_sim.sweep(path, grid={**grid, REPLICAS: [2, 4]}, **SMALL).points
    own = beside[beside[REPLICAS] == 2].reset_index(drop=True)
    for name in (c.STEP_S_MACHINE_LOW, c.STEP_S_MACHINE_HIGH, c.SPEEDUP_BOTH_LOW, c.SPEEDUP_BOTH_HIGH):
        pd.testing.assert_series_equal(own[name], alone[name], check_exact=True)
    scenario = load_scenario(path)
    assert machine_of(scenario, 40, scenario.split) == machine_of(scenario, 40)


def test_two_points_on_one_other_split_are_compared_as_on_their_own(tmp_path: Path) -> None:
    grid: dict[str, Any] = {"policy.chunk_size": [4, 40], REPLICAS: [4]}
    moved = oppo_sim.sweep(write_drawn(tmp_path, DRAWS), grid=grid, **SMALL)
    (tmp_path / "own").mkdir()
    own = oppo_sim.sweep(
        write_drawn(tmp_path / "own", DRAWS, rollout={"num_replicas": 4}), grid=grid, **SMALL
    )
    for name in (c.DIFFERENCE_BOTH_LOW, c.DIFFERENCE_BOTH_HIGH, c.P_BEST):
        assert moved.points[name].tolist() == pytest.approx(own.points[name].tolist())
    assert PLACEMENT not in moved.points[c.DIFFERENCE_WIDEST].dropna().tolist()
    width = moved.points[c.STEP_S_MACHINE_HIGH] / moved.points[c.STEP_S_MACHINE_LOW]
    assert (width > own.points[c.STEP_S_MACHINE_HIGH] / own.points[c.STEP_S_MACHINE_LOW]).all()


def test_draws_are_those_of_the_seed(tmp_path: Path) -> None:
    path = write_drawn(tmp_path, DRAWS)
    first, again, other = (
        oppo_sim.sweep(path, grid={REPLICAS: [2, 4]}, overrides={"seed": seed}, **SMALL).points
        for seed in (0, 0, 5)
    )
    pd.testing.assert_frame_equal(first, again)
    width = [(each[c.DIFFERENCE_BOTH_HIGH] - each[c.DIFFERENCE_BOTH_LOW]).max() for each in (first, other)]
    assert width[0] > 0.1 < width[1]
    assert width[0] != pytest.approx(width[1], rel=1e-3)


@pytest.mark.parametrize("how", [{"draws": 0}, {"overrides": {"costs.draws": "none"}}])
def test_where_nothing_is_drawn_nothing_is_widened(tmp_path: Path, how: dict[str, Any]) -> None:
    found = oppo_sim.sweep(write_drawn(tmp_path, DRAWS), grid={REPLICAS: [2, 4]}, **SMALL, **how)
    assert c.STEP_S_MACHINE_LOW not in found.points.columns
    assert not any(PLACEMENT in sentence for sentence in notes(found))


def test_the_time_to_a_reward_holds_it_and_what_it_gains_on_its_own_gpus_does_not(tmp_path: Path) -> None:
    path = constant(tmp_path, SURE)
    grid = {REPLICAS: [2, 4]}
    found = oppo_sim.sweep(path, grid=grid, objective="time_to_reward", **SMALL).points
    assert found[c.P_BEST].between(0.2, 0.8).all()
    narrow, wide = found[c.HOURS_TO_REWARD_HIGH] / found[c.HOURS_TO_REWARD_LOW]
    assert wide > 1.3 * narrow
    gains = (found[c.REWARD_SPEEDUP_HIGH] / found[c.REWARD_SPEEDUP_LOW]).tolist()
    assert gains[0] == pytest.approx(gains[1])


# ---- what is said ------------------------------------------------------------------------------------------


def test_a_sweep_over_splits_names_what_widens_most_and_how_it_was_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = constant(tmp_path, SURE)
    words = ["sweep", str(path), "--grid", f"{REPLICAS}=2,4,8", "--seeds", "2", "--no-figures"]
    folder = tmp_path / "swept"
    assert run([*words, "-o", str(folder)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "widened most by placement in 2 of 2 (100 % of the variance)" in said
    assert "ranges of other splits of GPUs than the scenario's hold what costs told for one miss" in said
    assert "Of 12 published gains that did not set it 11 lie within" in said
    assert run(["report", str(folder), "-o", str(tmp_path / "page.html")]) == 0
    assert "widened most by placement in 2 of 2" in (tmp_path / "page.html").read_text()
    of_chunks = " ".join(notes(oppo_sim.sweep(path, grid={"scoring.max_scoring_tokens": [99, 100]}, **SMALL)))
    assert "splits of GPUs" not in of_chunks and PLACEMENT not in of_chunks


def test_a_folder_over_splits_goes_on_and_an_older_one_is_shown(tmp_path: Path) -> None:
    path, folder = write_drawn(tmp_path, DRAWS), tmp_path / "swept"
    words = ["sweep", str(path), "--grid", f"{REPLICAS}=2,4", "--seeds", "2", "--no-figures"]
    assert run([*words, "-o", str(folder)]) == 0
    first, made = pd.read_parquet(folder / "points.parquet"), (folder / "runs.jsonl").read_text()
    assert run([*words, "-o", str(folder)]) == 0
    pd.testing.assert_frame_equal(pd.read_parquet(folder / "points.parquet"), first)
    assert (folder / "runs.jsonl").read_text() == made
    older = first.drop(columns=[c.DIFFERENCE_WIDEST, c.DIFFERENCE_WIDEST_SHARE])
    older.to_parquet(folder / "points.parquet")
    assert run(["report", str(folder), "-o", str(tmp_path / "page.html")]) == 0


def test_what_widens_less_or_elsewhere_is_not_named() -> None:
    widest = [(PLACEMENT, 0.9), ("decode", 0.6), (PLACEMENT, 0.4), (None, float("nan")), ("host", 0.01)]
    assert placement_sentence(widest) == (
        "differences from the best are widened most by placement in 2 of 3 (40 to 90 % of the variance)"
    )
    assert placement_sentence([("decode", 0.9)]) == ""
    assert placement_sentence([]) == ""


# ---- searches ----------------------------------------------------------------------------------------------

SPLITS: dict[str, Any] = {"policies": ("sequential",), "space": (choices(REPLICAS, 2, 4),), "trials": 2}


def test_a_search_over_splits_holds_and_names_it(tmp_path: Path) -> None:
    path = constant(tmp_path, SURE)
    found = search(load_scenario(path), **SPLITS)
    assert found.chosen is not None
    assert found.chosen.checked.setting.knobs[REPLICAS] == 2
    other = next(one for one in found.others if one.checked.setting.knobs.get(REPLICAS) == 4)
    assert other.alike
    ordered = sorted(factors(path, 4))
    low, high = (exp(_at(ordered, place)) - 1.0 for place in (0.025, 0.975))
    assert other.ranges[c.DIFFERENCE_BOTH_LOW] == pytest.approx(low)
    assert other.ranges[c.DIFFERENCE_BOTH_HIGH] == pytest.approx(high)
    assert other.ranges[c.DIFFERENCE_WIDEST] == PLACEMENT
    sections = {name: " ".join(said) for name, said in found.advised["sections"].items()}
    assert "widened most by placement" in sections["How sure the choice is"]
    assert "measure before GPUs are moved" in sections["What these numbers are not"]
    alone = search(load_scenario(path), draws=0, **SPLITS)
    assert "GPUs are moved" not in json.dumps(alone.advised["sections"])


def test_worlds_that_are_draws_of_the_machine_hold_it(tmp_path: Path) -> None:
    path = constant(tmp_path, SURE)
    found = search(load_scenario(path), worlds=WorldSpec(cost_worlds=3, drifts=(2.0,)), **SPLITS)
    assert found.chosen is not None
    by_replicas = {
        one.checked.setting.knobs[REPLICAS]: one
        for one in (found.chosen, *found.others)
        if REPLICAS in one.checked.setting.knobs
    }
    told, moved = ([row[c.STEP_S] for row in by_replicas[n].checked.rows] for n in (2, 4))
    # As given, longer lengths, then the three draws.
    assert [there / here for here, there in zip(told, moved, strict=True)] == pytest.approx(
        [1.0, 1.0, *factors(path, 4, 3)]
    )
    speedups = [row[c.SPEEDUP] for row in by_replicas[4].checked.rows]
    assert speedups == pytest.approx([1.0] * 5)
    wanted = [max(0.0, 1.0 / factor - 1.0) for factor in factors(path, 4, 3)]
    assert by_replicas[2].regrets[2:] == pytest.approx(wanted)


def test_a_search_over_splits_goes_on_in_its_folder(tmp_path: Path) -> None:
    scenario, folder = load_scenario(constant(tmp_path, SURE)), tmp_path / "found"
    first = search(scenario, folder, **SPLITS)
    made = (folder / "runs.jsonl").read_text()
    again = search(scenario, folder, **SPLITS)
    assert (folder / "runs.jsonl").read_text() == made
    assert again.record["others"] == first.record["others"]


def test_prior_draws_hold_it_too() -> None:
    scenario = load_scenario("h200-single")
    other = load_scenario("h200-single", [f"{REPLICAS}=2"])
    machine = machine_of(other, 4, scenario.split)
    assert machine.draws == machine_of(other, 4).draws
    assert machine.placement == tuple(
        placement_factor(other.split, scenario.split, draw, other.seed) for draw in range(4)
    )
