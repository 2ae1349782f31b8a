"""Folders that a run may not write, and why: what is there already, and what ``--force`` replaces of it."""

from pathlib import Path
from typing import Final

from oppo_sim.errors import OppoError
from oppo_sim.plain_json import read_json
from oppo_sim.run_files import JOURNAL, MANIFEST

MEND_BY_HAND: Final = "delete the folder, or choose another one"
_FINISHED: Final = "a finished run"


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
    refuse_other_kind(folder, kind)


def _ended(folder: Path) -> str:
    """How the run of a folder with a manifest ended."""
    found = read_json(folder / MANIFEST, MEND_BY_HAND)
    if not isinstance(found, dict) or not found.get("interrupted"):
        return _FINISHED
    done, asked = found.get("steps_done"), found.get("steps")
    after = f" after {done} of {asked} steps" if done is not None and asked is not None else ""
    return f"a run that was interrupted{after}"


def refuse_other_kind(root: Path, kind: str) -> None:
    """Refuse a folder whose manifest is not of a run of this ``kind``. Raises OppoError."""
    if not (root / MANIFEST).is_file():
        return
    manifest = read_json(root / MANIFEST, MEND_BY_HAND)
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


def not_empty(root: Path, present: list[str], force: bool) -> str:
    """Why a folder with the files ``present`` is not written."""
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
