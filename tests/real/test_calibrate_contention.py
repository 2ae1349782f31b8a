"""Two activities on one core, in two processes."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import NamedTuple

import pytest

from oppo_real.calibrate.contention import (
    Contention,
    Meeting,
    Round,
    beside_others,
    contention_factor,
    contention_of,
    disagreement,
    meetings_of,
    other_work,
    slowdowns_of,
    taken_by_others,
    time_slices_of,
    turns_explained,
)
from oppo_real.calibrate.contention_rounds import measure_contention, waited_s
from oppo_real.calibrate.plan import make_plan
from oppo_real.calibrate.point import Point
from oppo_real.calibrate.subject import open_bench
from oppo_sim.costs.profile import OnDevice
from oppo_sim.errors import OppoError
from tests.real.test_calibrate_session import MODEL, SIZES, SUBJECT, config


def test_two_processes_slow_each_other_down_on_one_core() -> None:
    core = min(os.sched_getaffinity(0))
    meetings = [one for one in meetings_of(make_plan(SIZES)) if one.activities == ("decode", "score")]
    assert len({one.points[0].n for one in meetings}) == 3, "decoding of three batch sizes"
    assert len({one.points[1].tokens for one in meetings}) == 3, "beside scoring of three"
    open_here = partial(open_bench, SUBJECT, SIZES)
    rounds: dict[Meeting, list[Round]] = {}
    wanted = {meeting: 2 if number == 1 else 3 for number, meeting in enumerate(meetings)}
    cores = dict.fromkeys(meetings, (core,))
    for meeting, found in measure_contention(open_here, SUBJECT.engines, wanted, window_s=0.3, cores=cores):
        rounds.setdefault(meeting, []).append(found)
    assert {meeting: len(found) for meeting, found in rounds.items()} == wanted
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
        meeting = meetings_of(make_plan(SIZES))[0]
        list(measure_contention(partial(open_bench, broken, SIZES), broken.engines, {meeting: 1}))


def test_processes_that_are_killed_leave_no_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    meeting = meetings_of(make_plan(SIZES))[0]
    open_here = partial(open_bench, SUBJECT, SIZES)
    measuring = measure_contention(open_here, SUBJECT.engines, {meeting: 2}, window_s=0.1)
    next(measuring)
    assert list(tmp_path.rglob("oppo-models-*"))
    for process in multiprocessing.active_children():
        process.kill()
    with pytest.raises(OppoError, match="ended early"):
        next(measuring)
    assert not list(tmp_path.rglob("oppo-models-*"))


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


def test_a_turn_lasts_as_long_as_the_gpu_computes() -> None:
    # Decoding computes for 1 ms of 4, scoring of 8 tokens for 60 ms of 100: together 0.85, so their turns explain
    # nothing. Of 16 rollouts it computes for 8.5 ms of 10: with 0.6 by scoring they explain 1.45.
    on_device = OnDevice.model_validate(
        {
            "decode": {"fixed": 0.0005, "per_rollout": 0.0005, "per_kv_token": 0.0},
            "prefill": {"fixed": 0.001, "per_token": 0.0, "per_pair": 0.0},
            "score": {"fixed": 0.02, "per_token": 0.005, "per_pair": 0.0},
        }
    )
    few = met(1, Round((0.004, 0.1), (0.006, 0.12)))
    many = met(16, Round((0.010, 0.1), (0.0174, 0.174)))
    assert turns_explained(few, on_device) == 1.0
    assert turns_explained(many, on_device) == pytest.approx(1.45)
    found = time_slices_of([few, many], on_device)
    assert found is not None
    assert found.interference == pytest.approx(1.2)
    assert found.turn_s == pytest.approx(((1.5 / 1.2 - 1.0) * 0.004 + 0.0) / 2)


def test_each_side_is_slowed_by_the_median_of_its_own_rounds() -> None:
    rounds = [Round((1.0, 1.0), together) for together in ((1.1, 1.0), (1.2, 1.02), (1.3, 0.9))]
    found = slowdowns_of([met(4, *rounds)])
    assert found is not None
    assert (found.decode, found.score) == (pytest.approx(1.2), 1.0)
    assert slowdowns_of([]) is None
    faster = slowdowns_of([met(4, Round((1.0, 1.0), (0.9, 0.95)))])
    assert faster is not None
    assert (faster.decode, faster.score) == (1.0, 1.0), "nobody gains by company"


def test_rounds_beside_other_work_are_no_contention() -> None:
    def rounds(*waited: tuple[float, float]) -> Contention:
        return met(4, *(Round((1 / (1 - a), 1 / (1 - b)), (2.1, 2.1), (a, b)) for a, b in waited))

    assert disagreement([rounds((0.0, 0.05), (0.02, 0.0), (0.0, 0.0))]) == ""
    assert disagreement([rounds((0.0, 0.05), (0.6, 0.0), (0.0, 0.0))]) == "", "one disturbed round of three"
    told = disagreement([rounds((0.0, 0.35), (0.35, 0.0), (0.35, 0.4))])
    assert "waited 35% of the time" in told
    assert "measure on a quieter machine" in told


class Ran(NamedTuple):
    """Of two activities that always have work: units done a ms, and the share of the time in which each waited."""

    rates: tuple[float, float]
    waited: tuple[float, float]


def scheduled(cores: int, both: bool, factor: float, other: Callable[[int], bool], ms: int = 20_000) -> Ran:
    """A fair scheduler, slice by slice of 4 ms: those run that ran least. A unit of either takes 10 ms of a
    core, ``factor`` times as long where both are at work; ``other`` says when a third process is busy."""
    ran = {"decode": 0.0, "score": 0.0, "other": 0.0}
    for start in range(0, ms, 4):
        ready = ["decode"] + ["score"] * both + ["other"] * other(start)
        for name in sorted(ready, key=lambda name: ran[name])[:cores]:
            ran[name] += 4.0
        if not other(start):  # what has slept begins where the others are
            ran["other"] = max(ran["other"], min(ran["decode"], ran["score"] if both else ran["decode"]))
    first, second = ran["decode"] / ms, ran["score"] / ms
    longer = 10.0 * (factor if both else 1.0)
    return Ran((first / longer, second / longer), (1.0 - first, 1.0 - second))


OTHERS: dict[str, Callable[[int], bool]] = {
    "quiet": lambda at: False,
    "half busy": lambda at: at % 100 < 50,
    "bursts": lambda at: at % 7000 < 900,
    "one core": lambda at: True,
}


@pytest.mark.parametrize("factor", [1.0, 1.3])
@pytest.mark.parametrize("name", OTHERS)
def test_what_two_cost_each_other_is_found_beside_a_third_process(name: str, factor: float) -> None:
    other = OTHERS[name]
    (alone, _), (waited, _) = scheduled(2, False, factor, other)
    together = scheduled(2, True, factor, other)
    seconds = 1.0 / together.rates[0], 1.0 / together.rates[1]
    taken = taken_by_others(together.waited, 2.0)
    met_so = met(4, Round((1.0 / alone, 1.0 / alone), seconds, (waited, waited), taken))
    assert waited == 0.0, "alone, the other process has the second core"
    assert met_so.factor == pytest.approx(factor, rel=0.01)
    (gross,) = beside_others([met_so], 1.0)
    lost = {"quiet": 1.0, "half busy": 1.2, "bursts": 1.04, "one core": 1.5}[name]
    assert gross.factor == pytest.approx(factor * lost, rel=0.03), "what the rounds would say without waits"
    assert bool(other_work([met_so])) == (name in {"half busy", "one core"})
    assert disagreement([met_so]) == ""
    between = [beside_others([met_so], share)[0].factor for share in (0.0, 0.3, 1.0)]
    assert between == sorted(between)
    assert between[0] == met_so.factor


@pytest.mark.parametrize("name", OTHERS)
def test_on_one_core_turns_of_the_two_are_not_other_work(name: str) -> None:
    other = OTHERS[name]
    together = scheduled(1, True, 1.0, other)
    taken = taken_by_others(together.waited, 1.0)
    busy = sum(map(other, range(0, 20_000, 4))) / 5000
    # Of three that are ready each has a third, so that the two have two turns of what is left.
    assert taken == pytest.approx((busy / 3.0, busy / 3.0), abs=0.02)
    found = met(4, Round((10.0, 10.0), (1.0 / together.rates[0], 1.0 / together.rates[1]), taken=taken))
    assert found.slowdown == pytest.approx((2.0, 2.0), rel=0.03)


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


def test_threads_that_an_engine_has_begun_move_with_its_process() -> None:
    # In a process of its own: this one stays where it is
    code = """
import os, threading
from oppo_real.calibrate.contention_rounds import _bind
core, stop, told = min(os.sched_getaffinity(0)), threading.Event(), []
begun = threading.Thread(target=lambda: (stop.wait(30), told.append(os.sched_getaffinity(0))))
begun.start()
_bind((core,))
stop.set()
begun.join()
assert told == [{core}], told
"""
    subprocess.run([sys.executable, "-c", code], check=True)
