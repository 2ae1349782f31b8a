"""Choose a policy and its knobs under constraints, say how sure that is, and put it into words; see
docs/tune.md.

    found = oppo_sim.tune("paper-stackexchange-7b", trials=100, max_staleness=2)
    found.advice("verl"), found.trials, found.sensitivity
"""

from oppo_sim.callable_package import make_callable
from oppo_sim.policies.knobs import Knob
from oppo_sim.tune.advice_page import advice_markdown
from oppo_sim.tune.request import Constraints, TuneRequest
from oppo_sim.tune.session import run_tuning
from oppo_sim.tune.trials import Tuned
from oppo_sim.tune.worlds import WorldSpec

__all__ = ["Constraints", "Knob", "TuneRequest", "Tuned", "WorldSpec", "advice_markdown", "run_tuning"]

make_callable(__name__)
