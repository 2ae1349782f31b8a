"""The steps of a training log under our column names: stage seconds, length statistics, tokens.

What cannot be used is left out and counted; what makes no log at all is an error of one sentence.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oppo_sim.columns import (
    LENGTH_CLIP_RATIO,
    LENGTH_MAX,
    LENGTH_MEAN,
    LENGTH_MEDIAN,
    LENGTH_MIN,
    LENGTH_STD,
    PROMPT_LENGTH_MEAN,
    STAGES,
    STEP,
    STEP_SAVE_S,
    STEP_TESTING_S,
    TIMING_STEP,
    timing,
)
from oppo_sim.errors import OppoError
from oppo_sim.files import sha256_of
from oppo_sim.fit.log.names import FRAMEWORKS, LogNames, stages_in
from oppo_sim.fit.log.overlapped import leave_out_locked, leave_out_waits, may_be_in_turns, overlap_metric
from oppo_sim.fit.log.replaced import replaced_note
from oppo_sim.fit.log.segments import Gathered, gather
from oppo_sim.fit.log.step_log import LENGTH_SLACK, Covers, StepLog
from oppo_sim.fit.log.trained_again import joined
from oppo_sim.traces.importers.bare_consoles import refused_console
from oppo_sim.traces.importers.detecting import OTHER_KIND, files_of, matching, shown_name
from oppo_sim.traces.importers.figures import PREFIXES, chosen, first_figure
from oppo_sim.traces.importers.formats import find_importer
from oppo_sim.traces.importers.logged_steps import Figures
from oppo_sim.traces.importers.metric_files import PATTERNS, NoMetrics, read_metrics
from oppo_sim.traces.importers.options import ImportOptions
from oppo_sim.traces.importers.reading import Reading

if TYPE_CHECKING:
    pass

LENGTH_FIGURES: Final = {
    "mean": LENGTH_MEAN,
    "max": LENGTH_MAX,
    "min": LENGTH_MIN,
    "median": LENGTH_MEDIAN,
    "std": LENGTH_STD,
    "clip_ratio": LENGTH_CLIP_RATIO,
    "prompt_mean": PROMPT_LENGTH_MEAN,
}
SECONDS_OF_STEP: Final = (TIMING_STEP, STEP_TESTING_S, STEP_SAVE_S)

_TABLES: Final = {".csv", ".tsv", ".jsonl", ".json"}

_SECONDS_LIKE: Final = re.compile(r"(?<![a-z])(time|timing|secs?|seconds|duration|elapsed|latency)(?![a-z])")
"""A name that may be of seconds."""
_SHOWN_NAMES: Final = 6

_UPDATES: Final = "train/step"
"""slime counts updates by it, several a rollout, and prints them as steps."""


def read_step_log(
    path: str | Path,
    framework: str = "auto",
    *,
    fields: Mapping[str, str] | None = None,
    unit: str = "auto",
) -> StepLog:
    """Read a log file, or a folder of them.

    Args:
        framework: one of ``FRAMEWORKS``, or ``auto``.
        fields: the log's name of a metric by our column, such as ``{"timing_s/gen": "my_gen_time"}``.
        unit: ``s``, ``ms``, or ``auto``: seconds, but columns and single values a thousand times too large
            are taken as milliseconds, and counted.

    Raises OppoError for a file that cannot be read, or holds no seconds of any step.
    """
    root = Path(path)
    given = dict(fields or {})
    _check_fields(given)
    files = [file for file in files_of(root) if root.is_file() or matching([file], PATTERNS)]
    reading = Reading(ImportOptions())
    records = _records(files, reading, root)
    _check_names(given, records, reading, root)
    names = _framework(framework, records, given, root)
    gathered = gather([[_known(each, names, given) for each in found] for _, found in records], str(root))
    gathered.left_out.update(reading.left_out)
    gathered.left_out.update(_valueless(reading, names, given, gathered))
    numbered = [line for _, found in records for line in found]
    lines = [figures for _, figures in numbered]
    if TIMING_STEP not in given and any(_figure(each, names.late_beside) is not None for each in lines):
        _with_late_steps(gathered)
    if not any(column.startswith("timing_s/") for column in given):
        if said := overlap_metric(lines, names):
            leave_out_waits(gathered, said, in_turns=may_be_in_turns(lines, said, names))
        leave_out_locked(gathered, names)
    if said := replaced_note(numbered, names, gathered.rows):
        gathered.note(said)
    hidden = timing("reward") not in given and _rewards_untimed(lines, names)
    together = joined(gathered) if names.updates else 1
    found = step_log(root, names, gathered, [file for file, found in records if found], unit, hidden=hidden)
    not_shown = {
        stage: metrics[0]
        for stage, metrics in names.shown_by.items()
        if not any(_figure(each, metrics) is not None for each in lines)
    }
    _refuse_counted_twice(found, given)
    return replace(found, generation_steps=together, not_shown=not_shown)


def _records(files: Sequence[Path], reading: Reading, root: Path) -> list[tuple[Path, list[Figures]]]:
    """The lines of each file. In a folder, files of another kind are left out and counted. Raises OppoError,
    for one of these too where there is nothing else."""
    records: list[tuple[Path, list[Figures]]] = []
    other: NoMetrics | None = None
    for file in files:
        try:
            lines = list(read_metrics(file, reading))
        except NoMetrics as error:
            other = error
            if not root.is_file():
                reading.left_out[OTHER_KIND] += 1
        else:
            records.append((file, _without_cut_numbers(file, lines, reading)))
    if any(lines for _, lines in records):
        return records
    if said := other or refused_console(file for file, _ in records):
        raise said
    return records


def _valueless(
    reading: Reading, names: LogNames, given: Mapping[str, str], gathered: Gathered
) -> dict[str, int]:
    """Metrics known here of which no step has a number, and how often they are named."""
    present = {column for row in gathered.rows.values() for column in row}
    found = {
        column: count
        for name, count in reading.valueless.items()
        for column in _known((None, {name: 1.0}), names, given)[1]
        if column not in present
    }
    return {f"{column} that is no number in any step": count for column, count in found.items()}


def _with_late_steps(gathered: Gathered) -> None:
    """Whole steps where they belong, one step earlier; of the last step, and the last before a restart, none
    is known. 0 is logged where a run begins."""
    rows = gathered.rows
    whole = {step: row.pop(TIMING_STEP) for step, row in rows.items() if TIMING_STEP in row}
    moved = {step - 1: seconds for step, seconds in whole.items() if step - 1 in rows and seconds > 0}
    for step, seconds in moved.items():
        rows[step][TIMING_STEP] = seconds
    if moved:
        gathered.note("the seconds of a whole step are logged with the step after it, and were moved there")
    elif whole:
        gathered.note(
            "the seconds of a whole step are those of the step before, which no line is of (logging_steps):"
            " they are left out"
        )


def _without_cut_numbers(file: Path, lines: list[Figures], reading: Reading) -> list[Figures]:
    """Lines of a console whose figures are the first of a usual line, and no more, were cut off, perhaps
    within their last number."""
    if any(suffix in _TABLES for suffix in file.suffixes):
        return lines
    usual, times = Counter(tuple(figures) for _, figures in lines).most_common(1)[0] if lines else ((), 0)
    found = []
    for number, (step, figures) in enumerate(lines):
        shown = tuple(figures)
        # Of the last line the reader has left out what may be cut.
        cut = times > 1 and 0 < len(shown) < len(usual) and shown == usual[: len(shown)]
        if cut and number < len(lines) - 1 and lines[number + 1][0] is not None:  # goes on in another line
            reading.left_out["number at the end of a line that was cut off"] += 1
            found.append((step, {name: figures[name] for name in shown[:-1]}))
        else:
            found.append((step, figures))
    return found


def _refuse_counted_twice(log: StepLog, given: Mapping[str, str]) -> None:
    """Raises OppoError for a metric of several stages, given by ``--field``, that ``_covers`` leaves out."""
    for column, name in given.items():
        if column.startswith("timing_s/") and column in log.frame and column not in log.covers:
            parts = [timing(stage) for stage in stages_in(column)]
            apart = ", ".join(part for part in parts if part in log.covers)
            if apart:
                raise OppoError(
                    f"--field {column}={name}: the log has {apart} by itself, and its seconds would count"
                    " twice: leave this --field out, or name the other stages alone"
                )


def _check_names(
    given: Mapping[str, str], records: Sequence[tuple[Path, list[Figures]]], reading: Reading, root: Path
) -> None:
    """Raises OppoError for a metric that no line has, or none with a number."""
    for column, name in given.items():
        lines = (figures for _, found in records for _, figures in found)
        if not any(first_figure(figures, (name,)) is not None for figures in lines):
            names = {each for _, found in records for _, figures in found for each in figures}
            if (empty := reading.valueless.get(name)) is not None:
                raise OppoError(
                    f"--field {column}={name}: '{name}' is no number in any of its {empty} lines of {root}"
                    " (nan or empty); name another metric"
                )
            close = get_close_matches(name, names, 1)
            hint = f"did you mean '{close[0]}'?" if close else "look for its name in the log"
            raise OppoError(f"--field {column}={name}: {root} has no metric '{name}'; {hint}")
        if column == STEP:
            numbers = (first_figure(figures, (name,)) for _, found in records for _, figures in found)
            if odd := next((each for each in numbers if each is not None and not _is_step(each)), None):
                raise OppoError(
                    f"--field {column}={name}: {root} has {odd:g} there, which is no step: name a metric of"
                    " whole numbers from 0 on"
                )


def _is_step(number: float) -> bool:
    return number >= 0 and float(number).is_integer()


def _rewards_untimed(lines: Sequence[Mapping[str, float]], names: LogNames) -> bool:
    """Whether the log is of ``LogNames.untimed_rewards`` and names no seconds of rewards."""
    timed = [name for each in names.stages if "reward" in each.covers for name in each.names]
    if not names.untimed_rewards or any(_figure(each, timed) is not None for each in lines):
        return False
    return any(_figure(each, names.untimed_rewards) is not None for each in lines)


def step_log(
    root: Path,
    names: LogNames,
    gathered: Gathered,
    files: Sequence[Path],
    unit: str,
    *,
    hidden: bool = False,
) -> StepLog:
    """The table of what was gathered; ``hidden``: rewards are in none of its metrics (``rewards_hidden``).

    Raises OppoError if no step has seconds.
    """
    from oppo_sim.fit.log.cleaning import cleaned

    covers = _covers(names, {column for row in gathered.rows.values() for column in row})
    if hidden:
        covers = {
            column: (*(each for each in stages if each != "reward"),) for column, stages in covers.items()
        }
    frame, notes = cleaned(gathered, covers, unit, str(root))
    return StepLog(
        name=root.name,
        frame=frame,
        framework=names.name,
        covers={column: stages for column, stages in covers.items() if column in frame},
        note=names.note,
        tool_tokens_apart=names.made_tokens,
        left_out=dict(gathered.left_out),
        notes=(*gathered.notes, *notes),
        rewards_hidden=hidden,
        mixed=gathered.mixed,
        held_up=gathered.held_up,
        path=str(root),
        files=tuple(
            {"name": shown_name(file, root), "bytes": file.stat().st_size, "sha256": sha256_of(file)}
            for file in files
        ),
    )


def _check_fields(given: Mapping[str, str]) -> None:
    known = {
        *map(timing, STAGES[:-1]),
        *SECONDS_OF_STEP,
        *LENGTH_FIGURES.values(),
        *(column for each in FRAMEWORKS for column in each.figures),
        STEP,
    }
    for column in given:
        stages = stages_in(column)
        together = column.startswith("timing_s/") and set(stages) <= set(STAGES[:-1])
        if column not in known and not (together and len(set(stages)) == len(stages)):
            raise OppoError(
                f"--field {column}={given[column]}: there is no column '{column}'; give one of"
                f" {', '.join(sorted(known))}, or stages that a metric holds together, as"
                " timing_s/old_log_prob+ref"
            )


def _framework(
    wanted: str, records: Sequence[tuple[Path, list[Figures]]], given: Mapping[str, str], root: Path
) -> LogNames:
    by_name = {each.name: each for each in FRAMEWORKS}
    counts = {
        each.name: sum(len(_seconds(figures, each)) for _, found in records for _, figures in found)
        for each in FRAMEWORKS
    }
    best = max(counts, key=lambda name: counts[name])
    named = wanted.replace("-", "_").lower()
    if named in by_name:
        if counts[best] and not counts[named] and not any(each.startswith("timing_s/") for each in given):
            raise OppoError(
                f"{root} has no seconds by {named}'s names, but by {best}'s: leave --from {wanted} out, or"
                " name them with --field timing_s/gen=NAME"
            )
        return by_name[named]
    if wanted != "auto":
        raise OppoError(
            f"there is no framework '{wanted}' whose seconds are known: give one of {', '.join(by_name)}, or"
            " auto, and --field for names of your own"
        )
    if counts[best]:
        return by_name[best]
    if any(column.startswith("timing_s/") for column in given):
        return LogNames("own names", "generic", (), ())
    if not any(found for _, found in records):
        raise OppoError(f"{root} holds no figures of any step: is it the log of a training run?")
    raise OppoError(
        f"{root} names no seconds of a stage that are known here ({', '.join(by_name)}):"
        f" {_perhaps_seconds(records)}"
    )


def _perhaps_seconds(records: Sequence[tuple[Path, list[Figures]]]) -> str:
    """What to do about a log without known seconds."""
    names = {name: None for _, found in records for _, figures in found for name in figures}
    likely = sorted((name for name in names if _SECONDS_LIKE.search(name)), key=len)[:_SHOWN_NAMES]
    if likely:
        return (
            "name them with --field timing_s/gen=NAME, in Python with fields={'timing_s/gen': NAME}; by its"
            f" name one of {', '.join(likely)} may hold seconds"
        )
    some = ", ".join(list(names)[:_SHOWN_NAMES])
    return (
        f"none of its {len(names)} figures ({some}) is of seconds by its name, as in a log that ends before"
        " its first step, or of a trainer that does not time its steps (TRL's under Unsloth); give seconds of"
        " another name with --field timing_s/gen=NAME, in Python with fields={'timing_s/gen': NAME}"
    )


def _covers(names: LogNames, present: set[str]) -> Covers:
    """Stages of each column of seconds that is there."""
    covers: Covers = {}
    apart = {stage for stage in STAGES if timing(stage) in present}
    for timed in names.stages:
        column = timed.column
        if column in present and column not in covers:
            covers[column] = (*timed.covers, *(stage for stage in timed.also if stage not in apart))
    for column in sorted(present - covers.keys()):
        stages = stages_in(column)
        if column.startswith("timing_s/") and set(stages) <= set(STAGES[:-1]):
            covers[column] = stages
    # A metric of several stages counts only where its parts are not named. Beside some of them their seconds
    # would count twice; what else it holds is then of the rest of the step, but for generation.
    single = {stages[0] for column, stages in covers.items() if "+" not in column}
    return {
        column: stages
        for column, stages in covers.items()
        if "+" not in column or not set(stages) & single or "gen" in set(stages) - single
    }


def _seconds(figures: Mapping[str, float], names: LogNames) -> dict[str, float]:
    found: dict[str, float] = {}
    for timed in names.stages:
        column = timed.column
        value = _figure(figures, timed.names)
        if value is not None and column not in found:
            found[column] = value + sum(_figure(figures, (name,)) or 0.0 for name in timed.plus)
    for column, wanted in zip(SECONDS_OF_STEP, (names.step, names.testing, names.saving), strict=True):
        if (value := _figure(figures, wanted)) is not None:
            found[column] = value
    return found


def _known(record: Figures, names: LogNames, given: Mapping[str, str]) -> tuple[int | None, dict[str, float]]:
    """The figures of a line under our names."""
    step, figures = record
    found = _seconds(figures, names)
    importer = None if names.importer == "generic" else find_importer(names.importer).metrics
    if importer is not None:
        lengths = chosen(figures, importer, {})
        found |= {LENGTH_FIGURES[name]: value for name, value in lengths.items() if name in LENGTH_FIGURES}
    if names.sequences is not None:
        found |= _of_sequences(figures, *names.sequences)
    for column, wanted in names.figures.items():
        if (value := _figure(figures, wanted)) is not None:
            found[column] = value
    for column, name in given.items():
        if (value := first_figure(figures, (name,))) is None:
            continue
        if column == STEP:
            step = int(value)
        else:
            found[column] = value
    return (None if _UPDATES in figures and not found else step), found


def _of_sequences(figures: Mapping[str, float], whole: str, prompt: str) -> dict[str, float]:
    """Mean lengths of responses and prompts, and the longest response, whose own prompt is not known: that of
    a mean one, but no more beyond that of the longest than a scenario's maximum allows for."""

    def of(ending: str) -> float | None:
        return next((value for name, value in figures.items() if name.endswith(ending)), None)

    both, before = of(f"{whole}/avg"), of(f"{prompt}/avg")
    if both is None or before is None or both <= before:
        return {}
    found = {LENGTH_MEAN: both - before, PROMPT_LENGTH_MEAN: before}
    longest, longest_prompt = of(f"{whole}/max"), of(f"{prompt}/max")
    if longest is not None and longest_prompt is not None and longest > longest_prompt:
        most = min(longest - before, (longest - longest_prompt) * (1.0 + LENGTH_SLACK))
        found[LENGTH_MAX] = max(found[LENGTH_MEAN], most)
    return found


def _figure(figures: Mapping[str, float], names: Sequence[str]) -> float | None:
    plain = [name for name in names if not name.startswith("*")]
    value = first_figure(figures, plain, PREFIXES)
    if value is not None:
        return value
    for ending in (name[1:] for name in names if name.startswith("*")):
        endings = (ending, ending.replace("/", "_"))  # exported files of TensorBoard
        found = [figure for name, figure in figures.items() if name.endswith(endings)]
        if found:
            return sum(found)
    return None
