"""Profiles drawn anew carry the spread of the visits and of the rounds together."""

import json
from math import log
from pathlib import Path

import numpy as np
import pytest

from oppo_real.calibrate.contention import Meeting, Round, contention_of
from oppo_real.calibrate.fit import spread_of_repeats
from oppo_real.calibrate.measure import Visit
from oppo_real.calibrate.point import Point
from oppo_real.validate.resample import (
    resampled_profiles,
    sharing_in_runs,
    spread_of_moments,
    spread_of_runs,
)
from oppo_sim.costs.profile import load_profile
from tests.real.test_validate_predict import content


def test_the_interference_is_drawn_from_its_rounds(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(json.dumps({**content(), "contention_factor": 1.1}))
    profile = load_profile(tmp_path / "profile.json")
    sync = Point("sync", ())
    visits = [Visit(sync, number, (seconds,)) for number, seconds in enumerate((0.1, 0.1, 0.2))]
    rounds = [Round((1.0, 1.0), together) for together in ((1.1, 1.1), (1.0, 1.1), (2.0, 2.0))]
    beside = contention_of(Meeting(("decode", "score"), (sync, sync)), rounds)
    profiles = list(resampled_profiles(profile, visits, [beside], 200, 0))
    drawn = [one.contention_factor for one in profiles]
    assert {round(one or 0.0, 3) for one in drawn} == {1.049, 1.1, 2.0}
    assert 0.1 < drawn.count(2.0) / len(drawn) < 0.4, "two or three of three rounds: 7 of 27"
    assert all(one.time_slices is not None for one in profiles)
    assert {one.slowdowns and round(one.slowdowns.decode, 3) for one in profiles} == {1.0, 1.1, 2.0}
    alone = [one.contention_factor for one in resampled_profiles(profile, visits, [], 5, 0)]
    assert set(alone) == {1.1}


def test_a_run_may_meet_none_or_twice_of_the_other_work_that_rounds_met(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(json.dumps({**content(), "contention_factor": 1.0}))
    profile = load_profile(tmp_path / "profile.json")
    sync = Point("sync", ())
    visits = [Visit(sync, number, (0.1,)) for number in range(2)]
    rounds = [Round((1.0, 1.0), (1.25, 1.25), taken=(0.2, 0.2))] * 4
    beside = contention_of(Meeting(("decode", "score"), (sync, sync)), rounds)
    drawn = [one.contention_factor or 0.0 for one in resampled_profiles(profile, visits, [beside], 400, 0)]
    assert beside.factor == 1.0
    assert 1.0 <= min(drawn) < 1.05
    assert 1.5 < max(drawn) <= 1.25**2
    assert np.mean(np.log(drawn) / log(1.25)) == pytest.approx(1.0, abs=0.05)
    assert sharing_in_runs(profile, [beside]).contention_factor == pytest.approx(1.25)


def test_most_of_other_work_falls_on_the_scoring_workers_core(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(content()))
    profile = load_profile(tmp_path / "profile.json")
    sync = Point("sync", ())
    visits = [Visit(sync, number, (0.1,)) for number in range(2)]
    rounds = [Round((1.0, 1.0), (1.25, 1.25), taken=(0.2, 0.2))] * 4
    beside = contention_of(Meeting(("decode", "score"), (sync, sync)), rounds)
    drawn = [one.slowdowns for one in resampled_profiles(profile, visits, [beside], 400, 0)]
    decode, score = np.array([(one.decode, one.score) for one in drawn if one is not None]).T
    # Three quarters of what it took of both: 30 % of the one's time and 10 % of the other's.
    told = sharing_in_runs(profile, [beside]).slowdowns
    assert told is not None
    assert (told.decode, told.score) == pytest.approx((1 / 0.9, 1 / 0.7))
    # As much, all on that core: 40 % of its time; nothing of decoding.
    (all_of_it,) = [sharing_in_runs(profile, [beside], 1.0, 1.0).slowdowns]
    assert all_of_it is not None
    assert (all_of_it.decode, all_of_it.score) == pytest.approx((1.0, 1 / 0.6))
    assert (score >= decode).all()
    for drawn_so, said in ((decode, told.decode), (score, told.score)):
        low, high = np.quantile(drawn_so, [0.25, 0.75])
        assert low < said < high, "the point is in the middle of its interval"
    # In turns on one core there is no other core to fall on.
    slices = [one.time_slices for one in resampled_profiles(profile, visits, [beside], 400, 0)]
    assert max(one.interference for one in slices if one is not None) <= 1.25**2


def test_a_point_visited_once_is_as_uncertain_as_a_visit_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(content()))
    profile = load_profile(tmp_path / "profile.json")
    cells = [
        (float(row.n_running), kv, row.seconds[place])
        for row in profile.decode.rows
        for place, kv in enumerate(row.kv_tokens)
    ]
    running, kv, seconds = cells[0]
    once = Point("decode", ((int(kv / running), 1),) * int(running), (running, kv))
    twice = Point("sync", ())
    visits = [Visit(once, 0, (seconds,)), Visit(twice, 0, (0.1,)), Visit(twice, 1, (0.121,))]
    assert spread_of_repeats([[seconds], [0.1, 0.121]]) == pytest.approx(log(1.21) / 2**0.5)
    drawn = [one.decode.rows[0].seconds[0] for one in resampled_profiles(profile, visits, [], 4000, 0)]
    assert np.std(np.log(drawn)) == pytest.approx(log(1.21) / 2**0.5, rel=0.05)
    alike = [*visits[:1], Visit(twice, 0, (0.1,)), Visit(twice, 1, (0.1,))]
    assert {one.decode.rows[0].seconds[0] for one in resampled_profiles(profile, alike, [], 5, 0)} == {
        seconds
    }


def test_the_spread_of_moments_is_that_of_neighbours() -> None:
    def visits(*speeds: float) -> list[Visit]:
        # Two batches by turns, of 0.1 and 0.9 s at the usual speed: one second is a moment.
        points = Point("score", ((0, 8),)), Point("score", ((0, 16),))
        return [
            Visit(point, number, (seconds * speed,))
            for number, speed in enumerate(speeds)
            for point, seconds in zip(points, (0.1, 0.9), strict=True)
        ]

    assert spread_of_moments(visits(1.0, 1.0, 1.0, 1.0), 0.9) == 0.0
    assert spread_of_moments(visits(1.0), 0.9) == spread_of_moments([], 1.0) == 0.0
    # One moment in three is 10 % slower: three of five steps are of log(1.1).
    some = spread_of_moments(visits(1.0, 1.1, 1.0, 1.0, 1.1, 1.0), 0.9)
    assert some == pytest.approx(log(1.1) * (4 / 5 / 2) ** 0.5)
    once = spread_of_moments(visits(1.0, 1.0, 1.0, 1.1, 1.1, 1.1), 0.9)
    assert once == pytest.approx(log(1.1) * (1 / 5 / 2) ** 0.5), "a change of speed is one step"


def test_the_spread_of_runs_is_what_neither_policy_nor_round_explains() -> None:
    policies, rounds = np.array([1.0, 2.0, 5.0]), np.array([1.0, 1.3, 0.9, 1.1])
    assert spread_of_runs(np.outer(policies, rounds).tolist()) == pytest.approx(0.0, abs=1e-12)
    assert spread_of_runs([[1.0, 2.0]]) == spread_of_runs([[1.0], [2.0]]) == 0.0
    draws = np.random.default_rng(1).normal(size=(60, 40)) * 0.05
    assert spread_of_runs((np.outer(np.ones(60), np.ones(40)) * np.exp(draws)).tolist()) == pytest.approx(
        0.05, rel=0.05
    )
