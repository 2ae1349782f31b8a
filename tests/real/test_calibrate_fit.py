"""Fits of measured seconds: known truths are found again within the intervals, and whole regimes are held
out."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oppo_real.calibrate.fit import (
    DECODE_BASIS,
    FEATURES,
    PREFILL_BASIS,
    Measured,
    fit_table,
    measured_points,
    regimes,
    steadied,
)
from oppo_real.calibrate.measure import Visit
from oppo_real.calibrate.plan import make_plan
from oppo_real.calibrate.point import Point
from oppo_real.calibrate.profile import forward_table
from oppo_real.calibrate.sizes import Sizes
from oppo_sim.draws import draw_normal, stream_key
from oppo_sim.errors import OppoError

SIZES = Sizes(32, 32, 128, 896, (64, 128, 256), 4096)
PLAN = make_plan(SIZES)
DECODE_TRUTH = {"fixed": 4e-3, "per_rollout": 3e-5, "per_kv_token": 2e-7, "per_longest_kv_token": 1e-6}
PREFILL_TRUTH = {"fixed": 2e-3, "per_token": 4e-6, "per_pair": 3e-9}


def synthetic(
    kind: str, truth: dict[str, float], noise: float, seed: int, repeats: int = 7
) -> list[Measured]:
    """Repeats of the plan's points under a known truth with relative noise."""
    made = []
    for index, point in enumerate(point for point in PLAN.points if point.kind == kind):
        seconds = sum(value * FEATURES[name](point) for name, value in truth.items())
        key = stream_key(seed, f"{kind}/{index}")
        made.append(
            Measured(
                point, tuple(seconds * (1 + noise * draw_normal(key, visit)) for visit in range(repeats))
            )
        )
    return made


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_known_coefficients_lie_within_the_intervals(seed: int) -> None:
    fit = fit_table("decode", synthetic("decode", DECODE_TRUTH, 0.02, seed), DECODE_BASIS)
    for one in fit.coefficients:
        assert one.low <= DECODE_TRUTH[one.name] <= one.high, one
        assert one.low <= one.value <= one.high
    by_name = {one.name: one.value for one in fit.coefficients}
    assert by_name["per_kv_token"] == pytest.approx(DECODE_TRUTH["per_kv_token"], rel=0.05)
    assert by_name["per_longest_kv_token"] == pytest.approx(DECODE_TRUTH["per_longest_kv_token"], rel=0.25)


def test_without_noise_the_truth_is_found_exactly() -> None:
    fit = fit_table("prefill", synthetic("prefill", PREFILL_TRUTH, 0.0, 0), PREFILL_BASIS)
    assert {one.name: one.value for one in fit.coefficients} == pytest.approx(PREFILL_TRUTH, rel=1e-6)
    assert fit.median_error < 1e-9
    assert fit.repeat_spread == 0
    assert all(one.largest_error < 1e-6 for one in fit.held_out)


def off_by(found: list[Measured], truth: list[float]) -> float:
    """Root mean square of relative errors."""
    return float(
        (sum((one.seconds / true - 1.0) ** 2 for one, true in zip(found, truth, strict=True)) / len(truth))
        ** 0.5
    )


@pytest.mark.parametrize("lost", [-6e-6, 0.0, 6e-6])
def test_a_prefill_that_noise_took_away_does_not_take_the_fit_with_it(lost: float) -> None:
    steady = synthetic("prefill", PREFILL_TRUTH, 0.03, 1, repeats=1)
    truth = [
        sum(value * FEATURES[name](one.point) for name, value in PREFILL_TRUTH.items()) for one in steady
    ]
    for place, one in enumerate(steady):
        noisy = [*steady[:place], Measured(one.point, (lost,)), *steady[place + 1 :]]
        fit = fit_table("prefill", noisy, PREFILL_BASIS, resamples=2)
        fitted = [Measured(one.point, (fit.predict(one.point),)) for one in noisy]
        assert off_by(fitted, truth) < 1 / 3, one.point.label()
        table, _ = forward_table("prefill", steadied(noisy, fit), fit)
        assert table.seconds[-1][-1] > 0.5 * max(truth)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_noisy_repeats_are_drawn_to_the_fit_and_steady_ones_stay(seed: int) -> None:
    truth = [one.seconds for one in synthetic("decode", DECODE_TRUTH, 0.0, seed)]
    # What no basis says: every other point takes a fifth longer.
    steps = [1.2 if place % 2 else 1.0 for place in range(len(truth))]

    def measured(noise: float, factors: list[float]) -> list[Measured]:
        made = synthetic("decode", DECODE_TRUTH, noise, seed, repeats=3)
        return [
            Measured(one.point, tuple(second * factor for second in one.repeats))
            for one, factor in zip(made, factors, strict=True)
        ]

    noisy = measured(0.2, [1.0] * len(truth))
    found = steadied(noisy, fit_table("decode", noisy, DECODE_BASIS, resamples=2))
    assert off_by(found, truth) < 0.6 * off_by(noisy, truth)

    steady = measured(0.005, steps)
    found = steadied(steady, fit_table("decode", steady, DECODE_BASIS, resamples=2))
    for one, there in zip(found, steady, strict=True):
        assert one.seconds == pytest.approx(there.seconds, rel=0.002)

    few = steady[:3]
    assert steadied(few, fit_table("decode", steady, DECODE_BASIS, resamples=2)) == [
        Measured(one.point, (one.seconds,)) for one in few
    ]


def test_total_and_longest_kv_are_told_apart() -> None:
    only_longest = {"fixed": 4e-3, "per_longest_kv_token": 2e-6}
    fit = fit_table("decode", synthetic("decode", only_longest, 0.01, 5), DECODE_BASIS)
    by_name = {one.name: one for one in fit.coefficients}
    assert by_name["per_longest_kv_token"].low > 1e-6
    assert by_name["per_kv_token"].value * SIZES.max_running < 0.05 * 2e-6


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.0, 0.5))
def test_no_coefficient_or_prediction_is_negative(seed: int, noise: float) -> None:
    data = synthetic("prefill", {"fixed": -1e-3, "per_token": 4e-6}, noise, seed, repeats=3)
    fit = fit_table("prefill", data, PREFILL_BASIS, resamples=20)
    assert all(one.value >= 0 and one.low >= 0 for one in fit.coefficients)
    assert all(fit.predict(one.point) >= 0 for one in data)


def test_intervals_grow_with_the_noise() -> None:
    def width(noise: float) -> float:
        fit = fit_table("decode", synthetic("decode", DECODE_TRUTH, noise, 4), DECODE_BASIS)
        return fit.coefficients[2].high - fit.coefficients[2].low

    assert width(0.001) < width(0.01) < width(0.1)


def test_a_regime_is_held_out_whole() -> None:
    """Batches beyond 16 rollouts that cost more than the others foretell show up in their own regime and
    nowhere else."""
    data = [
        Measured(one.point, tuple(second * (3.0 if one.point.n > 16 else 1.0) for second in one.repeats))
        for one in synthetic("decode", DECODE_TRUTH, 0.0, 0)
    ]
    groups = regimes(data)
    sizes = [{data[index].point.n for index in group} for group in groups]
    assert len(groups) == 4
    assert sorted(index for group in groups for index in group) == list(range(len(data)))
    assert all(max(a) < min(b) for a, b in pairwise(sizes)), "no batch size is in two regimes"
    held = fit_table("decode", data, DECODE_BASIS).held_out
    assert held[-1].median_error > 0.3
    assert [one.extrapolated for one in held] == [True, False, False, True]
    assert [one.points for one in held] == [len(group) for group in groups]


def test_the_same_data_and_seed_give_the_same_fit() -> None:
    data = synthetic("decode", DECODE_TRUTH, 0.05, 9)
    assert fit_table("decode", data, DECODE_BASIS, seed=3) == fit_table("decode", data, DECODE_BASIS, seed=3)
    assert fit_table("decode", data, DECODE_BASIS, seed=3) != fit_table("decode", data, DECODE_BASIS, seed=4)


def test_the_worst_points_are_named() -> None:
    data = synthetic("decode", DECODE_TRUTH, 0.0, 0)
    odd = 5
    data[odd] = Measured(data[odd].point, tuple(2 * second for second in data[odd].repeats))
    fit = fit_table("decode", data, DECODE_BASIS)
    assert fit.worst[0].label == data[odd].point.label()
    assert fit.worst[0].error > 0.3


def test_what_cannot_be_fitted_is_said() -> None:
    with pytest.raises(OppoError, match="nothing was measured of decode"):
        fit_table("decode", [], DECODE_BASIS)
    point = Point("decode", ((10, 1),))
    with pytest.raises(OppoError, match="not finite"):
        fit_table("decode", [Measured(point, (float("nan"),))], DECODE_BASIS)


def test_a_point_takes_the_middle_of_what_its_visits_took_on_average() -> None:
    # Slow iterations count, and one wild visit of five does not: means 2, 2, 2.2, 2.4 and 50; the means of all
    # pairs in order: 2, 2, 2, 2.1, 2.1, 2.2, 2.2, 2.2, 2.3, 2.4, then those with 50.
    point = Point("sync", ())
    samples = [(1.0, 1.0, 4.0), (2.0,), (2.2, 2.2), (2.0, 2.8), (50.0,)]
    (found,) = measured_points([Visit(point, number, seconds) for number, seconds in enumerate(samples)])
    assert found.repeats == pytest.approx((2.0, 2.0, 2.2, 2.4, 50.0))
    assert found.seconds == pytest.approx(2.2)
