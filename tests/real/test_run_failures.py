"""Workers that fail or are killed, and cores that are not there."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from oppo_real.run.start import run_real
from oppo_sim.errors import OppoError
from tests.real.real_scenario import MODEL, damaged_model, real_scenario

PROCESSES = {"placement": {"kind": "processes", "threads": 1}}


def test_a_worker_that_is_killed_ends_the_run_in_one_sentence() -> None:
    import multiprocessing

    def kill(done: int, metrics: object) -> None:
        victim = next(
            process
            for process in multiprocessing.active_children()
            if process.name == "oppo scoring worker 0"
        )
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)

    with pytest.raises(
        OppoError,
        match=r"^scoring worker 0 \(process \d+\) was ended by signal 9 \(out of memory.*\): .*--resume$",
    ):
        run_real(real_scenario(PROCESSES, policy="sequential"), progress=kill)
    assert not multiprocessing.active_children()


def test_an_engine_that_cannot_be_built_says_why_once(tmp_path: Path) -> None:
    section = {**PROCESSES, "models": {"actor": MODEL, "reward": damaged_model(tmp_path)}}
    with pytest.raises(OppoError, match=r"scoring worker 0: "):
        run_real(real_scenario(section))


def test_cores_that_do_not_exist_are_refused() -> None:
    cores = {"rollout": [[4000]]}
    with pytest.raises(
        OppoError, match=r"real\.placement\.cores\.rollout names core 4000, which is not among"
    ):
        run_real(real_scenario({"placement": {"kind": "processes", "threads": 1, "cores": cores}}))


def test_the_driver_is_bound_to_its_cores_while_the_run_lasts() -> None:
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []
    run_real(
        real_scenario({"placement": {"threads": 1, "cores": {"driver": [min(before)]}}}, steps=1),
        progress=lambda done, row: seen.append(os.sched_getaffinity(0)),
    )
    assert seen == [{min(before)}]
    assert os.sched_getaffinity(0) == before
