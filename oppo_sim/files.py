"""Whole files or none, and what a failing disk means for a user."""

import errno
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from oppo_sim.errors import HaltError, OppoError

PARTIAL_SUFFIX = ".partial"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM)
_NOT_A_FOLDER = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR)


def partial_path(path: Path) -> Path:
    """Where a file lies until it is complete."""
    return path.with_name(path.name + PARTIAL_SUFFIX)


def disk_error(path: Path, error: OSError) -> HaltError:
    """The sentence for a file that could not be written: the path and how to mend it."""
    if error.errno in _FULL:
        return HaltError(
            f"no space left for {path}: free some, or write to another disk; files completed before it stay"
        )
    if error.errno in _FORBIDDEN:
        return HaltError(f"no permission to write {path}: choose a folder you may write to")
    if error.errno == errno.EROFS:
        return HaltError(f"{path} lies on a read-only file system: choose a folder you may write to")
    if error.errno == errno.ENOENT:
        return HaltError(f"cannot write {path}: its folder is gone; choose another path, or begin again")
    if error.errno in _NOT_A_FOLDER:
        return HaltError(
            f"cannot write {path}: a file stands where a folder is needed, or the reverse; choose another"
            " path"
        )
    return HaltError(f"cannot write {path} ({error.strerror or error}): choose another path")


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into an OppoError about ``path``."""
    try:
        yield
    except OSError as error:
        raise disk_error(path, error) from error


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears under ``path`` only when the block has ended well; an older file there is
    replaced.

    Raises OppoError when the disk refuses.
    """
    partial = partial_path(path)
    with write_errors(path):
        try:
            with partial.open("wb") as file:
                yield file
                make_durable(file)
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise


def make_durable(file: BinaryIO) -> None:
    """Have the bytes on the disk before a rename promises them (some file systems report a full disk only
    here)."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Have on the disk which files a folder has, and under what names. Raises OSError."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (
            errno.EINVAL,
            errno.ENOTSUP,
        ):  # file systems that do so by themselves, or never
            raise
    finally:
        os.close(number)


def sync_tree(folder: Path) -> None:
    """As ``sync_folder``, with the folders inside. Raises OSError."""
    for each, _, _ in os.walk(folder):
        sync_folder(Path(each))


def make_folder(folder: Path) -> None:
    """The folder and those above it that are not there, which a power cut then leaves. Raises OSError."""
    made = [each for each in (folder, *folder.parents) if not each.is_dir()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in made:
        sync_folder(each.parent)


@contextmanager
def last_file(path: Path) -> Iterator[BinaryIO]:
    """As ``whole_file``, for the file that says that its folder is finished: every other one is on the disk
    before it has its name, and so is it when the block has ended."""
    with whole_file(path) as file:
        yield file
        sync_tree(path.parent)
    with write_errors(path):
        sync_folder(path.parent)


def unmark(path: Path) -> None:
    """Delete the file that says that a folder is finished, on the disk too, before others go. Raises
    OSError."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def check_can_write(path: Path) -> None:
    """Make the folder of a file that is to be written in the end, and see that it takes one.

    Raises OppoError.
    """
    with write_errors(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        make_folder(path.parent)
        with tempfile.TemporaryFile(dir=path.parent):
            pass


@contextmanager
def new_file(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Name of a temporary file beside ``path``; it takes that name when the block has ended well, and is
    removed if not.

    Raises OppoError if the file exists (unless ``overwrite``) or the disk refuses.
    """
    refuse_unwritable(path, overwrite=overwrite)
    with file_errors(path):
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
        raise OppoError(
            f"{path} exists: choose another name, or overwrite it with --force (overwrite=True in Python)"
        )


def refuse_unwritable(path: Path, *, overwrite: bool) -> None:
    """As ``refuse_existing``, and where the folder of ``path`` is not there."""
    refuse_existing(path, overwrite=overwrite)
    if not path.parent.is_dir():
        raise OppoError(f"folder {path.parent} does not exist: make it first, or choose another path")


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
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
        raise disk_error(path, error) from error


@contextmanager
def reading(path: Path, mend: str) -> Iterator[None]:
    """Turn what is wrong with a file that this program wrote into an OppoError; ``mend`` says how to get it
    back."""
    try:
        yield
    except FileNotFoundError:
        raise OppoError(f"{path} is missing: {mend}") from None
    except OSError as error:
        raise OppoError(f"cannot read {path} ({error.strerror or error}): check its permissions") from error
    except ValueError as error:  # JSON's and pyarrow's among them
        raise OppoError(f"{path} is damaged ({str(error).splitlines()[0]}): {mend}") from error


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, hex. Raises OppoError if it cannot be read."""
    with file_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lock(file: BinaryIO, sentence: str) -> None:
    """Hold ``file`` until it is closed, however this process ends. Raises OppoError with ``sentence`` while
    another one holds it, and where another one has just deleted it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held, there = os.fstat(file.fileno()), os.stat(file.name)
    except (BlockingIOError, FileNotFoundError):
        raise OppoError(sentence) from None
    if not os.path.samestat(held, there):
        raise OppoError(sentence)


def whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file that is open for appending; half a line at its end is cut off after the last.

    So is all from the first line with zero bytes on: after a power cut some file systems have them where
    bytes were not on the disk.
    """
    file.seek(0)
    whole = 0
    for line in file:
        if not line.endswith(b"\n") or b"\0" in line:
            break
        whole += len(line)
        yield line
    file.truncate(whole)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def holds(folder: Path, files: Mapping[str, bytes]) -> bool:
    """The folder has all these files, to the byte. Raises OppoError where one cannot be read."""
    for name, data in files.items():
        path = folder / name
        with write_errors(path):
            if not path.is_file() or path.read_bytes() != data:
                return False
    return True
