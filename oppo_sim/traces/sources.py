"""The rollouts at a path, and those of some of their sources."""

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oppo_sim.cache import cache_root
from oppo_sim.columns import SOURCE
from oppo_sim.errors import OppoError
from oppo_sim.traces.storage import load_trace

if TYPE_CHECKING:
    import pandas as pd


GIVEN: Final = "the given trace"
"""What messages call lengths that a program gave (``given.trace_file``)."""


def given_folder() -> Path:
    """Where their files lie, whose names say nothing to anybody."""
    return cache_root() / "traces"


def load_path(path: Path) -> "pd.DataFrame":
    """The rollouts of a trace file, those that a real run made, by its folder, or a recorded run's, also
    while it is recorded. Raises OppoError, also where a file of the folder was changed after the run."""
    if path.is_dir():
        from oppo_sim.traces.journal import is_journal, read_journal

        if is_journal(path):
            return read_journal(path).as_trace()

        from oppo_sim.finished_run import read_run_folder
        from oppo_sim.run_files import TRACE
        from oppo_sim.traces.recorded import WORKLOAD, read_recorded_run

        if (path / WORKLOAD).is_file():
            return read_recorded_run(path).as_trace()

        run = read_run_folder(path)
        if TRACE not in run.files:
            raise OppoError(
                f"{path} is no folder of a real run (oppo run), which keeps the lengths that it made as"
                f" {TRACE}: give the trace that the run replayed"
            )
        run.verify()
        path = run.path(TRACE)
    return load_trace(path)


def keep_sources(frame: "pd.DataFrame", patterns: Sequence[str] | None, where: str) -> "pd.DataFrame":
    """Rows whose source is one of ``patterns`` or matches one (``*``, ``?``, ``[ab]``); None keeps all.

    Raises OppoError for a pattern that matches no source.
    """
    if patterns is None:
        return frame
    names = [str(name) for name in frame[SOURCE].dropna().unique()]
    kept: set[str] = set()
    for pattern in patterns:
        matching = {name for name in names if name == pattern or fnmatchcase(name, pattern)}
        if not matching:
            close = get_close_matches(pattern, names, n=1, cutoff=0.4)
            hint = f"did you mean '{close[0]}'?" if close else _listed(names)
            raise OppoError(f"no source of {where} matches '{pattern}': {hint}")
        kept |= matching
    return frame[frame[SOURCE].isin(sorted(kept))].reset_index(drop=True)


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "it has no sources, leave the filter out"
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return f"there are {', '.join(names[:6])}{more}"
