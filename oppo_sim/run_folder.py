"""Run folders: written whole, never over something else, recognisably unfinished until the manifest is
there."""

import errno
import hashlib
import json
import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self

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
from oppo_sim.inside import file_inside
from oppo_sim.plain_json import json_bytes, read_json
from oppo_sim.tables import read_table, write_frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MANIFEST: Final = "manifest.json"
"""Written last."""

TRACE: Final = "trace.parquet"
"""The lengths that a real run made, as a trace."""

JOURNAL: Final = "unfinished.jsonl"
"""Lists the files of a run that has not finished, a name in JSON a line; the run holds it, which keeps every
other out of the folder."""

FILES: Final = "files"
"""Key of the manifest under which the files are listed."""

_FINISHED: Final = "a finished run"
_MEND: Final = "run the simulation again"
_MEND_BY_HAND: Final = "delete the folder, or choose another one"
_OWN: Final = (MANIFEST, JOURNAL, COMMAND)


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
        path = self.root / _checked_name(name, self.root)
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


def write_png(figure: "Figure", file: BinaryIO) -> None:
    """The figure as PNG at its own resolution, without a date or version. Drawn once: ``savefig`` draws twice
    where texts are measured for the layout."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure).print_png(  # type: ignore[no-untyped-call]
        file, metadata={"Software": None}, pil_kwargs={"compress_level": 3}
    )


@dataclass(frozen=True)
class FinishedRun:
    """A run folder that was read back."""

    root: Path
    manifest: Mapping[str, Any]

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files, sorted."""
        return tuple(sorted(self.manifest[FILES]))

    @property
    def frames(self) -> tuple[str, ...]:
        """Names of the Parquet tables, sorted."""
        return tuple(name for name in self.files if name.endswith(".parquet"))

    def path(self, name: str) -> Path:
        """A file of the run. Raises OppoError when the run has no such file."""
        if name not in self.manifest[FILES]:
            raise OppoError(f"{self.root} has no file '{name}': it has {', '.join(self.files) or 'none'}")
        return file_inside(self.root, name)

    def frame(self, name: str, columns: list[str] | None = None) -> "pd.DataFrame":
        """Load a table, or some of its columns, now. Raises OppoError when it is missing or is no Parquet
        file any more."""
        return read_table(self.path(name), _MEND, columns)

    def json(self, name: str) -> Any:
        """Load a JSON file. Raises OppoError when it is missing or damaged."""
        return read_json(self.path(name), _MEND)

    def verify(self) -> None:
        """Raise OppoError for the first file that is missing or differs from its SHA-256."""
        for name in self.files:
            path = self.root / name
            with reading(path, _MEND):
                facts = file_facts(path)
            if facts != self.manifest[FILES][name]:
                raise OppoError(
                    f"{path} was changed after the run finished: run the simulation again, or work on a copy"
                )


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
            raise OppoError(_not_empty(root, present, force))
        _refuse_other_kind(root, kind)
        journal = (root / JOURNAL).open("a+b", buffering=0)
        try:
            lock(journal, _taken(root))
            sync_folder(root)  # no file without the journal that lists it
            # Until here somebody else may have begun, or even ended.
            beside = [name for name in _present(root) if name != JOURNAL]
            if beside and not present:
                (root / JOURNAL).unlink()
                raise OppoError(_not_empty(root, beside, force=False))
            if not keep_earlier:
                _remove_earlier_run(root, journal)
        except BaseException:
            journal.close()
            raise
    return RunFolder(root, journal, holds_earlier=keep_earlier)


def refuse_taken(folder: Path, kind: str, force: bool, *, resumes: bool = False) -> None:
    """Refuse early a run folder that is taken, or that ``force`` may not replace with a run of this ``kind``.
    ``resumes``: one that did not come to its end goes on with ``--resume``. Raises OppoError."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise OppoError(f"{folder} is a file: choose another folder with -o")
    if not any(folder.iterdir()):
        return
    finished, begun = (folder / MANIFEST).is_file(), (folder / JOURNAL).is_file()
    if not (finished or begun):
        raise OppoError(
            f"{folder} holds no run that could be replaced, but other files: choose another folder with -o"
        )
    if not force:
        state = _ended(folder) if finished else "a run that never finished"
        go_on = "go on with --resume, " if resumes and state != _FINISHED else ""
        raise OppoError(
            f"{folder} holds {state}: {go_on}choose another folder with -o, or replace it with --force"
        )
    _refuse_other_kind(folder, kind)


def _ended(folder: Path) -> str:
    """How the run of a folder with a manifest ended."""
    found = read_json(folder / MANIFEST, _MEND_BY_HAND)
    if not isinstance(found, dict) or not found.get("interrupted"):
        return _FINISHED
    done, asked = found.get("steps_done"), found.get("steps")
    after = f" after {done} of {asked} steps" if done is not None and asked is not None else ""
    return f"a run that was interrupted{after}"


def _refuse_other_kind(root: Path, kind: str) -> None:
    if not (root / MANIFEST).is_file():
        return
    manifest = read_json(root / MANIFEST, _MEND_BY_HAND)
    named = manifest if isinstance(manifest, dict) else {}
    found = named.get("kind")
    if found is None:  # a recorded run, or the manifest of another program
        form = named.get("format")
        whose = f"a manifest of the format {form}" if form else "a manifest of another program"
        raise OppoError(
            f"{root} holds {whose}, which is not replaced: choose another folder, or delete it first"
        )
    if found != kind:
        raise OppoError(
            f"{root} holds what another command wrote ({found}), which is not replaced: choose another"
            " folder, or delete it first"
        )


def refuse_begun(root: Path) -> None:
    """Raise OppoError where a run has begun, or even ended, in a folder in which something else was to be
    written."""
    if (root / JOURNAL).exists() or (root / MANIFEST).exists():
        raise OppoError(f"another run has just begun in {root}: choose another folder")


def read_run_folder(path: str | Path) -> FinishedRun:
    """Load the manifest of a finished run. Raises OppoError when there is none, it is damaged, or the run
    never finished."""
    root = Path(path)
    if root.is_file():
        raise OppoError(f"{root} is a file: name the folder that a run wrote")
    if not root.is_dir():
        raise OppoError(f"there is no run folder {root}: check the path")
    if not (root / MANIFEST).is_file():
        if (root / JOURNAL).is_file():
            raise OppoError(f"the run in {root} never finished (it has no {MANIFEST}): run it again")
        raise OppoError(
            f"{root} is not a run folder (it has no {MANIFEST}): name the folder that a run wrote"
        )
    manifest = read_json(file_inside(root, MANIFEST), _MEND)
    if not isinstance(manifest, dict) or not isinstance(manifest.get(FILES), dict):
        raise OppoError(
            f"{root / MANIFEST} lists no files, so it is not a run's manifest: name the folder that a run"
            " wrote"
        )
    for name in manifest[FILES]:
        _checked_name(name, root)
    return FinishedRun(root, manifest)


# ---- inside ------------------------------------------------------------------------------------------------


def _checked_name(name: str, root: Path) -> str:
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or pure.as_posix() != name or name in (".", *_OWN):
        raise OppoError(
            f"'{name}' cannot be a file of {root}: use a plain relative name other than {' and '.join(_OWN)}"
        )
    return name


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
    with reading(root / JOURNAL, _MEND_BY_HAND):
        return [str(json.loads(line)) for line in whole_lines(journal)]


def _remove_earlier_run(root: Path, journal: BinaryIO) -> None:
    """A folder whose removal is cut off anywhere is one of a run that never finished."""
    listed, finished = _listed(root, journal), []
    if (root / MANIFEST).is_file():
        manifest = read_json(root / MANIFEST, _MEND_BY_HAND)
        finished = list(manifest.get(FILES, ())) if isinstance(manifest, dict) else []
    files = [root / _checked_name(name, root) for name in dict.fromkeys((*listed, *finished))]
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


def _not_empty(root: Path, present: list[str], force: bool) -> str:
    shown = ", ".join(present[:3]) + (", …" if len(present) > 3 else "")
    if force:
        return (
            f"{root} holds no run that could be replaced, but other files ({shown}): choose a new or empty"
            " folder"
        )
    if MANIFEST in present or JOURNAL in present:
        state = "a finished run" if MANIFEST in present else "a run that never finished"
        return f"{root} holds {state}: choose another folder, or replace it with --force"
    return f"{root} is not empty ({shown}): choose a new or empty folder"


def file_facts(path: Path) -> dict[str, Any]:
    """Size in bytes and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}
