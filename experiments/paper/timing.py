"""How long each part takes to make, from nothing, as it was made last: results/seconds.csv."""

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
        known = pd.read_csv(SECONDS) if SECONDS.exists() else pd.DataFrame({"part": []})
        row = pd.DataFrame([{"part": part, "cpu_s": round(time.process_time() - began)}])
        pd.concat([known[known["part"] != part], row]).to_csv(SECONDS, index=False)
