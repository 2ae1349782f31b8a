"""A sweep from beginning to end: plan the points, make the runs that are not there yet, rank."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.progress import OnProgress, Progress
from oppo_sim.report.labels import counted
from oppo_sim.runs.evaluate import forget, seconds_a_step
from oppo_sim.runs.execute import Executor, Runner
from oppo_sim.runs.machine import MachineDraws
from oppo_sim.runs.request import RunRequest, RunResult
from oppo_sim.runs.statistics import FIRST_LOOK, dominated, looks_of
from oppo_sim.runs.store import RunStore
from oppo_sim.scenario.schema import Scenario
from oppo_sim.sweep.axes import Axis
from oppo_sim.sweep.best_points import BestPoints, best_points
from oppo_sim.sweep.drawing import GROUP, MOST_DRAWN, draw_points
from oppo_sim.sweep.points import Values, points_of
from oppo_sim.sweep.ranking import FAILED, OK, STOPPED, PointRuns, Ranking, ranked
from oppo_sim.sweep.resolve import Resolved, Resolver, refuse_unknown, with_splits
from oppo_sim.sweep.spec import SweepSpec
from oppo_sim.sweep.table import points_frame, runs_frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from oppo_sim.report.points import Points

_MOST_IN_NOTEBOOK: Final = 20
"""Points shown of a sweep."""
MOST_NAMED: Final = 20
"""Reasons of failures that a summary names."""


@dataclass(frozen=True)
class SweepPlan:
    """The points of a sweep, each with its run or the sentence that says why it has none."""

    spec: SweepSpec
    scenario: Scenario
    axes: tuple[Axis, ...]
    points: tuple[Values, ...]
    resolved: tuple[Resolved | str, ...]
    seeds: tuple[int, ...]
    splits: str = ""
    """Which splits of the GPUs were looked at, where ``cluster.split`` is ``auto``."""

    @property
    def fields(self) -> tuple[str, ...]:
        """What varies."""
        return tuple(axis.field for axis in self.axes)

    @property
    def runnable(self) -> list[Resolved]:
        """Points that can run."""
        return [point for point in self.resolved if not isinstance(point, str)]

    def requests(self, numbers: Iterable[int], seeds: Sequence[int]) -> list[RunRequest]:
        """Runs of some points and of their baselines under some seeds, each once, baselines first."""
        resolved = [point for number in numbers if not isinstance(point := self.resolved[number], str)]
        bases = [point.baseline.at(seed) for point in resolved for seed in seeds]
        runs = [point.request.at(seed) for point in resolved for seed in seeds]
        return list({request.key: request for request in (*bases, *runs)}.values())


@dataclass(frozen=True)
class Failure:
    """Why points failed."""

    sentence: str
    points: int
    """How many."""
    first: Values
    """One of them."""


@dataclass(frozen=True, repr=False)
class Sweep:
    """A finished sweep.

    ``points`` has a row for each point: the fields that vary, then, in the units that
    ``oppo_sim.explain(sweep.points)`` and docs/columns.md give for every column, ``step_s`` (seconds a step),
    ``speedup`` (ratio to the sequential baseline), ``staleness_mean`` (updates), ``length_bias_paired`` and
    ``difference`` (shares; the latter: cost over the best point's, minus 1), ``status``. Ends of 95 %
    intervals have the suffixes ``_low`` and ``_high``. ``runs`` has a row for each run of a point, with its
    ``seed``. In a notebook it shows its best points.
    """

    plan: SweepPlan = field(repr=False)
    points: "pd.DataFrame"
    """One row a point: its fields, then the columns of a comparison (``oppo_sim.explain(sweep.points)``)."""
    runs: "pd.DataFrame" = field(repr=False)
    """One row a finished run of a point."""
    best: int | None
    """Row of the best point; None: no point could run."""
    alike: tuple[int, ...]
    """Rows that cannot be told apart from the best over the paired seeds and draws of the machine (95 %), the
    best among them."""
    engines: Mapping[str, int]
    """Runs by engine, baselines included."""
    failures: tuple[Failure, ...]
    """Most frequent first."""

    @property
    def machine(self) -> MachineDraws:
        """What is unknown about the machine of the first point that can run."""
        return self.plan.runnable[0].machine

    def __repr__(self) -> str:
        fields, alike = ", ".join(self.plan.fields), len(self.alike)
        return f"Sweep({len(self.points):,} points over {fields}; best: row {self.best}, {alike} alike)"

    def _repr_html_(self) -> str:
        return self.best_points(_MOST_IN_NOTEBOOK).html(self.title, self.points)

    @property
    def title(self) -> str:
        """What was swept, in a line."""
        plan = self.plan
        steps = plan.spec.steps or plan.scenario.steps
        what = f"{counted(len(plan.points), 'point')}, {counted(len(plan.seeds), 'seed')} × {steps} steps"
        return f"{plan.scenario.name}: {what} (simulated)"

    def best_points(self, top: int) -> BestPoints:
        """The best ``top`` points as texts."""
        values = {name: [point.get(name) for point in self.plan.points] for name in self.plan.fields}
        return best_points(self.points, values, self.plan.spec.objective, self.best, self.alike, top)

    def heatmap(self, metric: str = c.STEP_S, *, x: str | None = None, y: str | None = None) -> "Figure":
        """A measure (a column of ``points``) over two fields that vary: the first two of the grid where none
        are named; a figure that a notebook shows. Raises OppoError where fewer than two vary."""
        from oppo_sim.report.explore import map_fields
        from oppo_sim.report.heat_figure import heat_figure

        shown = self._shown()
        across, up = (*map_fields(shown), "", "")[:2]
        return heat_figure(shown, metric, x=x or across, y=y or up)

    def region(self) -> "pd.DataFrame":
        """Rows of ``points`` that cannot be told apart from the best (``alike``), the best first."""
        return self.points.loc[sorted(self.alike, key=lambda row: row != self.best)]

    def explore(self) -> Any:
        """A widget: any measure over any two fields, at any values of the others. Needs ipywidgets (the extra
        ``notebooks``); raises OppoError without, and where nothing varies."""
        from oppo_sim.report.explore import explorer

        return explorer(self._shown())

    def _shown(self) -> "Points":
        from oppo_sim.report.points import Points, objective_measure

        fields = self.plan.fields
        measure = objective_measure(self.plan.spec.objective, fields)
        return Points(self.points, fields, self.best, frozenset(self.alike), measure)

    @property
    def statuses(self) -> dict[str, int]:
        """Points by status."""
        return {status: int((self.points[c.STATUS] == status).sum()) for status in (OK, STOPPED, FAILED)}


def plan_sweep(
    spec: SweepSpec, scenario: Scenario, progress: Callable[[int, int], None] | None = None
) -> SweepPlan:
    """All points, each checked. ``progress(done, total)`` counts points.

    Raises OppoError for a field that exists nowhere, values that are none, and where no point at all could
    run.
    """
    scenario = scenario.for_steps(spec.steps)
    forget()
    grid, splits = with_splits(scenario, spec.grid_axes)
    axes: tuple[Axis, ...] = (*grid, *spec.sampled_axes)
    refuse_unknown(scenario, axes)
    points = points_of(grid, spec.sampled_axes, spec.samples, spec.sampler, spec.sampler_seed)
    resolver = Resolver(scenario, steps=spec.steps, seeds=spec.seeds, draws=spec.draws)
    resolved: list[Resolved | str] = []
    for number, values in enumerate(points, 1):
        try:
            resolved.append(resolver.resolve(values))
        except OppoError as error:
            resolved.append(sys.intern(str(error)))
        if progress is not None:
            progress(number, len(points))
    plan = SweepPlan(
        spec,
        scenario,
        axes,
        tuple(points),
        tuple(resolved),
        tuple(range(scenario.seed, scenario.seed + spec.seeds)),
        "" if splits is None else splits.sentence,
    )
    if not plan.runnable:
        raise _none_can_run(
            _grouped([(values, str(why)) for values, why in zip(points, resolved, strict=True)]), len(points)
        )
    return plan


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


def finish(plan: SweepPlan, points: Sequence[PointRuns]) -> Sweep:
    """Rank the points. Raises OppoError where all of them failed."""
    failed = [(point.values, sentence) for point in points if (sentence := point.sentence) is not None]
    failures = _grouped(failed)
    if len(failed) == len(points):
        raise _none_can_run(failures, len(points))
    ranking: Ranking = ranked(points, plan.spec.objective, plan.spec.practical)
    engines = Counter(
        run.engine for run in {run.key: run for point in points for run in point.all_runs}.values()
    )
    engines.pop("", None)
    return Sweep(
        plan,
        points_frame(points, plan.fields, ranking),
        runs_frame(points),
        ranking.best,
        ranking.region,
        dict(sorted(engines.items())),
        tuple(failures),
    )


@dataclass(frozen=True)
class Estimate:
    """What a sweep will take."""

    runs: int
    known_runs: int
    """Of these, already in the folder."""
    steps: int
    """Training steps of the runs that are not."""
    seconds: float | None
    """Real seconds, from one run that was timed; None: nothing is left to run, or that run failed."""
    engine: str
    drawn_runs: tuple[int, int] = (0, 0)
    """What draws of the machine add to ``runs``: of the first group of points, and where no point can be told
    apart from the best. ``known_runs``, ``steps`` and ``seconds`` are without them."""
    drawn_seconds: tuple[float, float] | None = None
    """Real seconds of these; None: no run was timed."""


def estimate(plan: SweepPlan, known: Callable[[str], bool], jobs: int) -> Estimate:
    """Count the runs that are left and time one of them here. Which points run on draws is known only when
    they are ranked: here the first are taken for the best."""
    requests = plan.requests(range(len(plan.points)), plan.seeds)
    missing = [request for request in requests if not known(request.key)]
    steps = sum(request.steps for request in missing)
    drawn = _drawn_runs(plan, GROUP), _drawn_runs(plan, MOST_DRAWN)
    if not missing:
        return Estimate(len(requests), len(requests), 0, None, "", drawn)
    a_step, engine = seconds_a_step(missing[-1])
    known_runs = len(requests) - len(missing)
    if a_step is None:
        return Estimate(len(requests), known_runs, steps, None, engine, drawn)
    a_run = a_step * steps / len(missing)
    least, most = (count * a_run / max(1, min(jobs, count)) for count in drawn)
    seconds = a_step * steps / max(1, min(jobs, len(missing)))
    return Estimate(len(requests), known_runs, steps, seconds, engine, drawn, (least, most))


# ---- inside ------------------------------------------------------------------------------------------------


def _drawn_runs(plan: SweepPlan, points: int) -> int:
    """Distinct runs of so many points, and of their baselines, on the draws of the machine."""
    keys = {
        request.key
        for point in plan.runnable[:points]
        for draw in range(len(point.machine.draws))
        for request in point.on_draw(draw, plan.seeds[draw % len(plan.seeds)])
    }
    return len(keys)


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


def _grouped(failed: Sequence[tuple[Values, str]]) -> list[Failure]:
    counts = Counter(sentence for _, sentence in failed)
    first = {sentence: values for values, sentence in reversed(failed)}
    return [Failure(sentence, count, first[sentence]) for sentence, count in counts.most_common()]


def _none_can_run(failures: Sequence[Failure], points: int) -> OppoError:
    why = failures[0]
    rest = (
        f"; {len(failures) - 1} other reason{'s' if len(failures) > 2 else ''} beside that"
        if len(failures) > 1
        else ""
    )
    which = f"{why.points} of them" if len(failures) > 1 else ("it" if points == 1 else "all of them")
    return OppoError(
        f"none of the {points:,} point{'s' if points > 1 else ''} of the sweep can run; {which}:"
        f" {why.sentence}{rest}"
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
