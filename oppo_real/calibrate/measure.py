"""One visit to one point: seconds by the wall clock, warm-up apart.

Decode is timed as a real run pays for it: the engine's step and what the driver does with the tokens behind it. A prefill cannot be timed
alone through an engine that joins and decodes in one iteration; its seconds are those of the iteration that joins less those of the
iterations after it, which can fall below 0 where it is lost in their noise.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from oppo_real.calibrate.plan import LEAD, TIMED_ITERATIONS, WARM_ITERATIONS, Kind, Point
from oppo_real.engines.interface import Actor, NewTokens, Request, ScorePiece, Scorer
from oppo_sim.columns import TRAINING_STAGES, timing
from oppo_sim.draws import draw_index, stream_key
from oppo_sim.errors import OppoError

if TYPE_CHECKING:
    import torch

    from oppo_real.ppo.rollout import TrainRollout

_STAGES = TRAINING_STAGES[:-1]


@dataclass
class Bench:
    """The engines under measurement. All are warm after ``warm_up``; ids and weight versions rise from visit to visit."""

    actor: Actor
    scorer: Scorer
    update: "Callable[[Sequence[TrainRollout], int], Mapping[str, float]]"
    """A training update as ``PPOTrainer.update``; returns ``timing_s/*``."""
    weights: "Callable[[], Mapping[str, torch.Tensor]]"
    vocab_size: int
    synchronize: Callable[[], None]
    """Waits for everything queued on the device."""
    scorer_with_ref: Scorer | None = None
    """A scorer that runs the reference model too."""
    stop_token_id: int | None = None
    """Kept out of prompts and pieces."""
    next_id: int = 0
    version: int = 0

    def take_ids(self, count: int) -> range:
        """Fresh rollout ids."""
        first, self.next_id = self.next_id, self.next_id + count
        return range(first, self.next_id)

    def tokens(self, rollout_id: int, count: int) -> tuple[int, ...]:
        """Token ids by a hash of the rollout id."""
        drawn = np.random.default_rng(stream_key(rollout_id, "calibrate/tokens")).integers(self.vocab_size, size=count)
        if self.stop_token_id is not None:
            drawn[drawn == self.stop_token_id] = (self.stop_token_id + 1) % self.vocab_size
        return tuple(drawn.tolist())


@dataclass(frozen=True)
class Visit:
    """What one visit to a point gave."""

    point: Point
    number: int
    seconds: tuple[float, ...]
    """Single samples of this visit; their median counts as one repeat."""
    host_seconds: tuple[float, ...] = ()
    """Decode: the part of each sample that the driver took."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Training: seconds by stage."""

    @property
    def median(self) -> float:
        """Seconds."""
        return median(self.seconds)

    def to_plain(self) -> dict[str, Any]:
        """As JSON."""
        plain: dict[str, Any] = {
            "kind": self.point.kind,
            "rows": [list(row) for row in self.point.rows],
            "visit": self.number,
            "seconds": list(self.seconds),
        }
        if self.host_seconds:
            plain["host_seconds"] = list(self.host_seconds)
        if self.stages:
            plain["stages"] = dict(self.stages)
        return plain


def visit_from_plain(plain: Mapping[str, Any], point: Point, number: int) -> Visit:
    """A visit as ``to_plain`` wrote it."""
    return Visit(
        point, number, tuple(plain["seconds"]), tuple(plain.get("host_seconds", ())), {str(k): float(v) for k, v in plain.get("stages", {}).items()}
    )


class LoopDriver:
    """What a driver does with every iteration's tokens: it keeps them and their log-probabilities by rollout, notes who finished, and
    cuts pieces for the scorer. Its time is part of an iteration in a real run."""

    def __init__(self, chunk_size: int) -> None:
        self._chunk = chunk_size
        self._tokens: dict[int, list[int]] = {}
        self._log_probs: dict[int, list[float]] = {}
        self._versions: dict[int, list[int]] = {}
        self._cut: dict[int, int] = {}
        self.pieces: list[ScorePiece] = []
        self.finished: list[int] = []

    def take(self, news: Sequence[NewTokens]) -> None:
        """One iteration."""
        for new in news:
            tokens = self._tokens.setdefault(new.rollout_id, [])
            tokens.extend(new.tokens)
            self._log_probs.setdefault(new.rollout_id, []).extend(new.log_probs)
            self._versions.setdefault(new.rollout_id, []).extend([new.weight_version] * len(new.tokens))
            cut = self._cut.setdefault(new.rollout_id, 0)
            ended = new.finish_reason is not None
            if ended or len(tokens) - cut >= self._chunk:
                self.pieces.append(ScorePiece(new.rollout_id, tuple(tokens[cut:]), ended))
                self._cut[new.rollout_id] = len(tokens)
            if ended:
                self.finished.append(new.rollout_id)


def visit_point(bench: Bench, point: Point, number: int) -> Visit:
    """Measure a point once. Raises OppoError where an engine does not do what the point needs."""
    gc.collect()  # what other points left behind is not this one's
    return _VISITS[point.kind](bench, point, number)


def warm_up(bench: Bench, points: Sequence[Point]) -> None:
    """Run the smallest and the largest point of each kind, untimed: kernels are chosen, memory is grown, graphs are captured."""
    for kind in dict.fromkeys(point.kind for point in points):
        same = sorted((point for point in points if point.kind == kind), key=lambda point: (point.kv_tokens + point.tokens, point.key))
        for point in dict.fromkeys((same[0], same[-1])):
            visit_point(bench, point, 0)


# ---- one function a kind --------------------------------------------------------------------------------------------------------


def _decode(bench: Bench, point: Point, number: int) -> Visit:
    iterations = 1 + WARM_ITERATIONS + TIMED_ITERATIONS
    ids = _submitted(bench, [context - LEAD for context, _ in point.rows], iterations + 1)
    driver = LoopDriver(chunk_size=iterations)
    _step(bench, point.n)
    for _ in range(WARM_ITERATIONS):
        driver.take(_step(bench, point.n))
    seconds, host = [], []
    for _ in range(TIMED_ITERATIONS):
        start = perf_counter()
        news = bench.actor.step()
        bench.synchronize()
        between = perf_counter()
        driver.take(news)
        end = perf_counter()
        _check_news(news, point.n)
        seconds.append(end - start)
        host.append(end - between)
    bench.actor.abort(ids)
    return Visit(point, number, tuple(seconds), tuple(host))


def _prefill(bench: Bench, point: Point, number: int) -> Visit:
    ids = _submitted(bench, [tokens for _, tokens in point.rows], WARM_ITERATIONS + TIMED_ITERATIONS + 1)
    bench.synchronize()
    start = perf_counter()
    _step(bench, point.n)
    joined = perf_counter() - start
    for _ in range(WARM_ITERATIONS - 1):
        _step(bench, point.n)
    after = []
    for _ in range(TIMED_ITERATIONS):
        start = perf_counter()
        _step(bench, point.n)
        after.append(perf_counter() - start)
    bench.actor.abort(ids)
    return Visit(point, number, (joined - median(after),))


def _score(bench: Bench, point: Point, number: int) -> Visit:
    return _append(bench, bench.scorer, point, number)


def _score_ref(bench: Bench, point: Point, number: int) -> Visit:
    """Reward and reference model together; what the reference model adds is found by subtracting ``score``."""
    if bench.scorer_with_ref is None:
        raise OppoError("the scenario streams the reference model (training.stream_ref), and this engine's scorer cannot: use the torch engine")
    return _append(bench, bench.scorer_with_ref, point, number)


def _append(bench: Bench, scorer: Scorer, point: Point, number: int) -> Visit:
    ids = bench.take_ids(point.n)
    whole = [bench.tokens(rollout_id, past + new) for rollout_id, (past, new) in zip(ids, point.rows, strict=True)]
    held = [
        ScorePiece(rollout_id, tokens[:past], False) for rollout_id, tokens, (past, _) in zip(ids, whole, point.rows, strict=True) if past
    ]
    for piece in held:
        scorer.append([piece])
    pieces = [ScorePiece(rollout_id, tokens[past:], True) for rollout_id, tokens, (past, _) in zip(ids, whole, point.rows, strict=True)]
    bench.synchronize()
    start = perf_counter()
    scores = scorer.append(pieces)
    bench.synchronize()
    seconds = perf_counter() - start
    scorer.release(ids)
    if len(scores) != point.n:
        raise OppoError(f"the scorer scored {len(scores)} of {point.n} finished rollouts; it cannot be calibrated")
    return Visit(point, number, (seconds,))


def _train(bench: Bench, point: Point, number: int) -> Visit:
    batch = training_batch(bench, point)
    start = perf_counter()
    found = bench.update(batch, bench.version)
    bench.synchronize()
    seconds = perf_counter() - start
    bench.version += 1
    return Visit(point, number, (seconds,), (), {stage: float(found.get(timing(stage), 0.0)) for stage in _STAGES})


def training_batch(bench: Bench, point: Point) -> "list[TrainRollout]":
    """Rollouts of a ``train`` point; scores by a hash, log-probabilities those of a uniform model."""
    from math import log

    from oppo_real.ppo.rollout import TrainRollout

    made = []
    for rollout_id, (prompt, response) in zip(bench.take_ids(point.n), point.rows, strict=True):
        tokens = bench.tokens(rollout_id, prompt + response)
        log_probs = (-log(bench.vocab_size),) * response
        score = draw_index(stream_key(rollout_id, "calibrate/score"), 0, 1001) / 1000.0
        made.append(TrainRollout(rollout_id, tokens[:prompt], tokens[prompt:], log_probs, (bench.version,) * response, score, "stop"))
    return made


def _sync(bench: Bench, point: Point, number: int) -> Visit:
    start = perf_counter()
    bench.actor.load_weights(bench.weights(), bench.version, keep_kv=True)
    bench.synchronize()
    return Visit(point, number, (perf_counter() - start,))


_VISITS: dict[Kind, Callable[[Bench, Point, int], Visit]] = {
    "decode": _decode,
    "prefill": _prefill,
    "score": _score,
    "score_ref": _score_ref,
    "train": _train,
    "sync": _sync,
}


def _submitted(bench: Bench, prompts: Sequence[int], length: int) -> range:
    ids = bench.take_ids(len(prompts))
    bench.actor.submit(
        [Request(rollout_id, bench.tokens(rollout_id, prompt), length, length) for rollout_id, prompt in zip(ids, prompts, strict=True)]
    )
    return ids


def _step(bench: Bench, expected: int) -> list[NewTokens]:
    news = bench.actor.step()
    bench.synchronize()
    _check_news(news, expected)
    return news


def _check_news(news: Sequence[NewTokens], expected: int) -> None:
    if len(news) != expected:
        raise OppoError(
            f"the actor decoded {len(news)} of {expected} rollouts together; raise its max_num_seqs and KV capacity, or give the "
            "scenario its limits (rollout.max_num_seqs, rollout.kv_capacity_tokens)"
        )
