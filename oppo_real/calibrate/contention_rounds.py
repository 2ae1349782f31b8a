"""Rounds of contention, measured: two processes with engines of their own, in turns, then together."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from threading import get_native_id
from time import perf_counter, sleep
from typing import Any, Final, NamedTuple

from oppo_real.calibrate.bench import Bench
from oppo_real.calibrate.contention import Activity, Meeting, Round, grown_met, taken_by_others
from oppo_real.calibrate.measure import training_batch
from oppo_real.calibrate.point import Point
from oppo_real.engines.interface import Request, ScorePiece
from oppo_real.models_folder import models_folder
from oppo_real.placement.cores import available_cores
from oppo_real.placement.engines import EngineKind
from oppo_real.placement.events import Job, QueuedPiece
from oppo_real.placement.host import ReplicaHost, ScorerHost
from oppo_real.placement.starting import new_process, process_context
from oppo_sim.errors import OppoError

_HEAD_START_S: Final = 0.05
"""Between telling both processes to start and the start, which is one instant of their shared clock."""
_ANSWER_WITHIN_S: Final = 600.0
_UNITS: Final = 3
"""Whole units that a window must hold."""


class _Answer(RuntimeError):
    """A child's sentence."""


def measure_contention(
    open_bench: Callable[..., Bench],
    engines: Sequence[tuple[EngineKind, str]],
    rounds: Mapping[Meeting, int],
    *,
    window_s: float = 1.0,
    cores: Mapping[Meeting, tuple[int, ...] | None] | None = None,
    enough_time: Callable[[float], bool] = lambda seconds: True,
) -> Iterator[tuple[Meeting, Round]]:
    """Run both activities of a meeting alone, then together, each meeting in turn until it has its
    ``rounds``, in two processes that are kept for all.

    Args:
        open_bench: makes the engines, ``models`` being the folder for theirs; called in both processes, so it
            must be picklable.
        engines: which they are, each with its device.
        window_s: seconds of one turn; made longer where a unit takes longer.
        cores: CPU cores that both processes share in a meeting; None: all.
        enough_time: asked before each round of a meeting with the seconds it will take; False ends the
            measurement.

    Raises OppoError if a process cannot build its engines or ends early.
    """
    windows: dict[Meeting, float] = {}
    meetings = tuple(rounds)
    shared = [None if cores is None else cores[meeting] for meeting in meetings]
    # A process that has to be ended by force removes nothing.
    with (
        models_folder(by_force=True) as models,
        _workers(process_context(engines), partial(open_bench, models=models), meetings, shared) as (
            workers,
            held,
        ),
    ):
        for done in range(max(rounds.values(), default=0)):
            for number, meeting in enumerate(meetings):
                if rounds[meeting] <= done:
                    continue
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
                        taken_by_others((together[0].waited, together[1].waited), held[number]),
                    ),
                )


# ---- the parent's side -------------------------------------------------------------------------------------


@contextmanager
def _workers(
    context: ForkServerContext | SpawnContext,
    open_bench: Callable[[], Bench],
    meetings: Sequence[Meeting],
    cores: Sequence[tuple[int, ...] | None],
) -> "Iterator[tuple[list[Connection[Any, Any]], list[float]]]":
    """Both processes, ready, and how many of two such processes the cores of each meeting hold at once."""
    processes, ends = [], []
    try:
        for _ in range(2):
            here, there = context.Pipe()
            process = new_process(context, _serve, there, open_bench, tuple(meetings), tuple(cores))
            process.start()
            there.close()
            processes.append(process)
            ends.append(here)
        threads = max(_receive(end) for end in ends)
        yield ends, [len(one or available_cores()) / threads for one in cores]
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
    cores: Sequence[tuple[int, ...] | None],
) -> None:
    now: Point | None = None
    activity: Activity | None = None
    unit, end_unit = _NOTHING
    try:
        import torch  # slow, so before both processes share the cores

        _bind({core for one in cores for core in one or ()})
        bench = open_bench()
        parent.send(torch.get_num_threads())
        while True:
            number, side, start, end = parent.recv()
            meeting, shared = meetings[number], cores[number]
            _bind(shared or ())
            activity, point = meeting.activities[side], meeting.points[side]
            if point != now:
                end_unit()
                now = point
                unit, end_unit = _UNIT_OF[activity](bench, point)
            parent.send(_mean_unit(unit, bench, start, end))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except OppoError as error:
        parent.send(_Answer(str(error)))
    except Exception as error:  # a child's traceback on the terminal would help nobody
        what = f"contention of {activity or 'two processes'} cannot be measured"
        parent.send(_Answer(f"{what}: {type(error).__name__}: {error}"))
    finally:
        parent.close()


def _bind(cores: Collection[int]) -> None:
    """Move this process to cores, with the threads that an engine has begun; none: leave it."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        return
    try:
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setaffinity(int(thread.name), cores)
    except OSError:
        raise OppoError(
            f"real.placement.cores: a process cannot be bound to cores {sorted(cores)}, so contention cannot"
            " be measured as it is in a run: name cores of this machine, or use --no-contention"
        ) from None


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
            return _Mean(seconds / count, min(0.99, (waited_s() - waited_before) / (now - window)))
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
    """One iteration of a replica's own loop. Rollouts half grown begin again; the iteration that prefills
    them does not count."""
    lengths = [context for context, _ in point.rows]
    grown = grown_met(point)
    ids, left = range(0), 0
    replica = ReplicaHost(0, bench.actor, True)

    def unit() -> bool:
        nonlocal ids, left
        begins = not left
        if begins:
            replica.abort(ids)
            ids, left = bench.take_ids(len(lengths)), grown
            prompts = [max(1, length - grown) for length in lengths]
            replica.submit(
                [
                    Job(Request(i, bench.tokens(i, prompt), grown + 1, grown + 1), 0)
                    for i, prompt in zip(ids, prompts, strict=True)
                ]
            )
            replica.begin(perf_counter(), grown + 1, None)
        replica.turn(perf_counter(), perf_counter)
        left -= 1
        return not begins

    return unit, lambda: replica.abort(ids)


def _score_unit(bench: Bench, point: Point) -> _Unit:
    sizes = [new for _, new in point.rows]
    tokens = [bench.tokens(index, size) for index, size in enumerate(sizes)]
    worker = ScorerHost(0, bench.scorer, point.tokens)

    def unit() -> bool:
        ids = bench.take_ids(len(sizes))
        worker.queue([QueuedPiece(ScorePiece(i, new, True), 1) for i, new in zip(ids, tokens, strict=True)])
        worker.take()
        worker.score(perf_counter)
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
