"""Frames as they are read: columns that must be there, and the shape of a comparison."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oppo_sim.errors import OppoError

if TYPE_CHECKING:
    import pandas as pd


def numbers(frame: "pd.DataFrame", name: str, what: str) -> NDArray[np.float64]:
    """A column as floats, NaN where a value is missing. ``what`` names the frame in the OppoError for an
    absent column or no rows."""
    if len(frame) == 0:
        raise OppoError(f"the {what} table has no rows: nothing can be shown of it")
    if name not in frame.columns:
        raise OppoError(f"the {what} table lacks the column '{name}': add it")
    return frame[name].to_numpy(dtype=np.float64, na_value=np.nan)


def largest(values: NDArray[np.float64]) -> float:
    """The largest finite value, 0 if there is none."""
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else 0.0
