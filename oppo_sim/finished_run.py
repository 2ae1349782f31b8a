"""Run folders read back."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oppo_sim.errors import OppoError
from oppo_sim.files import reading
from oppo_sim.inside import file_inside
from oppo_sim.plain_json import read_json
from oppo_sim.run_files import FILES, JOURNAL, MANIFEST, checked_name, file_facts
from oppo_sim.tables import read_table

if TYPE_CHECKING:
    import pandas as pd

_MEND: Final = "run the command that wrote it again"


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
                raise OppoError(f"{path} was changed after the run finished: {_MEND}, or work on a copy")


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
        checked_name(name, root)
    return FinishedRun(root, manifest)
