"""A finished sweep: its points, ranked."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from oppo_sim import columns as c
from oppo_sim.report.labels import counted
from oppo_sim.runs.machine import MachineDraws
from oppo_sim.sweep.best_points import BestPoints, best_points
from oppo_sim.sweep.failures import Failure, grouped, none_can_run
from oppo_sim.sweep.plan import SweepPlan
from oppo_sim.sweep.ranking import FAILED, OK, STOPPED, PointRuns, Ranking, ranked
from oppo_sim.sweep.table import points_frame, runs_frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from oppo_sim.report.points import Points

_MOST_IN_NOTEBOOK: Final = 20
"""Points shown of a sweep."""


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


def finish(plan: SweepPlan, points: Sequence[PointRuns]) -> Sweep:
    """Rank the points. Raises OppoError where all of them failed."""
    failed = [(point.values, sentence) for point in points if (sentence := point.sentence) is not None]
    failures = grouped(failed)
    if len(failed) == len(points):
        raise none_can_run(failures, len(points))
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
