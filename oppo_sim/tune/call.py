"""A search from Python, in one call."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from oppo_sim.errors import OppoError
from oppo_sim.plain_json import plain
from oppo_sim.policies.knobs import Knob
from oppo_sim.policies.registry import policy_name
from oppo_sim.progress import OnProgress, listener, unheard
from oppo_sim.runs.execute import ExecutorName
from oppo_sim.runs.machine import DEFAULT_DRAWS
from oppo_sim.scenario.overrides import Overrides, with_trace
from oppo_sim.scenario.schema import Scenario
from oppo_sim.tune.request import Constraints, Objective, Robust, TuneRequest
from oppo_sim.tune.session import run_tuning
from oppo_sim.tune.space import knob_of
from oppo_sim.tune.trials import Tuned
from oppo_sim.tune.worlds import WorldSpec


def tune(
    scenario: Scenario | str | Path,
    *,
    policies: Sequence[str | type] | None = None,
    framework: str | None = None,
    space: Mapping[str, Any] | None = None,
    objective: Objective = "rollouts",
    max_staleness: float | None = None,
    max_mean_staleness: float | None = None,
    max_length_bias: float | None = None,
    kv_capacity: int | Literal["auto"] | None = None,
    max_deferrals: int | None = None,
    other_traces: str | Path | Sequence[str | Path] = (),
    drifts: float | Sequence[float] = (),
    cost_worlds: int = 0,
    cost_profiles: str | Path | Sequence[str | Path] = (),
    robust: Robust = "mean",
    trials: int = 200,
    timeout_s: float | None = None,
    seeds: int | None = None,
    fresh_seeds: int | None = None,
    draws: int = DEFAULT_DRAWS,
    practical: float = 0.0,
    steps: int | None = None,
    sampler_seed: int = 0,
    trace: Any = None,
    overrides: Overrides = (),
    folder: str | Path | None = None,
    force: bool = False,
    figures: bool = True,
    executor: ExecutorName = "processes",
    jobs: int | None = 1,
    ray_address: str | None = None,
    progress: OnProgress | bool | None = None,
) -> Tuned:
    """Find the policy and the knobs that train rollouts in the least seconds and keep all bounds
    (docs/tune.md). Needs the extra ``tune``.

    Args:
        scenario: an object, a shipped name or a path.
        policies: names or classes; None: the synchronous shipped ones that the scenario can run, and its own.
        framework: search only what it can do (``verl``), and say the choice in its words alone.
        space: field → range ``"0..64"``, ``"64..2048:log"``, or a list of choices, or one value, which pins
            it; in place of the default range of the field, or of a further field of the scenario.
        objective: least seconds per trained ``rollouts`` or ``tokens``, or ``time_to_reward``.
        max_staleness: bound on the stalest trained rollout, updates; ``max_mean_staleness``: on their mean.
        max_length_bias: bound on how far the mean response length trained, over sequential's on those seeds,
            is from 1.
        kv_capacity: bound on the KV peak of a replica, tokens; ``auto``: what device memory leaves.
        max_deferrals: bound on how often a rollout is deferred.
        other_traces, drifts, cost_worlds, cost_profiles: worlds that the choice must be good for, too: other
            traces, factors on all lengths, so many draws of the machine, other measured profiles; one, or a
            list of them.
        robust: ``mean``, ``worst`` or ``quantile`` (90 %) of the regret over the worlds.
        trials: settings to try; with more later, the search in ``folder`` goes on. ``timeout_s``: seconds
            that the search may take.
        seeds: common to all trials; ``fresh_seeds``: further ones, for what is reported. None: 5 and 10.
        draws: of what is unknown about the machine, for what is reported; 0: it is taken as given.
        practical: a share: settings that differ from the choice by no more count as not told apart from it.
        trace: your own lengths instead of the scenario's, as ``--trace``: a path, a shipped trace's name, a
            frame, a list or an array of response lengths (tokens), or what ``open_trace`` gave.
        overrides: settings laid over a scenario by name or path.
        folder: to write or go on in; None: nothing is written. ``force`` begins anew.
        executor: ``serial``, ``processes`` or ``ray``, with ``jobs`` processes (None: one a core); the result
            does not depend on it.
        progress: called with what is being done and the best so far (``oppo_sim.Progress``). True: lines on
            standard error.

    Raises OppoError for what cannot be searched. A search in which nothing keeps the bounds is a result
    (``infeasible``).
    """
    if isinstance(policies, str):
        raise OppoError(f"policies are {policies!r}: give a list of at least one name")
    bounds = Constraints(max_staleness, max_mean_staleness, max_length_bias, kv_capacity, max_deferrals)
    worlds = WorldSpec(
        tuple(map(str, _each(other_traces))),
        tuple(_each(drifts)),
        cost_worlds,
        tuple(map(Path, _each(cost_profiles))),
    )
    request = TuneRequest(
        scenario,
        None if folder is None else Path(folder),
        with_trace(overrides, trace),
        None if policies is None else tuple(policy_name(policy) for policy in policies),
        framework,
        tuple(_knob(field, values) for field, values in (space or {}).items()),
        objective,
        bounds,
        worlds,
        robust,
        trials,
        seeds,
        fresh_seeds,
        draws,
        practical,
        steps,
        sampler_seed,
        timeout_s,
        executor,
        jobs,
        ray_address,
        force,
        figures,
    )
    return run_tuning(request, listener(progress) or unheard)


def _each(given: Any) -> Sequence[Any]:
    """One is given as it is, several as a list."""
    return [given] if isinstance(given, str | Path | float | int) else given


def _knob(field: str, values: Any) -> Knob:
    return values if isinstance(values, Knob) else knob_of(field, plain(values))
