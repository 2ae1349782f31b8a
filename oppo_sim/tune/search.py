"""The search: batches of proposed settings, each tried on the search's seeds and stopped when it is clearly
worse."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from oppo_sim.errors import OppoError
from oppo_sim.runs.request import RunResult
from oppo_sim.runs.statistics import FIRST_LOOK, dominated
from oppo_sim.tune.bench import Bench, Need, Totals
from oppo_sim.tune.constraints import (
    ONLY_GROWS,
    Constraints,
    broken,
    kv_limit,
    measures,
    violations,
    worst_of,
)
from oppo_sim.tune.regret import best_in, mean_cost, ranked
from oppo_sim.tune.request import UNIT_COST, Objective, Robust
from oppo_sim.tune.sampler import BATCH, frozen_trial, propose
from oppo_sim.tune.space import Setting, Space
from oppo_sim.tune.store import Trial, TrialStore

CLEARLY = 0.01
"""A setting is stopped only if it is worse by more than this share, too."""


@dataclass(frozen=True)
class SearchProblem:
    """What is searched, and how settings are judged."""

    space: Space
    constraints: Constraints
    objective: Objective
    robust: Robust
    seeds: tuple[int, ...]
    sampler_seed: int

    @property
    def cost(self) -> str:
        """The total that is minimised."""
        return UNIT_COST[self.objective]


Ended = Literal["trials", "time", "space"]


def search(
    problem: SearchProblem,
    bench: Bench,
    store: TrialStore,
    trials: int,
    out_of_time: Callable[[], bool],
    progress: Callable[[int, Trial | None], None],
) -> Ended:
    """Bring ``store`` to ``trials`` trials; says what ended it. ``progress`` is told how many there are and
    the best so far.

    The same problem gives the same trials, however often it was interrupted.
    """
    worlds = len(bench.worlds)

    def tell() -> None:
        best = ranked(store.trials, worlds, problem.robust)
        progress(len(store.trials), best[0] if best else None)

    tell()
    while len(store.trials) < trials:
        if out_of_time():
            return "time"
        first = len(store.trials) // BATCH * BATCH
        before = store.trials[:first]
        proposed = propose(problem.space, before, first, BATCH, worlds, problem.robust, problem.sampler_seed)
        done = len(store.trials) - first
        wanted = proposed[done : trials - first]
        if not wanted:
            return "space"
        tried = _try_out(problem, bench, before, len(store.trials), wanted, out_of_time)
        if tried is None:
            return "time"
        for trial in tried:
            store.add(trial, frozen_trial(problem.space, trial, mean_cost(trial, 0) if trial.costs else None))
            tell()
    return "trials"


def looks(seeds: int) -> list[int]:
    """After how many seeds trials are judged, the last being all."""
    found, at = [], FIRST_LOOK
    while at < seeds:
        found.append(at)
        at *= 2
    return [*found, seeds]


def judged(
    problem: SearchProblem,
    bench: Bench,
    setting: Setting,
    totals: Sequence[Sequence[Totals]],
    baseline: Sequence[Sequence[Totals]],
) -> tuple[dict[str, float], dict[str, float]]:
    """Measures (the worst of all worlds) and violations of a setting. Raises OppoError where a bound cannot
    be measured."""
    each = [measures(runs, base) for runs, base in zip(totals, baseline, strict=True)]
    found: dict[str, float] = {}
    for world, measured in enumerate(each):
        limit = (
            kv_limit(problem.constraints, bench.parts(setting, world))
            if problem.constraints.kv_capacity is not None
            else None
        )
        for name, by in violations(problem.constraints, measured, limit).items():
            found[name] = max(by, found.get(name, by))
    return worst_of(each), found


# ---- inside ------------------------------------------------------------------------------------------------


@dataclass
class _Running:
    number: int
    setting: Setting
    totals: list[list[Totals]]
    """World by world, seed by seed."""
    ended: Trial | None = None
    seen: int = 0
    stopped: bool = field(default=False)


def _try_out(
    problem: SearchProblem,
    bench: Bench,
    before: Sequence[Trial],
    first: int,
    settings: Sequence[Setting],
    out_of_time: Callable[[], bool],
) -> list[Trial] | None:
    """Trials of some settings, in order; None: time ran out (finished runs are in the journal)."""
    worlds = range(len(bench.worlds))
    running = [_Running(first + i, setting, [[] for _ in worlds]) for i, setting in enumerate(settings)]
    ends = looks(len(problem.seeds))
    for end in ends:
        active = [each for each in running if each.ended is None and not each.stopped]
        needs = [
            Need(each.setting, world, seed)
            for each in active
            for seed in problem.seeds[each.seen : end]
            for world in worlds
        ]
        results = iter(bench.run(needs))
        for each in active:
            _take(each, [next(results) for _ in range((end - each.seen) * len(worlds))], end, len(worlds))
        for each in active:
            if each.ended is None and end < len(problem.seeds):
                each.stopped = _hopeless(problem, bench, before, each, len(ends) - 1)
        if out_of_time() and end < len(problem.seeds):
            return None
    return [each.ended or _trial(problem, bench, each) for each in running]


def _take(each: _Running, results: Sequence[RunResult], end: int, worlds: int) -> None:
    for number, result in enumerate(results):
        if result.totals is None:
            each.ended = Trial(each.number, each.setting, "failed", error=result.error)
            return
        each.totals[number % worlds].append(dict(result.totals))
    each.seen = end


def _trial(problem: SearchProblem, bench: Bench, each: _Running) -> Trial:
    costs = tuple(tuple(run[problem.cost] for run in world) for world in each.totals)
    try:
        measured, found = judged(problem, bench, each.setting, each.totals, _baselines(problem, bench, each))
    except OppoError as error:
        return Trial(each.number, each.setting, "failed", error=str(error))
    status: Literal["ok", "infeasible", "stopped"] = (
        "infeasible" if broken(found) else "stopped" if each.stopped else "ok"
    )
    return Trial(each.number, each.setting, status, costs, measured, found)


def _baselines(problem: SearchProblem, bench: Bench, each: _Running) -> list[list[Totals]]:
    """What length bias is measured against."""
    seeds = problem.seeds[: each.seen]
    return [bench.trains_all(each.setting, world, seeds) for world in range(len(bench.worlds))]


def _hopeless(
    problem: SearchProblem, bench: Bench, before: Sequence[Trial], each: _Running, looks_in_all: int
) -> bool:
    """Further seeds cannot help: beyond a bound that only grows, or clearly worse than the best so far in
    every world."""
    if any(name in ONLY_GROWS for name in problem.constraints.measured):
        try:
            _, found = judged(problem, bench, each.setting, each.totals, each.totals)
        except OppoError:
            return True
        if any(name in ONLY_GROWS for name in broken(found)):
            return True
    for world, runs in enumerate(each.totals):
        best = best_in(before, world)
        if best is None:
            return False
        here, there = [run[problem.cost] for run in runs], best.costs[world][: len(runs)]
        if fmean(here) <= fmean(there) * (1.0 + CLEARLY) or not dominated(here, there, looks_in_all):
            return False
    return True
