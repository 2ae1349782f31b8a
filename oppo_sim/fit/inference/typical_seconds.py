"""Priors at the size of what a log measured.

Costs of a scenario may be a guess, tens of times off, and a few steps do not outweigh priors that say how far
costs are off as a rule. So what is far from the first steps of the logs is moved to them before anything is
fitted, and no constant is believed to take longer than the metric that holds it.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from oppo_sim.columns import TRAINING_STAGES
from oppo_sim.costs.priors import Prior
from oppo_sim.fit.terms.decoding import AS_IT_IS
from oppo_sim.fit.terms.features import Features, Floats
from oppo_sim.fit.terms.stages import OTHER, Measurement

_STEPS: Final = 10
"""First ones, whose median is the size."""
_FAR: Final = 4.0
"""Times, from which on a stage's costs are not those of the run: priors of training put 95 % within 1.6."""
_CONSTANT: Final = 0.03
"""Median of what a stage takes however many tokens there are, of its seconds. Much more where micro-batches
are of a fixed number of rollouts: 0.5 to 0.6 in update_actor of verl, diqiuzhuanzhuan/verldata."""
_FACTORS: Final = {"gen": ("decode", "host", "prefill"), "reward": ("score",), OTHER: ()}
"""Of the costs' seconds, where it is not the stage's own name."""


class _Seen(NamedTuple):
    """Of one stage in one log, medians."""

    seconds: float
    """Of the metric that holds it."""
    base: float
    """By the scenario's costs."""
    counts: Mapping[str, float]
    """How often each of its constants is taken."""
    alone: bool
    """The metric holds nothing else."""


def with_stage_constants(
    priors: Mapping[str, Prior], logs: Sequence[tuple[Features, Sequence[Measurement]]]
) -> dict[str, Prior]:
    """By name: constants of training stages may be as large as belongs to the seconds of these."""
    found = dict(priors)
    for stage, seen in _by_stage(logs).items():
        name = f"{stage}_s"
        if stage in TRAINING_STAGES and name in found and all(each.alone for each in seen):
            least = _CONSTANT * float(np.median([each.seconds for each in seen]))
            found[name] = found[name]._replace(median=max(found[name].median, least))
    return found


def at_typical_seconds(
    priors: Mapping[str, Prior], logs: Sequence[tuple[Features, Sequence[Measurement]]]
) -> dict[str, Prior]:
    """By name, their medians moved where the logs are of another size."""
    found = dict(priors)
    for stage, seen in _by_stage(logs).items():
        ratios = [each.seconds / each.base for each in seen if each.base > 0]
        ratio = float(np.median(ratios)) if ratios else 1.0
        own = stage in TRAINING_STAGES and all(each.alone for each in seen)  # else others may be the cause
        if ratio < 1 / _FAR or (own and ratio > _FAR):
            for name in _FACTORS.get(stage, (stage,)):
                if name in found:
                    found[name] = found[name]._replace(median=found[name].median * ratio)
        for name in {name: None for each in seen for name in each.counts}:
            most = max(each.seconds / each.counts[name] for each in seen if name in each.counts)
            if name in found and most < found[name].median:
                found[name] = found[name]._replace(median=most)
    return found


def _by_stage(logs: Sequence[tuple[Features, Sequence[Measurement]]]) -> dict[str, list[_Seen]]:
    found: dict[str, list[_Seen]] = {}
    for features, members in logs:
        for member in members:
            rows = np.flatnonzero(np.isfinite(member.seconds))[:_STEPS]
            if not rows.size or not (seconds := float(np.median(member.seconds[rows]))) > 0:
                continue
            for stage in member.stages:
                base = 0.0 if member.trained_unknown else _median(_base(features, stage), rows)
                counts = {
                    name: _median(count, rows) for name, count in constant_counts(features, stage).items()
                }
                taken = {name: count for name, count in counts.items() if count > 0}
                found.setdefault(stage, []).append(_Seen(seconds, base, taken, len(member.stages) == 1))
    return found


def _median(values: Floats, rows: np.ndarray) -> float:
    return float(np.median(values[rows]))


def _base(features: Features, stage: str) -> Floats:
    if stage == "gen":
        found: Floats = features.decode[0, AS_IT_IS] + features.prefill[0] + features.wait
        return found
    if stage == "reward":
        slowest: Floats = features.score.max(axis=0)
        return slowest
    return features.stages.get(stage, np.zeros(len(features)))


def constant_counts(features: Features, stage: str) -> dict[str, Floats]:
    """How often each step takes each constant of a stage, by the term's name."""
    if stage == "gen":
        return {
            "gen_phase_s": features.batches,
            "iteration_s": features.iterations[0],
            "rollout_iteration_s": features.area[0],
            "round_fixed_s": features.rounds,
        }
    if stage == "reward":
        return {
            "score_batch_s": features.score_batches.max(axis=0),
            "piece_fixed_s": features.pieces.max(axis=0),
            "reward_phase_s": features.batches,
        }
    return {f"{stage}_s": np.ones(len(features))}
