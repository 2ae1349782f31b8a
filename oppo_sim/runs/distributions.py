"""Staleness and deferrals of trained rollouts as distributions: of compared policies, and of a run."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.runs.request import ACTUAL

if TYPE_CHECKING:
    import pandas as pd


def compared_shares(cells: "pd.DataFrame") -> Mapping[str, "pd.DataFrame"]:
    """Name of a distribution → a row a policy, a column for each number of updates (of deferrals): ``0``,
    ``1``, … ``16+``, with the share of trained rollouts, mean over seeds. ``cells``: as ``Comparison.cells``.

    A distribution that no run has is left out.
    """
    actual = cells[cells[c.VARIANT] == ACTUAL]
    found: dict[str, pd.DataFrame] = {}
    for name in c.DISTRIBUTIONS:
        values = [value for value in range(c.LAST_SHARE + 1) if c.share(name, value) in actual.columns]
        if values:
            columns = [c.share(name, value) for value in values]
            shares = actual[columns].fillna(0.0).groupby(actual[c.RUN_POLICY], sort=False).mean()
            shares = shares.loc[:, np.cumsum(shares.to_numpy()[:, ::-1].max(axis=0))[::-1] > 0]
            labels = [f"{value}+" if value == c.LAST_SHARE else str(value) for value in values]
            found[name] = shares.set_axis(labels[: shares.shape[1]], axis="columns")
    return found


def counted(steps: "pd.DataFrame", name: str) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Trained rollouts with 0, 1, … updates of staleness (or deferrals), over all steps of a table of steps,
    simulated or real. Raises OppoError without the histogram column, and where nothing was trained."""
    column = c.DISTRIBUTIONS[name]
    if column not in steps.columns or not len(steps):
        raise OppoError(f"the step table lacks rows or the column '{column}': add it")
    rows = [np.asarray(row, dtype=np.float64) for row in steps[column]]
    counts = np.zeros(max(1, *(len(row) for row in rows)))
    for row in rows:
        counts[: len(row)] += row
    if not counts.sum():
        raise OppoError(f"no rollout was trained in the steps given: there are no {name} to show")
    return counts
