"""The folder from which engines read their models; one that a killed process left goes with the next."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Final

_PREFIX: Final = "oppo-models-"
_OWNER: Final = "owner"


@contextmanager
def models_folder(inside: str | Path | None = None, by_force: bool = False) -> Iterator[Path]:
    """A folder for models, in the temporary folder or ``inside`` another; removed at the end.

    A killed process removes nothing, and a model may be as large as the disk: those that such a process left
    in the temporary folder are removed first. A folder that machines share is not searched: whether another
    machine still holds a lock there depends on its file system.

    ``by_force``: what an ended process still writes into it is no error.
    """
    if inside is None:
        _remove_left()
    with TemporaryDirectory(prefix=_PREFIX, dir=inside, ignore_cleanup_errors=by_force) as name:
        folder = Path(name)
        # Locked before it has its name: who sees it unlocked sees that its owner is gone.
        with (folder / f"{_OWNER}.new").open("wb") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            (folder / f"{_OWNER}.new").rename(folder / _OWNER)
            yield folder


def _remove_left() -> None:
    for folder in Path(gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError), (folder / _OWNER).open("rb") as owner:  # another user's, or just removed
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: it lives
            if os.stat(folder).st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
