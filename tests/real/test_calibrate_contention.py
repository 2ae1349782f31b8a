"""Two activities on one core, in two processes."""

import os
from dataclasses import replace
from functools import partial

import pytest

from oppo_real.calibrate.contention import (
    contention_of,
    contention_points,
    disagreement,
    measure_contention,
)
from oppo_real.calibrate.plan import make_plan
from oppo_real.calibrate.subject import open_bench
from oppo_sim.errors import OppoError
from tests.real.test_calibrate_session import MODEL, SIZES, SUBJECT, config


def test_two_processes_slow_each_other_down_on_one_core() -> None:
    core = sorted(os.sched_getaffinity(0))[:1]
    points = contention_points(make_plan(SIZES))
    open_here = partial(open_bench, SUBJECT, SIZES)
    ((pair, rounds),) = measure_contention(
        open_here, [("decode", "score")], points, rounds=5, window_s=0.4, cores=core
    )
    found = contention_of(pair, points, rounds)
    assert found.activities == ("decode", "score")
    assert found.factor > 1.2, "one core cannot do both at full speed"
    assert found.expected == 1.0
    assert found.factor == pytest.approx((found.slowdown[0] * found.slowdown[1]) ** 0.5)


def test_a_process_that_cannot_build_its_engine_says_why() -> None:
    broken = replace(
        SUBJECT, config=config(models={"actor": {**MODEL, "max_position_embeddings": 16}, "reward": MODEL})
    )
    points = contention_points(make_plan(SIZES))
    with pytest.raises(OppoError, match="the actor takes 16"):
        list(measure_contention(partial(open_bench, broken, SIZES), [("decode", "score")], points))


def test_one_disturbed_round_is_told_and_moves_the_median_little() -> None:
    points = contention_points(make_plan(SIZES))
    quiet = contention_of(("decode", "score"), points, [(1.1, 1.2), (1.1, 1.1), (1.0, 1.1)])
    assert disagreement(quiet) == ""
    noisy = contention_of(("decode", "score"), points, [(1.1, 1.2), (2.1, 2.2), (1.0, 1.1)])
    assert noisy.factor == pytest.approx((1.1 * 1.2) ** 0.5)
    assert noisy.factors == pytest.approx(((1.1 * 1.2) ** 0.5, (2.1 * 2.2) ** 0.5, 1.1**0.5))
    assert "3 rounds gave slow-downs" in disagreement(noisy)
    assert "from 1.05 to 2.15" in disagreement(noisy)
