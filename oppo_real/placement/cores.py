"""Which CPU cores a process computes on, and that it keeps the memory it has, where the system lets us choose
(Linux)."""

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from oppo_sim.errors import OppoError


def available_cores() -> set[int]:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def check_cores(cores: Sequence[int], where: str) -> None:
    """Raise OppoError for cores that this process may not use, or where processes cannot be bound at all."""
    if not hasattr(os, "sched_setaffinity"):
        raise OppoError(f"{where}: this system cannot bind processes to cores; leave it out")
    missing = sorted(set(cores) - available_cores())
    if missing:
        raise OppoError(
            f"{where} names core {missing[0]}, which is not among the {len(available_cores())} that may be"
            " used here: choose others"
        )


def bind(cores: Sequence[int] | None, threads: int | None) -> None:
    """Bind this process to cores (None: as it is) and give torch so many threads (None: as it has)."""
    if cores is not None:
        os.sched_setaffinity(0, cores)
    if threads is not None:
        set_threads(threads)


def set_threads(threads: int) -> None:
    """Give torch so many threads, here and in what it begins later.

    vLLM on a CPU puts a function that does nothing in the place of ``torch.set_num_threads``: another thread
    of Python would then count the machine's cores, and vLLM ends where it and torch count differently.
    """
    import torch

    torch._C.set_num_threads(threads)


_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
"""Of glibc's malloc.h."""
_HEAP_BYTES = 64 << 20
"""Of each piece of memory of a thread but the first. An empty piece is kept where so much is to stay."""


def keep_memory(device: str) -> bool:
    """For a process that computes on the CPU: let malloc keep what is freed, and say whether it does.

    A training update frees and asks for the same hundreds of MB again and again; given back to the system in
    between, every page of them is faulted in anew, which takes up to half of an update. Each thread keeps
    its own: a run trains in one thread (``TrainingThread``).
    """
    if device != "cpu":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # no glibc
        return False
    asked = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, _HEAP_BYTES))
    return all(mallopt(option, value) for option, value in asked)


@contextmanager
def bound(cores: Sequence[int] | None, threads: int | None) -> Iterator[None]:
    """``bind`` for the time of the block."""
    import torch

    cores_before = sorted(available_cores()) if cores is not None else None
    threads_before = torch.get_num_threads() if threads is not None else None
    bind(cores, threads)
    try:
        yield
    finally:
        bind(cores_before, threads_before)
