"""Two activities on one core, in two processes."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from time import perf_counter

import pytest

from oppo_real.calibrate.contention import (
    Contention,
    Meeting,
    Round,
    contention_factor,
    contention_of,
    disagreement,
    meetings_of,
    time_slices_of,
)
from oppo_real.calibrate.contention_rounds import measure_contention, waited_s
from oppo_real.calibrate.plan import Point, make_plan
from oppo_real.calibrate.subject import open_bench
from oppo_sim.errors import OppoError
from tests.real.test_calibrate_session import MODEL, SIZES, SUBJECT, config


def test_two_processes_slow_each_other_down_on_one_core() -> None:
    core = sorted(os.sched_getaffinity(0))[:1]
    meetings = [one for one in meetings_of(make_plan(SIZES)) if one.activities == ("decode", "score")]
    assert len({one.points[0].n for one in meetings}) == 3, "decoding of three batch sizes"
    assert len({one.points[1].tokens for one in meetings}) == 3, "beside scoring of three"
    open_here = partial(open_bench, SUBJECT, SIZES)
    rounds: dict[Meeting, list[Round]] = {}
    for meeting, found in measure_contention(open_here, meetings, rounds=3, window_s=0.3, cores=core):
        rounds.setdefault(meeting, []).append(found)
    assert {meeting: len(found) for meeting, found in rounds.items()} == dict.fromkeys(meetings, 3)
    contention = [contention_of(meeting, found) for meeting, found in rounds.items()]
    for one in contention:
        assert one.factor > 1.2, "one core cannot do both at full speed"
        assert one.expected == 1.0
        assert min(one.factors) <= one.factor <= max(one.factors)
    slices = time_slices_of(contention)
    assert slices is not None
    assert 1.0 <= slices.interference < 1.5, "most of the slow-down is the turns themselves"


def test_a_process_that_cannot_build_its_engine_says_why() -> None:
    broken = replace(
        SUBJECT, config=config(models={"actor": {**MODEL, "max_position_embeddings": 16}, "reward": MODEL})
    )
    with pytest.raises(OppoError, match="the actor takes 16"):
        list(measure_contention(partial(open_bench, broken, SIZES), meetings_of(make_plan(SIZES))[:1]))


def met(rollouts: int, *rounds: Round) -> Contention:
    decode = Point("decode", ((8, 1),) * rollouts)
    return contention_of(Meeting(("decode", "score"), (decode, Point("score", ((0, 8),)))), rounds)


def slowed(*slowdowns: tuple[float, float]) -> list[Round]:
    return [Round((1.0, 1.0), one) for one in slowdowns]


def test_what_one_side_loses_more_the_other_loses_less_and_all_rounds_count_alike() -> None:
    swapped = met(4, *slowed((1.0, 1.44), (1.44, 1.0), (1.2, 1.2)))
    assert swapped.factor == pytest.approx(1.2)
    # By hand: factors 1.2, 1.2, 1.2, 1.5, 1.5; the median of the two batches' own medians would be 1.35.
    assert contention_factor([swapped, met(16, *slowed((1.5, 1.5), (1.5, 1.5)))]) == pytest.approx(1.2)
    assert contention_factor([met(1, *slowed((0.9, 0.8)))]) == 1.0


def test_one_disturbed_round_moves_nothing_and_rounds_without_agreement_are_told() -> None:
    quiet = met(4, *slowed((1.1, 1.2), (1.1, 1.1), (1.0, 1.1)))
    assert disagreement([quiet]) == disagreement([]) == ""
    disturbed = met(1, *slowed((1.1, 1.2), (2.1, 2.2), (1.0, 1.1)))
    assert disturbed.factor == pytest.approx((1.1 * 1.2) ** 0.5)
    assert disagreement([quiet, met(16, *slowed((1.2, 1.2), (1.1, 1.2), (1.2, 1.1))), disturbed]) == ""
    noisy = [met(n, *slowed((1.0, 1.1), (2.1, 2.2), (1.4, 1.6))) for n in (1, 4)]
    assert disagreement(noisy).startswith("6 rounds of decoding beside scoring gave slow-downs")
    assert "measure on a quieter machine" in disagreement(noisy)


def test_seconds_an_iteration_are_what_decoding_takes_longer_than_its_turns() -> None:
    # Scoring takes 2.2 times as long beside decoding: 1.1 beyond the two turns. Decoding takes 2.2 times as long
    # for the same reason; an iteration of 4 ms takes 13.2 ms, 8.8 by turns and 4.4 more: 2 ms of its own at half
    # the device and 1.1. One of 10 ms with 26.4 ms has 2 ms more too.
    few = met(1, Round((0.004, 0.1), (0.0132, 0.22)))
    many = met(16, Round((0.010, 0.1), (0.0264, 0.22)))
    found = time_slices_of([few, many])
    assert found is not None
    assert found.interference == pytest.approx(1.1)
    assert found.turn_s == pytest.approx(0.002)
    assert contention_factor([few, many]) == pytest.approx(((3.3 * 2.2) ** 0.5 + (2.64 * 2.2) ** 0.5) / 2)
    assert time_slices_of([]) is contention_factor([]) is None
    with_training = replace(few, meeting=few.meeting._replace(activities=("decode", "train")))
    assert time_slices_of([with_training]) is None
    faster = met(1, Round((0.004, 0.1), (0.004, 0.1)))
    found = time_slices_of([faster])
    assert found is not None
    assert (found.interference, found.turn_s) == (1.0, 0.0), "cores of their own lose nothing by turns"


def test_rounds_beside_other_work_are_no_contention() -> None:
    def rounds(*waited: tuple[float, float]) -> Contention:
        return met(4, *(Round((1.0, 1.0), (2.1, 2.1), one) for one in waited))

    assert disagreement([rounds((0.0, 0.05), (0.02, 0.0), (0.0, 0.0))]) == ""
    assert disagreement([rounds((0.0, 0.05), (0.6, 0.0), (0.0, 0.0))]) == "", "one disturbed round of three"
    told = disagreement([rounds((0.0, 0.35), (0.35, 0.0), (0.35, 0.4))])
    assert "waited 35% of the time" in told
    assert "measure on a quieter machine" in told


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not say it")
def test_waiting_for_a_core_that_other_work_has_is_seen() -> None:
    core = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, [{core}]); print(flush=True)\nwhile True: pass"
    found: list[float] = []

    def work() -> None:
        os.sched_setaffinity(0, [core])  # of this thread alone
        before, until = waited_s(), perf_counter() + 0.5
        while perf_counter() < until:
            pass
        found.append((waited_s() - before) / 0.5)

    with subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        thread = Thread(target=work)
        thread.start()
        thread.join()
        other.kill()
    assert found[0] > 0.2
