"""What libraries say on their own, kept out of what a command says."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


def quiet_torch() -> None:
    """No warnings of torch's own kernels on the terminal, where they tear a progress line. It is read when
    torch is loaded, so before that."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


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
