"""Settings that were checked, on draws of the machine: how much faster the choice is on machines that the
costs may describe, and what cannot be told apart from it there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any, Final

from oppo_sim import columns as c
from oppo_sim.learning import Learning
from oppo_sim.runs.machine import MachineDraws
from oppo_sim.runs.ranges import (
    Gain,
    best_shares,
    between_columns,
    both,
    explained,
    freed,
    machine_interval,
    range_columns,
    told_apart,
)
from oppo_sim.runs.statistics import ratio_interval
from oppo_sim.runs.to_reward import Drawn, to_reward_columns
from oppo_sim.tune.check import relative_costs
from oppo_sim.tune.trials import Checked, PairedResult
from oppo_sim.tune.worlds import Bench, Totals

MOST_DRAWN: Final = 16
"""Trials that are drawn at most, the best first."""


@dataclass(frozen=True)
class _Runs:
    """A setting and its baseline: on every draw, each with one of the seeds in turn, and as given by seed."""

    drawn: Sequence[tuple[Totals, Totals]]
    given: Sequence[tuple[Totals, Totals]]
    learning: Learning

    def costs(self, name: str) -> list[float]:
        """Of the setting, draw by draw; the time to a reward under draws of the effect of staleness, too."""
        return [self._cost(run, name, draw) for draw, (run, _) in enumerate(self.drawn)]

    def gain(self, name: str) -> Gain:
        """How many times cheaper than the baseline."""
        drawn = [
            self._cost(base, name, draw) / self._cost(run, name, draw)
            for draw, (run, base) in enumerate(self.drawn)
        ]
        given = [base[name] / run[name] for run, base in self.given]
        mean, *ends = ratio_interval(given)
        return Gain(mean, (ends[0], ends[1]), freed(drawn, given))

    def _cost(self, totals: Totals, name: str, draw: int) -> float:
        return self.learning.seconds(totals, draw) if name == c.TIME_TO_REWARD_S else totals[name]

    def to_reward(self) -> dict[str, float]:
        """Columns of the time to the target reward, of seeds, machine and effect together."""
        seeds = len(self.given)
        rows = [[Drawn(number % seeds, *pair)] for number, pair in enumerate(self.drawn)]
        actual, base = zip(*self.given, strict=True)
        return to_reward_columns(actual, base, self.learning, rows)

    def steps(self) -> list[float]:
        """Seconds a step, by draw."""
        drawn, given = ([run[c.TIMING_STEP] for run, _ in pairs] for pairs in (self.drawn, self.given))
        return freed(drawn, given)


def on_draws(
    bench: Bench, cost: str, found: Sequence[PairedResult], best: PairedResult, seeds: Sequence[int]
) -> tuple[MachineDraws, list[PairedResult]]:
    """What is unknown about the machine, and the results with their ranges; as they were where nothing is.

    Drawn are the first ``MOST_DRAWN`` trials of ``found`` that keep all bounds, ``best`` among them, the
    scenario's own setting and the baseline. ``cost``: the total that is minimised. Raises OppoError for a run
    that fails on a draw.
    """
    plan = bench.resolve(best.checked.setting, 0)
    machine, count = plan.machine, len(plan.machine.draws)
    if not count and cost == c.TIME_TO_REWARD_S:
        count = len(plan.learning.effect.draws)
    if not count:
        return machine, list(found)
    trials = [one for one in found if one.checked.number is not None and one.keeps_bounds]
    wanted = [best, *(one for one in trials if one is not best)][:MOST_DRAWN]
    wanted += [one for one in found if one.checked.number is None]
    runs = _made(bench, wanted, seeds, count)
    plans = [bench.resolve(one.checked.setting, 0) for one in wanted]
    # The scenario's own setting may be one of the trials: one run, one chance.
    keys = [plan.request.key for plan in plans]
    real = {
        keys[number]: [[value] for value in runs[number].costs(cost)]
        for number, plan in enumerate(plans)
        if wanted[number].keeps_bounds and not plan.bound_only
    }
    shares = best_shares(real)
    changed = {}
    for one, own, there, key in zip(wanted, runs, plans, keys, strict=True):
        machines, share = (there.machine, machine), shares.get(key, nan)
        changed[id(one)] = _with_ranges(one, best, own, runs[0], cost, machines, share)
    return machine, [changed.get(id(one), one) for one in found]


def _made(bench: Bench, wanted: Sequence[PairedResult], seeds: Sequence[int], count: int) -> list[_Runs]:
    settings = [one.checked.setting for one in wanted]
    return [
        _Runs(
            drawn,
            list(zip(bench.totals(setting, 0, seeds), bench.baseline_totals(setting, 0, seeds), strict=True)),
            bench.resolve(setting, 0).learning,
        )
        for setting, drawn in zip(settings, bench.on_draws(settings, seeds, count), strict=True)
    ]


def _with_ranges(
    one: PairedResult,
    best: PairedResult,
    runs: _Runs,
    best_runs: _Runs,
    cost: str,
    machines: tuple[MachineDraws, MachineDraws],
    share: float,
) -> PairedResult:
    """``machines``: its own and the best's."""
    machine = machines[0]
    columns: Mapping[str, Any] = range_columns(
        runs.gain(cost if cost == c.TIME_TO_REWARD_S else c.S_PER_ROLLOUT),
        runs.gain(c.S_PER_TOKEN),
        runs.steps(),
        explained(machine.frame(), runs.gain(cost).drawn) if machine.draws else {},
    )
    ratios = relative_costs(one.checked.costs, best.checked.costs)
    drawn = freed(
        [here / there for here, there in zip(runs.costs(cost), best_runs.costs(cost), strict=True)],
        _ratios(one.checked, best.checked),
    )
    mean, *ends = ratio_interval(ratios)
    between = both(mean, (ends[0], ends[1]), machine_interval(drawn))
    columns = {
        **columns,
        **(runs.to_reward() if machine.draws else {}),
        **between_columns(explained(machine.frame_against(machines[1]), drawn) if machine.draws else {}),
        c.P_BEST: share,
        c.DIFFERENCE_BOTH_LOW: between[0] - 1.0,
        c.DIFFERENCE_BOTH_HIGH: between[1] - 1.0,
    }
    return replace(one, ranges=columns, alike=not told_apart(ratios, drawn))


def _ratios(one: Checked, best: Checked) -> list[float]:
    """Cost over the best's in the scenario as given, seed by seed."""
    return [here / there for here, there in zip(one.costs[0], best.costs[0], strict=True)]
