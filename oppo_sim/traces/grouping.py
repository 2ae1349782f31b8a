"""Which rows of a trace are samples of one prompt."""

from typing import TYPE_CHECKING

from oppo_sim.columns import PROMPT_ID, SOURCE, STEP

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd


def prompt_codes(frame: "pd.DataFrame") -> "npt.NDArray[np.int64]":
    """A number per row of a checked frame, shape (rows,): equal for rows of one source, step and prompt.

    A missing value equals a missing value, so rows without ``prompt_id`` fall together within their source
    and step.
    """
    import numpy as np
    import pandas as pd

    codes = np.zeros(len(frame), dtype=np.int64)
    for name in (SOURCE, STEP, PROMPT_ID):
        part, values = pd.factorize(frame[name], use_na_sentinel=False)
        codes = codes * len(values) + part
        # Renumbered each time, so that three columns of many values cannot overflow.
        codes = pd.factorize(codes)[0].astype(np.int64)
    return codes


def whole_groups(frame: "pd.DataFrame", group_size: int) -> "npt.NDArray[np.int64]":
    """Row numbers of whole groups, ``group_size`` consecutive entries a group, groups in the order of their
    first rows.

    Each prompt gives ⌊samples / group_size⌋ groups of its rows in file order; the other rows are left out
    (docs/model.md C3).
    """
    import numpy as np

    codes = prompt_codes(frame)
    by_prompt = np.argsort(codes, kind="stable")
    counts = np.bincount(codes)
    starts = np.cumsum(counts) - counts
    rank = np.arange(len(codes)) - np.repeat(starts, counts)
    full = rank < np.repeat(counts // group_size * group_size, counts)
    groups = by_prompt[full].reshape(-1, group_size)
    order: npt.NDArray[np.int64] = groups[np.argsort(groups[:, 0], kind="stable")].reshape(-1)
    return order
