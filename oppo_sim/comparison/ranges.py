"""A comparison over draws of the machine: intervals beside those of the seeds, who is the best how probably,
which unknown matters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any

from oppo_sim import columns as c
from oppo_sim.runs.best import LOSS, Objective
from oppo_sim.runs.machine import MachineDraws
from oppo_sim.runs.ranges import Gain, best_shares, explained, range_columns, speedups
from oppo_sim.runs.statistics import ROLLOUTS

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Ranges:
    """What is unknown about the machine, and what it does to a comparison."""

    machine: MachineDraws
    runs: "pd.DataFrame"
    """One row a policy or baseline, draw and seed: seconds a step, a trained rollout, a trained token and to
    the target reward (under the draw of the same number of the effect of staleness)."""
    columns: "pd.DataFrame"
    """Columns for the table of the comparison, same index."""
    shares: Mapping[str, Mapping[str, float]]
    """Policy → term → share of the variance of its log speed-up, the largest first."""

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {**self.machine.record(), "shares": {name: dict(each) for name, each in self.shares.items()}}


def ranges_of(
    machine: MachineDraws,
    runs: "pd.DataFrame",
    baselines: Mapping[str, str],
    table: "pd.DataFrame",
    objective: Objective,
) -> Ranges:
    """From the runs on the draws.

    ``runs``: as in ``Ranges``, every label on the same draws and seeds; ``baselines``: policy → label of its
    baseline; ``table``: the comparison on the scenario's own machine; ``objective``: what is best.
    """
    import pandas as pd

    terms = machine.frame()
    labels = [str(label) for label in table.index]
    per_rollout, per_token, per_step = (
        _by_draw(runs, labels, name) for name in (c.S_PER_ROLLOUT, c.S_PER_TOKEN, c.TIMING_STEP)
    )
    real = [label for label in labels if not table.loc[label, c.BOUND_ONLY]]
    ranked = per_rollout if objective == ROLLOUTS else _by_draw(runs, labels, LOSS[objective])
    best = best_shares({label: ranked[label] for label in real})
    points = table.to_dict(orient="index")
    rows, shares = [], {}
    for label in labels:
        base, point = baselines.get(label, label), points[label]
        rollout, token = (
            Gain(point[speedup], (point[low], point[high]), speedups(seconds[base], seconds[label]))
            for seconds, (speedup, low, high) in (
                (per_rollout, (c.SPEEDUP, c.SPEEDUP_LOW, c.SPEEDUP_HIGH)),
                (per_token, (c.SPEEDUP_PER_TOKEN, c.SPEEDUP_PER_TOKEN_LOW, c.SPEEDUP_PER_TOKEN_HIGH)),
            )
        )
        found = explained(terms, rollout.drawn)
        steps = [sum(seconds) / len(seconds) for seconds in per_step[label]]
        columns = range_columns(rollout, token, steps, found)
        rows.append({**columns, c.P_BEST: best.get(label, nan)})
        if found:
            shares[label] = found
    frame = pd.DataFrame(rows, index=table.index).astype({c.MACHINE_WIDEST: "object"})
    return Ranges(machine, runs, frame, shares)


def _by_draw(runs: "pd.DataFrame", labels: Sequence[str], column: str) -> dict[str, list[list[float]]]:
    """Label → one row a draw, one value a seed, both in order."""
    table = runs.pivot(index=[c.RUN_POLICY, c.DRAW], columns=c.RUN_SEED, values=column).sort_index()
    return {label: table.loc[label].to_numpy().tolist() for label in labels}
