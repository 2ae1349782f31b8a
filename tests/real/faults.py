"""Faults on real runs: a worker or the driver killed, a worker that hangs, a disk that is full, at a drawn moment;
and what must hold of the run that goes on afterwards. ``test_run_faults.py`` makes a few, ``experiments/faults/run.py``
fifty and more.

    python -m tests.real.faults CASE FAULT FOLDER --resume|--new

(both as JSON) is a driver that the fault kills.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final, Literal
from unittest.mock import patch

import pandas as pd
import torch

from oppo_real.checkpoint import FILE
from oppo_real.placement import processes, starting
from oppo_real.placement.starting import StartMethod
from oppo_real.ppo.trainer import PPOTrainer
from oppo_real.run.folder import RealRequest, run_to_folder
from oppo_real.run.setup import build_real_setup
from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.finished_run import read_run_folder
from oppo_sim.run_files import JOURNAL, MANIFEST
from tests.broken_disk import Disk, OnChange, broken_disk, full_from, kill_at
from tests.real.real_scenario import real_scenario

Kind = Literal["replica 0", "replica 1", "scoring worker 0", "driver", "disk", "full"]
"""Who is struck: a worker, the driver at a message, the driver at a change of the disk; ``full``: nobody, but the
disk has no room from a change on."""

STEPS: Final = 8
BATCH: Final = 4
HUNG_S: Final = 3.0
ORPHANS_S: Final = 30.0
"""How long workers may take to notice that their driver is gone."""

_CONTROLLED: Final = {
    "name": "oppo",
    "overcommit": {"control": "reward_slope", "initial": 1, "min": 0, "max": 3, "window": 2},
    "chunk_size": {"control": "explore", "candidates": [3, 7], "explore_every": 4},
}
POLICIES: Final[dict[str, Any]] = {
    "sequential": "sequential",
    "intra": {"name": "intra", "chunk_size": 5},
    "inter": {"name": "inter", "overcommit": 2},
    "oppo": _CONTROLLED,
    "april": "april",
    "tail-batching": {"name": "tail-batching", "over_issue": 1.5},
}

AGAIN: Final = (c.TOKENS_PREFILLED, c.TOKENS_RECOMPUTED, c.TOKENS_SCORED, c.SCORER_PIECES, c.SCORER_BATCHES)
"""The workers lost their KV with the run: these columns count the work of making it again."""


@dataclass(frozen=True)
class Fault:
    """One blow."""

    who: Kind
    at: int
    """The message that the driver sends to a worker (``disk``, ``full``: the change of the disk), from 1."""
    delay_s: float = 0.0
    """From then on."""
    hangs: bool = False
    """A worker is stopped (SIGSTOP) instead of killed."""
    torn: bool = False
    """``disk``: half of a write is made."""
    trains: bool = False
    """``at`` counts updates of the weights instead, and the blow falls from the start of that one on."""


@dataclass(frozen=True)
class Case:
    """A run and what befalls it; ``faults[1:]`` befall the run that goes on."""

    policy: str
    faults: tuple[Fault, ...]
    lock_step: bool = True
    checkpoint_every: int = 1
    start: StartMethod = "forkserver"
    """How workers are started."""

    def request(self, folder: Path, *, resume: bool = False) -> RealRequest:
        """The run into ``folder``: PPO of tiny models over replayed lengths, two replicas and a scoring worker in
        processes."""
        hangs = any(fault.hangs for fault in self.faults)
        real = {
            "lock_step": self.lock_step,
            "checkpoint_every": self.checkpoint_every,
            "ppo": {"enabled": True, "learning_rate": 1e-3, "num_ppo_epochs": 1},
            "placement": {"kind": "processes", "threads": 1, "worker_timeout_s": HUNG_S if hangs else 60.0},
        }
        scenario = real_scenario(
            real,
            policy=POLICIES[self.policy],
            rewards={"kind": "saturating", "noise": 1.0},
            steps=STEPS,
            rollout_batch_size=BATCH,
            rollout={"num_replicas": 2},
        )
        return RealRequest(build_real_setup(scenario), folder, resume=resume, figures=False)


# ---- striking ----------------------------------------------------------------------------------------------


@dataclass
class Count:
    """What a run did."""

    messages: int = 0
    """From the driver to workers."""
    updates: int = 0
    """Of the weights, begun."""
    trains: bool = False
    """It trains right now."""
    struck_at: float | None = None
    """When the blow fell, time.monotonic."""
    struck_training: bool = False
    """It trained then."""


@contextmanager
def _messages_counted(count: Count, fault: Fault | None = None) -> Iterator[None]:
    """Inside, the fault's blow falls at its message."""
    send, update = processes._ProcessLink.send, PPOTrainer.update
    over = Event()

    def counted(link: Any, *message: Any) -> None:
        send(link, *message)
        count.messages += 1
        if fault is not None and not fault.trains and count.messages == fault.at:
            fall()

    def trained(trainer: Any, *batch: Any) -> Any:
        count.updates += 1
        count.trains = True
        try:
            if fault is not None and fault.trains and count.updates == fault.at:
                fall()
            return update(trainer, *batch)
        finally:
            count.trains = False

    def fall() -> None:
        assert fault is not None
        blow = Thread(target=strike, daemon=True)
        blow.start()
        if not fault.delay_s:  # else the driver goes on meanwhile
            blow.join()

    def strike() -> None:
        assert fault is not None
        if over.wait(fault.delay_s):
            return
        count.struck_training = count.trains
        if fault.who == "driver":
            os.kill(os.getpid(), signal.SIGKILL)
        for worker in multiprocessing.active_children():
            if worker.name == f"oppo {fault.who}" and worker.pid is not None:
                os.kill(worker.pid, signal.SIGSTOP if fault.hangs else signal.SIGKILL)
                count.struck_at = time.monotonic()

    with patch.object(processes._ProcessLink, "send", counted), patch.object(PPOTrainer, "update", trained):
        try:
            yield
        finally:
            over.set()


@contextmanager
def workers_started_by(start: StartMethod) -> Iterator[None]:
    """Worker processes inside the block, as on a CPU or as on a GPU."""
    with patch.object(starting, "start_method", lambda engine, device: start):
        yield


def run_case(
    case: Case,
    folder: Path,
    count: Count | None = None,
    on_change: OnChange = lambda change: None,
    *,
    resume: bool = False,
    fault: Fault | None = None,
) -> Disk:
    """The run in this process; ``on_change`` is told what it asks of the disk. Raises what the run raises."""
    with (
        workers_started_by(case.start),
        _messages_counted(count or Count(), fault),
        broken_disk(folder, on_change=on_change) as disk,
    ):
        run_to_folder(case.request(folder, resume=resume), lambda done, row: None)
    return disk


def kill_driver(case: Case, fault: Fault, folder: Path, *, resume: bool) -> bool:
    """The run in a process of its own, which is killed. True: before it had ended. Its workers have to end by
    themselves."""
    asked = [json.dumps(dataclasses.asdict(one)) for one in (case, fault)]
    command = [
        sys.executable,
        "-m",
        "tests.real.faults",
        *asked,
        str(folder),
        "--resume" if resume else "--new",
    ]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True) as driver:
        _, said = driver.communicate(timeout=300)
    assert driver.returncode in (0, -signal.SIGKILL), said
    until = time.monotonic() + ORPHANS_S
    while left := _of_session(driver.pid):
        assert time.monotonic() < until, f"processes {left} outlive their driver"
        time.sleep(0.05)
    return driver.returncode != 0


def main() -> None:
    """The driver that is killed."""
    plain, fault = (json.loads(text) for text in sys.argv[1:3])
    case = Case(**{**plain, "faults": ()})
    struck, folder = Fault(**fault), Path(sys.argv[3])
    on_disk = kill_at(struck.at, torn=struck.torn)
    run_case(
        case,
        folder,
        on_change=on_disk if struck.who == "disk" else lambda change: None,
        resume=sys.argv[4] == "--resume",
        fault=struck if struck.who == "driver" else None,
    )


def _of_session(session: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(") ")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


# ---- what must hold ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What came of a case."""

    struck: int
    """Blows that fell while the run went on; a late one falls on nothing."""
    kept: tuple[int, ...]
    """Steps that the checkpoint kept, at each going on."""
    noticed_s: tuple[float, ...]
    """From each stop of a worker to the end of its run."""
    said: tuple[str, ...]
    """By runs that ended before their time."""
    training: int = 0
    """Blows on workers that fell while the driver trained."""


def suffer(case: Case, folder: Path) -> Outcome:
    """Strike, go on, strike again, until the run has ended."""
    struck, training, kept, noticed, said = 0, 0, [], [], []
    for number, fault in enumerate((*case.faults, None)):
        if (folder / MANIFEST).is_file() and not (folder / JOURNAL).is_file():
            break
        resume = (
            number > 0 and folder.exists()
        )  # nothing is kept of a worker lost before the first checkpoint
        if number:
            kept.append(_steps_kept(folder))
        if fault is not None and fault.who in ("driver", "disk"):
            struck += kill_driver(case, fault, folder, resume=resume)
            continue
        before, count = _steps_kept(folder), Count()
        full = full_from(fault.at) if fault is not None and fault.who == "full" else lambda change: None
        try:
            run_case(case, folder, count, full, resume=resume, fault=fault)
        except OppoError as error:
            assert fault is not None, error
            assert "\n" not in str(error), error
            assert ("no space left for " if fault.who == "full" else f"{fault.who} (process ") in str(
                error
            ), error
            struck += 1
            training += count.struck_training
            said.append(str(error))
            if fault.hangs and count.struck_at is not None:
                noticed.append(time.monotonic() - count.struck_at)
            assert _steps_kept(folder) >= before, "a checkpoint was lost"
        else:
            assert fault is None or fault.delay_s or count.struck_at is None, "nobody noticed the blow"
        assert not multiprocessing.active_children()
    return Outcome(struck, tuple(kept), tuple(noticed), tuple(said), training)


def _steps_kept(folder: Path) -> int:
    path = folder / FILE
    return int(torch.load(path, weights_only=True)["next_step"]) if path.is_file() else 0


def assert_whole(folder: Path) -> None:
    """Every step is there once, every rollout that was admitted was trained once or is carried, none both, and
    each step was one update of the weights."""
    assert {path.name for path in folder.iterdir()}.isdisjoint({JOURNAL, f"{FILE}.partial"})
    run = read_run_folder(folder)
    run.verify()
    body = torch.load(folder / FILE, weights_only=True)
    assert body["next_step"] == STEPS == body["version"] == body["training"]["updates"]
    assert (
        list(run.frame("steps.parquet")[c.STEP])
        == list(range(STEPS))
        == list(run.frame("training.parquet")[c.STEP])
    )
    rollouts = run.frame("rollouts.parquet")
    assert list(rollouts.groupby(c.TRAINED_STEP).size()) == [BATCH] * STEPS
    trained = list(rollouts[c.ROLLOUT_ID])
    ledger = body["ledger"]
    carried = [one["rollout_id"] for kept in ("unfinished", "finished", "shelved") for one in ledger[kept]]
    assert len({*trained, *carried}) == len(trained) + len(carried)
    # Those that a policy drops are kept, too: they run again.
    assert len(trained) + len(carried) == ledger["admitted"] == len(ledger["admitted_steps"])
    trace = run.frame("trace.parquet")
    assert sorted(trace[c.ROLLOUT_ID]) == sorted(trained)
    lengths = trace.set_index(c.ROLLOUT_ID)[c.RESPONSE_LENGTH].sort_index()
    pd.testing.assert_series_equal(
        lengths, rollouts.set_index(c.ROLLOUT_ID)[c.RESPONSE_LENGTH].sort_index(), check_dtype=False
    )


def assert_same_decisions(whole: Path, struck: Path) -> None:
    """In lock-step: the same rollouts trained in the same order at the same versions, the same rows, the same
    updates and, to rounding, the same weights."""
    expected, found = read_run_folder(whole), read_run_folder(struck)
    for name in ("rollouts.parquet", "steps.parquet", "training.parquet", "trace.parquet"):
        one, other = expected.frame(name), found.frame(name)
        differ = [column for column in (*AGAIN, "eps") if column in one.columns]  # eps are measured
        pd.testing.assert_frame_equal(one.drop(columns=differ), other.drop(columns=differ))
    weights = [
        torch.load(folder / FILE, weights_only=True)["training"]["policy"] for folder in (whole, struck)
    ]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-3, atol=1e-5)


if __name__ == "__main__":
    main()
