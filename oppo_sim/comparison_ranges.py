"""A comparison over draws of the machine: intervals beside those of the seeds, who is the best how probably,
which unknown matters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any

from oppo_sim import columns as c
from oppo_sim.runs.machine import Machine
from oppo_sim.runs.ranges import best_shares, both, explained, machine_interval, speedups

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Ranges:
    """What is unknown about the machine, and what it does to a comparison."""

    machine: Machine
    runs: "pd.DataFrame"
    """One row a policy or baseline, draw and seed: seconds a step and a trained rollout."""
    columns: "pd.DataFrame"
    """Columns for the table of the comparison, same index."""
    shares: Mapping[str, Mapping[str, float]]
    """Policy → term → share of the variance of its log speed-up, the largest first."""

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {**self.machine.record(), "shares": {name: dict(each) for name, each in self.shares.items()}}


def ranges_of(
    machine: Machine, runs: "pd.DataFrame", baselines: Mapping[str, str], table: "pd.DataFrame"
) -> Ranges:
    """From the runs on the draws.

    ``runs``: as in ``Ranges``, every label on the same draws and seeds; ``baselines``: policy → label of its
    baseline; ``table``: the comparison on the scenario's own machine.
    """
    import pandas as pd

    terms = machine.frame()
    labels = [str(label) for label in table.index]
    per_rollout, per_step = (_by_draw(runs, labels, name) for name in (c.S_PER_ROLLOUT, c.TIMING_STEP))
    real = [label for label in labels if not table.loc[label, c.BOUND_ONLY]]
    best = best_shares({label: per_rollout[label] for label in real})
    points = table.to_dict(orient="index")
    rows, shares = [], {}
    for label in labels:
        faster = speedups(per_rollout[baselines.get(label, label)], per_rollout[label])
        found = explained(terms, faster)
        point = points[label]
        steps = machine_interval([sum(seconds) / len(seconds) for seconds in per_step[label]])
        ends = machine_interval(faster)
        rollouts = point[c.SPEEDUP_LOW], point[c.SPEEDUP_HIGH]
        low, high = both(point[c.SPEEDUP], rollouts, ends)
        widest = next(iter(found), None)
        rows.append(
            {
                c.STEP_S_MACHINE_LOW: steps[0],
                c.STEP_S_MACHINE_HIGH: steps[1],
                c.SPEEDUP_MACHINE_LOW: ends[0],
                c.SPEEDUP_MACHINE_HIGH: ends[1],
                c.SPEEDUP_BOTH_LOW: low,
                c.SPEEDUP_BOTH_HIGH: high,
                c.P_BEST: best.get(label, nan),
                c.MACHINE_WIDEST: widest,
                c.MACHINE_WIDEST_SHARE: nan if widest is None else found[widest],
            }
        )
        if found:
            shares[label] = found
    columns = pd.DataFrame(rows, index=table.index).astype({c.MACHINE_WIDEST: "object"})
    return Ranges(machine, runs, columns, shares)


def _by_draw(runs: "pd.DataFrame", labels: Sequence[str], column: str) -> dict[str, list[list[float]]]:
    """Label → one row a draw, one value a seed, both in order."""
    table = runs.pivot(index=["policy", c.DRAW], columns="seed", values=column).sort_index()
    return {label: table.loc[label].to_numpy().tolist() for label in labels}
