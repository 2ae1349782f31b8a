"""Lengths that a Python program holds, as a trace file that every process can open."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from oppo_sim.errors import OppoError
from oppo_sim.files import write_errors
from oppo_sim.traces.sources import GIVEN, given_folder


def trace_file(given: Any) -> Path:
    """Where the trace lies: the path itself, or a file of the cache that is named by what it holds.

    ``given``: a path, a frame with a trace's columns, what ``open_trace`` gave, or response lengths alone (a
    list, an array, a series).
    Raises OppoError for what is no trace, and where the file cannot be written.
    """
    if isinstance(given, str | Path):
        return Path(given)
    import pandas as pd

    from oppo_sim.columns import RESPONSE_LENGTH, TRACE_COLUMNS, TURN_COLUMNS
    from oppo_sim.traces.opened import OpenedTrace
    from oppo_sim.traces.schema import check_frame, content_hash
    from oppo_sim.traces.storage import save_trace

    if isinstance(given, OpenedTrace):
        given = given.frame
    if isinstance(given, pd.DataFrame):
        frame = given
    elif getattr(given, "ndim", 1) == 1 and (hasattr(given, "tolist") or isinstance(given, Sequence)):
        frame = pd.DataFrame({RESPONSE_LENGTH: list(given)})
    else:
        raise OppoError(
            "a trace is a path, a frame, an opened trace, or one-dimensional response lengths, not"
            f" {type(given).__name__}"
        )
    checked = check_frame(frame.reset_index(drop=True), GIVEN)
    beside = checked.drop(columns=[*TRACE_COLUMNS, *TURN_COLUMNS], errors="ignore")
    known = content_hash(checked)  # of what is replayed; a fit looks at more
    if len(beside.columns):
        known += "-" + sha256(beside.to_csv(index=False).encode()).hexdigest()[:16]
    path = given_folder() / f"{known}.parquet"
    if not path.is_file():
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        save_trace(checked, path, overwrite=True)
    return path
