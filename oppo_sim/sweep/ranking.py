"""Finished points: what their seeds and draws gave, which is best, and which cannot be told apart from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final, Literal

from oppo_sim import columns as c
from oppo_sim.learning import ONE_STEP, Learning
from oppo_sim.runs.machine import EXACT, MachineDraws
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
from oppo_sim.runs.request import RunResult
from oppo_sim.runs.statistics import TO_REWARD, Totals, alike, loss, paired, ratio_interval
from oppo_sim.runs.to_reward import Drawn
from oppo_sim.sweep.points import Values

Status = Literal["ok", "failed", "stopped"]
OK: Final = "ok"
FAILED: Final = "failed"
STOPPED: Final = "stopped"


@dataclass(frozen=True)
class PointRuns:
    """A point and what its seeds gave."""

    values: Values
    seeds: tuple[int, ...]
    """Those that it was run with, from the first seed on."""
    runs: tuple[RunResult, ...]
    baselines: tuple[RunResult, ...]
    """Of the same seeds."""
    stopped: bool = False
    error: str | None = None
    """Why nothing was run."""
    bound_only: bool = False
    """Its policy knows what no real run can: in the table, never the best."""
    machine: MachineDraws = EXACT
    drawn: tuple[RunResult, ...] = ()
    """On draws of the machine, each with one of the seeds in turn; empty: it was not drawn."""
    drawn_baselines: tuple[RunResult, ...] = ()
    learning: Learning = ONE_STEP

    @property
    def status(self) -> Status:
        """Failed if a run is missing."""
        if self.sentence is not None:
            return FAILED
        return STOPPED if self.stopped else OK

    @property
    def sentence(self) -> str | None:
        """Why it failed: what the first failing seed says."""
        return self.error or next((run.error for run in self.runs if run.totals is None), None)

    @property
    def totals(self) -> list[Totals]:
        """Of a point that did not fail, by seed."""
        return [run.totals for run in self.runs if run.totals is not None]

    @property
    def all_runs(self) -> tuple[RunResult, ...]:
        """Baselines and draws included."""
        return *self.runs, *self.baselines, *self.drawn, *self.drawn_baselines

    def losses(self, objective: str) -> list[float]:
        """What the point is ranked by, seed by seed; empty where it failed or its baseline did (objective
        ``speedup``)."""
        if self.sentence is not None:
            return []
        pairs = [(run.totals, base.totals) for run, base in zip(self.runs, self.baselines, strict=True)]
        if objective == "speedup" and any(base is None for _, base in pairs):
            return []
        return [loss(totals, base, objective) for totals, base in pairs if totals is not None]

    @property
    def drawn_pairs(self) -> list[tuple[Totals, Totals]]:
        """Run and baseline, draw by draw; empty where it was not drawn, or something failed on a draw."""
        both_of = zip(self.drawn, self.drawn_baselines, strict=True)
        pairs = [
            (run.totals, base.totals)
            for run, base in both_of
            if run.totals is not None and base.totals is not None
        ]
        return pairs if len(pairs) == len(self.drawn) else []

    def drawn_losses(self, objective: str) -> list[float]:
        """What the point is ranked by, draw by draw; empty as ``drawn_pairs``. The time to a reward is drawn
        with the effect of staleness, also on an exact machine."""
        if objective != TO_REWARD:
            return [loss(totals, base, objective) for totals, base in self.drawn_pairs]
        runs = [totals for totals, _ in self.drawn_pairs]
        if not self.machine.draws and self.status == OK:
            given, count = self.totals, len(self.learning.effect.draws)
            runs = [given[number % len(given)] for number in range(count)]
        return [self.learning.seconds(totals, number) for number, totals in enumerate(runs)]

    @property
    def drawn_rows(self) -> list[list[Drawn]]:
        """For the time to the target reward."""
        count = len(self.seeds)
        return [[Drawn(number % count, *pair)] for number, pair in enumerate(self.drawn_pairs)]


@dataclass(frozen=True)
class Ranking:
    """Which point is best, and how sure that is."""

    best: int | None
    """Row of the points table; None: no point ran all its seeds."""
    region: tuple[int, ...]
    """Rows whose paired difference from the best is not significant (5 %) given seeds and, where a row was
    drawn, draws, or below what matters in practice; the best among them, ascending."""
    differences: dict[int, tuple[float, float, float]]
    """Row → relative difference from the best with its 95 % interval over the seeds; 0.02: 2 % worse."""
    drawn: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Row that was drawn → its columns that rest on draws."""


def ranked(points: Sequence[PointRuns], objective: str, practical: float = 0.0) -> Ranking:
    """Find the best point: least mean loss among those that ran all their seeds, on the machine as given.

    ``practical``: points that are worse by no more than this share are in its region, too, however sure the
    difference is.
    """
    losses = {number: found for number, point in enumerate(points) if (found := point.losses(objective))}
    complete = [number for number in losses if points[number].status == OK]
    real = [number for number in complete if not points[number].bound_only]
    if not complete:
        return Ranking(None, (), {})
    best = min(real or complete, key=lambda number: (fmean(losses[number]), number))
    differences = {number: paired(found, losses[best]) for number, found in losses.items()}
    at_point = {number: _over(found, losses[best]) for number, found in losses.items()}
    drawn = _drawn_ratios(points, at_point, best, objective)
    region = [
        number
        for number in complete
        if differences[number][0] <= practical
        or (
            not told_apart(at_point[number], drawn[number])
            if number in drawn
            else alike(losses[number], losses[best])
        )
    ]
    rows = {
        number: _drawn_row(points[number], at_point[number], found, points[best].machine)
        for number, found in drawn.items()
    }
    real_drawn = {number: points[number].drawn_losses(objective) for number in drawn if number in real}
    shares = best_shares({number: [[each] for each in found] for number, found in real_drawn.items()})
    for number, share in shares.items():
        rows[number][c.P_BEST] = share
    return Ranking(best, tuple(region), differences, rows)


def _drawn_ratios(
    points: Sequence[PointRuns], at_point: Mapping[int, Sequence[float]], best: int, objective: str
) -> dict[int, list[float]]:
    """Row → loss over the best point's, draw by draw, of rows that were drawn; empty where the best was not.
    ``at_point``: the same seed by seed on the machine as given."""
    there = points[best].drawn_losses(objective)
    drawn = {number: points[number].drawn_losses(objective) for number in at_point} if there else {}
    return {number: freed(_over(found, there), at_point[number]) for number, found in drawn.items() if found}


def _drawn_row(
    point: PointRuns, at_point: Sequence[float], drawn: Sequence[float], best: MachineDraws
) -> dict[str, Any]:
    difference, *ends = ratio_interval(at_point)
    low, high = both(difference, (ends[0], ends[1]), machine_interval(drawn))
    differences = {c.DIFFERENCE_BOTH_LOW: low - 1.0, c.DIFFERENCE_BOTH_HIGH: high - 1.0}
    pairs = point.drawn_pairs
    if not pairs:  # an exact machine: draws of the effect of staleness alone
        return {**differences, c.MACHINE_WIDEST: "", c.DIFFERENCE_WIDEST: ""}
    per_rollout, per_token = (_gain(point, name) for name in (c.S_PER_ROLLOUT, c.S_PER_TOKEN))
    steps = freed([run[c.TIMING_STEP] for run, _ in pairs], [run[c.TIMING_STEP] for run in point.totals])
    whole = len(point.machine.draws) == len(pairs)
    shares = explained(point.machine.frame(), per_rollout.drawn) if whole else {}
    between = explained(point.machine.frame_against(best), drawn) if whole else {}
    return {
        **range_columns(per_rollout, per_token, steps, shares),
        **differences,
        **between_columns(between),
    }


def _gain(point: PointRuns, name: str) -> Gain:
    """Over the point's own baseline in the total ``name``."""
    given = [
        base.totals[name] / run.totals[name]
        for run, base in zip(point.runs, point.baselines, strict=True)
        if run.totals is not None and base.totals is not None
    ]
    mean, *ends = ratio_interval(given)
    return Gain(
        mean, (ends[0], ends[1]), freed([base[name] / run[name] for run, base in point.drawn_pairs], given)
    )


def _over(here: Sequence[float], there: Sequence[float]) -> list[float]:
    return [own / other for own, other in zip(here, there, strict=False)]
