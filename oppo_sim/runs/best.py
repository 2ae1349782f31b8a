"""Which policy of a comparison is the best, and which cannot be told apart from it."""

from typing import TYPE_CHECKING, Final, Literal

from oppo_sim import columns as c
from oppo_sim.learning import Learning
from oppo_sim.runs.ranges import geometric_mean, told_apart
from oppo_sim.runs.request import ACTUAL
from oppo_sim.runs.statistics import ROLLOUTS, TO_REWARD, alike, paired

if TYPE_CHECKING:
    import pandas as pd

Objective = Literal["rollouts", "time_to_reward"]
"""Least seconds a step, since every step trains as many rollouts; or least time to the target reward."""
LOSS: Final = {ROLLOUTS: c.TIMING_STEP, TO_REWARD: c.TIME_TO_REWARD_S}
"""Objective → what a run is ranked by, less is better."""
_MEAN: Final = {ROLLOUTS: c.STEP_S, TO_REWARD: c.HOURS_TO_REWARD}
"""The same over the seeds, in the table of a comparison."""


def best_policy(table: "pd.DataFrame", objective: Objective = "rollouts") -> str:
    """The policy with the shortest step, or the shortest time to the target reward; one that only bounds what
    a real run can reach is never it, unless there are no others. ``table``: index ``policy``."""
    column = _MEAN[objective]
    real = table[~table[c.BOUND_ONLY].astype(bool)]
    return str((real if real[column].notna().any() else table)[column].idxmin())


def losses_by_seed(cells: "pd.DataFrame", objective: Objective = "rollouts") -> "pd.DataFrame":
    """What runs on the scenario's own machine are ranked by: one row a seed, one column a policy or
    baseline."""
    actual = cells[cells[c.VARIANT] == ACTUAL]
    return actual.pivot(index=c.RUN_SEED, columns=c.RUN_POLICY, values=LOSS[objective])


def losses_by_draw(runs: "pd.DataFrame", objective: Objective = "rollouts") -> "pd.DataFrame":
    """The same on draws of the machine: one row a draw and seed."""
    return runs.pivot(index=[c.DRAW, c.RUN_SEED], columns=c.RUN_POLICY, values=LOSS[objective]).sort_index()


def to_reward_by_effect(cells: "pd.DataFrame", learning: Learning) -> "pd.DataFrame | None":
    """Seconds to the target reward on an exact machine, by draw of the effect of staleness and seed; None
    where the effect is exact, too."""
    import pandas as pd

    actual = cells[cells[c.VARIANT] == ACTUAL].to_dict("records")
    rows = [
        {
            c.RUN_POLICY: run[c.RUN_POLICY],
            c.DRAW: draw,
            c.RUN_SEED: run[c.RUN_SEED],
            c.TIME_TO_REWARD_S: learning.seconds(run, draw),
        }
        for draw in range(len(learning.effect.draws))
        for run in actual
    ]
    return losses_by_draw(pd.DataFrame(rows), "time_to_reward") if rows else None


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
