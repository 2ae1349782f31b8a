"""Which policy of a comparison is the best, and which cannot be told apart from it."""

from typing import TYPE_CHECKING

from oppo_sim import columns as c
from oppo_sim.runs.ranges import geometric_mean, told_apart
from oppo_sim.runs.request import ACTUAL
from oppo_sim.runs.statistics import alike, paired

if TYPE_CHECKING:
    import pandas as pd


def best_policy(table: "pd.DataFrame") -> str:
    """The policy with the shortest step; one that only bounds what a real run can reach is never it, unless
    there are no others. ``table``: index ``policy``."""
    real = table[~table[c.BOUND_ONLY].astype(bool)]
    return str((real if real[c.STEP_S].notna().any() else table)[c.STEP_S].idxmin())


def steps_by_seed(cells: "pd.DataFrame") -> "pd.DataFrame":
    """Seconds of a step on the scenario's own machine: one row a seed, one column a policy or baseline."""
    actual = cells[cells["variant"] == ACTUAL]
    return actual.pivot(index="seed", columns="policy", values=c.TIMING_STEP)


def steps_by_draw(runs: "pd.DataFrame") -> "pd.DataFrame":
    """The same on draws of the machine: one row a draw and seed."""
    return runs.pivot(index=[c.DRAW, "seed"], columns="policy", values=c.TIMING_STEP).sort_index()


def not_told_apart(
    values: "pd.DataFrame", best: str, drawn: "pd.DataFrame | None" = None, practical: float = 0.0
) -> list[str]:
    """Columns whose paired difference from column ``best`` is not significant at 5 %; without ``best``.

    ``values``: one row a seed, positive; ``drawn``: the same by draw of the machine, rows (draw, seed). With
    fewer than two seeds and no draws nothing can be told apart. ``practical``: columns that are higher by no
    more than this share are in the list, too, however sure the difference is.
    """
    found = []
    for name in values.columns:
        if name == best or not values[name].notna().all():
            continue
        here, there = values[name].tolist(), values[best].tolist()
        if drawn is not None and name in drawn.columns:
            ratios = [
                geometric_mean(each.tolist()) for _, each in (drawn[name] / drawn[best]).groupby(level=0)
            ]
            same = not told_apart((values[name] / values[best]).tolist(), ratios)
        else:
            same = drawn is None and len(values) > 1 and alike(here, there)
        if same or (practical > 0 and paired(here, there)[0] <= practical):
            found.append(str(name))
    return found
