"""Draws of a fit as terms of costs."""

from collections.abc import Sequence

import numpy as np

from oppo_sim.costs.terms import CostTerms
from oppo_sim.fit.checks.identify import CUTS
from oppo_sim.fit.checks.untimed import terms_of_untimed, untimed_stages
from oppo_sim.fit.inference.posterior import Posterior
from oppo_sim.fit.log_part import LogPart
from oppo_sim.fit.terms.features import Floats
from oppo_sim.fit.terms.gathers import GATHER
from oppo_sim.fit.terms.offload import OFFLOAD
from oppo_sim.fit.terms.stages import terms_of


def cost_draws(
    posterior: Posterior, parts: Sequence[LogPart], part: LogPart, wait_s: Floats, seed: int
) -> list[CostTerms]:
    """The draws as terms of the costs of ``part``'s scenario: its seconds of offload, its stated costs of a
    cut. First steps add up; the wait for tools is part of the phase; where several runs were fitted, a draw
    is of another run, which differs as they do."""
    generator = np.random.default_rng([seed, 1])
    stated = part.scenario.costs.terms.stated()
    # What a log cannot identify stays as it is.
    values: dict[str, Floats] = {
        name: np.full(posterior.size, stated[name]) for name in CUTS if name in stated
    }
    values |= {name: each.copy() for name, each in posterior.terms.items() if name in CostTerms.model_fields}
    stages = untimed_stages(part.log, part.features, part.members)
    untimed = terms_of_untimed(stages, part.features, part.scenario, posterior.size, generator)
    values |= {name: each for name, each in untimed.items() if name not in values}
    if GATHER in posterior.terms:
        for stage, gathers in part.features.gathers.items():
            if stage in values and f"{stage}_s" in values:
                values[stage], more = gathers.as_terms(values[stage], posterior.terms[GATHER])
                values[f"{stage}_s"] = values[f"{stage}_s"] + more
    # Of stages that no fitted metric holds, offload is what the scenario says.
    offload = posterior.terms.get(OFFLOAD, np.ones(posterior.size))
    for stage, seconds in part.features.offload.items():
        values[f"{stage}_s"] = values.get(f"{stage}_s", np.zeros(posterior.size)) + offload * seconds
    values["first_step_s"] = (
        np.sum(list(posterior.first.values()), axis=0) if posterior.first else np.zeros(posterior.size)
    )
    members = {member.column: member for part in parts for member in part.members}
    for column, between in posterior.between.items():
        factor = np.exp(between * generator.standard_normal(posterior.size))
        for name in terms_of(members[column].stages, [part.features for part in parts]):
            if name in values:
                values[name] = values[name] * factor
    if len(parts) == 1:
        # Simulated, this run trains its whole batch: in the seconds that its part took.
        for (column, _), offset in posterior.offsets.items():
            for name in terms_of(members[column].stages, [parts[0].features]):
                if name in values:
                    values[name] = values[name] * np.exp(offset)
    if "gen_phase_s" in values:
        values["gen_phase_s"] = np.maximum(values["gen_phase_s"] + wait_s, 0.0)
    return [
        CostTerms(**{name: float(each[number]) for name, each in values.items()})
        for number in range(posterior.size)
    ]


def mean_terms(draws: Sequence[CostTerms]) -> CostTerms:
    """Their mean, term by term: seconds are linear in the terms, so its seconds are the mean of theirs."""
    return CostTerms(
        **{name: float(np.mean([getattr(draw, name) for draw in draws])) for name in CostTerms.model_fields}
    )
