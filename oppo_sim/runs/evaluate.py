"""One simulated run of a sweep: from plain data to totals, a pure function that any process can compute.

What many runs share (the trace, the cost models, the checked scenario) is built once a process and kept.
"""

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TypeVar

from oppo_sim.errors import OppoError
from oppo_sim.results.summary import run_totals
from oppo_sim.runs.request import RunRequest, RunResult
from oppo_sim.scenario.build import Parts, Setup, build_parts, build_setup, build_trace
from oppo_sim.scenario.schema import Scenario, remember_origin
from oppo_sim.traces.replay import Replay

_KEPT = 8  # scenarios, traces and costs a process keeps; each may hold a whole trace

_Built = TypeVar("_Built")


def evaluate(request: RunRequest) -> RunResult:
    """Simulate a run. Whatever cannot run comes back as a result with its sentence; nothing is raised for
    it."""
    began = perf_counter()
    try:
        totals, engine = simulate(setup_of(request))
    except OppoError as error:
        return RunResult(request.key, None, error=str(error), seconds=perf_counter() - began)
    return RunResult(request.key, totals, engine, seconds=perf_counter() - began)


def simulate(setup: Setup) -> tuple[dict[str, float], str]:
    """Totals of a built run, and the engine that ran it. Raises OppoError for a run that cannot go on."""
    from oppo_sim.fast.choose import run_summary

    summary, engine = run_summary(setup)
    return run_totals(summary, setup.batch.rollout_batch_size), engine


def setup_of(request: RunRequest) -> Setup:
    """The request, built; traces, costs and scenarios come from what this process keeps. Raises OppoError for
    what cannot run."""
    return setup_in(scenario_of(request), request)


def setup_in(scenario: Scenario, request: RunRequest) -> Setup:
    """The same where the request's scenario is at hand; its policy, seed and steps are not looked at."""
    return build_setup(
        scenario,
        policy=request.policy,
        policy_settings=json.loads(request.settings),
        steps=request.steps,
        seed=request.seed,
        parts=parts_of(scenario, request),
    )


def scenario_of(request: RunRequest) -> Scenario:
    """The checked scenario of a request, under the default policy."""

    def build() -> Scenario:
        # Steps stand beside the text, yet a warm-up is checked against them.
        plain = json.loads(request.scenario) | {"steps": request.steps}
        scenario = Scenario.model_validate_json(json.dumps(plain), strict=True)
        return remember_origin(
            scenario, None if request.base_dir is None else Path(request.base_dir), "scenario", ()
        )

    return _kept(_scenarios, (request.scenario, request.steps, request.base_dir), build)


def parts_of(scenario: Scenario, request: RunRequest) -> Parts:
    """Trace, costs and machine of the request's scenario; a trace is shared by all scenarios that use it in
    the same way.

    Raises OppoError for what cannot be built.
    """
    trace = (
        scenario.trace.model_dump_json(),
        scenario.group_size,
        scenario.max_prompt_length,
        scenario.max_response_length,
        request.base_dir,
        request.inputs.partition(":")[0],
    )
    return _kept(
        _parts,
        _parts_key(request),
        lambda: build_parts(scenario, _kept(_traces, trace, lambda: build_trace(scenario))),
    )


def keep_parts(request: RunRequest, parts: Parts) -> None:
    """Let runs like this one, in this process, use parts that were built already."""
    _kept(_parts, _parts_key(request), lambda: parts)


def _parts_key(request: RunRequest) -> object:
    # A file that has changed gives other inputs: what was built from its old contents is not taken.
    return request.scenario, request.base_dir, request.inputs


# ---- kept in this process ----------------------------------------------------------------------------------

_scenarios: OrderedDict[object, Scenario] = OrderedDict()
_parts: OrderedDict[object, Parts] = OrderedDict()
_traces: OrderedDict[object, Replay] = OrderedDict()


def _kept(kept: OrderedDict[object, _Built], key: object, build: Callable[[], _Built]) -> _Built:
    """The value under ``key``, built if it is not there; of the oldest ones only ``_KEPT`` stay, so that
    memory stays flat."""
    if key in kept:
        kept.move_to_end(key)
        return kept[key]
    value = kept[key] = build()
    while len(kept) > _KEPT:
        kept.popitem(last=False)
    return value


def forget() -> None:
    """Forget what was kept: a file that a scenario names may have changed since."""
    for kept in (_scenarios, _parts, _traces):
        kept.clear()
