"""How much two activities on one device slow each other: two processes in turns, then together."""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter, sleep
from typing import Any, Final, Literal

from oppo_real.calibrate.bench import Bench
from oppo_real.calibrate.measure import training_batch
from oppo_real.calibrate.plan import CalibrationPlan, Point
from oppo_real.engines.interface import Request, ScorePiece
from oppo_sim.costs.demands import Demands
from oppo_sim.errors import OppoError

Activity = Literal["decode", "score", "train"]
Pair = tuple[Activity, Activity]
PAIRS: Final[tuple[Pair, ...]] = (("decode", "score"), ("decode", "train"), ("score", "train"))
_HEAD_START_S: Final = 0.05
"""Between telling both processes to start and the start, which is one instant of their shared clock."""
_ANSWER_WITHIN_S: Final = 600.0
_ALIKE: Final = 1.25
"""Of the factors of all rounds, highest over lowest, at most."""
_UNITS: Final = 3
"""Whole units that a window must hold."""


Slowdowns = tuple[float, float]
"""Of a pair's activities in one round: seconds of a unit together over seconds alone."""


@dataclass(frozen=True)
class Contention:
    """What a pair of activities did to each other."""

    activities: Pair
    points: tuple[str, str]
    """Keys of the batches that each kept running."""
    expected: float
    """max(1, Σ memory, Σ arithmetic): what shared demand alone explains."""
    by_round: tuple[Slowdowns, ...]
    """In the order of measurement."""

    @property
    def slowdown(self) -> Slowdowns:
        """Medians over rounds."""
        return self._each(median)

    @property
    def lowest(self) -> Slowdowns:
        return self._each(min)

    @property
    def highest(self) -> Slowdowns:
        return self._each(max)

    @property
    def factor(self) -> float:
        """f: geometric mean of the slow-downs over ``expected``, at least 1."""
        return self.factor_of(self.by_round)

    def factor_of(self, rounds: Sequence[Slowdowns]) -> float:
        """f from these rounds alone: medians of each activity's."""
        first, second = zip(*rounds, strict=True)
        return max(1.0, sqrt(median(first) * median(second)) / self.expected)

    @property
    def factors(self) -> tuple[float, ...]:
        """f of each round alone."""
        return tuple(self.factor_of([one]) for one in self.by_round)

    def to_plain(self) -> dict[str, Any]:
        """As JSON."""
        names = ("activities", "points", "slowdown", "lowest", "highest", "expected", "factor", "by_round")
        return {name: getattr(self, name) for name in names} | {"rounds": len(self.by_round)}

    def _each(self, of: Callable[[Iterable[float]], float]) -> Slowdowns:
        first, second = zip(*self.by_round, strict=True)
        return of(first), of(second)


def contention_of(pair: Pair, points: Mapping[Activity, Point], rounds: Sequence[Slowdowns]) -> Contention:
    """What was found in ``rounds``, beside what shared demand alone explains: the demands that a profile
    states where nobody measured them."""
    demands = Demands()
    shares = {"decode": demands.decode, "score": demands.score, "train": demands.training}
    sums = [sum(getattr(shares[one], kind) for one in pair) for kind in ("memory", "arithmetic")]
    keys = points[pair[0]].key, points[pair[1]].key
    return Contention(pair, keys, max(1.0, *sums), tuple(rounds))


def disagreement(found: Contention) -> str:
    """A sentence where rounds say unlike things of a pair, so that its factor is a guess; else empty."""
    low, high = min(found.factors), max(found.factors)
    if high <= _ALIKE * low:
        return ""
    return (
        f"{found.activities[0]} beside {found.activities[1]}: {len(found.by_round)} rounds gave slow-downs"
        f" beyond shared demand from {low:.2f} to {high:.2f}, so {found.factor:.2f} is uncertain: measure on"
        " a quieter machine, or with more repeats"
    )


class _Answer(RuntimeError):
    """A child's sentence."""


def contention_points(plan: CalibrationPlan) -> dict[Activity, Point]:
    """A usual batch of each: the middle number of rollouts at middle contexts; a chunk of several; a small
    update. A phase decodes most of its iterations with few rollouts, and the fewer they are the more an
    iteration is slowed down by what the other process leaves in the caches."""
    decode = [point for point in plan.points if point.kind == "decode" and point.cell is not None]
    sizes = sorted({point.n for point in decode})
    usual = sizes[len(sizes) // 2]
    contexts = sorted((point for point in decode if point.n == usual), key=lambda point: point.kv_tokens)
    score = sorted(
        (point for point in plan.points if point.kind == "score"), key=lambda point: (point.tokens, point.key)
    )
    train = sorted((point for point in plan.points if point.kind == "train"), key=lambda point: point.tokens)
    points: dict[Activity, Point] = {"decode": contexts[len(contexts) // 2], "score": score[len(score) // 2]}
    return points | {"train": train[0]} if train else points


def pairs_of(points: Mapping[Activity, Point]) -> list[Pair]:
    """The pairs of which both are there: where nothing is trained, decoding with scoring alone."""
    return [pair for pair in PAIRS if all(one in points for one in pair)]


def measure_contention(
    open_bench: Callable[[], Bench],
    pairs: Sequence[Pair],
    points: Mapping[Activity, Point],
    *,
    rounds: int = 3,
    window_s: float = 1.0,
    cores: Sequence[int] | None = None,
    enough_time: Callable[[float], bool] = lambda seconds: True,
) -> Iterator[tuple[Pair, list[Slowdowns]]]:
    """Run each activity of a pair alone, then both, ``rounds`` times, in two processes that are kept for all
    pairs. Yields the rounds of each pair.

    Args:
        open_bench: makes the engines; called in both processes, so it must be picklable.
        window_s: seconds of one turn; made longer where a unit takes longer.
        cores: CPU cores that both processes share; None: all.
        enough_time: asked before each pair with the seconds it will take; False ends the measurement.

    Raises OppoError if a process cannot build its engines or ends early.
    """
    with _workers(open_bench, points, cores) as workers:
        for pair in pairs:
            units = _apart(workers, pair, window_s)  # warm-up, too
            window = max(window_s, (_UNITS + 1) * max(units))
            if not enough_time(rounds * 4 * window):
                return
            found: list[Slowdowns] = []
            for _ in range(rounds):
                alone = _apart(workers, pair, window)
                together = _turn(workers, pair, 2 * window)
                found.append((together[0] / alone[0], together[1] / alone[1]))
            yield pair, found


# ---- the parent's side -------------------------------------------------------------------------------------


@contextmanager
def _workers(
    open_bench: Callable[[], Bench], points: Mapping[Activity, Point], cores: Sequence[int] | None
) -> "Iterator[list[Connection[Any, Any]]]":
    context = multiprocessing.get_context("spawn")  # a forked process cannot use a CUDA device of its parent
    processes, ends = [], []
    try:
        for _ in range(2):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve, args=(there, open_bench, dict(points), cores), daemon=True
            )
            process.start()
            there.close()
            processes.append(process)
            ends.append(here)
        for end in ends:
            _receive(end)
        yield ends
    finally:
        for end in ends:
            end.close()  # which ends the process at its next wait
        for process in processes:
            process.join(timeout=2)
            if process.is_alive():
                process.terminate()
                process.join()


def _turn(
    workers: "Sequence[Connection[Any, Any]]", activities: Sequence[Activity], window_s: float
) -> list[float]:
    """Mean seconds of the units inside the window, of each of the workers, which run at the same time."""
    start = perf_counter() + _HEAD_START_S
    for worker, activity in zip(workers, activities, strict=True):
        worker.send((activity, start, start + window_s))
    return [float(_receive(worker)) for worker in workers]


def _apart(
    workers: "Sequence[Connection[Any, Any]]", activities: Sequence[Activity], window_s: float
) -> list[float]:
    """The same, one worker after the other."""
    turns = zip(workers, activities, strict=True)
    return [_turn([worker], [activity], window_s)[0] for worker, activity in turns]


def _receive(worker: "Connection[Any, Any]") -> Any:
    try:
        if not worker.poll(_ANSWER_WITHIN_S):
            raise OppoError(
                f"a process that measures contention gave no answer in {_ANSWER_WITHIN_S:g} s"
                "; use --no-contention"
            )
        answer = worker.recv()
    except (EOFError, OSError):
        raise OppoError(
            "a process that measures contention ended early, perhaps for lack of memory; use --no-contention"
        ) from None
    if isinstance(answer, _Answer):
        raise OppoError(str(answer))
    return answer


# ---- the child's side --------------------------------------------------------------------------------------


def _serve(
    parent: "Connection[Any, Any]",
    open_bench: Callable[[], Bench],
    points: Mapping[Activity, Point],
    cores: Sequence[int] | None,
) -> None:
    activity: Activity | None = None
    units: dict[Activity, Callable[[], bool]] = {}
    try:
        import torch  # noqa: F401 - slow, so before both processes share the cores

        if cores is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)
        bench = open_bench()
        parent.send("ready")
        while True:
            activity, start, end = parent.recv()
            if activity not in units:
                units[activity] = _UNIT_OF[activity](bench, points[activity])
            parent.send(_mean_unit(units[activity], bench, start, end))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        pass
    except OppoError as error:
        parent.send(_Answer(str(error)))
    except Exception as error:  # a child's traceback on the terminal would help nobody
        what = f"contention of {activity or 'two processes'} cannot be measured"
        parent.send(_Answer(f"{what}: {type(error).__name__}: {error}"))
    finally:
        parent.close()


def _mean_unit(unit: Callable[[], bool], bench: Bench, start: float, end: float) -> float:
    """Mean seconds, since a device shared in time slices stalls a few units for long; at least one unit."""
    while (left := start - perf_counter()) > 0:
        sleep(left)
    seconds = 0.0
    count = 0
    while True:
        begun = perf_counter()
        counts = unit()
        bench.synchronize()
        now = perf_counter()
        if now > end and count:
            return seconds / count
        if counts:
            seconds += now - begun
            count += 1


def _decode_unit(bench: Bench, point: Point) -> Callable[[], bool]:
    """One iteration. Rollouts half grown begin again; the iteration that prefills them does not count."""
    lengths = [context for context, _ in point.rows]
    grown = max(2, min(lengths) // 2)
    ids, left = range(0), 0

    def unit() -> bool:
        nonlocal ids, left
        begins = not left
        if begins:
            bench.actor.abort(ids)
            ids, left = bench.take_ids(len(lengths)), grown
            prompts = [max(1, length - grown) for length in lengths]
            bench.actor.submit(
                [
                    Request(i, bench.tokens(i, prompt), grown + 1, grown + 1)
                    for i, prompt in zip(ids, prompts, strict=True)
                ]
            )
        bench.actor.step()
        left -= 1
        return not begins

    return unit


def _score_unit(bench: Bench, point: Point) -> Callable[[], bool]:
    sizes = [new for _, new in point.rows]
    tokens = [bench.tokens(index, size) for index, size in enumerate(sizes)]

    def unit() -> bool:
        bench.scorer.append(
            [ScorePiece(i, new, True) for i, new in zip(bench.take_ids(len(sizes)), tokens, strict=True)]
        )
        return True

    return unit


def _train_unit(bench: Bench, point: Point) -> Callable[[], bool]:
    batch = training_batch(bench, point)

    def unit() -> bool:
        bench.update(batch, bench.version)
        return True

    return unit


_UNIT_OF: Final[dict[Activity, Callable[[Bench, Point], Callable[[], bool]]]] = {
    "decode": _decode_unit,
    "score": _score_unit,
    "train": _train_unit,
}
