"""How a process for engines is started."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, Final, Literal

from oppo_real.placement.cores import available_cores, bind
from oppo_real.placement.engines import ENGINES, EngineKind
from oppo_real.quiet import quiet_tracker

StartMethod = Literal["forkserver", "spawn"]
"""Of ``multiprocessing``. Neither inherits what the driver holds, a CUDA context for one."""

METHODS: Final = multiprocessing.get_all_start_methods()


def start_method(engine: EngineKind, device: str) -> StartMethod:
    """On a CPU a fork of a process that has the engine's packages loaded, in a tenth of the time that a new
    interpreter takes to load them. Beside a GPU a new interpreter: a package may use the GPU's driver when
    it is loaded, and a fork could not use it again."""
    quick = device == "cpu" and bool(ENGINES[engine].preload) and "forkserver" in METHODS
    return "forkserver" if quick else "spawn"


def process_context(engines: Iterable[tuple[EngineKind, str]]) -> ForkServerContext | SpawnContext:
    """For a process that holds these engines, each with its device."""
    engines = list(engines)
    quiet_tracker()
    if any(start_method(*each) == "spawn" for each in engines):
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # Heeded by the first process of the driver only: its server is kept.
    context.set_forkserver_preload(
        sorted({module for engine, _ in engines for module in ENGINES[engine].preload})
    )
    return context


def new_process(
    context: ForkServerContext | SpawnContext,
    body: Callable[..., None],
    connection: "Connection[Any, Any]",
    *arguments: Any,
    name: str | None = None,
    daemon: bool = True,
) -> BaseProcess:
    """One that will run ``body(connection, *arguments)`` in this process's environment and on its cores."""
    cores = tuple(available_cores())
    begin = (dict(os.environ), cores, body, connection, *arguments)
    return context.Process(target=_begin, args=begin, name=name, daemon=daemon)


def _begin(
    environment: dict[str, str], cores: tuple[int, ...], body: Callable[..., None], *arguments: Any
) -> None:
    # The driver decides what an interruption means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A fork has those of the server, which are as old as the driver's first process.
    os.environ.clear()
    os.environ.update(environment)
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            bind(cores, None)
    body(*arguments)
