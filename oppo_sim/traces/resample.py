"""A trace of any size out of another one."""

from typing import TYPE_CHECKING

from oppo_sim.draws import stream_key
from oppo_sim.errors import OppoError
from oppo_sim.traces.draw_arrays import indices

if TYPE_CHECKING:
    import pandas as pd


def resample(frame: "pd.DataFrame", rows: int, seed: int) -> "pd.DataFrame":
    """``rows`` rows of ``frame`` drawn with replacement, each by the hash of (seed, its number); all columns
    are kept.

    More rows with the same seed begin with the same rows. Raises OppoError for rows below 1 or an empty
    frame.
    """
    if rows < 1:
        raise OppoError(f"cannot draw {rows} rows: ask for at least 1")
    if frame.empty:
        raise OppoError("cannot draw from a trace without rows: give one with rows")
    return frame.iloc[indices(stream_key(seed, "resample"), rows, len(frame))].reset_index(drop=True)
