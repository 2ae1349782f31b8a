"""What is unknown about a machine's seconds, as draws of the terms on its costs."""

from collections.abc import Sequence
from math import exp
from pathlib import Path

from oppo_sim.costs.context import CostContext
from oppo_sim.costs.priors import Prior
from oppo_sim.costs.section import EXACT, CostSection
from oppo_sim.costs.shipped_draws import draws_path
from oppo_sim.costs.terms import CostTerms, read_draws
from oppo_sim.draws import draw_normal, stream_key

__all__ = ["EXACT", "machine_draws", "prior_draw"]


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
        return read_draws(draws_path(section.draws, base_dir), section.terms)[:count]
    priors, point = section.priors(context), section.point(context)
    return tuple(prior_draw(priors, point, seed, number) for number in range(count)) if priors else ()


def prior_draw(priors: Sequence[Prior], point: CostTerms, seed: int, number: int) -> CostTerms:
    """The ``number``-th draw: ``point``, which is the median, with each term of a prior times a factor of the
    prior's width."""
    drawn = {}
    for prior in priors:
        normal = draw_normal(stream_key(seed, f"machine/{prior.term}"), number)
        drawn[prior.term] = getattr(point, prior.term) * exp(prior.sigma * normal)
    return point.model_copy(update=drawn)
