"""From the plain data of a run to its totals: a pure function that any process can compute.

What many runs share (the trace, the cost models, the checked scenario) is built once a process and kept.
"""

import gc
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import oppo_sim
from oppo_sim import columns as c
from oppo_sim.costs.interface import Costs
from oppo_sim.costs.terms import CostTerms
from oppo_sim.errors import HaltError, OppoError
from oppo_sim.manifest import versions
from oppo_sim.model.counterfactual import UNCHANGED, Counterfactual
from oppo_sim.plain_json import plain
from oppo_sim.policies.registry import source_digest
from oppo_sim.results.summary import run_totals
from oppo_sim.rewards import learning_of
from oppo_sim.runs.kept import Kept
from oppo_sim.runs.request import ACTUAL, RunRequest, RunResult, request_of
from oppo_sim.scenario.build import Parts, Setup, build_parts, build_setup, build_trace, cost_context
from oppo_sim.scenario.schema import Scenario, remember_origin
from oppo_sim.traces.on_policy import on_policy_length_mean
from oppo_sim.traces.replay import Replay


@dataclass(frozen=True)
class Variant:
    """What a counterfactual run leaves out or does otherwise."""

    counterfactual: Counterfactual = UNCHANGED
    score_granularity: str | None = None
    """None: the policy's own."""


VARIANTS: Final[Mapping[str, Variant]] = {
    ACTUAL: Variant(),
    "batch_scoring": Variant(score_granularity="batch"),
    "free_recompute": Variant(Counterfactual(free_recompute=True)),
    "no_contention": Variant(Counterfactual(no_contention=True)),
    "free_padding": Variant(Counterfactual(free_padding=True)),
    "free_cuts": Variant(Counterfactual(free_cuts=True)),
}

_OBJECTS = 50_000  # that the collector lets come between two of its looks
_NO_RESULT = ("cli/", "report/", "sweep/", "tune/", "traces/importers/")

# Kept in this process, until ``forget``.
_scenarios = Kept[Scenario](64)
_parts = Kept[Parts](64)
_traces = Kept[Replay](8)
_built = Kept[Costs](64)
_inputs = Kept[str](64)
_sources = Kept[str](64)
_lengths = Kept[float](1024)


def evaluate(request: RunRequest) -> RunResult:
    """Simulate a run. Whatever cannot run comes back as a result with its sentence; nothing is raised for
    it, but HaltError where the disk refuses."""
    began = perf_counter()
    try:
        with _rare_collections():
            setup = setup_of(request)
            totals, engine = _simulate(setup, request.variant)
            totals[c.ON_POLICY_LENGTH_MEAN] = _on_policy_length(request, setup)
            totals |= learning_of(setup.scenario.rewards, setup.steps).columns(totals)
    except HaltError:
        raise
    except OppoError as error:
        return RunResult(request.key, None, error=str(error), seconds=perf_counter() - began)
    return RunResult(request.key, totals, engine, seconds=perf_counter() - began)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Python looks for cycles after many objects instead of every 700: a short run makes few, and is over
    before."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _OBJECTS) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _simulate(setup: Setup, variant: str) -> tuple[dict[str, float], str]:
    """Totals of a built run, and the engine that ran it. Raises OppoError for a run that cannot go on."""
    from oppo_sim.fast.choose import run_summary

    chosen = VARIANTS[variant]
    summary, engine = run_summary(
        setup, counterfactual=chosen.counterfactual, score_granularity=chosen.score_granularity
    )
    return run_totals(summary, setup.batch.rollout_batch_size, setup.scenario.num_gpus), engine


def _on_policy_length(request: RunRequest, setup: Setup) -> float:
    """Of the steps that count; the same whatever the policy and the machine."""
    key = request.scenario, request.base_dir, request.inputs, request.seed, request.steps
    return _lengths.get(
        key,
        lambda: on_policy_length_mean(
            setup.replay,
            setup.batch.rollout_batch_size,
            setup.warmup_steps,
            setup.steps,
            setup.sample_rewards,
        ),
    )


def checked_request(
    scenario: Scenario,
    policy: str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    steps: int | None,
) -> tuple[RunRequest, Setup]:
    """A run of a scenario as plain data, with digests of all that it depends on, and the same built.

    None as in ``request_of``. What files hold is read once, until ``forget``. Raises OppoError for whatever
    cannot run: the trace, the cost model, the memory, the policy and its settings.
    """
    bare = request_of(scenario, policy, settings, steps=steps)
    setup = setup_in(scenario, bare)
    source = _sources.get(
        (bare.policy, bare.base_dir), lambda: source_digest(bare.policy, scenario.base_dir) or ""
    )
    request = replace(bare, inputs=_inputs.get(_parts_key(bare), lambda: _inputs_of(setup)), source=source)
    _parts.get(_parts_key(request), lambda: parts_of(scenario, bare))
    return request, setup


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

    return _scenarios.get((request.scenario, request.steps, request.base_dir), build)


def parts_of(scenario: Scenario, request: RunRequest) -> Parts:
    """Trace, costs and machine of the request's scenario, on the machine that the request draws; a trace is
    shared by all scenarios that use it in the same way.

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

    def build() -> Parts:
        return build_parts(scenario, _traces.get(trace, lambda: build_trace(scenario)))

    return _parts.get(_parts_key(request), lambda: _drawn(scenario, request) if request.terms else build())


def _drawn(scenario: Scenario, request: RunRequest) -> Parts:
    """The parts on the machine that the request draws: all draws share what does not depend on terms."""
    given, context = replace(request, terms=""), cost_context(scenario)
    built = _built.get(_parts_key(given), lambda: scenario.costs.build(context, scenario.base_dir))
    terms = CostTerms(**json.loads(request.terms))
    return replace(parts_of(scenario, given), costs=scenario.costs.under(built, terms, context))


@cache
def simulator_digest() -> str:
    """SHA-256 (hex) over the files of this package that decide what a run gives and the versions of what they
    use: an altered figure or command spoils no finished run."""
    root = Path(oppo_sim.__file__).parent
    digest = hashlib.sha256(json.dumps(versions(), sort_keys=True).encode())
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not name.startswith(_NO_RESULT):
            digest.update(f"{name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _inputs_of(setup: Setup) -> str:
    """Digest of the trace, and of all else that a run of this scenario is built from."""
    rest = json.dumps([plain(setup.costs.provenance), simulator_digest()], sort_keys=True)
    return f"{setup.replay.content_hash}:{hashlib.sha256(rest.encode()).hexdigest()}"


def _parts_key(request: RunRequest) -> tuple[str, str | None, str, str]:
    # A file that has changed gives other inputs: what was built from its old contents is not taken.
    return request.scenario, request.base_dir, request.inputs, request.terms


_TIMED_STEPS: Final = 100


def forget() -> None:
    """Forget what was kept: a file that a scenario names may have changed since."""
    for kept in (_scenarios, _parts, _traces, _built, _inputs, _sources, _lengths):
        kept.clear()


def seconds_a_step(request: RunRequest) -> tuple[float | None, str]:
    """What a training step of a run takes to simulate in this process, timed on some, and the engine; None:
    the run fails."""
    warmup = json.loads(request.scenario)["warmup_steps"]
    some = replace(request, steps=min(request.steps, warmup + _TIMED_STEPS))
    evaluate(some)  # the first one is slower: it builds
    timed = evaluate(some)
    return (None if timed.totals is None else timed.seconds / some.steps), timed.engine
