"""How long each part takes to make, from nothing, as it was made last: results/seconds.csv."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pandas as pd
from study import RESULTS

SECONDS: Final = RESULTS / "seconds.csv"


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


def _record(part: str, cpu_s: float) -> None:
    """Parts are made by several processes at once."""
    with SECONDS.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known = [line for line in file.read().splitlines()[1:] if line.partition(",")[0] != part]
        file.truncate(0)
        file.write("\n".join(["part,cpu_s", *sorted([*known, f"{part},{cpu_s:.0f}"])]) + "\n")
