"""What is unknown about a machine's seconds, as draws of the terms on its costs."""

from pathlib import Path

from oppo_sim.costs.context import CostContext
from oppo_sim.costs.section import CostSection
from oppo_sim.costs.terms import CostTerms, read_draws

EXACT = "none"
"""In a scenario's ``costs.draws``: nothing is unknown."""


def machine_draws(
    section: CostSection, context: CostContext, count: int, seed: int, base_dir: Path | None = None
) -> tuple[CostTerms, ...]:
    """``count`` draws, each in place of ``costs.terms``: the first of the file that ``costs.draws`` names
    (all of them, if it has fewer); none where the costs are exact or nothing says how unknown they are.

    ``base_dir``: where the file's path starts. Raises OppoError as ``read_draws``.
    """
    if section.draws is None or section.draws == EXACT:
        return ()
    return read_draws((base_dir or Path()) / section.draws, section.terms)[:count]
