"""What a sweep will take, before it runs."""

from collections.abc import Callable
from dataclasses import dataclass

from oppo_sim.runs.evaluate import seconds_a_step
from oppo_sim.sweep.drawing import GROUP, MOST_DRAWN
from oppo_sim.sweep.plan import SweepPlan


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


def _drawn_runs(plan: SweepPlan, points: int) -> int:
    """Distinct runs of so many points, and of their baselines, on the draws of the machine."""
    keys = {
        request.key
        for point in plan.runnable[:points]
        for draw in range(len(point.machine.draws))
        for request in point.on_draw(draw, plan.seeds[draw % len(plan.seeds)])
    }
    return len(keys)
