"""The simulator: from a length trace and a machine to every policy's step time, speed-up, and a picture of
why.

    import oppo_sim
    run = oppo_sim.simulate("paper-stackexchange-7b", policy="oppo", steps=100)
    run.steps, run.rollouts, run.summary          # pandas frames
    table = oppo_sim.compare("paper-stackexchange-7b", ["intra", "inter", "oppo"], seeds=5).table
    best = oppo_sim.sweep("paper-stackexchange-7b", grid={"policy.overcommit": "0:32:+8"}).points
    found = oppo_sim.tune("paper-stackexchange-7b", max_staleness=2, trials=100)
    fitted = oppo_sim.fit("train.log", "mine.yaml")              # costs from a training log, with draws
    told = oppo_sim.observe("mine.yaml", {"timing_s/step": 171})      # or from a few known numbers
    trace, provenance = oppo_sim.import_log("auto", "rollout_dumps")

Words mean the same everywhere: ``scenario`` is an object, a shipped name or a path; ``trace`` are your own
lengths in place of its (a path, a frame, a list); ``overrides`` are settings laid over it (field → value);
``steps``, ``seed`` and ``seeds`` count as on the command line; ``draws`` are of what is unknown about the
machine; ``folder`` is written, ``force`` replaces what it holds, ``figures`` draws into it; ``executor``,
``jobs`` and ``ray_address`` say where to simulate; ``progress`` is told a ``Progress`` now and then
(``progress=print``; True: lines on standard error). Columns of all tables with units and meaning:
``oppo_sim.explain(frame)``, docs/columns.md.

``sweep``, ``tune`` and ``fit`` are packages, too: ``from oppo_sim.sweep import Sweep``. Names are imported
when they are first used, so that ``import oppo_sim`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oppo_sim.columns_page import explain
    from oppo_sim.comparison.call import compare
    from oppo_sim.comparison.result import Comparison
    from oppo_sim.errors import OppoError
    from oppo_sim.fit.call import fit, observe
    from oppo_sim.fit.log.reading import read_step_log
    from oppo_sim.policies.interface import Batch, Policy, PoolView, StepPlan, StepReport
    from oppo_sim.policies.registry import SHIPPED as POLICIES
    from oppo_sim.progress import Progress
    from oppo_sim.scenario.load import load_scenario, shipped_scenarios
    from oppo_sim.scenario.schema import Scenario
    from oppo_sim.simulation import Run, simulate
    from oppo_sim.sweep.call import sweep
    from oppo_sim.traces.importers import import_log
    from oppo_sim.traces.opening import open_trace
    from oppo_sim.traces.storage import load_trace, save_trace
    from oppo_sim.tune.call import tune

_HOME = {
    "Batch": "oppo_sim.policies.interface",
    "Comparison": "oppo_sim.comparison.result",
    "OppoError": "oppo_sim.errors",
    "POLICIES": "oppo_sim.policies.registry:SHIPPED",
    "Policy": "oppo_sim.policies.interface",
    "PoolView": "oppo_sim.policies.interface",
    "Progress": "oppo_sim.progress",
    "Run": "oppo_sim.simulation",
    "Scenario": "oppo_sim.scenario.schema",
    "StepPlan": "oppo_sim.policies.interface",
    "StepReport": "oppo_sim.policies.interface",
    "compare": "oppo_sim.comparison.call",
    "explain": "oppo_sim.columns_page",
    "import_log": "oppo_sim.traces.importers.importing",
    "load_scenario": "oppo_sim.scenario.load",
    "load_trace": "oppo_sim.traces.storage",
    "observe": "oppo_sim.fit.call",
    "open_trace": "oppo_sim.traces.opening",
    "read_step_log": "oppo_sim.fit.log.reading",
    "save_trace": "oppo_sim.traces.storage",
    "shipped_scenarios": "oppo_sim.scenario.load",
    "simulate": "oppo_sim.simulation",
}
_CALLED = ("fit", "sweep", "tune")
"""Packages that are called by their name."""

__all__ = [
    "POLICIES",
    "Batch",
    "Comparison",
    "OppoError",
    "Policy",
    "PoolView",
    "Progress",
    "Run",
    "Scenario",
    "StepPlan",
    "StepReport",
    "compare",
    "explain",
    "fit",
    "import_log",
    "load_scenario",
    "load_trace",
    "observe",
    "open_trace",
    "read_step_log",
    "save_trace",
    "shipped_scenarios",
    "simulate",
    "sweep",
    "tune",
]


def __dir__() -> list[str]:
    inside = {"Any", "TYPE_CHECKING", "import_module"}
    return sorted({*globals(), *__all__} - inside)


def __getattr__(name: str) -> Any:
    if name in _CALLED:
        return import_module(f"oppo_sim.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'oppo_sim' has no attribute '{name}'")
    module, _, attribute = _HOME[name].partition(":")
    value = getattr(import_module(module), attribute or name)
    globals()[name] = value
    return value
