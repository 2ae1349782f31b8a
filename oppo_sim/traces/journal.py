"""What a ``Recorder`` wrote down, as a recorded run: of one process or of many, closed or cut off."""

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from oppo_sim.traces.journal_files import ProcessRecord, attempts
from oppo_sim.traces.journal_format import FORMAT, LINES
from oppo_sim.traces.recorded import RecordedRun, write_recorded_run

REPEATED: Final = "rollout of a step that was started again, as after a restart"
UNFINISHED: Final = "unfinished last step"
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
_NOT_OF_EVERY_STEP: Final = (STEP, COLD_START, timing("testing"), timing("save_checkpoint"))
"""Columns that do not tell whether a step was finished."""
_Placed = tuple[int, float, Mapping[str, Any]]
"""Its step, when it started as far as that is known, what was recorded of it."""
_INTEGERS: Final = (PROMPT_LENGTH, RESPONSE_LENGTH, HEAD_VERSION, TAIL_VERSION)


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
    found = attempts(folder, reading)
    files = [process for attempt in found for process in attempt]
    rows = _rows(found, reading)
    if not rows:
        raise OppoError(f"{folder} holds no rollout: was anything trained while it was recorded?")
    steps = _steps(files)
    last = _unfinished([step for step, _ in rows], steps)
    if last is not None:
        reading.left_out[UNFINISHED] += 1
        rows = [row for row in rows if row[0] != last]
        steps = None if steps is None else steps[steps[STEP] != last]
    began = min(_instants(files))
    heads = [process.head for process in files]
    name = next((str(head["framework"]) for head in heads if head.get("framework")), "recorded")
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
    about = [head["about"] for head in heads if head.get("about")]
    manifest = {
        "framework": name,
        "about": about[0] if about else {},
        "began_at": began,
        "processes": len(heads),
        "left_out": dict(+reading.left_out),
    }
    return RecordedRun(manifest, table[known], table[measured], steps)


def seal(journal: str | Path, folder: str | Path) -> Path:
    """Make the recorded run ``folder`` of a journal, which goes. Raises OppoError if the folder exists, the
    journal holds nothing, or the disk refuses; the journal then stays."""
    run = read_journal(journal)
    write_recorded_run(folder, run.manifest, run.workload, run.outcomes, run.steps)
    shutil.rmtree(journal, ignore_errors=True)
    return Path(folder)


def _rows(found: Sequence[Sequence[ProcessRecord]], reading: Reading) -> list[tuple[int, Mapping[str, Any]]]:
    """(step, rollout) in the order of their ids."""
    rows = _dealt_out(found, reading)
    for process in (process for attempt in found for process in attempt):
        for at, step, row in process.rollouts:
            if step is None:
                continue
            if process.holds(at, step):
                rows.append(_placed(step, at, row))
            else:
                reading.left_out[REPEATED] += 1
    rows.sort(key=lambda entry: entry[:2])
    return [(step, row) for step, _, row in rows]


def _dealt_out(found: Sequence[Sequence[ProcessRecord]], reading: Reading) -> list[_Placed]:
    """Rollouts without a step: so many a step, in the order in which they finished. An attempt goes
    on behind the last whole step of the one before, or at a first step of its own."""
    rows: list[_Placed] = []
    per_step = [process.head["rollouts_per_step"] for attempt in found for process in attempt]
    step = began = None
    for attempt in found:
        unplaced = [(at, row) for process in attempt for at, of, row in process.rollouts if of is None]
        if not unplaced:
            continue
        first = max(process.head["first_step"] for process in attempt)
        if step is None:
            step = began = first
        elif first != began:
            step = first
            reading.left_out[REPEATED] += sum(row[0] >= first for row in rows)
            rows = [row for row in rows if row[0] < first]
        own = [process.head["rollouts_per_step"] for process in attempt]
        each = next((number for number in (*own, *per_step) if number), 0)
        whole = len(unplaced) // each * each if each else len(unplaced)
        unplaced.sort(key=lambda line: float(line[1].get("finished_at", line[0])))
        rows += [
            _placed(step + (place // each if each else 0), *line)
            for place, line in enumerate(unplaced[:whole])
        ]
        step += whole // each if each else 0
        reading.left_out[NO_STEP] += len(unplaced) - whole
    return rows


def _placed(step: int, at: float, row: Mapping[str, Any]) -> _Placed:
    return step, float(row.get("started_at", row.get("finished_at", at))), row


def _unfinished(of_rollouts: Sequence[int], steps: pd.DataFrame | None) -> int | None:
    """The last step where it lacks stages that every other has, or rollouts where all others have the same
    number: the run goes on still, or was stopped in it."""
    many = Counter(of_rollouts)
    rows = [] if steps is None else steps.to_dict("records")
    seconds = [] if steps is None else [name for name in steps if name not in _NOT_OF_EVERY_STEP]
    known = {int(row[STEP]): row for row in rows}
    last = max([*many, *known])
    others = [row for step, row in known.items() if step != last]
    if others:
        needed = [name for name in seconds if all(pd.notna(row[name]) for row in others)]
        reported = known.get(last, {})
        if not all(pd.notna(reported.get(name)) for name in needed):
            return last
        if timing("step") in needed:  # its seconds are reported at its end
            return None
    sizes = {number for step, number in many.items() if step != last}
    return last if len(many) > 2 and len(sizes) == 1 and many[last] < min(sizes) else None


def _instants(files: Iterable[ProcessRecord]) -> Iterator[float]:
    for process in files:
        yield from (at for at, _ in process.starts)
        for at, _, row in process.rollouts:
            yield float(row.get("started_at", row.get("finished_at", at)))


def _steps(files: Sequence[ProcessRecord]) -> pd.DataFrame | None:
    seconds: dict[int, dict[str, float]] = {}
    for process in files:
        for at, step, name, taken in process.stages:
            if process.holds(at, step):
                row = seconds.setdefault(step, {})
                row[timing(name)] = row.get(timing(name), 0.0) + taken
    if not seconds:
        return None
    frame = pd.DataFrame.from_dict(seconds, orient="index").sort_index()
    frame.insert(0, STEP, frame.index.astype("int64"))
    again = {step for process in files for _, step in process.void}
    frame[COLD_START] = [step == frame[STEP].min() or step in again for step in frame[STEP]]
    return frame.reset_index(drop=True)
