"""Lines of a log gathered by step: repeated steps, restarts, and a second run in the same file."""

from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose
from statistics import median
from typing import Final, NamedTuple

from oppo_sim.columns import COLD_START
from oppo_sim.errors import OppoError

COUNTED: Final = "the log has no steps, so its lines were counted from 0"
_STEPLESS: Final = "line without a step among lines that have one"
_UNSORTED: Final = "the log's lines are not in the order of their steps, and were sorted"
_ALIKE: Final = 1e-3
"""Relative difference up to which figures are copies, written with fewer digits."""

_FEWEST: Final = 3
_MIXED: Final = (
    "most steps are logged twice with other figures, as where two runs or ranks write into one file: the"
    " later ones were used; give the log of one to be sure that all are of one run"
)

Line = tuple[int | None, Mapping[str, float]]


@dataclass
class Gathered:
    """Figures by step."""

    rows: dict[int, dict[str, float]]
    left_out: "Tally[str]" = field(default_factory=Tally)
    notes: list[str] = field(default_factory=list)
    mixed: bool = False
    """What a step trained was not begun together: the run generates while it trains, or carries rollouts."""
    held_up: dict[int, float] = field(default_factory=dict)
    """Seconds of whole steps, of a run whose trainer waits for generation beside it."""
    _seen: set[tuple[object, ...]] = field(default_factory=set)

    def leave_out(self, reason: str, *place: object) -> None:
        """Count a step, by its number and what else identifies it, once: a folder may have a file a
        metric."""
        if (reason, *place) not in self._seen:
            self._seen.add((reason, *place))
            self.left_out[reason] += 1

    def note(self, said: str) -> None:
        """Say it once."""
        if said not in self.notes:
            self.notes.append(said)


class _Part(NamedTuple):
    """Steps that follow one another."""

    rows: dict[int, dict[str, float]]

    @property
    def first(self) -> int:
        return min(self.rows)

    @property
    def last(self) -> int:
        return max(self.rows)


def gather(files: Sequence[Sequence[Line]], where: str) -> Gathered:
    """One table of all files of one run; later figures of a step count. Raises OppoError if there are none.

    A step number that falls is a restart, if figures are repeated: what the first attempt logged from there
    on is replaced. One that falls back to the first step or before it begins another run: the longest is
    used.
    Where no figure is repeated, the lines are not in order.
    """
    result = Gathered({})
    bare: set[int] = set()
    for lines in files:
        parts = _parts(lines, result)
        if not parts:
            continue
        bare |= {step for step, figures in lines if step is not None and not figures}
        rows = _one_run(parts, result)
        _refuse_another_run(rows, result, where)
        for step, row in rows.items():
            known = result.rows.setdefault(step, {})
            if again := _repeated(row, known):
                result.leave_out("step logged twice, in two files: the later one counts", step)
                if not all(isclose(row[name], known[name], rel_tol=_ALIKE) for name in again):
                    known.clear()  # after a restart nothing of the attempt before is left
            known.update(row)
    if result.rows and (cut := {step for step in bare if min(result.rows) <= step} - result.rows.keys()):
        result.left_out["step whose line names no seconds and no lengths"] += len(cut)
    if not result.rows:
        raise OppoError(f"{where} holds no seconds and no lengths of any step: is it the right file?")
    return result


def _parts(lines: Sequence[Line], result: Gathered) -> list[_Part]:
    parts: list[_Part] = []
    last: int | None = None
    counted = 0
    stepped = _stepped(lines)
    other = set[int]()
    for named, figures in lines:
        if not figures:
            continue
        if named is None and stepped:
            # The rest of a line that another process printed into, or of no step at all.
            if last is None or set(parts[-1].rows[last]) & set(figures):
                result.left_out[_STEPLESS] += 1
            else:
                parts[-1].rows[last].update(figures)
            continue
        step = counted if named is None else named
        if named is None:
            result.note(COUNTED)
        counted = step + 1
        if last is None or step < last:
            parts.append(_Part({step: {COLD_START: 1.0}}))
        rows = parts[-1].rows
        row = rows.setdefault(step, {})
        # A file of events has one figure a record, and two of them may be one of ours.
        twice = set(row) & set(figures)
        alike = all(isclose(row[name], figures[name], rel_tol=_ALIKE) for name in twice)
        if twice and not (len(figures) == 1 and alike):
            result.leave_out("step logged twice: the later figures count", step)
        other |= set() if alike else {step}
        row.update(figures)
        last = step
    if len(other) >= _FEWEST and 2 * len(other) > len({step for part in parts for step in part.rows}):
        result.note(_MIXED)
    return parts


def _stepped(lines: Sequence[Line]) -> bool:
    """Whether lines without a step belong to the one before that has one: where most have one, where those
    without go on with it and repeat none of its figures, or where they only tell again a few of those that
    lines with a step have (a trainer's message beside its metrics)."""
    bare = repeating = 0
    seen: set[str] | None = None
    for named, figures in lines:
        if not figures:
            continue
        if named is not None:
            seen = set(figures)
            continue
        bare += 1
        if seen is None or seen & set(figures):
            repeating += 1
        else:
            seen |= set(figures)
    named_lines = sum(named is not None and bool(figures) for named, figures in lines)
    return named_lines > bare or (named_lines > 0 and 2 * repeating < bare) or _told_again(lines)


def _told_again(lines: Sequence[Line]) -> bool:
    whole = [set(figures) for named, figures in lines if named is not None and figures]
    bare = [set(figures) for named, figures in lines if named is None and figures]
    if not whole or not bare or not set.union(*bare) <= set.union(*whole):
        return False
    return 2 * max(map(len, bare)) <= median(map(len, whole))


def _repeated(row: Mapping[str, float], known: Mapping[str, float]) -> set[str]:
    return set(row) & set(known) - {COLD_START}


def _refuse_another_run(rows: Mapping[int, Mapping[str, float]], result: Gathered, where: str) -> None:
    """Raises OppoError if a file begins where the others begin and says other figures of the same steps:
    copies of a log agree, what follows a restart begins later."""
    both = [(row, result.rows[step]) for step, row in rows.items() if step in result.rows]
    both = [(row, known) for row, known in both if _repeated(row, known)]
    if not both or min(rows) > min(result.rows):
        return
    other = sum(
        any(not isclose(row[name], known[name], rel_tol=_ALIKE) for name in _repeated(row, known))
        for row, known in both
    )
    if 2 * other > len(both):
        raise OppoError(
            f"{where} holds files with other figures of the same steps ({other} steps), as of two runs or two"
            " ranks: give the log of one"
        )


def _in_order(parts: Sequence[_Part], result: Gathered) -> list[_Part]:
    """Parts put together that repeat no figure of the part before them."""
    joined: list[_Part] = []
    for part in parts:
        before = joined[-1].rows if joined else {}
        if not joined or any(_repeated(row, before.get(step, {})) for step, row in part.rows.items()):
            joined.append(part)
            continue
        for step, row in part.rows.items():
            before.setdefault(step, {}).update(row)
        result.note(_UNSORTED)
    for part in joined:
        for row in part.rows.values():
            row.pop(COLD_START, None)
        part.rows[part.first][COLD_START] = 1.0
    return joined


def _one_run(parts: Sequence[_Part], result: Gathered) -> dict[int, dict[str, float]]:
    runs: list[list[_Part]] = []
    for part in _in_order(parts, result):
        if runs and part.first > runs[-1][0].first:
            runs[-1].append(part)
        else:
            runs.append([part])
    merged = []
    for run in runs:
        rows: dict[int, dict[str, float]] = {}
        for part in run:
            replaced = [step for step in rows if step >= part.first]
            for step in replaced:
                del rows[step]
                result.leave_out("step repeated after a restart: the later one counts", step, part.first)
            rows.update(part.rows)
        if len(run) > 1:
            again = ", ".join(str(part.first) for part in run[1:])
            result.note(f"the run was restarted at step {again}")
        merged.append(rows)
    longest = max(merged, key=len)
    if len(merged) > 1:
        for number, run_rows in enumerate(merged):
            for step in run_rows if run_rows is not longest else ():
                result.leave_out("step of another run in the same file", step, number)
        result.note(
            f"the file holds {len(merged)} runs, of which the longest was used: give each a file to use all"
        )
    return longest
