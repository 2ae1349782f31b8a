"""Run folders as they are written: whole, never over something else, recognisably unfinished until the
manifest is there."""

import errno
import json
import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from oppo_sim.errors import OppoError
from oppo_sim.files import (
    last_file,
    lock,
    make_durable,
    make_folder,
    partial_path,
    reading,
    sync_folder,
    sync_tree,
    unmark,
    whole_file,
    whole_lines,
    write_errors,
)
from oppo_sim.given_command import COMMAND, keep_command
from oppo_sim.plain_json import json_bytes, read_json
from oppo_sim.png import write_png
from oppo_sim.run_files import FILES, JOURNAL, MANIFEST, checked_name, file_facts
from oppo_sim.tables import write_frame
from oppo_sim.taken_folder import MEND_BY_HAND, not_empty, refuse_other_kind

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class RunFolder:
    """The folder of one run, from ``open_run_folder`` to ``finish``. Every file name may be used once.

    A context manager: however the block ends, another run may then replace this one.
    """

    def __init__(self, root: Path, journal: BinaryIO, *, holds_earlier: bool) -> None:
        """Use ``open_run_folder``, which checks the folder first."""
        self.root = root
        self._holds_earlier = holds_earlier
        self._names: list[str] = []
        self._finished = False
        self._journal = journal
        self._release = weakref.finalize(self, journal.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    @property
    def holds_earlier(self) -> bool:
        """An earlier run is still in it, to be removed by ``clear``."""
        return self._holds_earlier

    def clear(self) -> None:
        """Remove the earlier run that was kept. Raises OppoError as ``open_run_folder`` does."""
        if self._holds_earlier:
            _remove_earlier_run(self.root, self._journal)
            self._holds_earlier = False

    def leave_earlier(self) -> None:
        """Leave the earlier run that was kept as it was found. Says nothing if the disk refuses."""
        self._finished = True
        with suppress(OSError):
            if (self.root / MANIFEST).is_file() and not self._journal.seek(0, 2):
                (self.root / JOURNAL).unlink()  # this one's
        self._release()

    def path(self, name: str) -> Path:
        """Claim ``name`` (may hold ``/``) for a file that the caller writes itself; its folder exists
        afterwards.

        Raises OppoError when the name is taken or leads out of the folder.
        """
        if self._finished:
            raise OppoError(f"{self.root} is finished: write '{name}' before finish()")
        path = self.root / checked_name(name, self.root)
        if name in self._names or path.exists():
            raise OppoError(f"{path} exists already and is not overwritten: choose another name")
        self._names.append(name)
        _list(self.root, self._journal, [name])
        with write_errors(path):
            # Not with parents=True: a folder that somebody has deleted is not made again, half filled.
            for parent in reversed(path.parents):
                if self.root in parent.parents:
                    parent.mkdir(exist_ok=True)
        return path

    def write_json(self, name: str, value: Any) -> Path:
        """Write JSON (NaN becomes null). Raises OppoError when the name is taken or the disk refuses."""
        data = json_bytes(value)
        path = self.path(name)
        with whole_file(path) as file:
            file.write(data)
        return path

    def write_text(self, name: str, text: str) -> Path:
        """Write UTF-8 text. Raises OppoError when the name is taken or the disk refuses."""
        path = self.path(name)
        with whole_file(path) as file:
            file.write(text.encode())
        return path

    def write_frame(self, name: str, frame: "pd.DataFrame") -> Path:
        """Write Parquet (zstd). A named index becomes the first columns, a nameless one is left out.

        Raises OppoError when the name is taken or the disk refuses.
        """
        path = self.path(name)
        write_frame(path, frame)
        return path

    def write_figure(self, name: str, figure: "Figure") -> Path:
        """Write a PNG at the figure's resolution. Raises OppoError when the name is taken or the disk
        refuses."""
        path = self.path(name)
        with whole_file(path) as file:
            write_png(figure, file)
        return path

    def withdraw(self) -> None:
        """Take a run back that came to nothing: its files, and the folder if nothing else lies in it. Says
        nothing if the disk refuses."""
        self._finished = True
        with suppress(OSError, OppoError):
            _remove_earlier_run(self.root, self._journal)
            (self.root / JOURNAL).unlink()
            if not any(self.root.iterdir()):
                self.root.rmdir()
        self._release()

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """Write ``command.txt``, the command that made it if there is one, and ``manifest.json``: the given
        facts and, under ``files``, size and SHA-256 of every other file. The folder is then complete.

        Raises OppoError when a claimed file was never written, or the disk refuses.
        """
        if self._finished:
            raise OppoError(f"{self.root} is finished already: call finish() once")
        if FILES in manifest:
            raise OppoError(f"the manifest of {self.root} may not have a key '{FILES}': it is filled in here")
        missing = [name for name in self._names if not (self.root / name).is_file()]
        if missing:
            raise OppoError(
                f"{self.root} lacks {', '.join(missing)}, claimed but never completed: write or close them"
                " before finish()"
            )
        with write_errors(self.root / MANIFEST):
            files = {name: file_facts(self.root / name) for name in sorted(self._names)}
        keep_command(self.root)
        with last_file(self.root / MANIFEST) as file:
            file.write(json_bytes({**manifest, FILES: files}))
        self._finished = True
        with write_errors(self.root / JOURNAL):
            (self.root / JOURNAL).unlink()
        self._release()


def beside(folder: Path, suffix: str) -> Path:
    """A file beside a run folder, named after it: what is kept until the folder is written. Raises OppoError
    for the root of all folders."""
    named = folder if folder.name not in ("", "..") else folder.resolve()
    if not named.name:
        raise OppoError(f"{named} has nothing beside it: choose another folder with -o")
    return named.with_name(named.name + suffix)


def open_run_folder(
    path: str | Path, kind: str, *, force: bool = False, keep_earlier: bool = False
) -> RunFolder:
    """Make an empty run folder, parents included, and check that it can be written.

    Nothing is ever overwritten. ``force`` makes room where an earlier run of this ``kind`` (``run_kinds``)
    lies: it deletes the files that the run's manifest lists (its journal, if it never finished) and leaves
    all others alone. ``keep_earlier``: not yet, but when the caller calls ``clear``; until then nothing
    may be written.
    Raises OppoError when the folder holds something else or another run that goes on, or the disk refuses.
    """
    root = Path(path)
    with write_errors(root):
        make_folder(root)
        present = _present(root)
        if present and not (force and (MANIFEST in present or JOURNAL in present)):
            raise OppoError(not_empty(root, present, force))
        refuse_other_kind(root, kind)
        journal = (root / JOURNAL).open("a+b", buffering=0)
        try:
            lock(journal, _taken(root))
            sync_folder(root)  # no file without the journal that lists it
            # Until here somebody else may have begun, or even ended.
            others = [name for name in _present(root) if name != JOURNAL]
            if others and not present:
                (root / JOURNAL).unlink()
                raise OppoError(not_empty(root, others, force=False))
            if not keep_earlier:
                _remove_earlier_run(root, journal)
        except BaseException:
            journal.close()
            raise
    return RunFolder(root, journal, holds_earlier=keep_earlier)


# ---- inside ------------------------------------------------------------------------------------------------


def _taken(root: Path) -> str:
    return f"another run is writing {root}: wait for it, or choose another folder"


def _present(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir())


def _list(root: Path, journal: BinaryIO, names: Sequence[str]) -> None:
    """Note files that are about to be written, or removed. Raises OppoError when the disk refuses."""
    with write_errors(root / JOURNAL):
        before = journal.seek(0, 2)
        try:
            data = b"".join(json.dumps(name).encode() + b"\n" for name in names)
            if journal.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            make_durable(journal)
        except OSError:
            with suppress(OSError):
                journal.truncate(before)  # half a line would spoil the next one
            raise


def _listed(root: Path, journal: BinaryIO) -> list[str]:
    """Files of the run that has not finished, and of one whose removal was cut off."""
    with reading(root / JOURNAL, MEND_BY_HAND):
        return [str(json.loads(line)) for line in whole_lines(journal)]


def _remove_earlier_run(root: Path, journal: BinaryIO) -> None:
    """A folder whose removal is cut off anywhere is one of a run that never finished."""
    listed, finished = _listed(root, journal), []
    if (root / MANIFEST).is_file():
        manifest = read_json(root / MANIFEST, MEND_BY_HAND)
        found = manifest.get(FILES) if isinstance(manifest, dict) else None
        finished = list(found) if isinstance(found, dict) else []
    files = [root / checked_name(name, root) for name in dict.fromkeys((*listed, *finished))]
    for file in files:
        if not file.parent.resolve().is_relative_to(root.resolve()):
            raise OppoError(
                f"{file} lies behind a link out of the folder and is not deleted: remove the earlier run by"
                " hand"
            )
    if finished:
        _list(root, journal, finished)
    unmark(root / MANIFEST)
    for file in (root / MANIFEST, *files, root / COMMAND):
        file.unlink(missing_ok=True)
        partial_path(file).unlink(missing_ok=True)
    folders = {parent for file in files for parent in file.parents if root in parent.parents}
    for folder in sorted(folders, reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    sync_tree(root)
    journal.truncate(0)
