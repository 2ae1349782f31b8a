"""The runs of a sweep: those that are not there yet are made, seed by seed where points may be stopped."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from time import perf_counter

from oppo_sim import columns as c
from oppo_sim.progress import OnProgress, Progress
from oppo_sim.runs.execute import Executor, Runner
from oppo_sim.runs.request import RunRequest, RunResult
from oppo_sim.runs.statistics import FIRST_LOOK, dominated, looks_of
from oppo_sim.runs.store import RunStore
from oppo_sim.sweep.drawing import draw_points
from oppo_sim.sweep.plan import SweepPlan
from oppo_sim.sweep.ranking import PointRuns


def make_runs(
    plan: SweepPlan, store: RunStore, executor: Executor, on_progress: OnProgress | None
) -> list[PointRuns]:
    """Make all runs that the store does not hold, keeping each at once; gives every point with its runs."""
    watch = _Watch(plan, store, on_progress)
    alive = [number for number, point in enumerate(plan.resolved) if not isinstance(point, str)]
    stopped: dict[int, int] = {}
    with Runner(executor) as runner:
        for seeds in _rounds(plan):
            requests = plan.requests(alive, seeds)
            watch.known(len(requests) - len(store.missing(requests)))
            for finished in store.run(requests, runner):
                watch.finished(finished)
            done = plan.seeds.index(seeds[-1]) + 1
            if plan.spec.stop_dominated and done < len(plan.seeds):
                out = _dominated(plan, store, alive, done)
                stopped |= dict.fromkeys(out, done)
                alive = [number for number in alive if number not in out]
                watch.stopped(len(out) * (len(plan.seeds) - done))
        points = [_point_runs(plan, store, number, stopped.get(number)) for number in range(len(plan.points))]

        def make(requests: Sequence[RunRequest]) -> None:
            wanted = list({request.key: request for request in requests}.values())
            watch.more(len(wanted))
            watch.known(len(wanted) - len(store.missing(wanted)))
            for finished in store.run(wanted, runner):
                watch.finished(finished)

        return draw_points(points, plan.resolved, plan.spec.objective, make, store.__getitem__)


def _rounds(plan: SweepPlan) -> Iterator[tuple[int, ...]]:
    """Seeds that are run together: all, or, where points may be stopped, the first few and then one at a
    time."""
    if not plan.spec.stop_dominated or len(plan.seeds) <= FIRST_LOOK:
        yield plan.seeds
        return
    yield plan.seeds[:FIRST_LOOK]
    for seed in plan.seeds[FIRST_LOOK:]:
        yield (seed,)


def _dominated(plan: SweepPlan, store: RunStore, alive: Sequence[int], done: int) -> set[int]:
    """Points that are significantly worse than the best so far, after ``done`` seeds."""
    points = {number: _point_runs(plan, store, number, done) for number in alive}
    losses = {
        number: found for number, point in points.items() if (found := point.losses(plan.spec.objective))
    }
    candidates = [number for number in losses if not points[number].bound_only] or list(losses)
    if not candidates:
        return set()
    best = min(candidates, key=lambda number: (fmean(losses[number]), number))
    looks = looks_of(len(plan.seeds))
    return {number for number, found in losses.items() if dominated(found, losses[best], looks)}


def _point_runs(plan: SweepPlan, store: RunStore, number: int, stopped_after: int | None) -> PointRuns:
    point = plan.resolved[number]
    if isinstance(point, str):
        return PointRuns(plan.points[number], (), (), (), error=point)
    seeds = plan.seeds if stopped_after is None else plan.seeds[:stopped_after]
    runs = tuple(store[point.request.at(seed).key] for seed in seeds)
    baselines = tuple(store[point.baseline.at(seed).key] for seed in seeds)
    return PointRuns(
        plan.points[number],
        seeds,
        runs,
        baselines,
        stopped_after is not None,
        bound_only=point.bound_only,
        learning=point.learning,
    )


class _Watch:
    """Keeps count while runs finish, and knows the best point so far."""

    def __init__(self, plan: SweepPlan, store: RunStore, tell: OnProgress | None) -> None:
        self._plan, self._store, self._tell = plan, store, tell
        self._done = self._steps = 0
        self._total = len(plan.requests(range(len(plan.points)), plan.seeds))
        self._began = perf_counter()
        self._best, self._least = "", float("inf")
        self._point_of: dict[str, list[int]] = {}
        self._left = [0] * len(plan.points)
        if tell is None:
            return
        for number, point in enumerate(plan.resolved):
            if isinstance(point, str):
                continue
            keys = {
                request.at(seed).key for seed in plan.seeds for request in (point.request, point.baseline)
            }
            missing = [key for key in keys if key not in store]
            self._left[number] = len(missing)
            for key in missing:
                self._point_of.setdefault(key, []).append(number)
            if not missing:
                self._look(number)

    def known(self, count: int) -> None:
        self._done += count
        self._say()

    def more(self, runs: int) -> None:
        self._total += runs

    def stopped(self, runs: int) -> None:
        self._total -= runs
        self._say()

    def finished(self, finished: Sequence[tuple[RunRequest, RunResult]]) -> None:
        self._done += len(finished)
        self._steps += sum(request.steps for request, _ in finished)
        if self._tell is None:
            return
        for _, result in finished:
            for number in self._point_of.get(result.key, ()):
                self._left[number] -= 1
                if self._left[number] == 0:
                    self._look(number)
        self._say()

    def _look(self, number: int) -> None:
        point = _point_runs(self._plan, self._store, number, None)
        losses = point.losses(self._plan.spec.objective)
        if losses and fmean(losses) < self._least and not point.bound_only:
            self._least = fmean(losses)
            step = fmean([run[c.TIMING_STEP] for run in point.totals])
            self._best = (
                f"{step:.4g} s a step at"
                f" {', '.join(f'{name} {value}' for name, value in point.values.items())}"
            )

    def _say(self) -> None:
        if self._tell is not None:
            self._tell(
                Progress(
                    "simulated runs",
                    self._done,
                    self._total,
                    self._best,
                    self._steps,
                    perf_counter() - self._began,
                )
            )
