"""Files that appear whole or not at all, and nothing overwritten unasked."""

import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from oppo_sim.errors import OppoError


@contextmanager
def new_file(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Name of a temporary file beside ``path``; it takes that name when the block has ended well, and is removed if not.

    Raises OppoError if the file exists (unless ``overwrite``) or the disk refuses.
    """
    refuse_existing(path, overwrite=overwrite)
    with said(path):
        if not path.parent.is_dir():
            raise OppoError(f"folder {path.parent} does not exist: make it first, or choose another path")
        # The suffix stays last: writers choose the compression by it.
        handle, name = tempfile.mkstemp(prefix=".partial-", suffix=f"-{path.name}", dir=path.parent)
        partial = Path(name)
        try:
            os.fchmod(handle, 0o666 & ~_umask())
            os.close(handle)
            yield partial
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raises OppoError if ``path`` exists and may not be replaced."""
    if path.is_dir():
        raise OppoError(f"{path} is a folder: give the name of a file")
    if not overwrite and os.path.lexists(path):
        raise OppoError(f"{path} exists: choose another name, or overwrite it with --force (overwrite=True in Python)")


@contextmanager
def said(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into an OppoError that names ``path``."""
    try:
        yield
    except FileNotFoundError:
        raise OppoError(f"{path} does not exist: check the path") from None
    except IsADirectoryError:
        raise OppoError(f"{path} is a folder: give the path of a file") from None
    except PermissionError:
        raise OppoError(f"no permission for {path}: change its rights, or use another path") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OppoError(f"no space left for {path}: free some, or write to another disk") from error
        raise OppoError(f"cannot read or write {path} ({error.strerror or error}): check the disk, or use another path") from error


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, hex. Raises OppoError if it cannot be read."""
    with said(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
