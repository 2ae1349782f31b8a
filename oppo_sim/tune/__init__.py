"""Choose a policy and its knobs under constraints, say how sure that is, and put it into words; see
docs/tune.md.

    from oppo_sim.tune import Constraints, TuneRequest, tune
    found = tune(TuneRequest("paper-stackexchange-7b", trials=100, constraints=Constraints(max_staleness=2)))
    found.advice("verl"), found.trials, found.sensitivity
"""

from oppo_sim.policies.knobs import Knob
from oppo_sim.tune.advice_page import advice_markdown
from oppo_sim.tune.request import Constraints, TuneRequest
from oppo_sim.tune.session import tune
from oppo_sim.tune.trials import Tuned
from oppo_sim.tune.worlds import WorldSpec

__all__ = ["Constraints", "Knob", "TuneRequest", "Tuned", "WorldSpec", "advice_markdown", "tune"]
