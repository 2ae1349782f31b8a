"""What is unknown about a machine's seconds, as draws of the terms on its costs."""

from collections.abc import Sequence
from math import exp
from pathlib import Path

from oppo_sim.costs.context import CostContext, stages_run
from oppo_sim.costs.evidence import of_stages
from oppo_sim.costs.priors import Prior, priors_of
from oppo_sim.costs.section import EXACT, CostSection
from oppo_sim.costs.terms import SECONDS, CostTerms, read_draws
from oppo_sim.draws import draw_normal, stream_key

__all__ = ["EXACT", "machine_draws", "machine_priors", "prior_draw"]


def machine_draws(
    section: CostSection, context: CostContext, count: int, seed: int, base_dir: Path | None = None
) -> tuple[CostTerms, ...]:
    """``count`` draws, each in place of ``costs.terms``: the first of the file that ``costs.draws`` names
    (all of them, if it has fewer), else of the priors; none where the costs are exact or no prior holds.

    A draw depends on ``seed`` and its number only, not on how many there are. ``base_dir``: where the file's
    path starts. Raises OppoError as ``read_draws``.
    """
    if section.draws == EXACT:
        return ()
    if section.draws is not None:
        return read_draws((base_dir or Path()) / section.draws, section.terms)[:count]
    priors = machine_priors(section, context)
    return tuple(prior_draw(priors, section.terms, seed, number) for number in range(count)) if priors else ()


def machine_priors(section: CostSection, context: CostContext) -> tuple[Prior, ...]:
    """The priors that hold for a scenario's costs."""
    evidence = of_stages(section.evidence, stages_run(context.training))
    # An engine that is a loop in the training process, or that uses the trained weights, never sleeps.
    sleeps = (
        context.colocated_training
        and section.rollout_host != "generate"
        and context.training.weight_sync.kind != "shared"
    )
    return priors_of(evidence, section.rollout_host, sleeps)


def prior_draw(priors: Sequence[Prior], point: CostTerms, seed: int, number: int) -> CostTerms:
    """The ``number``-th draw, around ``point``: its factors times the drawn ones; its seconds, where it gives
    some, instead of the prior's median."""
    values = dict(point)
    for prior in priors:
        normal = draw_normal(stream_key(seed, f"machine/{prior.term}"), number)
        factor = exp(prior.sigma * normal)
        given = values[prior.term]
        centre = prior.median if prior.term in SECONDS and given == 0.0 else given
        if prior.term not in SECONDS:
            centre *= prior.median
        values[prior.term] = centre * factor
    return CostTerms(**values)
