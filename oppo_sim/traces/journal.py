"""What a ``Recorder`` wrote down, as a recorded run: of one process or of many, closed or cut off."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from oppo_sim.columns import (
    ADMITTED_S,
    COLD_START,
    FINISH_REASON,
    FINISHED_S,
    HEAD_VERSION,
    PROMPT_ID,
    PROMPT_LENGTH,
    RESPONSE_LENGTH,
    REWARD,
    ROLLOUT_ID,
    SAMPLE_ID,
    SOURCE,
    STEP,
    TAIL_VERSION,
    TURN_COLUMNS,
    timing,
)
from oppo_sim.errors import OppoError
from oppo_sim.traces.importers.options import ImportOptions
from oppo_sim.traces.importers.reading import Reading
from oppo_sim.traces.importers.rows import json_values
from oppo_sim.traces.journal_format import FORMAT, LINES
from oppo_sim.traces.recorded import RecordedRun, write_recorded_run

REPEATED: Final = "rollout of a step that was started again, as after a restart"
NO_STEP: Final = "rollout that fills no step"

_WORKLOAD: Final = {PROMPT_ID: "prompt_id", SAMPLE_ID: "sample_id", PROMPT_LENGTH: "prompt_length"}
_OUTCOMES: Final = {
    RESPONSE_LENGTH: "response_length",
    FINISH_REASON: "finish_reason",
    REWARD: "reward",
    ADMITTED_S: "started_at",
    FINISHED_S: "finished_at",
    HEAD_VERSION: "head_version",
    TAIL_VERSION: "tail_version",
    **{name: name for name in TURN_COLUMNS},
}
_INTEGERS: Final = (PROMPT_LENGTH, RESPONSE_LENGTH, HEAD_VERSION, TAIL_VERSION)


@dataclass
class _Told:
    """Lines of all files."""

    heads: list[Mapping[str, Any]] = field(default_factory=list)
    starts: list[tuple[float, int]] = field(default_factory=list)
    rollouts: list[tuple[float, int | None, Mapping[str, Any]]] = field(default_factory=list)
    """When it was written, its step, what was told."""
    stages: list[tuple[float, int, str, float]] = field(default_factory=list)


def is_journal(folder: Path) -> bool:
    """Whether a folder is a recorder's journal."""
    for file in sorted(folder.glob(LINES)):
        with file.open("rb") as lines:
            return FORMAT.encode() in lines.readline()
    return False


def read_journal(folder: str | Path) -> RecordedRun:
    """What was recorded so far; rollouts are numbered by step, then by when they started or finished.

    Raises OppoError for a folder that is no journal, a line that is none of a recorder's, or where no rollout
    was recorded.
    """
    folder = Path(folder)
    reading = Reading(ImportOptions())
    told = _told(folder, reading)
    rows = _rows(told, reading)
    if not rows:
        raise OppoError(f"{folder} holds no rollout: was anything trained while it was recorded?")
    began = min(_instants(told))
    name = next((str(head["framework"]) for head in told.heads if head.get("framework")), "recorded")
    table = pd.DataFrame(
        {column: [row.get(given) for _, row in rows] for column, given in {**_WORKLOAD, **_OUTCOMES}.items()},
        dtype=object,
    )
    table.insert(0, STEP, [step for step, _ in rows])
    table.insert(0, ROLLOUT_ID, np.arange(len(rows)))
    table[SOURCE] = name
    for column in (ADMITTED_S, FINISHED_S, REWARD):
        table[column] = pd.to_numeric(table[column])
    for column in _INTEGERS:
        table[column] = pd.array(table[column].tolist(), dtype="Int64")
    table[[ADMITTED_S, FINISHED_S]] -= began
    table = table.dropna(axis=1, how="all")
    if table[RESPONSE_LENGTH].notna().all():
        table[RESPONSE_LENGTH] = table[RESPONSE_LENGTH].astype("int64")
    known = [column for column in (ROLLOUT_ID, SOURCE, STEP, *_WORKLOAD) if column in table]
    measured = [column for column in (ROLLOUT_ID, *_OUTCOMES) if column in table]
    about = [head["about"] for head in told.heads if head.get("about")]
    manifest = {
        "framework": name,
        "about": about[0] if about else {},
        "began_at": began,
        "processes": len(told.heads),
        "left_out": dict(reading.left_out),
    }
    return RecordedRun(manifest, table[known], table[measured], _steps(told))


def seal(journal: str | Path, folder: str | Path) -> Path:
    """Make the recorded run ``folder`` of a journal, which goes. Raises OppoError if the folder exists, the
    journal holds nothing, or the disk refuses; the journal then stays."""
    run = read_journal(journal)
    write_recorded_run(folder, run.manifest, run.workload, run.outcomes, run.steps)
    shutil.rmtree(journal, ignore_errors=True)
    return Path(folder)


def _told(folder: Path, reading: Reading) -> _Told:
    told = _Told()
    files = sorted(folder.glob(LINES)) if folder.is_dir() else []
    if not files:
        raise OppoError(f"{folder} is no recorder's journal: it holds no {LINES}")
    for file in files:
        values = json_values(file, reading)
        head = next(values, (0, None))[1]
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            raise OppoError(f"{file} does not begin as a recorder's journal ({FORMAT}): move it elsewhere")
        told.heads.append(head)
        for number, line in values:
            try:
                _take(line, told)
            except (KeyError, TypeError, ValueError):
                raise OppoError(f"{file}, line {number}: this is no line of a recorder: remove it") from None
    return told


def _take(line: Any, told: _Told) -> None:
    at = float(line["at"])
    if "start" in line:
        told.starts.append((at, int(line["start"])))
    elif "stage" in line:
        told.stages.append((at, int(line["step"]), str(line["stage"]), float(line["s"])))
    else:
        row = dict(line["rollout"])
        int(row["response_length"])
        told.rollouts.append((at, None if line["step"] is None else int(line["step"]), row))


def _void(told: _Told) -> Iterator[tuple[float, int]]:
    """(when, from which step on): what was written before then of these steps is void. A step that comes
    again is a restart."""
    highest = -1
    for at, step in sorted(told.starts):
        if step <= highest:
            yield at, step
        highest = step


def _holds(at: float, step: int, voids: Iterable[tuple[float, int]]) -> bool:
    return not any(at < again and step >= first for again, first in voids)


def _rows(told: _Told, reading: Reading) -> list[tuple[int, Mapping[str, Any]]]:
    """(step, rollout) in the order of their ids."""
    voids = list(_void(told))
    rows: list[tuple[int, float, Mapping[str, Any]]] = []
    unplaced: list[tuple[float, Mapping[str, Any]]] = []
    for at, step, row in told.rollouts:
        finished = float(row.get("finished_at", at))
        if step is None:
            unplaced.append((finished, row))
        elif _holds(at, step, voids):
            rows.append((step, float(row.get("started_at", finished)), row))
        else:
            reading.left_out[REPEATED] += 1
    each = next((head["rollouts_per_step"] for head in told.heads if head.get("rollouts_per_step")), None)
    unplaced.sort(key=lambda entry: entry[0])
    if unplaced and each is None:
        each = len(unplaced)
    for place, (finished, row) in enumerate(unplaced):
        assert each is not None
        step, whole = place // each, len(unplaced) // each * each
        if place >= whole:
            reading.left_out[NO_STEP] += len(unplaced) - whole
            break
        rows.append((step, float(row.get("started_at", finished)), row))
    rows.sort(key=lambda entry: entry[:2])
    return [(step, row) for step, _, row in rows]


def _instants(told: _Told) -> Iterator[float]:
    yield from (at for at, _ in told.starts)
    for at, _, row in told.rollouts:
        yield float(row.get("started_at", row.get("finished_at", at)))


def _steps(told: _Told) -> pd.DataFrame | None:
    voids = list(_void(told))
    seconds: dict[int, dict[str, float]] = {}
    for at, step, name, taken in told.stages:
        if _holds(at, step, voids):
            row = seconds.setdefault(step, {})
            row[timing(name)] = row.get(timing(name), 0.0) + taken
    if not seconds:
        return None
    frame = pd.DataFrame.from_dict(seconds, orient="index").sort_index()
    frame.insert(0, STEP, frame.index.astype("int64"))
    again = {step for _, step in voids}
    frame[COLD_START] = [step == frame[STEP].min() or step in again for step in frame[STEP]]
    return frame.reset_index(drop=True)
