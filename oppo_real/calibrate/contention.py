"""How much two activities on one device slow each other: two processes in turns, then together."""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import sqrt
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from threading import get_native_id
from time import perf_counter, sleep
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from oppo_real.calibrate.bench import Bench
from oppo_real.calibrate.measure import training_batch
from oppo_real.calibrate.plan import CalibrationPlan, Point
from oppo_real.engines.interface import Request, ScorePiece
from oppo_sim.costs.demands import Demands, explained_slowdown
from oppo_sim.costs.profile import TimeSlices
from oppo_sim.draws import stream_key
from oppo_sim.errors import OppoError

Activity = Literal["decode", "score", "train"]
Pair = tuple[Activity, Activity]
_HEAD_START_S: Final = 0.05
"""Between telling both processes to start and the start, which is one instant of their shared clock."""
_ANSWER_WITHIN_S: Final = 600.0
_ALIKE: Final = 1.25
"""Ends of the factor's interval, highest over lowest, at most."""
_REDRAWN: Final = 400
_WAITED: Final = 0.1
"""Share of the time that a process alone may wait for a core."""
_UNITS: Final = 3
"""Whole units that a window must hold."""


class Round(NamedTuple):
    """One round of a meeting. Mean seconds of a unit (an iteration, a batch, an update) of each activity."""

    alone: tuple[float, float]
    together: tuple[float, float]
    waited: tuple[float, float] = (0.0, 0.0)
    """Of the time of each alone, the share in which it waited for a core that other work had."""

    @property
    def slowdown(self) -> tuple[float, float]:
        """Together over alone."""
        return self.together[0] / self.alone[0], self.together[1] / self.alone[1]


class Meeting(NamedTuple):
    """Two activities that are to run together, and the batch that each keeps running."""

    activities: Pair
    points: tuple[Point, Point]

    @property
    def label(self) -> str:
        """For sentences."""
        return " beside ".join(self.sides)

    @property
    def sides(self) -> tuple[str, str]:
        """Each activity with the size of its batch."""
        first, second = (
            f"{activity}, {point.n} rollouts"
            if activity == "decode"
            else f"{activity}, {point.tokens} tokens"
            for activity, point in zip(self.activities, self.points, strict=True)
        )
        return first, second


@dataclass(frozen=True)
class Contention:
    """What two activities did to each other."""

    meeting: Meeting
    expected: float
    """max(1, Σ memory, Σ arithmetic): what shared demand alone explains."""
    by_round: tuple[Round, ...]
    """In the order of measurement."""

    @property
    def slowdown(self) -> tuple[float, float]:
        """Medians over rounds."""
        return self._each(median)

    @property
    def lowest(self) -> tuple[float, float]:
        return self._each(min)

    @property
    def highest(self) -> tuple[float, float]:
        return self._each(max)

    @property
    def factor(self) -> float:
        """f: median of ``factors``, at least 1."""
        return max(1.0, median(self.factors))

    @property
    def factors(self) -> tuple[float, ...]:
        """Of each round the geometric mean of its slow-downs over ``expected``: what one side loses more in a
        round, the other loses less."""
        return tuple(
            sqrt(first * second) / self.expected for first, second in (one.slowdown for one in self.by_round)
        )

    def to_plain(self) -> dict[str, Any]:
        """As JSON."""
        names = ("slowdown", "lowest", "highest", "expected", "factor")
        return {
            "activities": self.meeting.activities,
            "points": [point.key for point in self.meeting.points],
            **{name: getattr(self, name) for name in names},
            "by_round": [one._asdict() for one in self.by_round],
            "rounds": len(self.by_round),
        }

    def _each(self, of: Callable[[Iterable[float]], float]) -> tuple[float, float]:
        first, second = zip(*(one.slowdown for one in self.by_round), strict=True)
        return of(first), of(second)


def contention_of(meeting: Meeting, rounds: Sequence[Round]) -> Contention:
    """What was found in ``rounds``, beside what shared demand alone explains: the demands that a profile
    states where nobody measured them."""
    demands = Demands()
    shares = {"decode": demands.decode, "score": demands.score, "train": demands.training}
    sums = [
        sum(getattr(shares[one], kind) for one in meeting.activities) for kind in ("memory", "arithmetic")
    ]
    return Contention(meeting, max(1.0, *sums), tuple(rounds))


def decode_beside_score(found: Iterable[Contention]) -> list[Contention]:
    """What says how decoding and scoring slow each other."""
    return [one for one in found if one.meeting.activities == ("decode", "score")]


def contention_factor(found: Iterable[Contention]) -> float | None:
    """f of decoding and scoring that run together, the median over the rounds of all batches, at least 1;
    None: not measured."""
    factors = [factor for one in decode_beside_score(found) for factor in one.factors]
    return max(1.0, median(factors)) if factors else None


def time_slices_of(found: Iterable[Contention]) -> TimeSlices | None:
    """What decoding and scoring lose where they take turns: f from what scoring takes longer than the turns
    explain, then seconds an iteration of decoding from what remains of its; medians over batches. None: not
    measured."""
    measured = decode_beside_score(found)
    if not measured:
        return None
    explained = explained_slowdown(Demands(), in_turns=True)
    interference = max(1.0, median(one.slowdown[1] for one in measured) / explained)
    longer = [
        (one.slowdown[0] / (explained * interference) - 1.0) * median(each.alone[0] for each in one.by_round)
        for one in measured
    ]
    return TimeSlices(interference=interference, turn_s=max(0.0, median(longer)))


def drawn_anew(
    found: Sequence[Contention], generator: np.random.Generator, count: int
) -> Iterator[list[Contention]]:
    """``found`` again, ``count`` times, each with as many of its own rounds drawn anew."""
    for _ in range(count):
        yield [
            replace(one, by_round=tuple(one.by_round[i] for i in draw))
            for one in found
            for draw in [generator.integers(len(one.by_round), size=len(one.by_round))]
        ]


def disagreement(found: Sequence[Contention], seed: int = 0) -> str:
    """A sentence where the rounds say unlike things of decoding beside scoring, or other work ran beside
    them, so that whatever is made of them is a guess; else empty."""
    measured = decode_beside_score(found)
    if not measured:
        return ""
    waited = median(max(each.waited) for one in measured for each in one.by_round)
    if waited > _WAITED:
        return (
            f"other work had the cores while contention was measured (a process that was to run alone waited"
            f" {waited:.0%} of the time), so what running together costs is not known: measure on a quieter"
            " machine"
        )
    generator = np.random.default_rng(stream_key(seed, "calibrate/contention"))
    factors = [contention_factor(again) for again in drawn_anew(measured, generator, _REDRAWN)]
    low, high = np.quantile(np.array(factors, dtype=float), [0.025, 0.975])
    if high <= _ALIKE * low:
        return ""
    rounds = sum(len(one.by_round) for one in measured)
    return (
        f"{rounds} rounds of decoding beside scoring gave slow-downs beyond shared demand from {low:.2f} to"
        f" {high:.2f} (95 %), too unlike to predict anything that overlaps: measure on a quieter machine, or"
        " with more repeats"
    )


class _Answer(RuntimeError):
    """A child's sentence."""


def meetings_of(plan: CalibrationPlan) -> list[Meeting]:
    """Who is to meet whom, what matters most first: decoding of a middle, the smallest and the largest batch
    at middle contexts with a scoring batch of middle size; both with a small update, where anything is
    trained; the middle ones with a small and a large scoring batch."""
    decode = [point for point in plan.points if point.kind == "decode" and point.cell is not None]
    sizes = sorted({point.n for point in decode})
    by_size = {
        size: sorted((point for point in decode if point.n == size), key=lambda point: point.kv_tokens)
        for size in sizes
    }
    batches = [by_size[size][len(by_size[size]) // 2] for size in sizes]
    middle = batches[len(batches) // 2]
    scored = sorted(
        (point for point in plan.points if point.kind == "score"), key=lambda point: (point.tokens, point.key)
    )
    score = scored[len(scored) // 2]
    decoded = dict.fromkeys((middle, batches[0], batches[-1]))
    found = [Meeting(("decode", "score"), (point, score)) for point in decoded]
    train = sorted((point for point in plan.points if point.kind == "train"), key=lambda point: point.tokens)
    if train:
        found += [
            Meeting(("decode", "train"), (middle, train[0])),
            Meeting(("score", "train"), (score, train[0])),
        ]
    others = dict.fromkeys((scored[len(scored) // 4], scored[-1]))
    return found + [Meeting(("decode", "score"), (middle, other)) for other in others if other != score]


def measure_contention(
    open_bench: Callable[[], Bench],
    meetings: Sequence[Meeting],
    *,
    rounds: int = 3,
    window_s: float = 1.0,
    cores: Sequence[int] | None = None,
    enough_time: Callable[[float], bool] = lambda seconds: True,
) -> Iterator[tuple[Meeting, Round]]:
    """Run both activities of a meeting alone, then together, each meeting in turn, ``rounds`` times, in two
    processes that are kept for all.

    Args:
        open_bench: makes the engines; called in both processes, so it must be picklable.
        window_s: seconds of one turn; made longer where a unit takes longer.
        cores: CPU cores that both processes share; None: all.
        enough_time: asked before each round of a meeting with the seconds it will take; False ends the
            measurement.

    Raises OppoError if a process cannot build its engines or ends early.
    """
    windows: dict[Meeting, float] = {}
    with _workers(open_bench, meetings, cores) as workers:
        for _ in range(rounds):
            for number, meeting in enumerate(meetings):
                if not enough_time(4 * windows.get(meeting, window_s)):
                    return
                if meeting not in windows:
                    units = _apart(workers, number, window_s)  # warm-up, too
                    windows[meeting] = max(window_s, (_UNITS + 1) * max(one.seconds for one in units))
                alone = _apart(workers, number, windows[meeting])
                together = _turn(workers, number, (0, 1), 2 * windows[meeting])
                yield (
                    meeting,
                    Round(
                        (alone[0].seconds, alone[1].seconds),
                        (together[0].seconds, together[1].seconds),
                        (alone[0].waited, alone[1].waited),
                    ),
                )


# ---- the parent's side -------------------------------------------------------------------------------------


@contextmanager
def _workers(
    open_bench: Callable[[], Bench], meetings: Sequence[Meeting], cores: Sequence[int] | None
) -> "Iterator[list[Connection[Any, Any]]]":
    context = multiprocessing.get_context("spawn")  # a forked process cannot use a CUDA device of its parent
    processes, ends = [], []
    try:
        for _ in range(2):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve, args=(there, open_bench, tuple(meetings), cores), daemon=True
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
    workers: "Sequence[Connection[Any, Any]]", number: int, sides: Sequence[int], window_s: float
) -> "list[_Mean]":
    """The units inside the window: each of ``sides`` of meeting ``number`` in the worker of
    that place, at the same time."""
    start = perf_counter() + _HEAD_START_S
    for side in sides:
        workers[side].send((number, side, start, start + window_s))
    return [_receive(workers[side]) for side in sides]


def _apart(workers: "Sequence[Connection[Any, Any]]", number: int, window_s: float) -> "list[_Mean]":
    """The same, one worker after the other."""
    return [_turn(workers, number, (side,), window_s)[0] for side in (0, 1)]


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
    meetings: Sequence[Meeting],
    cores: Sequence[int] | None,
) -> None:
    now: Point | None = None
    activity: Activity | None = None
    unit, end_unit = _NOTHING
    try:
        import torch  # noqa: F401 - slow, so before both processes share the cores

        if cores is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)
        bench = open_bench()
        parent.send("ready")
        while True:
            number, side, start, end = parent.recv()
            meeting = meetings[number]
            activity, point = meeting.activities[side], meeting.points[side]
            if point != now:
                end_unit()
                now = point
                unit, end_unit = _UNIT_OF[activity](bench, point)
            parent.send(_mean_unit(unit, bench, start, end))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        pass
    except OppoError as error:
        parent.send(_Answer(str(error)))
    except Exception as error:  # a child's traceback on the terminal would help nobody
        what = f"contention of {activity or 'two processes'} cannot be measured"
        parent.send(_Answer(f"{what}: {type(error).__name__}: {error}"))
    finally:
        parent.close()


class _Mean(NamedTuple):
    seconds: float
    """Of a unit."""
    waited: float
    """Share of the window in which the process waited for a core."""


def _mean_unit(unit: Callable[[], bool], bench: Bench, start: float, end: float) -> _Mean:
    """Means, since a device shared in time slices stalls a few units for long; of at least one unit."""
    while (left := start - perf_counter()) > 0:
        sleep(left)
    waited_before, window = waited_s(), perf_counter()
    seconds = 0.0
    count = 0
    while True:
        begun = perf_counter()
        counts = unit()
        bench.synchronize()
        now = perf_counter()
        if now > end and count:
            return _Mean(seconds / count, (waited_s() - waited_before) / (now - window))
        if counts:
            seconds += now - begun
            count += 1


def waited_s() -> float:
    """Seconds that this thread was ready and had no core, since it began; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/self/task/{get_native_id()}/schedstat").read_text("ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


_Unit = tuple[Callable[[], bool], Callable[[], None]]
"""Runs once, and says whether that counts; and what ends it."""
_NOTHING: Final[_Unit] = (lambda: False, lambda: None)


def _decode_unit(bench: Bench, point: Point) -> _Unit:
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

    return unit, lambda: bench.actor.abort(ids)


def _score_unit(bench: Bench, point: Point) -> _Unit:
    sizes = [new for _, new in point.rows]
    tokens = [bench.tokens(index, size) for index, size in enumerate(sizes)]

    def unit() -> bool:
        bench.scorer.append(
            [ScorePiece(i, new, True) for i, new in zip(bench.take_ids(len(sizes)), tokens, strict=True)]
        )
        return True

    return unit, lambda: None


def _train_unit(bench: Bench, point: Point) -> _Unit:
    batch = training_batch(bench, point)

    def unit() -> bool:
        bench.update(batch, bench.version)
        return True

    return unit, lambda: None


_UNIT_OF: Final[dict[Activity, Callable[[Bench, Point], _Unit]]] = {
    "decode": _decode_unit,
    "score": _score_unit,
    "train": _train_unit,
}
