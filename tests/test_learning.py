"""What staleness and length bias cost: the worth of a step, the way to a reward, and the time that follows."""

from __future__ import annotations

import re
from math import exp, isnan, log
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oppo_sim
from oppo_sim import columns as c
from oppo_sim import compare, load_scenario, simulate
from oppo_sim.cli.main import run
from oppo_sim.errors import OppoError
from oppo_sim.learning import (
    NO_EFFECT,
    Effect,
    Learning,
    OwnEffect,
    Strength,
    effect_of,
    measured_effect,
    progress,
)
from oppo_sim.report.html_page import report_html
from oppo_sim.rewards import NoRewards, SaturatingRewards, SeriesRewards, learning_of
from oppo_sim.runs.to_reward import Drawn, to_reward_columns
from tests.cli_runs import write_scenario

HALVES = Strength(log(2.0), log(4.0))
"""An update of staleness halves a rollout's worth; a length bias of 50 % halves a step's."""


def totals(step_s: float, shares: dict[int, float], bias: float = 0.0, gpus: float = 2.0) -> dict[str, float]:
    known = {c.share("staleness", value): shares.get(value, 0.0) for value in range(c.LAST_SHARE + 1)}
    return {**known, c.TIMING_STEP: step_s, "length_mean": 10 * (1 + bias), c.ON_POLICY_LENGTH_MEAN: 10.0, c.NUM_GPUS: gpus}  # fmt: skip


# ---- the worth of a step -----------------------------------------------------------------------------------


def test_the_worth_of_a_step_by_hand() -> None:
    assert progress([1.0], 0.0, HALVES) == 1.0
    assert progress([0.5, 0.25, 0.25], 0.0, HALVES) == pytest.approx(0.5 + 0.25 / 2 + 0.25 / 4)
    assert progress([1.0], -0.5, HALVES) == pytest.approx(0.5)
    assert progress([0.0, 1.0], 0.5, HALVES) == pytest.approx(0.25)


counts = st.lists(st.integers(0, 50), min_size=1, max_size=17).filter(any)
strengths = st.builds(Strength, st.floats(0, 5), st.floats(0, 5))


@given(counts, st.integers(0, 16), st.integers(1, 10), st.floats(-0.9, 3), strengths)
def test_more_staleness_is_never_worth_more(
    found: list[int], place: int, later: int, bias: float, strength: Strength
) -> None:
    place %= len(found)
    moved = [*found, *[0] * later]
    moved[place + later] += moved[place]
    moved[place] = 0
    fresh, stale = ([count / sum(each) for count in each] for each in (found, moved))
    assert progress(stale, bias, strength) <= progress(fresh, bias, strength) * (1 + 1e-12)


@given(counts, st.floats(0, 0.9), st.floats(0, 2), strengths)
def test_more_bias_is_never_worth_more_and_a_step_at_most_one(
    found: list[int], bias: float, more: float, strength: Strength
) -> None:
    shares = [count / sum(found) for count in found]
    assert 0 <= progress(shares, bias + more, strength) <= progress(shares, -bias, strength) * (1 + 1e-12)
    assert progress(shares, bias, strength) <= 1 + 1e-12


@given(counts, st.floats(-0.9, 3))
def test_without_an_effect_every_step_is_worth_one(found: list[int], bias: float) -> None:
    assert progress([count / sum(found) for count in found], bias, NO_EFFECT.strength) == pytest.approx(1.0)


# ---- what a scenario says ----------------------------------------------------------------------------------


def test_steps_to_the_target() -> None:
    curve: dict[str, Any] = {"start": 1.0, "limit": 3.0, "time_constant": 100.0}
    assert SaturatingRewards(**curve, target=2.0).steps_to_target() == pytest.approx(100 * log(2))
    assert SaturatingRewards(**curve).steps_to_target() == pytest.approx(100 * log(10))  # 90 % of the way
    assert SaturatingRewards(**curve, target_steps=7.0).steps_to_target() == 7.0
    assert learning_of(NoRewards(), 40).target_steps == 40.0
    assert learning_of(SeriesRewards(values=(1.0,), target_steps=12.0), 40).target_steps == 12.0


def test_a_target_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, rewards={"kind": "saturating", "start": 0.0, "limit": 1.0, "target": 1.5})
    with pytest.raises(OppoError, match=r"target 1\.5 is never reached: give a reward between start"):
        load_scenario(str(path))


def test_an_effect_of_ones_own() -> None:
    exact = effect_of(OwnEffect(staleness=0.3, length_bias=0.1))
    assert (exact.strength, exact.draws) == (Strength(0.3, 0.1), ())
    spread = effect_of(OwnEffect(staleness=0.3, length_bias=0.1, spread=0.5))
    assert spread.draws == effect_of(OwnEffect(staleness=0.3, length_bias=0.1, spread=0.5)).draws
    ratios = [draw.staleness / 0.3 for draw in spread.draws]
    assert min(ratios) < exp(-0.5) < exp(0.5) < max(ratios)
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        OwnEffect(staleness=-0.1)


def test_the_measured_effect_says_what_it_is() -> None:
    found = measured_effect()
    assert effect_of("measured") is found
    assert all(value >= 0 for draw in (found.strength, *found.draws) for value in draw)
    assert len(found.draws) >= 32
    assert "tiny models" in found.sentence
    assert "unproven at scale" in found.sentence


# ---- time to the reward ------------------------------------------------------------------------------------


def test_time_and_gpu_hours_to_the_reward_by_hand() -> None:
    learning = Learning(100.0, Effect(HALVES, (), ""))
    stale, fresh = totals(18.0, {1: 1.0}), totals(36.0, {0: 1.0})
    assert learning.columns(stale) == {c.PROGRESS: 0.5, c.TIME_TO_REWARD_S: 3600.0}
    row = to_reward_columns([stale], [fresh], learning)
    assert row[c.HOURS_TO_REWARD] == pytest.approx(1.0)
    assert row[c.GPU_HOURS_TO_REWARD] == pytest.approx(2.0)
    assert row[c.REWARD_SPEEDUP] == pytest.approx(1.0)  # half the time a step, twice the steps
    assert isnan(row[c.HOURS_TO_REWARD_LOW])  # one seed, an exact machine, an exact effect


def test_the_interval_is_of_the_effect_where_nothing_else_is_unknown() -> None:
    draws = (Strength(0.0, 0.0), Strength(2 * log(2.0), 0.0))
    learning = Learning(100.0, Effect(HALVES, draws, ""))
    row = to_reward_columns([totals(18.0, {1: 1.0})], [totals(36.0, {0: 1.0})], learning)
    # An update is worth 1 or a quarter: 0.5 to 2 hours.
    assert row[c.HOURS_TO_REWARD_LOW] == pytest.approx(0.5)
    assert row[c.HOURS_TO_REWARD_HIGH] == pytest.approx(2.0)
    assert row[c.REWARD_SPEEDUP_HIGH] == pytest.approx(2.0)


def test_a_draw_of_the_machine_goes_with_a_draw_of_the_effect() -> None:
    draws = (Strength(0.0, 0.0), Strength(2 * log(2.0), 0.0))
    learning = Learning(100.0, Effect(HALVES, draws, ""))
    own, base = totals(18.0, {1: 1.0}), totals(36.0, {0: 1.0})
    drawn = [[Drawn(0, totals(9.0, {1: 1.0}), base)], [Drawn(0, totals(36.0, {1: 1.0}), base)]]
    row = to_reward_columns([own], [base], learning, drawn)
    # 9 s at a worth of 1, 36 s at a worth of a quarter.
    assert row[c.HOURS_TO_REWARD_LOW] == pytest.approx(0.25)
    assert row[c.HOURS_TO_REWARD_HIGH] == pytest.approx(4.0)


STRONG = {"kind": "none", "staleness_effect": {"staleness": 2.0}}
NONE = {"kind": "none", "staleness_effect": "none"}


def test_a_run_is_the_same_whatever_the_effect(tmp_path: Path) -> None:
    strong, none = (
        simulate(load_scenario(str(write_scenario(tmp_path, rewards=rewards)))).steps
        for rewards in (STRONG, NONE)
    )
    assert strong.equals(none)


def test_the_best_overcommit_is_smaller_but_not_0_where_staleness_costs(tmp_path: Path) -> None:
    mild = {"kind": "none", "staleness_effect": {"staleness": 0.15}}
    path = write_scenario(tmp_path, steps=40, rewards=mild)
    grid = {"policy.overcommit": [0, 1, 2, 4, 8, 16]}

    def best(**changes: Any) -> int:
        found = oppo_sim.sweep(str(path), grid=grid, seeds=3, steps=40, draws=0, executor="serial", **changes)
        assert found.best is not None
        return int(found.points.loc[found.best, "policy.overcommit"])

    quickest = best()
    assert best(objective="time_to_reward", overrides={"rewards.staleness_effect": "none"}) == quickest
    assert 0 < best(objective="time_to_reward") < quickest


def test_compare_gives_the_time_to_the_reward(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, rewards=NONE)
    table = compare(str(path), ["oppo"], seeds=3, attribution=False, draws=0).table
    steps = load_scenario(str(path)).steps
    for _, row in table.iterrows():
        assert row[c.PROGRESS] == pytest.approx(1.0)
        assert row[c.HOURS_TO_REWARD] == pytest.approx(row[c.STEP_S] * steps / 3600, rel=0.05)
        assert row[c.REWARD_SPEEDUP] == pytest.approx(row[c.SPEEDUP])
    widths = []
    for spread in (0.0, 1.0):
        rewards = {**STRONG, "staleness_effect": {"staleness": 2.0, "spread": spread}}
        path = write_scenario(tmp_path, rewards=rewards)
        row = compare(str(path), ["oppo"], seeds=3, attribution=False, draws=0).table.loc["oppo"]
        assert row[c.PROGRESS] < 1.0
        assert row[c.REWARD_SPEEDUP] < row[c.SPEEDUP]
        widths.append(row[c.REWARD_SPEEDUP_HIGH] / row[c.REWARD_SPEEDUP_LOW])
    assert widths[1] > widths[0]


def test_compare_ranks_by_the_time_to_the_reward_where_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def compared(name: str, *words: str, spread: float = 0.0) -> tuple[str, str]:
        """What the terminal and the report say."""
        effect = {"staleness": 2.0, "spread": spread}
        path = write_scenario(tmp_path, rewards={"kind": "none", "staleness_effect": effect})
        given = ["compare", str(path), "--policies", "inter", "--seeds", "3", "--no-attribution"]
        assert run([*given, "--no-figures", "-o", name, *words]) == 0
        (told,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("best: "))
        return told, report_html([name])

    told, page = compared("quickest")
    assert re.fullmatch(
        r"best: inter, 1\.\d\d× \[1\.\d+, 1\.\d+\]; every other policy is significantly slower over the seeds",
        told,
    )
    assert "takes the shortest step on tiny" in page
    by_reward = ("--objective", "time_to_reward")
    told, page = compared("soonest", *by_reward)
    ending = "every other policy is significantly later there over the seeds"
    assert told == f"best: sequential, to the target reward; {ending}"
    assert "reaches the target reward first on tiny" in page
    assert "a step being worth 1.00 on-policy steps" in page
    assert "Every other policy reaches it later on 3 paired seeds" in page
    # An effect that may be as good as none, or larger: nothing can be said.
    told, page = compared("unsure", *by_reward, spread=3.0)
    over = "the draws of the effect of staleness"
    assert told.startswith(
        f"best: sequential, to the target reward; ≈ inter: not told apart from it over the seeds and {over}"
    )
    assert f"inter cannot be told apart from it on 3 paired seeds and {over}" in page
    with pytest.raises(OppoError, match="objective 'tokens' is not known: choose rollouts, time_to_reward"):
        compare("tiny.yaml", ["inter"], objective="tokens")  # type: ignore[arg-type]
