"""How long each part, and all in one call, take to make from nothing, as they were made last:
results/seconds.csv and whole_run.csv."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import pandas as pd
from study import RESULTS

SECONDS: Final = RESULTS / "seconds.csv"
WHOLE: Final = RESULTS / "whole_run.csv"


@contextmanager
def timed(part: str, from_nothing: bool) -> Iterator[None]:
    """Record the processor's seconds of what is inside, if all of it is made now."""
    began = time.process_time()
    yield
    if from_nothing:
        _record(part, time.process_time() - began)


def seconds_known() -> dict[str, float]:
    """By part."""
    if not SECONDS.exists():
        return {}
    return {str(row.part): float(row.cpu_s) for row in pd.read_csv(SECONDS).itertuples()}


class Whole(NamedTuple):
    """All parts, made from nothing in one call."""

    parts: int
    jobs: int
    cpu_s: float
    """User and system, of all processes."""
    wall_s: float
    stopped_s: float
    """Of it, in which the call did not get to run at all."""


def whole_run() -> Whole | None:
    """The one that was made last."""
    if not WHOLE.exists():
        return None
    return Whole(*pd.read_csv(WHOLE).iloc[0])


def record_whole(run: Whole) -> None:
    """In place of the one before."""
    pd.DataFrame([run]).to_csv(WHOLE, index=False, float_format="%.0f")


def _record(part: str, cpu_s: float) -> None:
    """Parts are made by several processes at once."""
    with SECONDS.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known = [line for line in file.read().splitlines()[1:] if line.partition(",")[0] != part]
        file.truncate(0)
        file.write("\n".join(["part,cpu_s", *sorted([*known, f"{part},{cpu_s:.0f}"])]) + "\n")
