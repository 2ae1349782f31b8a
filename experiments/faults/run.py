"""A replica, a scoring worker or the driver of a real run killed at random moments, workers that hang, disks
that are full; then the run goes on, and is held against the undisturbed one.

    python -m experiments.faults.run                # 50 kills, 20 of free-running runs, 8 hangs, 8 full disks
                                                    # (what is there is kept)
    python -m experiments.faults.run --cases 200 --seed 2 --journal other.jsonl
    python -m experiments.faults.run --minutes 20   # begin no case after so long
    python -m experiments.faults.run --page         # the page alone

README.md says what must hold. Moments are drawn from a fixed seed; what a process was doing at a drawn moment
depends on the machine. Exit code 1 where something broke.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from experiments.faults.page import write
from oppo_sim.errors import OppoError
from oppo_sim.runs.journal import Entry, Journal
from tests.real.faults import (
    POLICIES,
    STEPS,
    Case,
    Count,
    Fault,
    Kind,
    assert_same_decisions,
    assert_whole,
    run_case,
    suffer,
)

RUNS: Final = Path(__file__).parent / "runs.jsonl"
WORKERS: Final[tuple[Kind, ...]] = ("replica 0", "replica 1", "scoring worker 0")
LEAST: Final = 8
"""Messages at the end of a run that are no drawn moments: they tell workers to close."""
STEADY: Final = 0.75
"""A free-running run makes more messages or fewer as the machine is busy: this share of them, surely."""


def drawn(
    kind: str, number: int, seed: int, messages: dict[tuple[str, bool], int], changes: dict[str, int]
) -> Case:
    """``messages`` (of a policy, in lock-step or free-running) and ``changes``: how many an undisturbed run
    makes."""
    draws = random.Random(f"{kind} {number} {seed}")
    policy = draws.choice(sorted(POLICIES))
    every = draws.choice((1, 1, 2, 3))
    lock_step = {"hang": number % 4 > 0, "full": True, "free": False}.get(kind, number % 5 != 3)

    def moment() -> tuple[int, float]:
        many = messages[policy, lock_step] - LEAST
        last = many if lock_step else int(STEADY * many)
        return draws.randint(1, last), draws.choice((0.0, draws.uniform(0.0, 0.05)))

    if kind == "hang":
        return Case(policy, (Fault(draws.choice(WORKERS), *moment(), hangs=True),), lock_step, every)
    if kind == "free":
        # Free-running: a worker while the driver trains, the driver then or at a message.
        who: Kind = "driver" if number % 2 else draws.choice(WORKERS)
        while_training = number % 4 != 3
        at, delay_s = moment()
        if while_training:
            at, delay_s = draws.randint(1, STEPS - 1), draws.choice((0.0, draws.uniform(0.0, 0.02)))
        return Case(policy, (Fault(who, at, delay_s, trains=while_training),), False, every)
    if kind == "full":
        return Case(policy, (Fault("full", draws.randint(11, changes[policy])),), checkpoint_every=1)
    befallen = ("worker", "worker", "driver", "worker", "disk")[number % 5]
    if befallen == "worker":
        first = Fault(draws.choice(WORKERS), *moment())
    elif befallen == "driver":
        first = Fault("driver", *moment())
    else:
        first = Fault("disk", draws.randint(1, changes[policy]), torn=draws.random() < 0.5)
        every = 1
    again = [Fault(draws.choice(WORKERS), *moment())] if draws.random() < 0.3 else []
    start = "spawn" if number in (7, 17) else "forkserver"
    return Case(policy, (first, *again), lock_step, every, start)


def make(
    journal: Journal, done: set[str], counts: dict[str, int], seed: int, minutes: float
) -> Iterator[Entry]:
    """The cases that are missing; what broke is kept with its traceback."""
    began = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="oppo-faults-"))
    wholes: dict[str, Path] = {}
    messages: dict[tuple[str, bool], int] = {}
    changes: dict[str, int] = {}
    for policy in POLICIES:
        for lock_step in (True, False):
            whole, count = home / f"whole-{policy}-{lock_step}", Count()
            made = run_case(Case(policy, (), lock_step), whole, count).changes
            messages[policy, lock_step] = count.messages
            if lock_step:
                wholes[policy], changes[policy] = whole, len(made)
            assert_whole(whole)
    for kind, many in counts.items():
        for number in range(many):
            key = f"{kind} {number}"
            if key in done:
                continue
            if time.monotonic() - began > 60 * minutes:
                return
            case = drawn(kind, number, seed, messages, changes)
            started = time.monotonic()
            entry: dict[str, Any] = {
                "key": key,
                "kind": kind,
                "case": dataclasses.asdict(case),
                "broke": None,
            }
            try:
                entry |= dataclasses.asdict(suffer(case, home / key))
                assert_whole(home / key)
                if case.lock_step:
                    assert_same_decisions(wholes[case.policy], home / key)
            except (AssertionError, OppoError):
                entry["broke"] = traceback.format_exc(limit=3)
            # Where it ran is nobody's concern.
            entry["said"] = [text.replace(str(home / key), "RUN") for text in entry.get("said", ())]
            entry["seconds"] = round(time.monotonic() - started, 1)
            journal.append([entry])
            yield entry


def main() -> int:
    """Make what is missing, then the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=50, help="kills")
    parser.add_argument("--free", type=int, default=20, help="kills of free-running runs")
    parser.add_argument("--hangs", type=int, default=8)
    parser.add_argument("--full", type=int, default=8, help="full disks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--journal", type=Path, default=RUNS)
    parser.add_argument("--page", action="store_true", help="no runs")
    chosen = parser.parse_args()
    entries: list[Entry] = []
    about = {"seed": chosen.seed}

    def differs(head: Entry) -> str | None:
        return None if head.get("seed") == chosen.seed else f"{chosen.journal} holds cases of another seed"

    with Journal(chosen.journal, "faults", entries.append, about, differs) as journal:
        if not chosen.page:
            counts = {"kill": chosen.cases, "free": chosen.free, "hang": chosen.hangs, "full": chosen.full}
            done = {str(entry["key"]) for entry in entries}
            for entry in make(journal, done, counts, chosen.seed, chosen.minutes):
                entries.append(entry)
                print(
                    entry["key"],
                    entry["case"]["policy"],
                    entry["seconds"],
                    entry["broke"] or "held",
                    flush=True,
                )
    if chosen.journal == RUNS:
        write(entries)
    return 1 if any(entry["broke"] for entry in entries) else 0


if __name__ == "__main__":
    sys.exit(main())
