"""A trace by the name or path a user gives."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oppo_sim.traces.catalog import CatalogEntry, find_trace, list_traces, load_named
from oppo_sim.traces.sources import keep_sources
from oppo_sim.traces.storage import SUFFIXES, load_trace

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class OpenedTrace:
    """A trace and what is known of it."""

    title: str
    frame: "pd.DataFrame"
    entry: CatalogEntry | None
    """Provenance, for a shipped trace."""


def load_path(path: Path) -> "pd.DataFrame":
    """The rollouts of a trace file, or of a recorded run's folder. Raises OppoError."""
    if path.is_dir():
        from oppo_sim.traces.recorded import read_recorded_run

        return read_recorded_run(path).as_trace()
    return load_trace(path)


def open_trace(name_or_path: str, sources: Sequence[str] | None = None) -> OpenedTrace:
    """A shipped trace by name, a recorded run by its folder, or a file by path; rows of ``sources`` only if
    given.

    Raises OppoError if there is none, or it cannot be read.
    """
    path = Path(name_or_path)
    if any(entry.name == name_or_path for entry in list_traces()):
        entry = find_trace(name_or_path)
        return OpenedTrace(
            name_or_path, keep_sources(load_named(name_or_path), sources, f"trace '{name_or_path}'"), entry
        )
    if path.exists() or path.name.endswith(SUFFIXES) or len(path.parts) > 1:
        return OpenedTrace(path.name, keep_sources(load_path(path), sources, name_or_path), None)
    find_trace(name_or_path)  # raises, with close names
    raise AssertionError("unreachable")
