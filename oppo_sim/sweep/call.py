"""A sweep from Python, in one call."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oppo_sim.errors import OppoError
from oppo_sim.policies.registry import policy_name
from oppo_sim.progress import OnProgress, listener
from oppo_sim.runs.execute import Executor, ExecutorName
from oppo_sim.runs.machine import DEFAULT_DRAWS
from oppo_sim.runs.store import RunStore
from oppo_sim.scenario.overrides import Overrides, override_fields, with_trace
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import loaded_scenario
from oppo_sim.sweep.folder import sweep_to_folder
from oppo_sim.sweep.plan import plan_sweep
from oppo_sim.sweep.result import Sweep, finish
from oppo_sim.sweep.run import make_runs
from oppo_sim.sweep.spec import checked_spec


def sweep(
    scenario: Scenario | str | Path,
    *,
    grid: Mapping[str, Any] | None = None,
    random: Mapping[str, Any] | None = None,
    samples: int = 64,
    sampler: str = "random",
    sampler_seed: int = 0,
    seeds: int = 5,
    draws: int = DEFAULT_DRAWS,
    steps: int | None = None,
    trace: Any = None,
    overrides: Overrides = None,
    objective: str = "rollouts",
    stop_dominated: bool = False,
    practical: float = 0.0,
    folder: str | Path | None = None,
    force: bool = False,
    figures: bool = True,
    executor: ExecutorName = "processes",
    jobs: int | None = 1,
    ray_address: str | None = None,
    progress: OnProgress | bool | None = None,
) -> Sweep:
    """Simulate every point on the same seeds and rank them.

    Args:
        scenario: an object, a shipped name or a path.
        grid: field → values; a list, a range such as ``"64:1024:*2"`` or ``"0:32:+4"``, or one value.
        random: field → interval such as ``"64..1024:log:int"``, or a list of choices; ``samples`` draws of
            all of them together.
        sampler: ``random`` or ``sobol``; ``sampler_seed`` seeds either.
        draws: of what is unknown about the machine, for the points that could be the best (docs/sweep.md); 0:
            the machine is taken as given.
        trace: your own lengths instead of the scenario's, as ``--trace``: a path, a shipped trace's name, a
            frame, a list or an array of response lengths (tokens), or what ``open_trace`` gave.
        overrides: field → one value for all points; or ``a.b=c`` texts.
        objective: ``rollouts`` (seconds a trained rollout), ``speedup`` (over each point's own baseline) or
            ``time_to_reward``.
        stop_dominated: give no further seeds to points that are significantly worse than the best so far
            (docs/sweep.md).
        practical: a share: points that are worse than the best by no more than it are in its region, too.
        folder: sweep folder to write; a sweep that was interrupted or extended goes on from what it holds.
            None: nothing is written.
        force: replace another sweep that the folder holds.
        executor: ``serial``, ``processes`` or ``ray``, with ``jobs`` processes (None: one a core); the result
            does not depend on it.
        progress: called after every few runs (``oppo_sim.Progress``). True: lines on standard error.

    Raises OppoError for a field that exists nowhere, values that are none, and where all points failed.
    """
    texts = with_trace(overrides or (), trace)
    fixed = override_fields(texts)
    loaded = loaded_scenario(scenario, texts)
    spec = checked_spec(
        {
            "scenario": loaded.source,
            "set": fixed,
            "grid": _plain_axes(grid),
            "random": _plain_axes(random),
            "samples": samples,
            "sampler": sampler,
            "draws": draws,
            "sampler_seed": sampler_seed,
            "seeds": seeds,
            "steps": steps,
            "objective": objective,
            "stop_dominated": stop_dominated,
            "practical": practical,
        }
    )
    where, tell = Executor(executor, jobs, ray_address), listener(progress)
    plan = plan_sweep(spec, loaded)
    if folder is not None:
        return sweep_to_folder(plan, Path(folder), where, force=force, figures=figures, on_progress=tell)
    with RunStore() as store:
        return finish(plan, make_runs(plan, store, where, tell))


def _plain_axes(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Tuples, ranges and numpy's arrays as lists of plain values, classes of policies as their names. Raises
    OppoError for what is no mapping, and for values that a scenario cannot hold."""
    if given is not None and not isinstance(given, Mapping):
        raise OppoError(
            f"axes are {given!r}: give a mapping of fields to values, such as {{'policy.overcommit': [0, 8]}}"
        )

    def plain(value: Any) -> Any:
        if hasattr(value, "tolist"):
            return value.tolist()
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [plain(item) for item in value]
        return policy_name(value) if isinstance(value, type) else value

    def checked(field: str, value: Any) -> Any:
        found = plain(value)
        try:
            json.dumps(found)
        except TypeError:
            instead = (
                "trace.path over files (oppo_sim.save_trace writes one) with trace= one of them, or"
                " trace.name over shipped names"
                if field == "trace"
                else "numbers, texts, lists or mappings"
            )
            raise OppoError(f"the values of axis {field} are no plain values: give {instead}") from None
        return found

    return {field: checked(field, value) for field, value in (given or {}).items()}
