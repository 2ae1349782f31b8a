"""Where runs are made: in this process, in several of this machine, or on a Ray cluster. The results do not
depend on it.

Runs are handed out in tasks of about half a second, so that handing out costs little; results come back as
tasks finish.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from threading import Thread
from time import sleep
from typing import Any, Final, Literal, get_args

from oppo_sim.errors import OppoError
from oppo_sim.runs.evaluate import evaluate
from oppo_sim.runs.request import RunRequest, RunResult

ExecutorName = Literal["serial", "processes", "ray"]
EXECUTORS: Final = get_args(ExecutorName)
TASK_SECONDS: Final = 0.5
WORTHWHILE_SECONDS: Final = 4.0
"""Less work than this is done before other processes have started."""
MOST_RUNS_A_TASK: Final = 500
_TASKS_A_ROUND = 4  # for each process of a cluster


@dataclass(frozen=True)
class Executor:
    """Where to run."""

    name: ExecutorName = "processes"
    jobs: int | None = None
    """Processes; None: one a core, of this machine or of the cluster."""
    ray_address: str | None = None
    """Of a running cluster; None: that of the environment variable RAY_ADDRESS, else a local one is
    started."""


Finished = list[tuple[RunRequest, RunResult]]


def check_executor(executor: Executor) -> None:
    """Raise OppoError for an executor that is unknown, not installed or given what it does not take."""
    if executor.name not in EXECUTORS:
        raise OppoError(f"executor '{executor.name}' is unknown: choose {', '.join(EXECUTORS)}")
    if executor.jobs is not None and not 1 <= executor.jobs <= 10_000:
        raise OppoError(f"jobs {executor.jobs} is out of range: give 1 to 10,000")
    if executor.ray_address is not None and executor.name != "ray":
        raise OppoError(f"a Ray address says nothing to executor {executor.name}: choose executor ray")
    if executor.name == "ray" and find_spec("ray") is None:
        raise OppoError(
            "executor ray needs Ray, which is not installed: pip install 'oppo-toolkit[ray]', or choose"
            " executor processes"
        )


def execute(requests: Sequence[RunRequest], executor: Executor) -> Iterator[Finished]:
    """Evaluate every request; yields finished ones, several at a time, in any order.

    Raises OppoError when the executor is not there, or a process of it was ended from outside.
    """
    check_executor(executor)
    jobs = executor.jobs or os.cpu_count() or 1
    if not requests:
        return
    if executor.name == "serial" or (executor.name == "processes" and (jobs == 1 or len(requests) == 1)):
        for request in requests:
            yield [(request, evaluate(request))]
        return
    tasks = _Tasks(requests, jobs)
    # Some runs here first: they say how long a run takes, and leave the compiled kernel in the cache for all
    # processes.
    yield from tasks.first()
    if executor.name == "processes" and tasks.seconds_left() < WORTHWHILE_SECONDS:
        for task in tasks:
            yield evaluate_all(task)
    elif executor.name == "processes":
        yield from _in_processes(tasks, jobs)
    else:
        yield from _on_ray(tasks, executor)


class _Tasks:
    """Cuts requests into tasks of about TASK_SECONDS, by how long runs took so far."""

    def __init__(self, requests: Sequence[RunRequest], jobs: int) -> None:
        self._requests = requests
        self._jobs = jobs
        self._given = 0
        self._seconds: float | None = None

    def first(self) -> Iterator[Finished]:
        """The first two requests, run in this process: the first builds and may compile, the second says how
        long a run takes."""
        for request in self._requests[:2]:
            self._given += 1
            result = evaluate(request)
            self._seconds = result.seconds
            yield [(request, result)]

    def seconds_left(self) -> float:
        """What is left would take about this long in one process."""
        return (self._seconds or 0.0) * (len(self._requests) - self._given)

    def learn(self, finished: Finished) -> None:
        """Take the times of finished runs into account; recent ones count more."""
        mean = sum(result.seconds for _, result in finished) / len(finished)
        self._seconds = mean if self._seconds is None else 0.7 * self._seconds + 0.3 * mean

    def __iter__(self) -> Iterator[Sequence[RunRequest]]:
        while self._given < len(self._requests):
            left = len(self._requests) - self._given
            wanted = int(TASK_SECONDS / max(self._seconds or TASK_SECONDS, 1e-6))
            # The last tasks are small, so that no process waits long for another.
            size = max(1, min(wanted, MOST_RUNS_A_TASK, -(-left // (2 * self._jobs))))
            yield self._requests[self._given : self._given + size]
            self._given += size


def evaluate_all(requests: Sequence[RunRequest], main: int | None = None) -> Finished:
    """One task. ``main``: process whose end ends this one, too."""
    if main is not None and main != os.getpid():
        _follow(main)
    return [(request, evaluate(request)) for request in requests]


def _in_processes(tasks: _Tasks, jobs: int) -> Iterator[Finished]:
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import BrokenProcessPool

    parallel = Parallel(
        n_jobs=jobs, backend="loky", return_as="generator_unordered", batch_size=1, pre_dispatch="2*n_jobs"
    )
    results = parallel(delayed(evaluate_all)(task, os.getpid()) for task in tasks)
    try:
        for finished in results:
            tasks.learn(finished)
            yield finished
    except BrokenProcessPool as error:
        raise OppoError(
            "a process of the sweep was ended from outside (out of memory?): finished runs are kept, run it"
            " again with fewer jobs"
        ) from error
    finally:
        _close(results)


def _on_ray(tasks: _Tasks, executor: Executor) -> Iterator[Finished]:
    """Rounds of tasks: joblib gives no results as they come on Ray's backend."""
    from joblib import Parallel, delayed, parallel_config

    with _ray(executor) as cores, parallel_config("ray"), Parallel(n_jobs=cores, batch_size=1) as parallel:
        waiting = iter(tasks)
        while task_list := list(islice(waiting, _TASKS_A_ROUND * cores)):
            for finished in parallel(delayed(evaluate_all)(task) for task in task_list):
                tasks.learn(finished)
                yield finished


@contextmanager
def _ray(executor: Executor) -> Iterator[int]:
    """A connection to Ray, and the number of processes to use there; closed again unless it was there
    before."""
    import logging

    import ray
    from ray.util.joblib import register_ray

    own = not ray.is_initialized()
    if own:
        local: dict[str, Any] = {}
        if executor.ray_address is None and "RAY_ADDRESS" not in os.environ:
            local = {"include_dashboard": False, "num_cpus": max(executor.jobs or 1, os.cpu_count() or 1)}
        try:
            ray.init(executor.ray_address, log_to_driver=False, logging_level=logging.ERROR, **local)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = executor.ray_address or os.environ.get("RAY_ADDRESS") or "on this machine"
            raise OppoError(
                f"no Ray cluster could be reached ({where}: {str(error).splitlines()[0]}): check"
                " --ray-address"
            ) from error
    try:
        register_ray()  # type: ignore[no-untyped-call]
        cores = max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]
        yield cores if executor.jobs is None else min(executor.jobs, cores)
    finally:
        if own:
            ray.shutdown()


def _close(results: Any) -> None:
    """End a generator of joblib's that was left before its end."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of tasks that are given up, which is what is wanted
        results.close()


_followed: list[int] = []


def _follow(main: int) -> None:
    """In a worker: Ctrl-C goes to the whole terminal and only the main process answers it; a worker whose
    main process was killed ends."""
    if _followed:
        return
    _followed.append(main)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with, args=(main, os.getppid), daemon=True).start()


def _end_with(main: int, parent: Callable[[], int]) -> None:
    while parent() == main:
        sleep(0.5)
    os._exit(1)
