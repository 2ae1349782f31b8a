"""What-if switches for the attribution of lost time: one cost set to zero, everything else as it is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Counterfactual:
    """All off is the model itself."""

    free_recompute: bool = False
    """Prefilling a context again costs nothing."""
    no_contention: bool = False
    """Activities on one device do not slow each other."""
    free_padding: bool = False
    """Padded rows, columns and graph slots cost nothing."""
    free_cuts: bool = False
    """A round, a piece and its way to the scorer cost no seconds of their own (``costs.terms``, the link)."""


UNCHANGED = Counterfactual()
"""What is simulated without a counterfactual."""
