"""What a scenario's own cost model says of every step of a log, in the form in which the unknowns enter.

Generation is linear in its unknowns once the lengths are known (device and host seconds of an iteration
together through their ratio), a stage is linear in its own: all that the estimation needs of a step is
computed once.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from oppo_sim.columns import (
    COLD_START,
    GENERATION_BATCHES,
    LENGTH_CLIP_RATIO,
    LENGTH_MAX,
    LENGTH_MEAN,
    LENGTH_MIN,
    LENGTH_STD,
    PER_TOKEN_UPDATE_MS,
    PROMPT_LENGTH_MEAN,
    ROLLOUTS_TRAINED,
    SLOWEST_LENGTH,
    SLOWEST_TOOL_S,
    STEP,
    TOKENS_TOTAL,
    TRAINING_STAGES,
    TURNS_MAX,
)
from oppo_sim.costs.interface import BatchShape, TrainingCost
from oppo_sim.costs.models import find_model
from oppo_sim.errors import OppoError
from oppo_sim.fit.log.batches import batches_note, batches_of, in_batches
from oppo_sim.fit.log.cleaning import NO_SECONDS
from oppo_sim.fit.log.rebuilt_lengths import LengthFigures, rebuilt_lengths
from oppo_sim.fit.log.step_log import LENGTH_SLACK, StepLog
from oppo_sim.fit.terms.gathers import Gathers, gathers_of
from oppo_sim.fit.terms.generation import Generated, generation_of
from oppo_sim.fit.terms.phases import Scoring, round_size_of, scoring_of
from oppo_sim.scenario.build import Parts, build_parts
from oppo_sim.scenario.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

DRAWS: Final = 6
"""Length distributions drawn a step, at most."""
_MOST_LENGTHS: Final = 3_000_000
"""Lengths drawn of a log from which on there are fewer draws a step, at least two."""
_NO_TOOLS: Final = 2.0
_MISMATCH: Final = LENGTH_SLACK
_TRAINED_UNKNOWN: Final = (
    "mean lengths are of other rollouts than the tokens of a step, as where groups are filtered, and how many"
    " were trained is not logged: seconds of updates are taken to be of the whole batch"
)
_THOUSANDFOLD: Final = (700.0, 1400.0)
"""About a thousand times as many rollouts: seconds that are milliseconds."""
_OTHER_ROLLOUTS: Final = 0.01
"""Relative difference from which on tokens and mean lengths are not of the same rollouts."""
_FORWARDS: Final = ("old_log_prob", "ref", "values")


@dataclass(frozen=True)
class Features:
    """One entry a step (``steps``); seconds of the cost model as it stands, tokens, counts."""

    steps: npt.NDArray[np.int64]
    """Step numbers of the log."""
    cold: npt.NDArray[np.bool_]
    decode: Floats
    """Decode seconds of the phase with the host's part times each factor of ``HOST_GRID``: 2 × grid × steps;
    the second is where ``TOOL_SHARE`` of the tokens of rollouts that were not cut are a tool's."""
    iterations: Floats
    """2 × steps; so is the area."""
    batches: Floats
    """Batches generated one after the other."""
    area: Floats
    """Rollouts × iterations."""
    prefill: Floats
    """2 × steps, too."""
    rounds: Floats
    """Rounds of generation, each a cut; 0 where the phase is not cut."""
    wait: Floats
    """Seconds for which the last rollout waited for tools."""
    score: Floats
    """Workers × steps, as the two that follow."""
    score_batches: Floats
    pieces: Floats
    """Rollouts that a worker scores, one piece each."""
    stages: dict[str, Floats]
    """By training stage."""
    spread: Floats
    """Relative standard deviation of the decode seconds over the drawn lengths."""
    longest_logged: bool
    """The log says how long the longest response was, or all of them."""
    longest: Floats
    """Response tokens of the longest rollout, and tokens of the whole batch: for the naive line."""
    tokens: Floats
    tools: bool
    """Rollouts call tools, whose output counts as response but is not decoded."""
    trained_unknown: bool
    """Not all that was generated is trained, and the log does not say how many are."""
    has_host: bool
    """The cost model holds seconds of a host that a factor can change."""
    gathers: Mapping[str, Gathers] = field(default_factory=dict)
    """Of the training stages whose seconds depend on the rate of gathers (``gathers.py``)."""
    offload: Mapping[str, float] = field(default_factory=dict)
    """By training stage, seconds of any batch that are in no entry of ``stages`` (``offload.py``)."""
    parameters: float = 0.0
    """Of the trained model; 0: the cost model knows none."""
    unended: "Features | None" = None
    """As if each phase ended with its longest response and nobody waited for a tool; None: it is so."""

    @property
    def scores(self) -> bool:
        """Scoring takes time under the cost model."""
        return bool(self.score.max() > 0)

    @property
    def cut(self) -> bool:
        """Generation runs in rounds."""
        return bool(self.rounds.max() > 0)

    def __len__(self) -> int:
        return len(self.steps)

    def taken(self, rows: npt.NDArray[np.bool_] | slice) -> "Features":
        """Some of the steps."""
        values: dict[str, Any] = {
            name: value[..., rows] for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        stages = {name: value[rows] for name, value in self.stages.items()}
        gathers = {name: each.taken(rows) for name, each in self.gathers.items()}
        unended = None if self.unended is None else self.unended.taken(rows)
        return replace(self, **values, stages=stages, gathers=gathers, unended=unended)


@dataclass(frozen=True)
class _StepShape:
    """Lengths of a step: what was generated (``in_batches``), and what was trained."""

    responses: npt.NDArray[np.int64]
    """Draws × batches × rollouts."""
    prompts: npt.NDArray[np.int64]
    """Batches × rollouts."""
    trained: BatchShape
    forward: BatchShape
    cut: int
    """``max_response_length``."""
    others: bool = False
    """The log's length figures are of other rollouts than were generated."""


def build_features(
    log: StepLog,
    scenario: Scenario,
    *,
    seed: int = 0,
    parts: Parts | None = None,
) -> tuple[Features, StepLog]:
    """Features of every step that has a mean length, and the log without the others.

    Raises OppoError where the log and the scenario cannot be of the same run, and for what a scenario
    refuses.
    """
    parts = build_parts(scenario) if parts is None else parts
    kept = _with_lengths(log)
    _check_batch(kept, scenario)
    rows = kept.frame.to_dict("records")
    size = scenario.dynamic_sampling.gen_batch_size or scenario.rollout_batch_size
    most = sum(batches_of(row, scenario) for row in rows) * size
    draws = min(DRAWS, max(2, _MOST_LENGTHS // most))
    default_prompt = float(np.mean(parts.replay.prompt_lengths))
    shapes: list[_StepShape] = []
    failed: list[int] = []
    reason = ""
    for place, row in enumerate(kept.frame.to_dict("records")):
        generator = np.random.default_rng([seed, int(row[STEP])])
        try:
            shapes.append(_shape(kept, row, scenario, default_prompt, draws, generator))
        except OppoError as error:
            failed.append(place)
            reason = reason or f"step {int(row[STEP])}: {error}"
    if not shapes:
        raise OppoError(f"{log.name} has no step whose lengths can be; {reason}")
    trained_unknown = any(shape.others and ROLLOUTS_TRAINED not in kept.frame for shape in shapes)
    said = (_TRAINED_UNKNOWN if trained_unknown else None, batches_note(kept, scenario))
    kept = replace(kept, notes=(*kept.notes, *(note for note in said if note is not None)))
    kept = _left_out(kept, failed, "step whose mean, maximum and minimum no lengths can have")
    features = _features(kept, shapes, parts, round_size_of(log, scenario))
    return replace(features, trained_unknown=trained_unknown, parameters=_parameters(scenario)), kept


def _parameters(scenario: Scenario) -> float:
    model = getattr(scenario.costs, "actor_model", None)
    return 0.0 if model is None else float(find_model(model, scenario.base_dir).parameters)


def _features(log: StepLog, shapes: list["_StepShape"], parts: Parts, round_size: int | None) -> Features:
    frame, costs = log.frame, parts.costs
    wait = _column(frame, SLOWEST_TOOL_S, 0.0)
    slowest = _column(frame, SLOWEST_LENGTH, np.inf)
    tools = bool(np.any(_column(frame, TURNS_MAX, 0.0) > _NO_TOOLS) or np.any(wait > 0))
    tools &= not log.tool_tokens_apart
    generated = [
        Generated(shape.responses, shape.prompts, shape.cut, last)
        for shape, last in zip(shapes, slowest, strict=True)
    ]
    ended = generation_of(generated, parts, round_size, tools=tools)
    by_worker = np.array([_scoring(shape, parts) for shape in shapes], dtype=np.float64).swapaxes(0, 1)
    found = Features(
        steps=frame[STEP].to_numpy(dtype=np.int64),
        cold=frame[COLD_START].to_numpy(dtype=np.bool_),
        **ended._asdict(),
        batches=np.array([float(len(shape.prompts)) for shape in shapes]),
        wait=wait,
        score=by_worker[:, :, 0],
        score_batches=by_worker[:, :, 1],
        pieces=by_worker[:, :, 2],
        stages=_stage_seconds(shapes, costs.training),
        gathers=gathers_of(costs.training, lambda training: _stage_seconds(shapes, training)),
        longest_logged=log.lengths is not None or LENGTH_MAX in frame or SLOWEST_LENGTH in frame,
        longest=np.array([float(shape.responses.max(axis=(1, 2)).mean()) for shape in shapes]),
        tokens=np.array([float(shape.forward.tokens) for shape in shapes]),
        tools=tools,
        trained_unknown=False,
    )
    if not wait.any() or all(np.all(each.responses[:, -1] <= each.slowest) for each in generated):
        return found
    others = [each._replace(slowest=np.inf) for each in generated]
    unended = generation_of(others, parts, round_size, tools=tools)
    return replace(found, unended=replace(found, **unended._asdict(), wait=np.zeros_like(wait)))


def _column(frame: "pd.DataFrame", name: str, missing: float) -> Floats:
    if name not in frame:
        return np.full(len(frame), missing)
    return frame[name].fillna(missing).to_numpy(dtype=np.float64)


def _scoring(shape: "_StepShape", parts: Parts) -> list[Scoring]:
    """A batch is scored whole before the next is generated."""
    sizes = (shape.prompts + shape.responses[0]).tolist()
    batches = [scoring_of(batch, parts.machine, parts.costs) for batch in sizes]
    return [Scoring(*map(sum, zip(*worker, strict=True))) for worker in zip(*batches, strict=True)]


def _stage_seconds(shapes: Sequence["_StepShape"], training: TrainingCost) -> dict[str, Floats]:
    """Forwards run over all that was generated, updates over what is trained."""
    times = [(training.stage_times(shape.forward), training.stage_times(shape.trained)) for shape in shapes]
    return {
        stage: np.array(
            [getattr(forward if stage in _FORWARDS else trained, stage) for forward, trained in times]
        )
        for stage in TRAINING_STAGES
    }


def _with_lengths(log: StepLog) -> StepLog:
    frame = log.frame
    if log.lengths is not None:
        known = frame[STEP].isin(list(log.lengths))
        reason = "step without a rollout's length"
    elif LENGTH_MEAN in frame:
        known = frame[LENGTH_MEAN] >= 1
        reason = "step without a mean response length"
    elif log.left_out.get(NO_SECONDS):
        raise OppoError(
            f"{log.name} has no step with both response lengths and seconds: number the steps of both alike"
        )
    else:
        raise OppoError(
            f"{log.name} has no response lengths: name their mean with --field response_length/mean=NAME, or"
            " give the rollouts' lengths with --lengths (in Python: fields={'response_length/mean': NAME}, or"
            " lengths=)"
        )
    if not known.any() and log.lengths is not None:
        raise OppoError(
            f"no step of {log.name} ({frame[STEP].min()} to {frame[STEP].max()}) is among those of its"
            f" rollouts ({min(log.lengths)} to {max(log.lengths)}): are they of this run?"
        )
    if not known.any():
        raise OppoError(f"{log.name} has no step with a mean response length of at least one token")
    return _left_out(log, np.flatnonzero(~known.to_numpy()).tolist(), reason)


def _left_out(log: StepLog, places: list[int], reason: str) -> StepLog:
    if not places:
        return log
    frame = log.frame.drop(log.frame.index[places]).reset_index(drop=True)
    return replace(log, frame=frame, left_out={**log.left_out, reason: len(places)})


def _check_batch(log: StepLog, scenario: Scenario) -> None:
    """The rollouts that the log itself counts, and the longest, are those of the scenario."""
    frame, batch = log.frame, scenario.rollout_batch_size
    if log.lengths is not None:
        return
    longest = max(float(frame[name].max()) for name in (LENGTH_MEAN, LENGTH_MAX) if name in frame)
    if longest > scenario.max_response_length * (1 + _MISMATCH):
        raise OppoError(
            f"{log.name} has a response of {longest:,.0f} tokens, but max_response_length of the scenario is"
            f" {scenario.max_response_length:,}: correct it"
        )
    times = float(frame[ROLLOUTS_TRAINED].median()) / batch if ROLLOUTS_TRAINED in frame else 1.0
    if _THOUSANDFOLD[0] < times < _THOUSANDFOLD[1]:
        raise OppoError(
            f"{log.name} trains a thousand times the {batch} rollouts of the scenario a step, by its seconds"
            " and its milliseconds a token: is it in milliseconds (--unit ms)?"
        )
    if ROLLOUTS_TRAINED in frame and (most := frame[ROLLOUTS_TRAINED].max()) > batch * (1 + _MISMATCH):
        raise OppoError(
            f"{log.name} trains {most:.0f} rollouts a step, but the scenario's rollout_batch_size is {batch}:"
            " correct it (prompts a batch × samples a prompt)"
        )
    if ROLLOUTS_TRAINED in frame and PER_TOKEN_UPDATE_MS not in frame:  # counted, not derived
        counts = frame[ROLLOUTS_TRAINED].dropna()
        if len(counts) and (counts == counts.max()).mean() > 0.5 and counts.max() < batch * (1 - _MISMATCH):
            raise OppoError(
                f"{log.name} trains {counts.max():.0f} rollouts a step, but the scenario's rollout_batch_size"
                f" is {batch}: correct it (prompts a batch × samples a prompt)"
            )
    if {TOKENS_TOTAL, PROMPT_LENGTH_MEAN} <= set(frame.columns):
        each = frame[LENGTH_MEAN] + frame[PROMPT_LENGTH_MEAN]
        found = float((frame[TOKENS_TOTAL] / each).median())
        # Where fewer are trained than generated, tokens are of all and mean lengths of those.
        trained = float(frame[ROLLOUTS_TRAINED].median()) if ROLLOUTS_TRAINED in frame else found
        if abs(found / batch - 1) > 4 * _MISMATCH and abs(found / trained - 1) <= _MISMATCH:
            raise OppoError(
                f"{log.name} has tokens for about {found:.0f} rollouts a step, but rollout_batch_size of the"
                f" scenario is {batch}: correct it (prompts a batch × samples a prompt)"
            )


def check_rollouts(log: StepLog, scenario: Scenario) -> None:
    """Rollouts that are known one by one are as many, and not longer, than the scenario's. Raises
    OppoError."""
    if log.lengths is None:
        return
    steps = [log.lengths[step] for step in log.frame[STEP].astype(int) if step in log.lengths]
    longest = max(max(each) for each in steps)
    if longest > scenario.max_response_length * (1 + _MISMATCH):
        raise OppoError(
            f"{log.name} has a response of {longest:,} tokens, but max_response_length of the scenario is"
            f" {scenario.max_response_length:,}: correct it"
        )
    count, batch = float(np.median([len(each) for each in steps])), scenario.rollout_batch_size
    several = scenario.dynamic_sampling.enable or GENERATION_BATCHES in log.frame
    if count < batch * (1 - _MISMATCH) or (count > batch * (1 + _MISMATCH) and not several):
        raise OppoError(
            f"{log.name} has {count:,.0f} rollouts a step (median), but the scenario's rollout_batch_size is"
            f" {batch:,}: correct it (prompts a batch × samples a prompt), or give all rollouts"
        )


def _shape(
    log: StepLog,
    row: Mapping[Hashable, float],
    scenario: Scenario,
    default_prompt: float,
    draws: int,
    generator: np.random.Generator,
) -> _StepShape:
    step, batch, cut = int(row[STEP]), scenario.rollout_batch_size, scenario.max_response_length
    if log.lengths is not None:
        responses = np.asarray(log.lengths[step], dtype=np.int64)
        known = None if log.prompts is None else log.prompts.get(step)
        prompts = np.full(len(responses), round(default_prompt)) if known is None else np.asarray(known)
        both = BatchShape(tuple(prompts.tolist()), tuple(responses.tolist()))
        generated = in_batches(responses[None, :], prompts, row, scenario, generator)
        return _StepShape(*generated, both, both, cut)
    trained = row.get(ROLLOUTS_TRAINED, float("nan"))
    trained = batch if np.isnan(trained) else int(min(trained, batch))
    figures, prompt = length_figures(row, scenario, default_prompt)
    mean, others = row[LENGTH_MEAN], figures.mean != row[LENGTH_MEAN] or trained < batch
    responses = rebuilt_lengths(figures, draws, generator)
    prompts = np.full(batch, max(0, round(prompt)), dtype=np.int64)
    both = BatchShape(tuple(prompts.tolist()), tuple(responses[0].tolist()))
    if trained < batch:
        part = responses[0][:trained].astype(np.float64)
        scaled = np.maximum(1, np.rint(part * (mean / part.mean()))).astype(np.int64)
        update = BatchShape(tuple(prompts[:trained].tolist()), tuple(scaled.tolist()))
    else:
        update = both
    generated = in_batches(responses, prompts, row, scenario, generator)
    return _StepShape(*generated, update, both, cut, others)


def length_figures(
    row: Mapping[Hashable, float], scenario: Scenario, default_prompt: float
) -> tuple[LengthFigures, float]:
    """What a step's row says of the lengths of all its rollouts, and the mean length of their prompts
    (tokens)."""
    batch, mean = scenario.rollout_batch_size, row[LENGTH_MEAN]
    prompt, tokens = (row.get(name, float("nan")) for name in (PROMPT_LENGTH_MEAN, TOKENS_TOTAL))
    if np.isnan(prompt):
        # TRL logs the tokens of all, and no prompt length.
        left = tokens / batch - mean
        prompt = left if 0.0 < left <= scenario.max_prompt_length else default_prompt
    most, slowest = row.get(LENGTH_MAX, float("nan")), row.get(SLOWEST_LENGTH, float("nan"))
    whole = mean
    if not np.isnan(tokens) and abs(tokens / batch / (mean + prompt) - 1.0) > _OTHER_ROLLOUTS:
        # The figures are of the rollouts that were trained; tokens and the slowest of all.
        whole = max(1.0, tokens / batch - prompt)
    others = whole != mean or row.get(ROLLOUTS_TRAINED, batch) < batch
    most = float(np.nanmax([most, slowest])) if not (np.isnan(most) and np.isnan(slowest)) else most
    figures = LengthFigures(
        rollouts=batch,
        mean=whole,
        max=_known(most),
        min=None if others else _known(row.get(LENGTH_MIN)),
        clip_ratio=_known(row.get(LENGTH_CLIP_RATIO)),
        cut=scenario.max_response_length,
        std=_known(row.get(LENGTH_STD)),
    )
    return figures, prompt


def _known(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else float(value)
