"""Seconds of scoring that steps of one size do not tell apart: of each rollout, each batch or each step."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from oppo_sim.costs.priors import IDENTIFIED
from oppo_sim.fit.checks.identify import TermEstimate
from oppo_sim.fit.inference.typical_seconds import constant_counts
from oppo_sim.fit.terms.features import Features
from oppo_sim.fit.terms.stages import Measurement

_MATTERS: Final = 0.01
"""Of all seconds that a log names."""
_OF: Final = {
    "piece_fixed_s": ("each rollout", ""),
    "score_batch_s": ("each scoring batch", ""),
    "reward_phase_s": ("each step", "such as waking a reward model, "),
}


def constants_not_told_apart(
    estimates: Iterable[TermEstimate], logs: Sequence[tuple[Features, Sequence[Measurement]]]
) -> list[str]:
    """A sentence where two of these may be notable parts of a step."""
    unclear = {each.term: each for each in estimates if each.term in _OF and each.verdict != IDENTIFIED}
    most: dict[str, float] = {}
    for features, members in logs:
        whole = sum(float(np.nanmedian(member.seconds)) for member in members)
        if whole <= 0 or not any("reward" in member.stages for member in members):
            continue
        for term, count in constant_counts(features, "reward").items():
            if term in unclear:
                share = unclear[term].posterior[-1] * float(np.median(count)) / whole
                most[term] = max(most.get(term, 0.0), share)
    notable = [term for term in _OF if most.get(term, 0.0) >= _MATTERS]
    if len(notable) < 2:
        return []
    ways = [
        f"{whose} ({term}, {what}up to {unclear[term].posterior[-1]:.2g} s)"
        for term in notable
        for whose, what in [_OF[term]]
    ]
    return [
        "scoring may take seconds beside its tokens, and these logs do not tell whether of"
        f" {', '.join(ways[:-1])} or {ways[-1]}. The draws hold each: intervals of policies that stream,"
        " which repeat a rollout's for every chunk and hide a step's behind generation, are wider by it. If"
        " you know which it is, state the others as 0 under costs.terms of the scenario and fit again"
    ]
