"""Predicted against measured seconds of steps that were not fitted, beside two naive predictors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from oppo_sim.columns import TIMING_STEP
from oppo_sim.fit.inference.drifting import Ahead, Residuals, Walk, ahead_of, drawn_drift, walks_of_run
from oppo_sim.fit.inference.posterior import Posterior, between_of, member_seconds
from oppo_sim.fit.terms.features import Features
from oppo_sim.fit.terms.stages import Measurement

Floats = npt.NDArray[np.float64]

INTERVAL: Final = (2.5, 97.5)
NAIVE: Final = ("mean", "line")
_COUNTS: Final = 0.003
"""Of a step: a metric that takes less has no walk of its own."""
_TRAINED: Final = (0.2, 1.0)
"""Part of its batch that a run trains, where it is unknown."""
_BEYOND_WHOLE: Final = 0.1
"""Logarithm by which the updates of such a part may be longer than the model says of the whole batch."""

_BY_MODEL: Final = 0.05
"""Standard deviation of the logarithm of a metric for a model e times as large as the nearest that was
fitted: by how much the cost model's seconds may grow otherwise than a machine's. A step of 7B predicted from
runs of 0.5B (2.7 factors e) was 11 to 13 % off, of 1.5B from 3B (0.7) 4 % (experiments/public_gpu)."""


class Prediction(NamedTuple):
    """Seconds by step: measured, predicted (median), and the ends of the 95 % interval."""

    steps: npt.NDArray[np.int64]
    measured: Floats
    predicted: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Error:
    """Of predicted seconds, relative to the measured; ``median``, ``p90``, ``worst`` of absolute values."""

    steps: int
    median: float
    p90: float
    worst: float
    """Signed."""
    worst_step: int
    bias: float
    """Median, signed."""
    coverage: float | None = None
    """Share of steps within the 95 % interval."""
    width: float | None = None
    """Of that interval, median, over the measured seconds."""


@dataclass(frozen=True)
class Judgement:
    """One metric, or the step."""

    column: str
    model: Error
    naive: dict[str, Error]
    """``mean`` of the fitted steps; ``line`` in the longest response and the tokens, fitted on the same."""
    prediction: Prediction


def predict(
    features: Features,
    members: Sequence[Measurement],
    posterior: Posterior,
    *,
    seen: bool,
    ahead: Ahead | None = None,
    walks: Mapping[str, Walk] | None = None,
    apart: float = 0.0,
    seed: int = 0,
) -> dict[str, Prediction]:
    """Each metric, and ``timing_s/step`` where all metrics of a step are known.

    ``seen``: the run is one that was fitted, so its own offset is known; else it may differ as runs do.
    ``ahead``: how far each step lies from those that were fitted; None: these are they. ``walks``: of the
    metrics of a run that was fitted. ``apart``: logarithm of its model's size over the nearest fitted one's.
    """
    generator = np.random.default_rng(seed)
    found: dict[str, Prediction] = {}
    whole: list[tuple[Floats, Floats]] = []
    measured = np.zeros(len(features))
    for member in members:
        if posterior.noise_of(member) is None:
            continue
        walk = (walks or {}).get(member.column)
        centre, drawn = _drawn(features, member, posterior, seen, ahead, walk, apart, generator)
        found[member.column] = _prediction(features.steps, member.seconds, centre, drawn)
        measured = measured + member.seconds
        whole.append((centre, drawn))
    if len(whole) == len(members) and whole:
        found[TIMING_STEP] = _prediction(
            features.steps,
            measured,
            np.sum([centre for centre, _ in whole], axis=0),
            np.sum([drawn for _, drawn in whole], axis=0),
        )
    return found


def _drawn(
    features: Features,
    member: Measurement,
    posterior: Posterior,
    seen: bool,
    ahead: Ahead | None,
    walk: Walk | None,
    apart: float,
    generator: np.random.Generator,
) -> tuple[Floats, Floats]:
    """Draws × steps: of the model, and of what would be measured."""
    column = member.column
    centre = member_seconds(member, features, posterior.terms)
    if column in posterior.first:
        centre = centre + posterior.first[column][:, None] * features.cold
    if member.added is not None:
        centre = centre + member.added
    offset: Floats = np.zeros((1, 1))
    if seen and (column, member.log) in posterior.offsets:
        offset = posterior.offsets[column, member.log][:, None]
    between: Floats = np.zeros((1, 1))
    if not seen:
        median, sigma = between_of(member)
        spread = posterior.between.get(
            column, median * np.exp(sigma * generator.standard_normal(posterior.size))
        )
        spread = np.hypot(spread, _BY_MODEL * apart)
        between = (spread * generator.standard_normal(posterior.size))[:, None]
        if member.trained_unknown:
            offset = np.log(generator.uniform(*_TRAINED, size=(posterior.size, 1)))
    centre = centre * np.exp(offset)
    noise_alone: Floats = np.ones((1, 1))
    if ahead is not None:
        drift, noise_alone = drawn_drift(
            ahead, walk, generation="gen" in member.stages, draws=posterior.size, generator=generator
        )
        between = between + drift
    length_spread: Floats = features.spread if "gen" in member.stages else np.zeros(1)
    kind = posterior.noise_of(member)
    assert kind is not None
    if kind in posterior.scatter and not features.longest_logged:
        length_spread = posterior.scatter[kind][:, None] * length_spread
    scale = np.sqrt((noise_alone * posterior.noise[kind][:, None]) ** 2 + length_spread**2)
    noise = scale * generator.standard_t(posterior.tail[kind][:, None], size=centre.shape)
    moved: Floats = np.clip(between + noise, -3, 3)
    if member.trained_unknown:
        # It may be all of the batch, and not more; of a small part it stays a small one.
        least, most = np.log(_TRAINED)
        moved = np.clip(moved, np.minimum(least - offset, 0.0), most - offset + _BEYOND_WHOLE)
    drawn = centre * np.exp(moved)
    if walk is None or ahead is None:
        return centre, drawn
    return centre * np.exp(walk.centre(ahead.after)), drawn


def walks_of(
    features: Features, members: Sequence[Measurement], posterior: Posterior, *, seed: int = 0
) -> dict[str, Walk]:
    """Of the metrics of a fitted run, from the residuals of its fitted steps; metrics that matter to a
    step."""
    predictions = predict(features, members, posterior, seen=True, seed=seed)
    metrics = {}
    for member in members:
        kind = posterior.noise_of(member)
        if kind is None or member.share < _COUNTS:
            continue
        with np.errstate(invalid="ignore", divide="ignore"):
            off = np.log(member.seconds / predictions[member.column].predicted)
        noise = float(np.median(posterior.noise[kind]))
        metrics[member.column] = Residuals(off, noise, "gen" in member.stages)
    return walks_of_run(metrics, features.steps)


def _prediction(steps: npt.NDArray[np.int64], measured: Floats, centre: Floats, drawn: Floats) -> Prediction:
    low, high = np.percentile(drawn, INTERVAL, axis=0)
    return Prediction(steps, measured, np.median(centre, axis=0), low, high)


def judge(
    fitted: Sequence[tuple[Features, Sequence[Measurement]]],
    held: Features,
    held_members: Sequence[Measurement],
    posterior: Posterior,
    *,
    last_step: int | None = None,
    seed: int = 0,
) -> list[Judgement]:
    """Errors on steps that were not fitted, the step first.

    ``last_step``: the last fitted one of the same run; None: the run was not fitted.
    """
    ahead = ahead_of([features for features, _ in fitted], held, last_step)
    seen = last_step is not None
    walks: dict[str, Walk] = {}
    if seen:
        logs = {member.log for member in held_members}
        for features, members in fitted:
            if logs & {member.log for member in members}:
                walks = walks_of(features, members, posterior, seed=seed)
    apart = 0.0 if seen else _apart(held, [features for features, _ in fitted])
    predictions = predict(
        held, held_members, posterior, seen=seen, ahead=ahead, walks=walks, apart=apart, seed=seed
    )
    known = [(features, _by_column(members)) for features, members in fitted]
    found = []
    for column, prediction in sorted(predictions.items(), key=lambda item: item[0] != TIMING_STEP):
        rows = [(features, by[column]) for features, by in known if column in by]
        naive = {}
        if rows:
            x = np.concatenate([_line(features) for features, _ in rows])
            y = np.concatenate([seconds for _, seconds in rows])
            keep = np.isfinite(y)
            x, y = x[keep], y[keep]
            if len(y):
                coefficients = np.linalg.lstsq(x, y, rcond=None)[0]
                for name, guess in zip(
                    NAIVE, (np.full(len(held), y.mean()), _line(held) @ coefficients), strict=True
                ):
                    naive[name] = error_of(held.steps, prediction.measured, guess)
        model = error_of(
            prediction.steps, prediction.measured, prediction.predicted, prediction.low, prediction.high
        )
        if model is not None:
            found.append(
                Judgement(column, model, {k: v for k, v in naive.items() if v is not None}, prediction)
            )
    return found


def _apart(held: Features, fitted: Sequence[Features]) -> float:
    """Absolute logarithm of the size of a model over the nearest of others; 0 where nothing knows them."""
    known = [features.parameters for features in fitted if features.parameters]
    if not known or not held.parameters:
        return 0.0
    return float(min(abs(np.log(held.parameters / each)) for each in known))


def _line(features: Features) -> Floats:
    return np.column_stack((np.ones(len(features)), features.longest, features.tokens))


def _by_column(members: Sequence[Measurement]) -> Mapping[str, Floats]:
    found = {member.column: member.seconds for member in members}
    if members:
        found[TIMING_STEP] = np.sum([member.seconds for member in members], axis=0)
    return found


def error_of(
    steps: npt.NDArray[np.int64],
    measured: Floats,
    predicted: Floats,
    low: Floats | None = None,
    high: Floats | None = None,
) -> Error | None:
    """None without a measured step."""
    keep = np.isfinite(measured) & (measured > 0)
    if not keep.any():
        return None
    truth, errors = measured[keep], predicted[keep] / measured[keep] - 1.0
    worst = int(np.argmax(np.abs(errors)))
    inside = width = None
    if low is not None and high is not None:
        inside = float(np.mean((truth >= low[keep]) & (truth <= high[keep])))
        width = float(np.median((high[keep] - low[keep]) / truth))
    return Error(
        steps=int(keep.sum()),
        median=float(np.median(np.abs(errors))),
        p90=float(np.percentile(np.abs(errors), 90)),
        worst=float(errors[worst]),
        worst_step=int(steps[keep][worst]),
        bias=float(np.median(errors)),
        coverage=inside,
        width=width,
    )
