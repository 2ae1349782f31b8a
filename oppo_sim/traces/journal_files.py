"""Files of a recorder's journal, one a process, and which of their lines count after a restart."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from oppo_sim.errors import OppoError
from oppo_sim.traces.importers.reading import Reading
from oppo_sim.traces.importers.rows import json_values
from oppo_sim.traces.journal_format import FORMAT, LINES


@dataclass
class ProcessRecord:
    """What one process wrote."""

    head: Mapping[str, Any]
    starts: list[tuple[float, int]] = field(default_factory=list)
    rollouts: list[tuple[float, int | None, Mapping[str, Any]]] = field(default_factory=list)
    """When it was written, its step, its values."""
    stages: list[tuple[float, int, str, float]] = field(default_factory=list)
    void: list[tuple[float, int]] = field(default_factory=list)
    """(when, from which step on): what was written before then of these steps is void."""

    def holds(self, at: float, step: int) -> bool:
        """Whether no later attempt at ``step`` makes what was written at ``at`` void."""
        return not any(at < again and step >= first for again, first in self.void)

    def steps(self) -> Iterator[int]:
        """Those that are named in a line."""
        yield from (step for _, step in self.starts)
        yield from (step for _, step, _ in self.rollouts if step is not None)
        yield from (step for _, step, _, _ in self.stages)

    def span(self) -> tuple[float, float]:
        """When the process was at work, as far as it recorded, in Unix seconds."""
        lines = [at for at, _ in self.starts]
        lines += [at for at, _, _ in self.rollouts]
        lines += [at for at, _, _, _ in self.stages]
        if "at" in self.head:
            lines.append(float(self.head["at"]))
        began = list(lines)
        if not self.starts:
            # The recorder of a worker is made when its first rollout is complete.
            began += [float(row[name]) for _, _, row in self.rollouts for name in _INSTANTS if name in row]
        return min(began, default=-inf), max(lines, default=-inf)


_INSTANTS = ("started_at", "finished_at")


def attempts(folder: Path, reading: Reading) -> list[list[ProcessRecord]]:
    """The files of a journal; those of processes that were at work at the same time are one attempt, later
    attempts come behind. What a later attempt began again is marked void.

    Raises OppoError for a folder that is no journal, or a line that is none of a recorder's.
    """
    found: list[list[ProcessRecord]] = []
    ended = -inf
    for process in sorted(_files(folder, reading), key=ProcessRecord.span):
        began, last = process.span()
        if not found or began >= ended:
            found.append([])
        found[-1].append(process)
        ended = max(ended, last)
    _void(found)
    return found


def _files(folder: Path, reading: Reading) -> Iterator[ProcessRecord]:
    files = sorted(folder.glob(LINES)) if folder.is_dir() else []
    if not files:
        raise OppoError(f"{folder} is no recorder's journal: it holds no {LINES}")
    for file in files:
        values = json_values(file, reading)
        head = next(values, (0, None))[1]
        if not isinstance(head, dict) or head.get("format") != FORMAT or not _is_head(head):
            raise OppoError(f"{file} does not begin as a recorder's journal ({FORMAT}): move it elsewhere")
        process = ProcessRecord({"rollouts_per_step": None, "first_step": 0, **head})
        for number, line in values:
            try:
                _take(line, process)
            except (KeyError, TypeError, ValueError):
                raise OppoError(f"{file}, line {number}: this is no line of a recorder: remove it") from None
        yield process


def _is_head(head: Mapping[str, Any]) -> bool:
    """Whether what is counted with is of its kind; journals of before have no ``at`` and ``first_step``."""
    per_step, first, at = head.get("rollouts_per_step"), head.get("first_step", 0), head.get("at", 0.0)
    return (
        (per_step is None or (isinstance(per_step, int) and per_step > 0))
        and (isinstance(first, int) and first >= 0)
        and isinstance(at, int | float)
    )


def _take(line: Any, process: ProcessRecord) -> None:
    at = float(line["at"])
    if "start" in line:
        process.starts.append((at, int(line["start"])))
    elif "stage" in line:
        process.stages.append((at, int(line["step"]), str(line["stage"]), float(line["s"])))
    else:
        row = dict(line["rollout"])
        int(row["response_length"])
        process.rollouts.append((at, None if line["step"] is None else int(line["step"]), row))


def _void(found: Sequence[Sequence[ProcessRecord]]) -> None:
    for place, attempt in enumerate(found):
        again = [restart for process in attempt for restart in _restarts(process)]
        for process in attempt:
            # A process that starts steps records its own restarts; the others take theirs from it.
            process.void += list(_restarts(process)) if process.starts else again
        first = min((step for process in attempt for step in process.steps()), default=None)
        if first is None:
            continue
        for process in (process for earlier in found[:place] for process in earlier):
            if any(step >= first for step in process.steps()):
                process.void.append((inf, first))


def _restarts(process: ProcessRecord) -> Iterator[tuple[float, int]]:
    """A step that comes again in one process is a restart; in two that run at once it is the same step."""
    highest = -1
    for at, step in sorted(process.starts):
        if step <= highest:
            yield at, step
        highest = step
