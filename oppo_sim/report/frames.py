"""Frames as they are read: columns that must be there, and the shape of a comparison."""

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from oppo_sim.errors import OppoError

if TYPE_CHECKING:
    import pandas as pd

# A comparison has one row per policy (the index); a row's times are means over steps and seeds, in seconds.
STEP_S: Final = "step_s"
STEP_S_LOW: Final = "step_s_low"
STEP_S_HIGH: Final = "step_s_high"
SPEEDUP: Final = "speedup"
SPEEDUP_LOW: Final = "speedup_low"
SPEEDUP_HIGH: Final = "speedup_high"
GEN_S: Final = "gen_s"
REWARD_S: Final = "reward_s"
TRAINING_S: Final = "training_s"
STALENESS_MEAN: Final = "staleness_mean"
STALENESS_MAX: Final = "staleness_max"
LENGTH_BIAS: Final = "length_bias"  # mean response length trained / mean of the trace − 1
DEFERRED: Final = "deferred"  # rollouts a step; may be absent

HIDDEN_BY_OVERLAP_S: Final = "hidden_by_overlap_s"
SAVED_BY_SHORTER_TAIL_S: Final = "saved_by_shorter_tail_s"
LOST_TO_RECOMPUTATION_S: Final = "lost_to_recomputation_s"
LOST_TO_CONTENTION_S: Final = "lost_to_contention_s"
LOST_TO_PADDING_S: Final = "lost_to_padding_s"


def numbers(frame: "pd.DataFrame", name: str, what: str) -> NDArray[np.float64]:
    """A column as floats, NaN where a value is missing. ``what`` names the frame in the OppoError for an absent column or no rows."""
    if len(frame) == 0:
        raise OppoError(f"the {what} table has no rows: nothing can be shown of it")
    if name not in frame.columns:
        raise OppoError(f"the {what} table lacks the column '{name}': add it")
    return frame[name].to_numpy(dtype=np.float64, na_value=np.nan)


def largest(values: NDArray[np.float64]) -> float:
    """The largest finite value, 0 if there is none."""
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else 0.0
