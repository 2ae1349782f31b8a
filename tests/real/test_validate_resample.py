"""Profiles drawn anew carry the spread of the visits and of the rounds together."""

import json
from pathlib import Path

from oppo_real.calibrate.contention import Meeting, Round, contention_of
from oppo_real.calibrate.measure import Visit
from oppo_real.calibrate.plan import Point
from oppo_real.validate.resample import resampled_profiles
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
    alone = [one.contention_factor for one in resampled_profiles(profile, visits, [], 5, 0)]
    assert set(alone) == {1.1}
