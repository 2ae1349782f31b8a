"""The statistics of a validation, on numbers that can be checked by hand."""

import json
from dataclasses import replace
from io import StringIO
from math import isnan, nan, sqrt
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from rich.console import Console

from oppo_real.calibrate.fit import middle
from oppo_real.validate.accuracy import Distribution, PredictionAccuracy, Speedup
from oppo_real.validate.compare import (
    agreement,
    bootstrap_speedup,
    compare_predictions,
    difference,
    mean_seconds,
    measured_speedup,
    percentile_interval,
)
from oppo_real.validate.figures import speedups_figure
from oppo_real.validate.measure import MeasuredRun, Turn, plan_turns, run_from_plain
from oppo_real.validate.present import share_rows, speedup_rows, tables
from oppo_real.validate.views import STAGES, WORK, StepView
from oppo_sim.errors import OppoError


def view(
    step_s: float,
    gen_s: float = 0.0,
    trained: tuple[int, ...] = (0, 1),
    deferred: int = 0,
    surplus: int = 0,
    delta: int = 0,
) -> StepView:
    seconds = dict.fromkeys(STAGES, 0.0) | {"gen": gen_s, "step": step_s}
    return StepView(seconds, trained, deferred, surplus, delta, 8, dict.fromkeys(WORK, 10.0))


def run(*step_s: float) -> list[StepView]:
    return [view(seconds, seconds / 2) for seconds in step_s]


def test_seconds_are_the_middle_of_the_repeats_and_warm_up_is_left_out() -> None:
    repeats = [run(99, 1, 5), run(99, 2, 6), run(99, 9, 40)]
    assert mean_seconds(repeats, "step", 1) == (2 + 6) / 2
    assert mean_seconds(repeats, "gen", 1) == (1 + 3) / 2


def test_the_middle_is_near_the_mean_and_one_wild_value_of_five_moves_it_little() -> None:
    assert middle([3.0]) == 3
    assert middle([1.0, 2.0]) == 1.5
    assert middle([1.0, 2.0, 100.0]) == 2
    # Pairs of 1, 2, 4, 8: 1, 1.5, 2.5, 4.5, 2, 3, 5, 4, 6, 8; the two in the middle are 3 and 4.
    assert middle([8.0, 1.0, 4.0, 2.0]) == 3.5
    assert middle([[1.0, 1.0], [3.0, 5.0]]).tolist() == [1, 4]
    assert 9 < middle([9.0, 9.5, 10.0, 10.5, 1e6]) < 11
    draws = np.random.default_rng(1).normal(size=(20_000, 5))
    assert 0.447 < middle(draws).std() < 0.47  # 1/√5, the mean's, is 0.447
    assert np.median(draws, axis=1).std() > 0.52


def test_how_fast_the_machine_was_in_a_round_cancels() -> None:
    # Rounds on a machine at full, half and a third of its speed; the policy is 1.5 times as fast in all.
    sequential = [run(99, 6 * slow, 12 * slow) for slow in (1, 2, 3)]
    assert measured_speedup(sequential, [run(99, 6 * slow) for slow in (1, 2, 3)], 1) == pytest.approx(1.5)


@pytest.mark.parametrize("name", ["oppo", "april:overcommit=12:max_deferrals=3"])
def test_at_80_columns_stages_keep_their_names_what_was_predicted_and_the_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    measured = {"sequential": [run(50, 10, 10)], name: [run(50, 5, 5)]}
    found = compare_predictions({"sequential": [run(7, 11, 11)], name: [run(7, 5, 5)]}, measured, 1)
    console = Console(width=80, file=StringIO(), color_system=None)
    stages = list(tables(found, "sequential", "seconds"))[1]
    console.print(stages)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    heads = [str(column.header).replace("\n", " ") for column in stages.columns]
    assert heads[:5] == ["policy", "stage", "predicted", "measured", "error"], text
    words = " ".join(text.split())
    assert "gen 5.50 5.00 +10.0 %" in words
    assert "not shown at 80 columns: " in words
    assert "lowest to highest (--json has them)" in words


def test_the_figure_of_speed_ups_numbers_its_points_and_holds_their_intervals() -> None:
    def speedup(policy: str, measured: float, predicted: float, high: float) -> Speedup:
        return Speedup(policy, predicted, 0.5, high, measured, measured, measured, (predicted, predicted))

    given = (speedup("oppo:chunk_size=24", 1.5, 1.6, 3.5), speedup("intra:chunk_size=24", 1.49, 1.0, 1.1))
    figure = speedups_figure(cast(PredictionAccuracy, SimpleNamespace(speedups=given)), "sequential")
    (axis,) = figure.axes
    at = {text.get_text(): text.get_position() for text in axis.texts}
    assert at == {"1": (1.49, 1.0), "2": (1.5, 1.6)}
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["intra:chunk_size=24", "oppo:chunk_size=24"]
    for low, high in (axis.get_xlim(), axis.get_ylim()):
        assert low < 0.5 and high > 3.5
    assert axis.get_ylabel() == "predicted (95 % interval)"
    bare = replace(given[0], predicted_low=nan, predicted_high=nan)
    (axis,) = speedups_figure(cast(PredictionAccuracy, SimpleNamespace(speedups=[bare])), "sequential").axes
    assert (axis.get_xlabel(), axis.get_ylabel()) == (
        "measured speed-up against sequential (95 % interval)",
        "predicted",
    ), "no interval is drawn"


def test_errors_spread_and_speed_ups() -> None:
    measured = {"sequential": [run(50, 10, 10), run(50, 12, 12)], "oppo": [run(50, 5, 5), run(50, 6, 6)]}
    predicted = {"sequential": [run(7, 11, 11)], "oppo": [run(7, 5, 5)]}
    found = compare_predictions(predicted, measured, 1)
    whole = found.stages["sequential"]["step"]
    assert (whole.predicted, whole.measured, whole.lowest, whole.highest) == (11, 11, 10, 12)
    assert whole.error == 0
    assert whole.spread == pytest.approx(2 / 11)
    oppo = found.stages["oppo"]["step"]
    assert oppo.error == pytest.approx(5 / 5.5 - 1)
    (speedup,) = found.speedups
    assert (speedup.policy, speedup.predicted) == ("oppo", 11 / 5)
    assert speedup.measured == pytest.approx(11 / 5.5)
    assert speedup.error == pytest.approx(0.1)
    # Both rounds have the same ratio, so drawing rounds anew changes nothing.
    assert (speedup.measured_low, speedup.measured_high) == pytest.approx((2, 2))
    assert isnan(speedup.predicted_low)
    assert found.rank_agreement == 1
    assert found.steps["oppo"][0]["step"].error == pytest.approx(7 / 50 - 1)
    stage, share = found.largest_error("oppo")
    assert stage == "gen"
    assert share == pytest.approx(-0.25 / 5.5)


def test_the_interval_of_a_predicted_speed_up_is_that_of_resampled_calibrations() -> None:
    measured = {"a": [run(4)], "b": [run(2)]}
    others = [{"a": run(4), "b": run(4 / ratio)} for ratio in (1.0, 2.0, 3.0)]
    (speedup,) = compare_predictions({"a": [run(4)], "b": [run(2)]}, measured, 0, others).speedups
    assert (speedup.predicted_low, speedup.predicted_high) == pytest.approx((1.05, 2.95))
    # Runs that differ by 1 % from moment to moment: a ratio of two by 1.4 %, and its middle 95 % are ±2.8 %.
    same = [{"a": run(4), "b": run(2)}] * 4000
    (speedup,) = compare_predictions(
        {"a": [run(4)], "b": [run(2)]}, measured, 0, same, run_spread=0.01
    ).speedups
    assert (speedup.predicted_low, speedup.predicted_high) == pytest.approx((2 * 0.973, 2 * 1.028), abs=0.004)


@pytest.mark.parametrize(("highest", "settled"), [(2.4, True), (2.6, False)])
def test_a_calibration_that_disagrees_with_itself_predicts_nothing(highest: float, settled: bool) -> None:
    measured = {"a": [run(4)], "b": [run(2)]}
    others = [{"a": run(4), "b": run(4 / ratio)} for ratio in (2.0,) * 20 + (highest,) * 20]
    found = compare_predictions({"a": [run(4)], "b": [run(2)]}, measured, 0, others)
    (speedup,) = found.speedups
    assert speedup.settled is settled
    ((_, predicted, interval, shown, _, error),) = speedup_rows(found)
    assert (predicted, error) == (("2.00×", "±0.0 %") if settled else ("not predicted", "–"))
    assert (interval, shown) == (f"2.00 to {highest:.2f}", "2.00×")
    assert found.unsettled == (() if settled else (speedup,))


def test_staleness_and_deferrals_are_distributions_over_all_repeats() -> None:
    def told(*steps: tuple[tuple[int, ...], tuple[int, ...]]) -> list[StepView]:
        return [
            replace(view(1.0), histograms={"staleness": stale, "deferrals": late}) for stale, late in steps
        ]

    cold = ((8,), (8,))  # of the warm-up: left out
    fresh = told(cold, ((4,), (4,)))
    measured = {
        "sequential": [fresh, fresh],
        "inter": [told(cold, ((3, 1), (4, 0))), told(cold, ((1, 2, 1), (4,)))],
    }
    predicted = {"sequential": [fresh], "inter": [told(cold, ((2, 2, 0), (4,)))]}
    found = compare_predictions(predicted, measured, 1)
    assert found.shares["inter"]["staleness"] == Distribution((0.5, 0.5, 0.0), (0.5, 0.375, 0.125))
    assert found.shares["inter"]["deferrals"] == Distribution((1.0,), (1.0,))
    assert share_rows(found, "staleness") == (
        ("policy", "staleness", "0", "1", "2"),
        [
            ("sequential", "predicted", "100.0 %", "–", "–"),
            ("sequential", "measured", "100.0 %", "–", "–"),
            ("inter", "predicted", "50.0 %", "50.0 %", "–"),
            ("inter", "measured", "50.0 %", "37.5 %", "12.5 %"),
        ],
    )
    assert share_rows(found, "deferrals")[1] == []  # nobody was deferred
    # Runs of a version that did not count.
    older = {policy: [run(1, 2)] for policy in measured}
    assert compare_predictions(older, older, 1).shares == {"sequential": {}, "inter": {}}


def test_a_bootstrap_draws_whole_rounds() -> None:
    # Round 2 ran on a machine twice as slow: it moves both policies, and no ratio.
    assert bootstrap_speedup([[4.0], [8.0]], [[2.0], [4.0]], key=1) == pytest.approx((2, 2))
    low, high = bootstrap_speedup([[4.0], [4.0], [4.0]], [[1.0], [2.0], [4.0]], key=1)
    assert (low, high) == pytest.approx((1, 4))
    assert all(map(isnan, bootstrap_speedup([[1.0]], [[1.0]], key=1)))
    assert all(map(isnan, percentile_interval([1.0, nan])))


def test_policies_in_the_other_order_are_named_and_whether_the_repeats_show_it() -> None:
    measured = {
        "sequential": [run(9, 10), run(9, 12), run(9, 11)],
        "intra": [run(9, 9), run(9, 13), run(9, 10.5)],
        "oppo": [run(9, 5), run(9, 6), run(9, 5.5)],
    }
    predicted = {"sequential": [run(9, 8)], "intra": [run(9, 10)], "oppo": [run(9, 9)]}
    found = compare_predictions(predicted, measured, 1)
    noisy, shown = found.swaps
    assert (noisy.first, noisy.second) == ("sequential", "intra")
    # Ratios of the rounds 10/9, 12/13 and 11/10.5: of three the median.
    assert (noisy.predicted, noisy.measured) == pytest.approx((8 / 10, 11 / 10.5))
    assert not noisy.told_apart
    assert (shown.first, shown.second) == ("sequential", "oppo")
    assert shown.told_apart
    assert (shown.low, shown.high) == pytest.approx((2, 2))  # in every round
    assert [(one.first, one.second) for one in found.told_apart] == [
        ("sequential", "oppo"),
        ("intra", "oppo"),
    ]
    alone = {policy: runs[:1] for policy, runs in measured.items()}
    assert not any(one.told_apart for one in compare_predictions(predicted, alone, 1).swaps)


def test_rank_agreement_is_kendalls_tau() -> None:
    def of(predicted: list[float], measured: list[float]) -> float:
        runs = [
            {str(place): [run(value)] for place, value in enumerate(row)} for row in (predicted, measured)
        ]
        return compare_predictions(*runs, 0).rank_agreement

    assert of([1, 2, 3, 4], [10, 20, 30, 40]) == 1
    assert of([1, 2, 3, 4], [40, 30, 20, 10]) == -1
    # Of six pairs one is turned: (5 − 1) / 6.
    assert of([1, 2, 3, 4], [10, 30, 20, 40]) == pytest.approx(4 / 6)
    # A tie in one side: tau-b, (2 − 0) / √(2 · 3).
    assert of([1, 1, 2], [10, 20, 30]) == pytest.approx(2 / sqrt(6))
    assert isnan(of([1, 1], [10, 20]))


def test_order_is_that_of_the_rounds_as_the_speed_up_is() -> None:
    # By the medians b is faster (10 over 9); in four of five rounds it is slower.
    measured = {"a": [run(s) for s in (10, 8, 20, 5, 30)], "b": [run(s) for s in (9, 8.5, 21, 5.2, 31)]}
    found = compare_predictions({"a": [run(5)], "b": [run(6)]}, measured, 0)
    assert (found.rank_agreement, found.regret, found.swaps) == (1, 0, ())


def test_the_first_other_decision_is_named_with_its_cause() -> None:
    predicted = [view(1, trained=(0, 1)), view(1, trained=(2, 3)), view(1, trained=(4, 5))]
    measured = [view(1, trained=(1, 0)), view(1, trained=(2, 5)), view(1, trained=(3, 4))]
    found = agreement("oppo", 0, predicted, measured)
    assert (found.alike, found.steps, found.first_difference) == (1, 3, 1)
    assert found.why == "trained rollout 5 instead of rollout 3"
    assert found.trained_alike == pytest.approx(4 / 6)
    assert difference(view(1, delta=2), view(1, delta=3)) == "overcommit 3 instead of 2"
    assert difference(view(1, deferred=2), view(1, deferred=1, surplus=1)).startswith(
        "1 deferred and 1 surplus instead of 2 and 0"
    )
    assert agreement("oppo", 0, predicted, predicted).why == ""


def test_runs_of_unlike_length_are_refused() -> None:
    with pytest.raises(OppoError, match="unlike numbers of steps"):
        compare_predictions({"a": [run(1, 2)], "b": [run(1, 2)]}, {"a": [run(1, 2)], "b": [run(1)]}, 0)


def test_rounds_hold_every_policy_once_in_changing_order() -> None:
    policies = ("sequential", "intra", "inter", "oppo")
    turns = plan_turns(policies, 6, seed=0)
    rounds = [turns[4 * number : 4 * number + 4] for number in range(6)]
    assert all({turn.policy for turn in round_} == set(policies) for round_ in rounds)
    assert all({turn.repeat for turn in round_} == {number} for number, round_ in enumerate(rounds))
    assert len({tuple(turn.policy for turn in round_) for round_ in rounds}) > 1
    assert turns == plan_turns(policies, 6, seed=0)
    assert turns[0] in {Turn(policy, 0) for policy in policies}


@pytest.mark.parametrize(
    ("policies", "repeats", "sentence"),
    [
        (("oppo",), 1, "two or more"),
        (("oppo", "intra", "oppo"), 1, "name oppo twice"),
        (("oppo", "intra"), 0, "repeats 0"),
    ],
)
def test_plans_that_compare_nothing_are_refused(
    policies: tuple[str, ...], repeats: int, sentence: str
) -> None:
    with pytest.raises(OppoError, match=sentence):
        plan_turns(policies, repeats, 0)


def test_a_run_survives_json() -> None:
    views = (replace(view(1.5, 0.5, (3, 1), 2, 1, 4), histograms={"staleness": (1, 1)}),)
    lengths = {3: (4, 7), 11: (5, 1)}
    one = MeasuredRun(Turn("oppo", 1), views, {"actors": [{}]}, 0.25, None, 3.0, (0.5,), lengths)
    assert run_from_plain(json.loads(json.dumps(one.to_plain()))) == one
    for damaged in (3, {}, {**one.to_plain(), "views": [{}]}, {**one.to_plain(), "wall_s": "long"}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            run_from_plain(damaged)  # type: ignore[arg-type]
