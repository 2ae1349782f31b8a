"""Seconds of every metric of a log as a function of the unknowns: which of them it holds, and how.

All unknowns are positive and log-normal a priori: value = median · exp(sigma · z), so that the sampler works
on standard normal z. Arrays are draws × steps.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from oppo_sim.columns import STEP_SAVE_S, STEP_TESTING_S, TIMING_STEP, TRAINING_STAGES, timing
from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.fit.terms.decoding import HOST_GRID
from oppo_sim.fit.terms.features import Features
from oppo_sim.fit.terms.gathers import GATHER
from oppo_sim.fit.terms.generation import TOOL_SHARE
from oppo_sim.fit.terms.offload import OFFLOAD
from oppo_sim.fit.terms.priors import TOOL_TOKENS, TOOL_WAIT

Floats = npt.NDArray[np.float64]

OTHER: Final = "other"
"""The part of a step outside every stage."""
NEGLIGIBLE: Final = 0.005
"""Share of a step below which a metric's seconds are not looked at."""
_LEAST_REST: Final = 1e-3
"""Of a step: a rest of less is none."""
_UPDATES: Final = frozenset({"update_critic", "update_actor"})
GENERATION: Final = ("decode", "host", "iteration_s", "rollout_iteration_s", "prefill", "gen_phase_s")
"""Terms of generation."""


@dataclass(frozen=True)
class Measurement:
    """Seconds of one metric of one log, and the stages that it holds."""

    column: str
    stages: tuple[str, ...]
    log: int
    """Which log."""
    seconds: Floats
    """NaN where it was not logged."""
    share: float
    """Of the step, median."""
    trained_unknown: bool = False
    """Of an unknown part of the batch."""
    added: Floats | None = None
    """Seconds of each step that are known to come on top (``periodic``)."""
    cold_s: float = 0.0
    """Seconds of a step of which a first step takes a notable part for this metric, which otherwise takes
    hardly any; 0: no such first step."""

    def taken(self, rows: npt.NDArray[np.bool_] | slice) -> "Measurement":
        """Some of the steps."""
        added = None if self.added is None else self.added[rows]
        return replace(self, seconds=self.seconds[rows], added=added)

    @property
    def noise(self) -> str:
        """Whose spread its steps have: the part of the batch that is trained differs from step to step."""
        return f"{self.column} of a part" if self.trained_unknown else self.column

    @property
    def first(self) -> str:
        """The unknown by which its first step is longer; no term of the costs by itself."""
        return f"first/{self.column}"


def told_as(member: Measurement, members: Collection[Measurement]) -> str:
    """Its column; the step, where no other metric names any part of that."""
    return TIMING_STEP if member.column == timing(OTHER) and len(members) == 1 else member.column


def seconds_beyond(log: StepLog, without: Collection[str] = ()) -> tuple[Floats, Floats]:
    """By step: seconds of the step without validation and checkpoints, and those of them that no metric
    names but those of ``without``. The log has ``timing_s/step``."""
    frame = log.frame
    whole = frame[TIMING_STEP].to_numpy(dtype=np.float64)
    for inside in (STEP_TESTING_S, STEP_SAVE_S):
        if inside in frame:
            whole = whole - frame[inside].fillna(0.0).to_numpy()
    left = whole
    for column in (each for each in log.covers if each not in without):
        left = left - frame[column].to_numpy(dtype=np.float64)
    return whole, left


def measurements_of(log: StepLog, number: int, features: Features) -> list[Measurement]:
    """The metrics of a log, and what of its steps no metric names.

    Stages that the scenario does not run count nowhere, nor does scoring that the run hides behind its
    generation; ``step`` minus all metrics is what it holds beyond
    them: stages that no metric names, and ``other``.
    """
    frame = log.frame
    whole, left = seconds_beyond(log) if TIMING_STEP in frame else (None, None)
    running = {"gen", "reward", *(stage for stage, base in features.stages.items() if base.max() > 0)}
    found: list[Measurement] = []
    named = {"reward"} if log.rewards_along else set[str]()
    for column, stages in log.covers.items():
        seconds = frame[column].to_numpy(dtype=np.float64)
        covered = tuple(stage for stage in stages if stage in running) or stages
        if log.rewards_along and "gen" in stages:
            covered = tuple(stage for stage in covered if stage != "reward")
        named.update(stages)
        if column in log.not_fitted:
            continue
        trained_unknown = features.trained_unknown and bool(_UPDATES & set(covered))
        found.append(
            Measurement(
                column, covered, number, seconds, _share(seconds, whole), trained_unknown=trained_unknown
            )
        )
    if whole is not None and left is not None:
        rest = (*sorted(running - named), OTHER)
        typical = float(np.nanmedian(left)) if np.any(np.isfinite(left)) else float("nan")
        if np.isfinite(typical) and typical > -0.02 * float(np.nanmedian(whole)):
            # Seconds that stages overlap by are not below zero. Where nothing is left, a little says so: zero
            # is no measurement.
            none_left = typical < _LEAST_REST * float(np.nanmedian(whole))
            beyond = np.maximum(left, _LEAST_REST * whole if none_left else 0.0)
            found.append(Measurement(timing(OTHER), rest, number, beyond, _share(left, whole)))
    known = [each for each in found if np.any(np.isfinite(each.seconds))]
    return [_slow_to_begin(each, whole, features.cold) for each in known]


def _slow_to_begin(member: Measurement, whole: Floats | None, cold: npt.NDArray[np.bool_]) -> Measurement:
    if whole is None or not cold.any() or member.share >= NEGLIGIBLE:
        return member
    first = member.seconds[cold] / whole[cold]
    notable = np.any(first[np.isfinite(first)] >= NEGLIGIBLE)
    return replace(member, cold_s=float(np.nanmedian(whole))) if notable else member


def _share(seconds: Floats, whole: Floats | None) -> float:
    if whole is None:
        return 1.0
    share = np.nanmedian(seconds / whole) if np.any(np.isfinite(seconds / whole)) else 0.0
    return float(max(0.0, share))


def terms_of(stages: Sequence[str], features: Sequence[Features]) -> list[str]:
    """Unknowns of the costs that seconds of these stages depend on."""
    found: list[str] = []
    for stage in stages:
        if stage == "gen":
            found += [name for name in GENERATION if name != "host" or _any(features, "has_host")]
            found += ["round_fixed_s"] if any(each.cut for each in features) else []
            found += [TOOL_TOKENS] if any(each.tools for each in features) else []
            found += [TOOL_WAIT] if any(each.wait.max() > 0 for each in features) else []
        elif stage == "reward":
            scored = ["score", "score_batch_s", "piece_fixed_s"]
            found += scored if _any(features, "scores") else ["score_batch_s"]
            found.append("reward_phase_s")
        elif stage == OTHER:
            found.append("other_s")
        else:
            runs = not features or any(each.stages[stage].max() > 0 for each in features)
            found += [stage, f"{stage}_s"] if runs else [f"{stage}_s"]
            found += [OFFLOAD] if any(stage in each.offload for each in features) else []
            found += [GATHER] if any(stage in each.gathers for each in features) else []
    return found


def _any(features: Sequence[Features], what: str) -> bool:
    """Of any log; without one all that can be."""
    return not features or any(getattr(each, what) for each in features)


def stage_seconds(stage: str, features: Features, terms: Mapping[str, Floats]) -> Floats:
    """Draws × steps; ``terms`` by name, each of shape (draws,). First steps are as long as any."""

    def term(name: str, missing: float) -> Floats:
        return np.atleast_1d(terms[name] if name in terms else np.array(missing))[:, None]

    if stage == "gen":
        decode, host = term("decode", 1.0), term("host", 1.0)
        tools = tool_share(terms)[:, None] / TOOL_SHARE if features.tools else np.zeros((1, 1))
        result: Floats = (
            decode * _at_host(features, (host / decode)[:, 0], tools)
            + term("iteration_s", 0.0) * _between(features.iterations, tools)
            + term("rollout_iteration_s", 0.0) * _between(features.area, tools)
            + term("prefill", 1.0) * _between(features.prefill, tools)
            + term("round_fixed_s", 0.0) * features.rounds
            + term("gen_phase_s", 0.0) * features.batches
            + np.minimum(term(TOOL_WAIT, 1.0), 1.0) * features.wait
        )
        return result
    if stage == "reward":
        workers = (
            term("score", 1.0)[:, None] * features.score
            + term("score_batch_s", 0.0)[:, None] * features.score_batches
            + term("piece_fixed_s", 0.0)[:, None] * features.pieces
        )
        scored: Floats = workers.max(axis=1) + term("reward_phase_s", 0.0) * features.batches
        return scored
    if stage == OTHER:
        return term("other_s", 0.0) * np.ones(len(features))
    assert stage in TRAINING_STAGES
    fixed = term(OFFLOAD, 1.0) * features.offload.get(stage, 0.0) + term(f"{stage}_s", 0.0)
    if stage in features.gathers:
        return features.gathers[stage].seconds(term(stage, 1.0), term(GATHER, 1.0)) + fixed
    return term(stage, 1.0) * features.stages[stage] + fixed


def tool_share(terms: Mapping[str, Floats]) -> Floats:
    """Of the tokens of a response that was not cut, the share that tools answered; a draw each."""
    # Negative lengths are none: beyond half of all tokens nothing is known of it.
    found: Floats = np.minimum(np.atleast_1d(terms.get(TOOL_TOKENS, np.zeros(1))), 0.5)
    return found


def _at_host(features: Features, ratio: Floats, tools: Floats) -> Floats:
    """Decode seconds with the host's part times each ``ratio`` (draws × steps), between the grid's."""
    grid = np.array(HOST_GRID)
    place = np.clip(np.searchsorted(grid, ratio) - 1, 0, len(grid) - 2)
    weight = ((ratio - grid[place]) / (grid[place + 1] - grid[place]))[:, None]
    low, high = _between(features.decode[:, place], tools), _between(features.decode[:, place + 1], tools)
    found: Floats = np.maximum((1.0 - weight) * low + weight * high, 0.0)
    return found


def _between(both: Floats, tools: Floats) -> Floats:
    """Linear between no tool's tokens and ``TOOL_SHARE`` of them."""
    found: Floats = both[0] + tools * (both[1] - both[0])
    return found
