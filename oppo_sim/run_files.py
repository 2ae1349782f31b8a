"""Files that every run folder has, which names are left for a run's own, and what a manifest says of each."""

import hashlib
from pathlib import Path, PurePosixPath
from typing import Any, Final

from oppo_sim.errors import OppoError
from oppo_sim.given_command import COMMAND

MANIFEST: Final = "manifest.json"
"""Written last."""

TRACE: Final = "trace.parquet"
"""The lengths that a real run made, as a trace."""

JOURNAL: Final = "unfinished.jsonl"
"""Lists the files of a run that has not finished, a name in JSON a line; the run holds it, which keeps every
other out of the folder."""

FILES: Final = "files"
"""Key of the manifest under which the files are listed."""

_OWN: Final = (MANIFEST, JOURNAL, COMMAND)


def checked_name(name: str, root: Path) -> str:
    """A name that a file of a run may have, relative to ``root``. Raises OppoError for others."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or pure.as_posix() != name or name in (".", *_OWN):
        raise OppoError(
            f"'{name}' cannot be a file of {root}: use a plain relative name other than {' and '.join(_OWN)}"
        )
    return name


def file_facts(path: Path) -> dict[str, Any]:
    """Size in bytes and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}
