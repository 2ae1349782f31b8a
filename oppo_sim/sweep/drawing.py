"""Which points of a sweep are run on draws of the machine: those that could be the best."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

from oppo_sim.runs.request import RunRequest, RunResult
from oppo_sim.sweep.ranking import OK, PointRuns, ranked
from oppo_sim.sweep.resolve import Resolved

GROUP: Final = 8
"""Points that are drawn together, the best first."""
MOST_DRAWN: Final = 64
"""Points that are drawn at most."""


def draw_points(
    points: Sequence[PointRuns],
    resolved: Sequence[Resolved | str],
    objective: str,
    make: Callable[[Sequence[RunRequest]], None],
    result: Callable[[str], RunResult],
) -> list[PointRuns]:
    """The points, with runs on draws of those that could be the best.

    By rank on the machine as given, ``GROUP`` points at a time get all draws, each draw with one of the seeds
    in turn; it ends with a group none of which could be the best given seeds and draws, and after
    ``MOST_DRAWN`` points. ``make`` makes the runs that are not there; ``result`` gives one by its key.
    """
    found = list(points)
    losses = {number: point.losses(objective) for number, point in enumerate(found) if point.status == OK}
    order = sorted((number for number in losses if losses[number]), key=lambda number: fmean(losses[number]))
    plans = {number: each for number in order if not isinstance(each := resolved[number], str)}
    count = max((len(plan.machine.draws) for plan in plans.values()), default=0)
    best = ranked(found, objective).best
    if not count or best is None:
        return found
    for number, plan in plans.items():  # of those that are not drawn it is unknown, too
        found[number] = replace(found[number], machine=plan.machine)
    order = [best, *(number for number in order if number != best)][:MOST_DRAWN]
    for first in range(0, len(order), GROUP):
        group = order[first : first + GROUP]
        runs = {
            number: [plans[number].on_draw(draw, _seed(found[number], draw)) for draw in range(count)]
            for number in group
        }
        # Draw by draw: what runs of one draw share is built once.
        make([each for draw in range(count) for number in group for each in runs[number][draw]])
        for number in group:
            found[number] = replace(
                found[number],
                drawn=_placed(plans[number], [result(run.key) for run, _ in runs[number]]),
                drawn_baselines=_placed(plans[number], [result(base.key) for _, base in runs[number]]),
            )
        region = ranked(found, objective).region
        if not any(number in region for number in group if number != best):
            break
    return found


def _placed(plan: Resolved, runs: Sequence[RunResult]) -> tuple[RunResult, ...]:
    return tuple(plan.machine.placed(run, draw) for draw, run in enumerate(runs))


def _seed(point: PointRuns, draw: int) -> int:
    return point.seeds[draw % len(point.seeds)]
