"""A trace by the name or path a user gives, and the rows of some of its sources."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oppo_sim.traces.catalog import find_trace, list_traces, load_named
from oppo_sim.traces.opened import OpenedTrace
from oppo_sim.traces.sources import GIVEN, keep_sources, load_path
from oppo_sim.traces.storage import SUFFIXES


def open_trace(given: Any, sources: Sequence[str] | None = None) -> OpenedTrace:
    """A shipped trace by name, a real run by its folder, or a file by path; a frame or response lengths that
    the program holds. Rows of ``sources`` only if given. ``trace=`` of ``simulate`` takes what this gives.

    Raises OppoError if there is none, or it cannot be read.
    """
    if not isinstance(given, str | Path):
        from oppo_sim.traces.given import trace_file

        frame = load_path(trace_file(given))
        return OpenedTrace("given lengths", keep_sources(frame, sources, GIVEN), None)
    name_or_path = str(given)
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
