"""What is believed of the unknowns of a fit before its logs are seen: the table of ``costs.priors``, and what
is no term of costs."""

from collections.abc import Sequence
from typing import Final

from oppo_sim.costs.priors import Prior, log_priors
from oppo_sim.fit.terms import gathers, offload
from oppo_sim.scenario.build import cost_context
from oppo_sim.scenario.schema import Scenario

TOOL_TOKENS: Final = "tool_tokens"
"""The share of response tokens that tools wrote, in rollouts that were not cut; no term of costs."""
TOOL_WAIT: Final = "tool_wait"
"""The share of the slowest rollout's wait for tools by which the phase is longer: while it waits others
finish, and it decodes faster after. No term of costs."""
_WAIT: Final = Prior(
    TOOL_WAIT, 0.7, 0.3, "verl steps, jianghoucheng/Agent_On_Policy_Distillation (4 × A800), develop runs"
)
_TOOLS: Final = Prior(TOOL_TOKENS, 0.1, 1.0, "assumed: a tool answers shorter than it is asked")

_SCORING: Final = ("piece_fixed_s", "score_batch_s", "reward_phase_s")
_NONE: Final = (1e-6, 0.5)
"""Median and sigma of what a scenario says is nothing."""


def priors_for(
    scenarios: Sequence[Scenario], *, logged: bool = False, in_place: bool = False
) -> dict[str, Prior]:
    """By name. Of several scenarios the least certain belief holds.

    ``logged``: of a fit to logs, which decide how long waking takes where weights of the engine stay.
    ``in_place``: the weight sync is inside the log's generation. A scenario that says so itself
    (``weight_sync: {kind: reshard}``) has the seconds of that already.
    """
    in_place = in_place and any(each.training.weight_sync.kind != "reshard" for each in scenarios)
    known: dict[str, Prior] = {}
    contexts = [cost_context(scenario) for scenario in scenarios]
    for scenario, context in zip(scenarios, contexts, strict=True):
        for prior in scenario.costs.priors(context):
            before = known.get(prior.term)
            known[prior.term] = prior if before is None or before.sigma < prior.sigma else before
    also = {
        "in place": in_place,
        "weights stay": logged and all(each.costs.weights_leave is False for each in scenarios),
        "awake": all(each.costs.terms.stated().get("gen_phase_s") == 0.0 for each in scenarios),
    }
    return {
        **log_priors(known.values(), also=[where for where, holds in also.items() if holds]),
        **{
            term: Prior(term, *_NONE, "stated as 0 by the scenario")
            for term in _SCORING
            if all(each.costs.terms.stated().get(term) == 0.0 for each in scenarios)
        },
        TOOL_TOKENS: _TOOLS,
        TOOL_WAIT: _WAIT,
        offload.OFFLOAD: offload.PRIOR,
        gathers.GATHER: gathers.prior_of(any(context.training_spans_nodes for context in contexts)),
    }
