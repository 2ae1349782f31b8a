"""Length drift taken from the per-step tables of recorded runs."""

from typing import TYPE_CHECKING

from oppo_sim.columns import LENGTH_MEAN, SOURCE, STEP
from oppo_sim.errors import OppoError
from oppo_sim.traces.catalog import load_step_table

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd


def length_factors(
    table: str, source: str | None, steps: int, smooth_steps: int
) -> "npt.NDArray[np.float64]":
    """Mean length of a run's first ``steps`` steps, smoothed, divided by that of its first step; shape
    (steps,).

    Steps of the table count in order, gaps closed; a moving average over ``smooth_steps`` steps, narrower at
    the ends.
    Raises OppoError for an unknown table or source, or if the run is shorter.
    """
    import numpy as np

    frame = load_step_table(table)
    names = list(frame[SOURCE].unique())
    if source is None and len(names) > 1:
        raise OppoError(
            f"per-step table '{table}' holds {len(names)} runs: set drift.source to one of {', '.join(names)}"
        )
    chosen = source or names[0]
    if chosen not in names:
        raise OppoError(
            f"per-step table '{table}' has no run '{chosen}': set drift.source to one of {', '.join(names)}"
        )
    means = frame[frame[SOURCE] == chosen].groupby(STEP)[LENGTH_MEAN].mean().to_numpy(dtype=float)
    if steps > len(means):
        raise OppoError(
            f"run '{chosen}' of '{table}' has {len(means)} steps but {steps} are asked for: lower steps"
        )
    half = smooth_steps // 2
    window = [means[max(0, at - half) : at + half + 1].mean() for at in range(steps)]
    result: npt.NDArray[np.float64] = np.array(window) / window[0]
    return result


def runs_of(table: str) -> "pd.DataFrame":
    """One row a run of a per-step table: ``source``, ``steps`` (distinct), ``first`` and ``last`` (mean
    length of its first and last tenth of steps, tokens), ``factor`` (last / first). Raises OppoError for an
    unknown table.
    """
    import pandas as pd

    rows = []
    for source, run in load_step_table(table).groupby(SOURCE, sort=False):
        means = run.groupby(STEP)[LENGTH_MEAN].mean()
        tenth = max(1, len(means) // 10)
        first, last = float(means.iloc[:tenth].mean()), float(means.iloc[-tenth:].mean())
        rows.append(
            {SOURCE: source, "steps": len(means), "first": first, "last": last, "factor": last / first}
        )
    return pd.DataFrame(rows)
