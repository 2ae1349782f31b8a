"""The points of a sweep, each checked before anything runs."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from oppo_sim.errors import OppoError
from oppo_sim.runs.evaluate import forget
from oppo_sim.runs.request import RunRequest
from oppo_sim.scenario.schema import Scenario
from oppo_sim.sweep.axes import Axis
from oppo_sim.sweep.failures import grouped, none_can_run
from oppo_sim.sweep.points import Values, points_of
from oppo_sim.sweep.resolve import Resolved, Resolver, refuse_unknown, with_splits
from oppo_sim.sweep.spec import SweepSpec


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
        raise none_can_run(
            grouped([(values, str(why)) for values, why in zip(points, resolved, strict=True)]), len(points)
        )
    return plan
