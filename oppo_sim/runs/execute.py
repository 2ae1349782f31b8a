"""Where runs are made: in this process, in several of this machine, or on a Ray cluster. The results do not
depend on it.

Runs are handed out in tasks of about half a second, so that handing out costs little; results come back as
tasks finish.
"""

import os
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain, islice
from threading import Thread
from time import sleep
from typing import Any, Final, Literal, NamedTuple, Self, get_args

from oppo_sim.errors import (
    HaltError,
    OppoError,
    OutsideWarning,
    check_count,
    hide_warning,
    outside_gathered,
    show_warning,
)
from oppo_sim.policies.held import held
from oppo_sim.runs.evaluate import evaluate
from oppo_sim.runs.request import Finished, RunRequest

ExecutorName = Literal["serial", "processes", "ray"]
EXECUTORS: Final = get_args(ExecutorName)
TASK_SECONDS: Final = 0.5
WORTHWHILE_SECONDS: Final = 4.0
"""Less work than this is done before other processes have started."""
HANDING_SECONDS: Final = 0.3
"""Less work than this is done here when they have: handing it out would cost as much."""
COMPILER_CORE_SECONDS: Final = 100.0
"""Of work for each process, on SimPy: from here on it pays that one of them compiles first. With less, the
compiler takes what low priority gives it."""
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

    def __post_init__(self) -> None:
        """Raises OppoError for an executor that is unknown, not installed or given what it does not take."""
        if self.name not in EXECUTORS:
            raise OppoError(f"executor '{self.name}' is unknown: choose {', '.join(EXECUTORS)}")
        if self.jobs is not None:
            check_count("jobs", self.jobs, 1, 10_000)
        if self.ray_address is not None and self.name != "ray":
            raise OppoError(f"a Ray address says nothing to executor {self.name}: choose executor ray")
        if self.name == "ray" and find_spec("ray") is None:
            raise OppoError(
                "executor ray needs Ray, which is not installed: pip install 'oppo-toolkit[ray]', or choose"
                " executor processes"
            )


class Runner:
    """Evaluates requests where an executor says; processes and connections last until it is left. A context
    manager."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._jobs = executor.jobs or os.cpu_count() or 1
        self._seconds: list[float] = []
        """What a run took so far: nothing, the first, then a mean in which recent ones count more."""
        self._spent = 0.0
        self._started = False
        self._resources = ExitStack()
        self._ray_cores = 0

    def run(self, requests: Sequence[RunRequest]) -> Iterator[Finished]:
        """Evaluate every request; yields finished ones, several at a time, in any order.

        Raises OppoError when the executor is not there, or a process of it was ended from outside.
        """
        own = [request for request in requests if held(request.policy) is not None]
        if own and self._jobs > 1 and self._executor.name != "serial":
            _warn_of_own(own[0].policy)
        for request in own:
            yield self._here(request)
        left = deque(request for request in requests if held(request.policy) is None)
        while left and self._worth_here(len(left)):
            yield self._here(left.popleft())
        if left:
            self._started = True
            yield from self._in_processes(left) if self._executor.name == "processes" else self._on_ray(left)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def _here(self, request: RunRequest) -> Finished:
        from oppo_sim.fast.compiled_run import is_loaded

        loaded = is_loaded()
        result = evaluate(request)
        self._spent += result.seconds if self._seconds else 0.0  # the first also builds
        if is_loaded() and not loaded:
            self._seconds.clear()  # of SimPy, and of loading the kernel: the next runs take a fraction
        else:
            self._learn([(request, result)])
        return [(request, result)]

    def _worth_here(self, left: int) -> bool:
        """Run the next one in this process. The first two always are: the first also builds, for
        the cache of all processes, and the second says how long a run takes."""
        from oppo_sim.fast.choose import will_load
        from oppo_sim.fast.compiling import FASTER, LOADING_S

        name = self._executor.name
        if name == "serial" or (name == "processes" and (self._jobs == 1 or left == 1)):
            return True
        if len(self._seconds) < 2:
            return True
        seconds = left * self._seconds[-1]
        if self._started:
            return seconds < HANDING_SECONDS
        if will_load():
            seconds = min(seconds, LOADING_S + seconds / FASTER)
        # What was done here counts: a search that has gone on for so long will go on.
        return name == "processes" and self._spent + seconds < WORTHWHILE_SECONDS

    def _compiles_first(self, left: int) -> bool:
        """One process compiles the kernel before it makes runs."""
        from oppo_sim.fast.choose import lacks_kernel

        crowded = self._jobs >= (os.cpu_count() or 1)
        return crowded and lacks_kernel() and left * self._seconds[-1] > COMPILER_CORE_SECONDS * self._jobs

    def _learn(self, finished: Finished) -> None:
        if not finished:
            return
        mean = sum(result.seconds for _, result in finished) / len(finished)
        self._seconds.append(mean if len(self._seconds) < 2 else 0.7 * self._seconds[-1] + 0.3 * mean)
        del self._seconds[:-2]

    def _tasks(self, left: deque[RunRequest], jobs: int) -> Iterator[list[RunRequest]]:
        """Requests cut into tasks of about TASK_SECONDS, by how long runs took so far."""
        while left:
            wanted = int(TASK_SECONDS / max(self._seconds[-1], 1e-6))
            # The last tasks are small, so that no process waits long for another.
            size = max(1, min(wanted, MOST_RUNS_A_TASK, -(-len(left) // (2 * jobs))))
            yield [left.popleft() for _ in range(size)]

    def _in_processes(self, left: deque[RunRequest]) -> Iterator[Finished]:
        from joblib import Parallel, delayed
        from joblib.externals.loky.process_executor import BrokenProcessPool

        parallel = Parallel(
            n_jobs=self._jobs,
            backend="loky",
            return_as="generator_unordered",
            batch_size=1,
            pre_dispatch="2*n_jobs",
        )
        main = Main(os.getpid(), os.getcwd(), warnings.showwarning is hide_warning)
        tasks = (delayed(_evaluate_all)(task, main) for task in self._tasks(left, self._jobs))
        first = [delayed(_compile_first)(main)] if self._compiles_first(len(left)) else []
        results = None
        try:
            results = parallel(chain(first, tasks))  # hands tasks out: a process may be gone already
            for finished, outside in results:
                for each in outside:
                    warnings.warn(each, stacklevel=2)
                self._learn(finished)
                yield finished
        except BrokenProcessPool as error:
            raise HaltError(
                "a process was ended from outside (out of memory?): finished runs are kept, run it again with"
                " fewer jobs"
            ) from error
        finally:
            if results is not None:
                _close(results)

    def _on_ray(self, left: deque[RunRequest]) -> Iterator[Finished]:
        """Rounds of tasks: joblib gives no results as they come on Ray's backend."""
        from joblib import Parallel, delayed, parallel_config

        if not self._ray_cores:
            self._ray_cores = self._resources.enter_context(_ray(self._executor))
        cores = self._ray_cores
        with parallel_config("ray"), Parallel(n_jobs=cores, batch_size=1) as parallel:
            waiting = self._tasks(left, cores)
            while tasks := list(islice(waiting, _TASKS_A_ROUND * cores)):
                for finished, _ in parallel(delayed(_evaluate_all)(task) for task in tasks):
                    self._learn(finished)
                    yield finished


def _warn_of_own(policy: str) -> None:
    """That no other process can make the runs of this policy."""
    warnings.warn(
        f"only this program holds policy {policy}, so its runs are made in this process: write it to a file"
        " and import it from there to use several",
        stacklevel=2,
    )


class Main(NamedTuple):
    """The process that hands tasks out."""

    pid: int
    folder: str
    """Where relative paths begin; a process that waits for tasks is older than a change of it."""
    quiet: bool
    """It says no warning."""


class Done(NamedTuple):
    """A task that is done."""

    finished: Finished
    outside: list[OutsideWarning]
    """For the main process to say."""


def _evaluate_all(requests: Sequence[RunRequest], main: Main | None = None) -> Done:
    """One task. ``main``: the end of this process ends the one that works for it, too."""
    follows = main is not None and main.pid != os.getpid()
    if main is not None and follows:
        _follow(main)
    finished = [(request, evaluate(request)) for request in requests]
    return Done(finished, outside_gathered() if follows else [])


def _compile_first(main: Main) -> Done:
    """A task that compiles the kernel."""
    from oppo_sim.fast.choose import compile_instead

    _follow(main)
    compile_instead()
    return Done([], [])


@contextmanager
def _ray(executor: Executor) -> Iterator[int]:
    """A connection to Ray, and the number of processes to use there; closed again unless it was there
    before."""
    import logging

    import ray
    from ray.util.joblib import register_ray

    own = not ray.is_initialized()
    if own:
        address, local = executor.ray_address, dict[str, Any]()
        if address is None and "RAY_ADDRESS" not in os.environ:
            # Without a word Ray would join a cluster that this machine happens to run, or has run.
            address = "local"
            local = {"include_dashboard": False, "num_cpus": max(executor.jobs or 1, os.cpu_count() or 1)}
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **local)
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of tasks that are given up, which is what is wanted
        results.close()


_followed: list[int] = []


def _follow(main: Main) -> None:
    """In a worker: it works in the folder of the main process. Ctrl-C goes to the whole terminal and only the
    main process answers it; a worker whose main process was killed ends."""
    os.chdir(main.folder)
    if _followed:
        return
    _followed.append(main.pid)
    warnings.showwarning = hide_warning if main.quiet else show_warning
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with, args=(main.pid, os.getppid), daemon=True).start()


def _end_with(main: int, parent: Callable[[], int]) -> None:
    while parent() == main:
        sleep(0.5)
    os._exit(1)
