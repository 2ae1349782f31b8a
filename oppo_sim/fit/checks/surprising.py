"""Terms that a log puts where their priors do not: perhaps the scenario is not that of the run."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

from oppo_sim.columns import timing
from oppo_sim.fit.checks.identify import TermEstimate
from oppo_sim.fit.terms.stages import GENERATION, OTHER, Measurement

_MATTERS: Final = 0.02
"""Share of the step from which on a stage is looked at: short ones hold what no cost model has."""
_SETTINGS: Final = {
    "gen": "actor_model, device, costs.rollout.host, tensor_parallel, num_replicas, max_num_seqs",
    "reward": "reward_model, device, scoring.num_workers",
    "training": "model, device, num_gpus, micro batches, offload, gradient_checkpointing, sequence_parallel",
}
"""What the seconds of a stage follow from."""
_SHORT: Final = ("adv", OTHER)
_REST: Final = "rest"
_SAID: Final = {
    **{
        kind: f". Is the scenario that of the run ({settings})? Steps like those of the logs are predicted"
        " either way, other settings less well"
        for kind, settings in _SETTINGS.items()
    },
    _REST: ", seconds of a step that no metric names: models that are moved or woken, batches that are"
    " prepared, logging. Other settings are predicted with the same seconds",
}
_SCORING: Final = ("score", "score_batch_s", "piece_fixed_s", "reward_phase_s")


def surprises(estimates: Sequence[TermEstimate], members: Sequence[Measurement]) -> list[str]:
    """A sentence for generation, scoring and training each, and for what no metric names, where the 95 %
    interval of a term lies outside that of its prior."""
    shares, unnamed = _shares(members), _unnamed(members)
    found: dict[str, list[str]] = {}
    for one in estimates:
        low, _, high = one.prior
        short = one.posterior[-1] < low and not one.term.endswith("_s")  # constants may be as good as none
        if not short and one.posterior[0] <= high:
            continue
        stage = _stage(one.term)
        if shares.get(stage, 0.0) < _MATTERS:
            continue
        end, by = (
            ("upper", one.posterior[1] / high)
            if one.posterior[0] > high
            else ("lower", one.posterior[1] / low)
        )
        kind = stage if stage in _SETTINGS else _REST if stage in unnamed else "training"
        found.setdefault(kind, []).append(f"{one.term} ({by:.2g} times the {end} end)")
    return [
        f"outside the 95 % of their priors: {', '.join(terms)}{_SAID[kind]}" for kind, terms in found.items()
    ]


def _unnamed(members: Sequence[Measurement]) -> set[str]:
    """Those of ``_SHORT`` that are only in what a step holds beyond its metrics."""
    return set(_SHORT) - {
        stage for member in members if member.column != timing(OTHER) for stage in member.stages
    }


def _shares(members: Sequence[Measurement]) -> dict[str, float]:
    """By stage, of the step or, where the log has no seconds of it, of all its metrics; the largest of all
    logs."""
    seconds = [float(np.nanmedian(member.seconds)) for member in members]
    whole = defaultdict[int, float](float)
    for member, each in zip(members, seconds, strict=True):
        whole[member.log] += each
    found: dict[str, float] = {}
    for member, each in zip(members, seconds, strict=True):
        share = min(member.share, each / whole[member.log]) if whole[member.log] > 0 else 0.0
        found |= {stage: max(found.get(stage, 0.0), share) for stage in member.stages}
    return found


def _stage(term: str) -> str:
    if term in GENERATION:
        return "gen"
    return "reward" if term in _SCORING else term.removesuffix("_s")
