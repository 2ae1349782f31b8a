"""Choose a policy and its knobs under constraints, say how sure that is, and put it into words; see
docs/tune.md.

    from oppo_sim.tune import Constraints, TuneRequest, tune
    found = tune(TuneRequest("paper-stackexchange-7b", trials=100, constraints=Constraints(max_staleness=2)))
    found.advice, found.trials, found.sensitivity

Names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oppo_sim.policies.knobs import Knob
    from oppo_sim.tune.advice import advice_markdown
    from oppo_sim.tune.request import Constraints, TuneRequest
    from oppo_sim.tune.result import Tuned
    from oppo_sim.tune.session import tune
    from oppo_sim.tune.worlds import WorldSpec

_HOME = {
    "WorldSpec": "oppo_sim.tune.worlds",
    "advice_markdown": "oppo_sim.tune.advice",
    "Constraints": "oppo_sim.tune.request",
    "Knob": "oppo_sim.policies.knobs",
    "TuneRequest": "oppo_sim.tune.request",
    "Tuned": "oppo_sim.tune.result",
    "tune": "oppo_sim.tune.session",
}

__all__ = ["Constraints", "Knob", "TuneRequest", "Tuned", "WorldSpec", "advice_markdown", "tune"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'oppo_sim.tune' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)
