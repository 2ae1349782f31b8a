"""A comparison from Python, in one call."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oppo_sim.comparison.folder import compare_to_folder, refuse_other
from oppo_sim.comparison.plan import make_cells, plan_comparison
from oppo_sim.comparison.result import Comparison, comparison_of
from oppo_sim.policies.registry import policy_name
from oppo_sim.progress import OnProgress, listener, unheard
from oppo_sim.runs.best import Objective
from oppo_sim.runs.execute import Executor, ExecutorName
from oppo_sim.runs.machine import DEFAULT_DRAWS
from oppo_sim.runs.store import RunStore
from oppo_sim.scenario.overrides import Overrides
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import loaded_scenario


def compare(
    scenario: Scenario | str | Path,
    policies: Sequence[str | type],
    *,
    seeds: int = 5,
    steps: int | None = None,
    attribution: bool = True,
    draws: int = DEFAULT_DRAWS,
    practical: float = 0.0,
    objective: Objective = "rollouts",
    executor: ExecutorName = "processes",
    jobs: int | None = 1,
    ray_address: str | None = None,
    trace: Any = None,
    overrides: Overrides = (),
    folder: str | Path | None = None,
    force: bool = False,
    figures: bool = True,
    progress: OnProgress | bool | None = None,
) -> Comparison:
    """Compare ``policies`` with the sequential baseline on ``seeds`` paired seeds, from the scenario's seed
    on.

    Args:
        scenario: an object, a shipped name or a YAML path.
        trace: your own lengths instead of the scenario's, as ``--trace``: a path, a shipped trace's name, a
            frame, a list or an array of response lengths (tokens), or what ``open_trace`` gave.
        overrides: settings laid over a scenario by name or path, ``{"policy.overcommit": 8}``.
        policies: names, with settings of their own if need be (``oppo:chunk_size=256``), or classes (one that
            only this program holds runs in this process, docs/policies.md).
        attribution: replay without one cost to say where time went.
        draws: of what is unknown about the machine's seconds, for ``ranges``; 0: the machine is taken as
            given.
        practical: a share: policies that are worse than the best by no more than it are ``alike``, too.
        objective: what is best: ``rollouts``, least seconds a trained rollout, or ``time_to_reward``.
        folder: a run folder to write, as ``oppo compare -o`` does, with ``figures``; ``force`` replaces one.
            A comparison that was interrupted goes on from the runs that it left beside it. None: nothing is
            written.
        executor: ``serial``, ``processes`` or ``ray``, with ``jobs`` processes (None: one a core); the result
            does not depend on it.
        progress: called with how many runs are done (``oppo_sim.Progress``). True: lines on standard error.

    Raises OppoError for anything that cannot run and a folder that is taken.
    """
    names = policies if isinstance(policies, str) else [policy_name(policy) for policy in policies]
    loaded = loaded_scenario(scenario, overrides, trace)
    where, tell = Executor(executor, jobs, ray_address), listener(progress) or unheard
    if folder is not None:
        refuse_other(Path(folder), force)
    plan = plan_comparison(loaded, names, seeds, steps, attribution, draws, practical, objective)
    if folder is not None:
        return compare_to_folder(plan, Path(folder), where, tell, force=force, figures=figures)
    with RunStore() as store:
        make_cells(plan, store, where, tell)
        return comparison_of(plan, store)
