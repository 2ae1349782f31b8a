"""What is believed of the unknowns of a fit before its logs are seen: the table of ``costs.priors``, and what
is no term of costs."""

from collections.abc import Sequence
from typing import Final

from oppo_sim.costs.priors import Prior, log_priors
from oppo_sim.costs.uncertainty import machine_priors
from oppo_sim.scenario.build import cost_context
from oppo_sim.scenario.schema import Scenario

TOOL_TOKENS: Final = "tool_tokens"
"""The share of response tokens that tools wrote, in rollouts that were not cut; no term of costs."""
_TOOLS: Final = Prior(TOOL_TOKENS, 0.1, 1.0, "assumed: a tool answers shorter than it is asked")


def priors_for(scenarios: Sequence[Scenario], *, in_place: bool = False) -> dict[str, Prior]:
    """By name. Of several scenarios the least certain belief holds.

    ``in_place``: the weight sync is inside the log's generation.
    """
    known: dict[str, Prior] = {}
    for scenario in scenarios:
        for prior in machine_priors(scenario.costs, cost_context(scenario)):
            before = known.get(prior.term)
            known[prior.term] = prior if before is None or before.sigma < prior.sigma else before
    return {**log_priors(known.values(), in_place=in_place), TOOL_TOKENS: _TOOLS}
