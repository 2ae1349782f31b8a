"""One visit to one point: seconds by the wall clock, warm-up apart.

Decode is timed as a real run pays for it: the engine's step and what the driver does with the tokens behind
it. A prefill cannot be timed alone through an engine that joins and decodes in one iteration; its seconds are
those of the iteration that joins less those of the iterations after it, which can fall below 0 where it is
lost in their noise.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import fmean, median
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar, cast

from oppo_real.calibrate.bench import Bench
from oppo_real.calibrate.cuts import time_pieces, time_rounds, time_weights
from oppo_real.calibrate.plan import TIMED_ITERATIONS, WARM_ITERATIONS, lead
from oppo_real.calibrate.point import Kind, Point
from oppo_real.engines.interface import Actor, NewTokens, Request, ScorePiece, Scorer
from oppo_real.placement.events import Job, QueuedPiece, Scored
from oppo_real.placement.host import ReplicaHost, ScorerHost
from oppo_sim.columns import TRAINING_STAGES, timing
from oppo_sim.draws import draw_index, stream_key
from oppo_sim.errors import OppoError

if TYPE_CHECKING:
    from oppo_real.ppo.rollout import TrainRollout

_Found = TypeVar("_Found")
_STAGES = TRAINING_STAGES[:-1]
_JOINS = 5
_JOINS_WITHIN_S = 1.0
_PAIRS = 5
_PAIRS_WITHIN_S = 2.0
_JOINS_AT_MOST = 1000
_PACE_S = 0.06


@dataclass(frozen=True)
class Visit:
    """What one visit to a point gave."""

    point: Point
    number: int
    seconds: tuple[float, ...]
    """Single samples of this visit; their mean counts as one repeat: a run pays for its slow iterations,
    too."""
    host_seconds: tuple[float, ...] = ()
    """Decode: the part of each sample that the driver took. Pieces: seconds of each on their way to the
    worker."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Training: seconds by stage."""
    device_s: float | None = None
    """Decode, prefill, score: seconds of one such batch in which the GPU computed; None: not measured."""
    measured_at: str | None = None
    """When it ended, in UTC, as ISO 8601; None: it is not known."""

    @property
    def mean(self) -> float:
        """Seconds."""
        return fmean(self.seconds)

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
        if self.device_s is not None:
            plain["device_s"] = self.device_s
        if self.measured_at is not None:
            plain["measured_at"] = self.measured_at
        return plain


def visit_from_plain(plain: Mapping[str, Any], point: Point, number: int) -> Visit:
    """A visit as ``to_plain`` wrote it."""
    return Visit(
        point,
        number,
        tuple(plain["seconds"]),
        tuple(plain.get("host_seconds", ())),
        {str(k): float(v) for k, v in plain.get("stages", {}).items()},
        plain.get("device_s"),
        plain.get("measured_at"),
    )


def now_told() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class _TimedActor:
    """An actor that notes how long its last iteration took and how many rollouts it decoded."""

    def __init__(self, bench: Bench) -> None:
        self._actor, self._synchronize = bench.actor, bench.synchronize
        self.seconds = 0.0
        self.decoded = 0

    def step(self) -> list[NewTokens]:
        start = perf_counter()
        news = self._actor.step()
        self._synchronize()
        self.seconds = perf_counter() - start
        self.decoded = len(news)
        return news

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actor, name)


def visit_point(bench: Bench, point: Point, number: int) -> Visit:
    """Measure a point once. Raises OppoError where an engine does not do what the point needs."""
    gc.collect()  # what other points left behind is not this one's
    return _VISITS[point.kind](bench, point, number)


def warm_up(bench: Bench, points: Sequence[Point]) -> None:
    """Run the smallest and the largest point of each kind, untimed: kernels, memory, graphs."""
    _leave_alone_what_is_loaded()
    for kind in dict.fromkeys(point.kind for point in points):
        same = sorted(
            (point for point in points if point.kind == kind),
            key=lambda point: (point.kv_tokens + point.tokens, point.key),
        )
        for point in dict.fromkeys((same[0], same[-1])):
            visit_point(bench, point, 0)
    _leave_alone_what_is_loaded()  # meanwhile, too


def _leave_alone_what_is_loaded() -> None:
    """Else collecting before each visit walks through the libraries again and again."""
    gc.collect()
    gc.freeze()


# ---- one function a kind -----------------------------------------------------------------------------------


def _decode(bench: Bench, point: Point, number: int) -> Visit:
    _to_pace(bench, point)
    actor = _TimedActor(bench)
    # The replica's own loop: keeps tokens, cuts a chunk (in the last timed iteration), hands them out.
    replica = ReplicaHost(0, cast(Actor, actor), True)
    ids = bench.take_ids(point.n)
    ahead = lead(point)
    warm = ahead - 1 - TIMED_ITERATIONS // 2
    requests = _requests(bench, ids, [context - ahead for context, _ in point.rows])
    replica.submit([Job(request, 0) for request in requests])
    replica.begin(perf_counter(), 1 + warm + TIMED_ITERATIONS, None)
    seconds, host = [], []
    joined = 0
    while (
        actor.decoded < point.n
    ):  # an engine that splits prefills needs several iterations until all have joined
        joined += 1
        if not replica.iterate(perf_counter(), perf_counter) or joined > _JOINS_AT_MOST:
            raise _cannot_run_together(actor.decoded, point.n)
    for _ in range(warm):
        replica.iterate(perf_counter(), perf_counter)
    for _ in range(TIMED_ITERATIONS):
        start = perf_counter()
        replica.turn(start, perf_counter)
        end = perf_counter()
        if actor.decoded != point.n:
            raise _cannot_run_together(actor.decoded, point.n)
        seconds.append(end - start)
        host.append(end - start - actor.seconds)
    busy = bench.actor_busy and bench.actor_busy(lambda: replica.turn(perf_counter(), perf_counter))
    replica.abort(ids)
    return Visit(point, number, tuple(seconds), tuple(host), device_s=busy)


def _to_pace(bench: Bench, point: Point) -> None:
    """Decode the same batch untimed until engine and core have the pace that a run's long decoding has: after
    other work, or rest, a core needs some 50 ms, which few short iterations would be all of."""
    until = perf_counter() + _PACE_S
    while perf_counter() < until:
        ids = bench.take_ids(point.n)
        bench.actor.submit(_requests(bench, ids, [context - lead(point) for context, _ in point.rows]))
        while bench.actor.step() and perf_counter() < until:
            pass
        bench.actor.abort(ids)
        bench.synchronize()


def _prefill(bench: Bench, point: Point, number: int) -> Visit:
    actor = _TimedActor(bench)
    samples: list[float] = []
    begun = perf_counter()
    # One join says little where it takes as long as an iteration: short ones are repeated within the visit.
    while not samples or (len(samples) < _JOINS and perf_counter() - begun < _JOINS_WITHIN_S):
        ids = bench.take_ids(point.n)
        bench.actor.submit(_requests(bench, ids, [tokens for _, tokens in point.rows]))
        bench.synchronize()
        joining: list[float] = []
        actor.decoded = 0
        while actor.decoded < point.n:
            if not actor.step() or len(joining) > _JOINS_AT_MOST:
                raise _cannot_run_together(actor.decoded, point.n)
            joining.append(actor.seconds)
        after = []
        for _ in range(WARM_ITERATIONS + TIMED_ITERATIONS - 1):
            actor.step()
            after.append(actor.seconds)
        bench.actor.abort(ids)
        samples.append(sum(joining) - len(joining) * median(after))
    return Visit(point, number, tuple(samples), device_s=_prefill_on_device(bench, point))


def _prefill_on_device(bench: Bench, point: Point) -> float | None:
    """Of a joining iteration, less those of the next. None without a GPU, or where not all join in one."""
    if bench.actor_busy is None:
        return None
    ids = bench.take_ids(point.n)
    bench.actor.submit(_requests(bench, ids, [tokens for _, tokens in point.rows]))
    made: list[int] = []
    joining, after = (bench.actor_busy(lambda: made.append(len(bench.actor.step()))) for _ in range(2))
    bench.actor.abort(ids)
    if joining is None or after is None or made[0] < point.n:
        return None
    return max(0.0, joining - after)


def _score(bench: Bench, point: Point, number: int) -> Visit:
    seconds = _append(bench, bench.scorer, point)
    busy = bench.scorer_busy and _scored(bench, bench.scorer, point, bench.scorer_busy)
    return Visit(point, number, (seconds,), device_s=busy)


def _score_ref(bench: Bench, point: Point, number: int) -> Visit:
    """What the reference model adds to the reward model: pairs of the same batch with and without it, one
    right after the other and by turns first, so that what the machine does meanwhile falls on both."""
    both = bench.scorer_with_ref
    if both is None:
        raise OppoError(
            "the scenario streams the reference model (training.stream_ref), and this engine's scorer cannot:"
            " use the torch engine"
        )
    added: list[float] = []
    begun = perf_counter()
    while not added or (len(added) < _PAIRS and perf_counter() - begun < _PAIRS_WITHIN_S):
        order = (both, bench.scorer) if len(added) % 2 else (bench.scorer, both)
        seconds = {id(scorer): _append(bench, scorer, point) for scorer in order}
        added.append(seconds[id(both)] - seconds[id(bench.scorer)])
    return Visit(point, number, tuple(added))


def _append(bench: Bench, scorer: Scorer, point: Point) -> float:
    def clocked(score: Callable[[], object]) -> float:
        bench.synchronize()
        start = perf_counter()
        score()
        bench.synchronize()
        return perf_counter() - start

    return _scored(bench, scorer, point, clocked)


def _scored(
    bench: Bench, scorer: Scorer, point: Point, measure: Callable[[Callable[[], object]], _Found]
) -> _Found:
    """A batch of pieces behind their past, scored in ``measure``."""
    ids = bench.take_ids(point.n)
    whole = [
        bench.tokens(rollout_id, past + new) for rollout_id, (past, new) in zip(ids, point.rows, strict=True)
    ]
    given = [bench.given_before(scorer, past) for past, _ in point.rows]
    for rollout_id, tokens, before in zip(ids, whole, given, strict=True):
        if before:
            scorer.append([ScorePiece(rollout_id, tokens[:before], False)])
    worker = ScorerHost(0, scorer, point.tokens)
    worker.queue(
        [
            QueuedPiece(ScorePiece(rollout_id, tokens[before:], True), max(1, before))
            for rollout_id, tokens, before in zip(ids, whole, given, strict=True)
        ]
    )
    worker.take()
    made: list[Scored] = []
    found = measure(lambda: made.append(worker.score(perf_counter)))
    scorer.release(ids)
    scores = len(made[0].scores)
    if scores != point.n:
        raise OppoError(f"the scorer scored {scores} of {point.n} finished rollouts; it cannot be calibrated")
    return found


def _train(bench: Bench, point: Point, number: int) -> Visit:
    batch = training_batch(bench, point)
    start = perf_counter()
    found = bench.update(batch, bench.version)
    bench.synchronize()
    seconds = perf_counter() - start
    bench.version += 1
    stages = {stage: float(found.get(timing(stage), 0.0)) for stage in _STAGES}
    return Visit(point, number, (seconds,), (), stages)


def training_batch(bench: Bench, point: Point) -> "list[TrainRollout]":
    """Rollouts of a ``train`` point; scores by a hash, log-probabilities those of a uniform model."""
    from math import log

    from oppo_real.ppo.rollout import TrainRollout

    batch = []
    for rollout_id, (prompt, response) in zip(bench.take_ids(point.n), point.rows, strict=True):
        tokens = bench.tokens(rollout_id, prompt + response)
        log_probs = (-log(bench.vocab_size),) * response
        score = draw_index(stream_key(rollout_id, "calibrate/score"), 0, 1001) / 1000.0
        parts = (tokens[:prompt], tokens[prompt:], log_probs, (bench.version,) * response)
        batch.append(TrainRollout(rollout_id, *parts, score, "stop"))
    return batch


def _sync(bench: Bench, point: Point, number: int) -> Visit:
    return Visit(point, number, tuple(time_weights(bench)))


def _rounds(bench: Bench, point: Point, number: int) -> Visit:
    return Visit(point, number, tuple(time_rounds(bench, point)))


def _pieces(bench: Bench, point: Point, number: int) -> Visit:
    scoring, sending = time_pieces(bench, point)
    return Visit(point, number, tuple(scoring), tuple(sending))


_VISITS: dict[Kind, Callable[[Bench, Point, int], Visit]] = {
    "decode": _decode,
    "prefill": _prefill,
    "score": _score,
    "score_ref": _score_ref,
    "train": _train,
    "sync": _sync,
    "round": _rounds,
    "piece": _pieces,
}


def _requests(bench: Bench, ids: Sequence[int], prompts: Sequence[int]) -> list[Request]:
    """Requests that go on as long as they may; a visit aborts them before."""
    requests = []
    for rollout_id, prompt in zip(ids, prompts, strict=True):
        left = bench.max_length - prompt
        requests.append(Request(rollout_id, bench.tokens(rollout_id, prompt), left, left))
    return requests


def _cannot_run_together(decoded: int, wanted: int) -> OppoError:
    return OppoError(
        f"the actor decoded {decoded} of {wanted} rollouts together; give the scenario the limits that its"
        " engine has (rollout.max_num_seqs, rollout.kv_capacity_tokens), or raise those of the engine"
        " (real.actor_args)"
    )
