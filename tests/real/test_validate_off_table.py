"""How far batches that no cell holds lie from the tables is measured without chance, and part of intervals."""

import json
from math import exp, log
from pathlib import Path

import numpy as np
import pytest

from oppo_real.calibrate.contention import Meeting, Round, contention_of, kv_tokens_met
from oppo_real.calibrate.measure import Visit
from oppo_real.calibrate.point import Point
from oppo_real.validate.off_table import NOTHING_OFF, OffTable, off_table
from oppo_real.validate.resample import resampled_profiles
from oppo_sim.costs.profile import Profile, load_profile
from tests.test_costs_profile import TRUTH, content


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    (tmp_path / "profile.json").write_text(json.dumps(content()))
    return load_profile(tmp_path / "profile.json")


def visits(point: Point, *seconds: float) -> list[Visit]:
    return [Visit(point, number, (second,)) for number, second in enumerate(seconds)]


TAIL = Point("decode", ((100, 1), (100, 1), (100, 1), (500, 1)))
CHUNKS = Point("score", ((500, 100),) * 3)


def test_it_is_measured_over_told_seconds_of_batches_in_no_cell(profile: Profile) -> None:
    decoded, scored = TRUTH.decode_time(4, 800.0), 2.0 * TRUTH.prefill_time(300, CHUNKS.pairs)
    in_a_cell = Point("decode", ((200, 1),) * 4, (4.0, 800.0))
    trained = Point("train", ((100, 4900),))
    update = [Visit(trained, number, (1.0,), (), {"values": 0.15, "update_actor": 1.2}) for number in (0, 1)]
    told = sum(5000 * 1e-5 * (i + 1) for i in range(4)) + 0.5 + 1.0
    found = off_table(
        profile,
        [
            *visits(TAIL, 1.1 * decoded, 1.1 * decoded),
            *visits(in_a_cell, 5.0 * decoded, 5.0 * decoded),
            *visits(CHUNKS, 0.9 * scored, 0.9 * scored),
            *update,
        ],
        [],
    )
    assert found.decode == pytest.approx([log(1.1)])
    assert found.score == pytest.approx([log(0.9)])
    assert found.train == pytest.approx([log(1.35 / told)])
    assert found.told.startswith(
        "batches of the calibration that are in no cell lie 9.5% (decoding), 10.5% (sc"
    )
    assert not NOTHING_OFF.told


def test_chance_is_taken_out(profile: Profile) -> None:
    decoded = TRUTH.decode_time(4, 800.0)
    # Logarithms of 0.03 beside the table; one visit is off by 0.02 · √2, their middle by 0.02.
    found = off_table(profile, visits(TAIL, decoded * exp(0.01), decoded * exp(0.05)), [])
    (off,) = found.decode
    assert off == pytest.approx((0.03**2 - 0.02**2) ** 0.5, rel=0.02)
    by_chance = off_table(profile, visits(TAIL, decoded * exp(-0.04), decoded * exp(0.05)), [])
    assert by_chance.decode == pytest.approx([0.0])


def test_batches_that_ran_alone_between_the_rounds_count(profile: Profile) -> None:
    """They decode with contexts that grow, score what they never saw, and update as a visit does."""
    trained = Point("train", ((100, 4900),), (5000.0, 0.0))
    assert kv_tokens_met(TAIL) == 800 - 4 * 25, "the shortest grows by 50, and so do all"
    decoded = TRUTH.decode_time(4, kv_tokens_met(TAIL))
    scored = 2.0 * TRUTH.prefill_time(300, 3 * 100**2 / 2.0)
    met = [
        contention_of(
            Meeting(("decode", "score"), (TAIL, CHUNKS)),
            [Round((1.02 * decoded, 0.97 * scored), (decoded, scored))] * 2,
        ),
        contention_of(
            Meeting(("decode", "train"), (TAIL, trained)),
            [Round((1.02 * decoded, 2.1), (decoded, 2.0))] * 2,
        ),
    ]
    found = off_table(profile, visits(trained, 2.0, 2.0), met)
    assert found.decode == pytest.approx([log(1.02)])
    assert found.score == pytest.approx([log(0.97)])
    assert found.train == pytest.approx([log(1.05)])


def test_profiles_are_off_by_it_regime_by_regime(profile: Profile) -> None:
    sync = Point("sync", ())
    off = OffTable(decode=(0.02, -0.04), train=(0.03,))
    drawn = list(resampled_profiles(profile, visits(sync, 0.1, 0.1), [], 400, 0, off))
    first = [one.decode.rows[0].seconds[0] / profile.decode.rows[0].seconds[0] for one in drawn]
    last = [one.decode.rows[-1].seconds[0] / profile.decode.rows[-1].seconds[0] for one in drawn]
    assert {round(log(factor), 6) for factor in first} == {0.02, 0.04, -0.02, -0.04}
    assert np.mean(np.log(first)) == pytest.approx(0.0, abs=0.005), "neither way more than the other"
    assert 0.1 < np.mean(np.array(first) == np.array(last)) < 0.9, "each regime has its own"
    updates = np.array([one.training.update_actor for one in drawn]) / np.array(profile.training.update_actor)
    assert np.ptp(updates, axis=1).max() < 1e-12, "one batch, so all regimes lie the same way"
    assert {round(log(one.score.seconds[0][0] / profile.score.seconds[0][0]), 6) for one in drawn} == {0.0}
    assert [one.decode for one in resampled_profiles(profile, visits(sync, 0.1, 0.1), [], 3, 0)] == [
        profile.decode
    ] * 3


def test_which_batch_of_the_rounds_a_run_is_like_is_drawn(profile: Profile) -> None:
    sync = Point("sync", ())
    other = Point("sync", ((1, 1),))
    met = [
        contention_of(Meeting(("decode", "score"), (sync, point)), [Round((1.0, 1.0), (slower, slower))] * 3)
        for point, slower in ((sync, 1.0), (other, 1.3))
    ]
    drawn = [
        one.slowdowns.decode
        for one in resampled_profiles(profile, visits(sync, 0.1, 0.1), met, 400, 0)
        if one.slowdowns is not None
    ]
    assert {round(one, 6) for one in drawn} == {1.0, 1.3}
    assert drawn.count(1.0) / len(drawn) == pytest.approx(0.5, abs=0.1)
