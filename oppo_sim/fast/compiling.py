"""Whether the compiled kernel is there, and compiling it beside other work: nobody waits for the compiler.

The kernel's machine code lies in a folder of its own under the user's cache (``OPPO_CACHE_DIR`` names another
place). The folder's name is a digest of what the code depends on: interpreter, numba, processor and
the kernel's source files, wherever these lie: installations of one version share it. One process compiles at
a time, whatever the number of those that want it.
"""

import fcntl
import hashlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Final

from oppo_sim.cache import cache_root
from oppo_sim.fast.sources import source_digest
from oppo_sim.own_python import own_python

KERNEL: Final = Path(__file__).with_name("kernel.py")
READY: Final = "ready"
LOCK: Final = "compiling.lock"
ROLLOUT_S: Final = 30e-6
"""Seconds that SimPy takes for a rollout of a step, roughly (``experiments/bench_simulator.py``)."""
LOADING_S: Final = 0.5
"""Seconds that it takes to import numba and to load compiled code: less work than this is done without."""
FASTER: Final = 50.0
"""How much sooner a compiled run is done, at least (``experiments/bench_fast.py``)."""
COMPILING_S: Final = 2.0
"""Less work than this starts no compiler."""
LOOK_S: Final = 0.25
"""How often a run looks whether the kernel has become ready."""


@cache
def cache_folder() -> Path:
    """The folder of the kernel's machine code. It need not be there yet."""
    return cache_root() / f"kernel-{_key()}"


def shared_source() -> Path | None:
    """A copy of ``kernel.py`` beside its machine code: numba's cache goes by path and time of the file that a
    function is of, and these differ between installations. None: it cannot be written."""
    source = cache_folder() / KERNEL.name
    if source.exists():
        return source
    try:
        source.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=source.parent, delete=False) as file:
            file.write(KERNEL.read_bytes())
        # The same time whichever process writes it.
        os.utime(file.name, (0, 0))
        Path(file.name).replace(source)
    except OSError:
        return None
    return source


def is_compiled() -> bool:
    """True where another process, or this one, has compiled the kernel as it is. Imports nothing."""
    return (cache_folder() / READY).exists()


class Chooser:
    """Decides, run by run, whether loading the kernel pays in this process."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._started = False
        self._looked = monotonic()

    def wants_kernel(self, expected_s: float) -> bool:
        """True if a run that SimPy would make in about ``expected_s`` seconds is to be compiled now.

        Nobody waits: where nothing is compiled yet, the answer is no, and the compiler is started beside the
        run if that pays.
        """
        work = self._spent + expected_s
        if is_compiled():
            return work >= LOADING_S
        if work >= COMPILING_S:
            self._start()
        return False

    def add(self, seconds: float) -> None:
        """A run that the kernel covers took so long on SimPy."""
        self._spent += seconds

    @property
    def lacks_kernel(self) -> bool:
        """Runs were made on SimPy only because nothing is compiled yet."""
        return self._spent > 0 and not is_compiled()

    @property
    def will_load(self) -> bool:
        """Runs were made on SimPy, and for the next ones loading what is compiled pays."""
        return self._spent > 0 and is_compiled()

    def became_ready(self, left_s: float) -> bool:
        """In the middle of a run on SimPy with about ``left_s`` seconds to go: True if it is better begun
        anew with the kernel, which is there now. Looks at most every ``LOOK_S`` seconds."""
        now = monotonic()
        if now - self._looked < LOOK_S or left_s < COMPILING_S:
            return False
        self._looked = now
        if is_compiled():
            return True
        self._start()
        return False

    def _start(self) -> None:
        if not self._started:
            self._started = True
            compile_beside()


def compile_beside() -> "subprocess.Popen[bytes] | None":
    """Compile in a process of its own, at low priority, which goes on when this one ends. None: it could not
    be started, and work goes on uncompiled."""
    command, environment = own_python("oppo_sim.fast")
    with suppress(OSError):
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C is not for it. A session of its own would have a scheduling group of its own, in which
            # low priority says nothing.
            process_group=0,
        )
    return None


def end_beside() -> None:
    """End the process that compiles beside, if there is one: its priority can only be lowered, and somebody
    has a core for the compiler. What it has finished is kept."""
    if is_being_compiled():
        with suppress(OSError, ValueError):
            os.kill(int((cache_folder() / LOCK).read_text()), signal.SIGTERM)


@contextmanager
def compiling_alone(*, beside: bool) -> Iterator[None]:
    """Hold the right to compile; another process that has it is waited for. ``beside``: this process does
    nothing else, and may be ended."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(str(os.getpid()) if beside else "")
        lock.flush()
        yield


def mark_compiled() -> None:
    """The kernel has been compiled whole, into ``cache_folder``."""
    (cache_folder() / READY).touch()


def _key() -> str:
    """Digest of all that the machine code depends on."""
    about = [source_digest(), sys.version, _processor()]
    about += [version(name) for name in ("numba", "llvmlite", "numpy")]
    return hashlib.blake2b("\n".join(about).encode(), digest_size=8).hexdigest()


def _processor() -> str:
    """What numba compiles for: name and features of the processor."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "\n".join(
            dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features")))
        )
    return platform.processor()


def is_being_compiled() -> bool:
    """Another process is at it."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
