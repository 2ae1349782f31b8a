"""What libraries say on their own, kept out of what a command says."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


def quiet_torch() -> None:
    """No warnings of torch's own kernels on the terminal, where they tear a progress line. It is read when
    torch is loaded, so before that."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def quiet_tracker() -> None:
    """No warning of leaked semaphores at the end of a command that had to end a worker by force: the process
    of ``multiprocessing`` that would warn removes them itself. It is started here, once."""
    name, before = "PYTHONWARNINGS", os.environ.get("PYTHONWARNINGS")
    own = "ignore::UserWarning:multiprocessing.resource_tracker"
    os.environ[name] = f"{before},{own}" if before else own
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def without_bars() -> Iterator[None]:
    """Loading and saving draw no progress bars of their own into ours."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
