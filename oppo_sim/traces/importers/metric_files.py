"""Per-step figures from metric logs: JSON lines, console output, and what wandb and TensorBoard export.

Every reader yields (step or None, {metric name: value}); None where the log has no step, then the order
counts.
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from oppo_sim.errors import OppoError
from oppo_sim.traces.importers.console_lists import (
    ConsoleDict,
    ConsoleLists,
    ConsolePanel,
    ConsoleTable,
    Printed,
    moved_to,
    with_steps_of_bar,
)
from oppo_sim.traces.importers.event_files import event_figures
from oppo_sim.traces.importers.logged_steps import TRAINED, Figures, by_trained_step
from oppo_sim.traces.importers.places import Place
from oppo_sim.traces.importers.reading import Reading
from oppo_sim.traces.importers.rows import CUT_OFF, json_values, plain_name, raw_lines
from oppo_sim.traces.importers.running_time import running_seconds, running_step, with_seconds_a_step
from oppo_sim.traces.importers.valueless import is_valueless, valueless_of
from oppo_sim.traces.importers.wrapped import unwrapped, wrap_width

PATTERNS: Final = ("*.jsonl", "*.json", "*.csv", "*.tsv", "*.log", "*.txt", "*.out", "*tfevents*", "*.wandb")
STEP_NAMES: Final = ("step", "_step", *TRAINED, "Step", "system/global_step", "system/step")

_NUMBER: Final = r"[+-]?(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_PAIR: Final = re.compile(
    r"""(?<![\w./@-])['"]?([A-Za-z][\w./@-]*)['"]?\s*:\s*(np\.\w+\(|tensor\()?['"]?"""
    rf"""((?>{_NUMBER}))((?>ms|s)?)(?![\w/(<]|[,:]\d)(?(2)(?=['"]?\s*[),]))"""
)
"""Name, what wraps the number, number, unit. A number is taken whole or not at all: 20.5 of ``20.5min`` would
be another one, and so would the 20 of ``20,5`` or ``20:05``."""
_WITH_UNIT: Final = re.compile(r"\s*([^\s]*\d\.?)\s*(ms|s)\s*")
_SEPARATED: Final = re.compile(r"\s*[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?\s*")
"""With separators of thousands."""
_STEP: Final = re.compile(
    r"(?<![\w./@-])(?:step|rollout|perf|iteration)\W{0,3}(\d{1,18})\b(?!\.\d)", re.IGNORECASE
)
"""A name by itself and a whole number: 36 of ``timing_s/step:36.5`` is no step."""
_BEGUN: Final = re.compile(r"\bstep:\d+ - ?[\w/.]*(?::[\w.(]*)?$")
"""A line of a step that was cut off in its first figure."""
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_NO_END: Final = "last number of a file without an end of line, which may have lost digits"
_MOST_LINE: Final = 1 << 20
_HIGHEST: Final = 10**300
_MOST_DIGITS: Final = 400
_DEEPEST: Final = 4
"""Objects inside one another that are looked at."""
_MOST_JSON: Final = 128 << 20


class NoMetrics(OppoError):
    """A file that is well but of another kind; a folder may have some beside its log."""


def read_metrics(path: Path, reading: Reading) -> Iterator[Figures]:
    """The figures of one file, by its name's ending. Raises OppoError naming file and line, NoMetrics for a
    file of another kind."""
    name = plain_name(path)
    if "tfevents" in name:
        yield from event_figures(path, reading)
    elif name.endswith(".wandb"):
        raise NoMetrics(
            f"{path} is wandb's own binary log, which only wandb reads: export the run's history as CSV or"
            " JSON lines, and import that"
        )
    elif name.endswith(".parquet"):
        raise NoMetrics(
            f"{path} is a Parquet table, not a log: write it as CSV, or name the whole folder of a run of"
            " this tool"
        )
    elif name.endswith((".csv", ".tsv")):
        yield from by_trained_step(_csv(path, reading), reading)
    elif name.endswith(".jsonl"):
        lines = (
            _one(value, Place(path, line), reading) for line, value in json_values(path, reading, torn=True)
        )
        yield from by_trained_step(with_seconds_a_step(lines), reading)
    elif name.endswith(".json"):
        yield from by_trained_step(_json(path, reading), reading)
    else:
        yield from console_lines(unwrapped(raw_lines(path), wrap_width(raw_lines(path))), reading)


def console_lines(lines: Iterable[bytes], reading: Reading) -> Iterator[Figures]:
    """Figures in the output of a run: ``step:3 - a/b:1.5 - …``, ``rollout 3: {'a/b': 1.5, …}``, or a list of
    them, or a dictionary of many lines, under the step's heading."""
    yield from with_steps_of_bar(_printed(lines, reading))


def _printed(lines: Iterable[bytes], reading: Reading) -> Iterator[Printed]:
    lists, entries, table, panel = ConsoleLists(), ConsoleDict(), ConsoleTable(), ConsolePanel()
    bar: int | None = None
    steps: int | None = None
    for raw in chain.from_iterable(map(_written_over, lines)):
        if len(raw) > _MOST_LINE:
            continue
        line = _COLOURS.sub("", raw.decode("utf-8", "replace"))
        listed = lists.read(line) or table.read(line) or panel.read(line)
        if listed is not None:
            if listed[1]:
                yield *listed, bar
            continue
        entry_of = entries.step_of(line)
        if (moved := moved_to(line)) is not None:
            bar, steps = moved[0], moved[1] if moved[0] == moved[1] else None
        # The last number of a line without its end may have lost digits, as where a run was stopped.
        whole = len(line) if line.endswith(("\n", "\r")) else len(line) - 1
        figures: dict[str, float] = {}
        for match in _PAIR.finditer(line):
            value = _in_seconds(match)
            # Another process may print into the line: its step is the first that it names.
            known = match[1] in STEP_NAMES and match[1] in figures
            if match.end() <= whole and math.isfinite(value) and not known:
                figures[match[1]] = value
        reading.valueless.update(valueless_of(line))
        cut = _BEGUN.search(line)
        if not (cut or any("/" in name or "length" in name or "len" in name for name in figures)):
            continue
        named = next((figures[name] for name in STEP_NAMES if name in figures), None)
        found = _STEP.search(line)
        if entry_of is not None:
            yield entry_of, figures, bar
        elif named is not None and named == int(named) and named >= 0:
            yield int(named), figures, bar
        else:
            yield int(found.group(1)) if found else None, figures, bar
    yield None, {}, steps


def _written_over(line: bytes) -> list[bytes]:
    """A line as a terminal shows it one after another: a progress bar goes back to the line's beginning."""
    *before, last = line.replace(b"\r\n", b"\n").split(b"\r")
    return [*(each + b"\r" for each in before), last]


def _in_seconds(match: re.Match[str]) -> float:
    value = float(match[3].replace(",", ""))
    return value / 1000.0 if match[4] == "ms" else value


def _one(value: Any, place: Place, reading: Reading) -> Figures:
    if not isinstance(value, dict):
        raise place.error("this is not a JSON object of named metrics: is it the right file?")
    inner = value.get("data")
    named = value
    if isinstance(inner, dict):
        named = {**inner, **{name: value[name] for name in STEP_NAMES if name in value}}
    figures = dict(_numbers(named, reading))
    step = next((figures[name] for name in STEP_NAMES if name in figures), None)
    if step is None and (running := running_step(value)) is not None:
        return running, figures | running_seconds(value, running)
    return (None if step is None else place.whole(step, "step")), figures


def _numbers(named: Mapping[str, Any], reading: Reading, before: str = "") -> Iterator[tuple[str, float]]:
    """Numbers, also as text, of an object and of those inside it: ``{"timing": {"gen": 3}}`` is
    ``timing/gen``."""
    for name, value in named.items():
        if isinstance(value, dict):
            if before.count("/") < _DEEPEST:
                yield from _numbers(value, reading, f"{before}{name}/")
        elif _is_number(value):
            yield before + name, float(value)
        elif isinstance(value, str) and (number := _text_number(value[:_MOST_DIGITS])) is not None:
            yield before + name, number
        elif is_valueless(value):
            reading.valueless[before + name] += 1


def _is_number(value: Any) -> bool:
    if isinstance(value, int) and abs(value) > _HIGHEST:  # more than a float holds
        return False
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _json(path: Path, reading: Reading) -> Iterator[Figures]:
    """A list of objects, a trainer's ``log_history``, TensorBoard's ``[[wall time, step, value], …]``; or
    JSON lines under a wrong name."""
    text = b""
    for line in raw_lines(path):
        text += line
        if len(text) > _MOST_JSON:
            raise OppoError(
                f"{path} holds more than {_MOST_JSON >> 20} MB in one value: write it as JSON lines, an"
                " object a line, and import that"
            )
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if _is_object(text.split(b"\n", 1)[0]):
            for number, each in json_values(path, reading):
                yield _one(each, Place(path, number), reading)
            return
        raise OppoError(f"{path} is no JSON ({str(error).splitlines()[0][:80]}): copy it again") from None
    if isinstance(value, dict):
        value = value.get("log_history", value.get("history"))
    if not isinstance(value, list):
        raise NoMetrics(
            f"{path} holds no list of metrics (a log_history, or a list of objects): is it the right file?"
        )
    for number, each in enumerate(value, start=1):
        place = Place(path, number, "entry")
        if isinstance(each, list):
            if len(each) == 3 and is_valueless(each[2]):
                reading.valueless[tag_of(path)] += 1
                continue
            if len(each) != 3 or not all(_is_number(part) for part in each):
                raise place.error(
                    "this is not [wall time, step, value] as TensorBoard exports: export it again"
                )
            yield place.whole(each[1], "step"), {tag_of(path): float(each[2])}
        else:
            yield _one(each, place, reading)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


class _Lines:
    """Lines of a CSV file as text; whether the last that was read has its end."""

    def __init__(self, path: Path) -> None:
        self._raw = raw_lines(path)
        self.whole = True

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = next(self._raw)
        self.whole = line.endswith((b"\n", b"\r"))
        return line.decode("utf-8-sig", "replace")


def _csv(path: Path, reading: Reading) -> Iterator[Figures]:
    lines = _Lines(path)
    first = next(lines, "")
    delimiter = next((each for each in ";\t" if each in first and "," not in first), ",")
    rows = csv.reader(chain((first,), lines), delimiter=delimiter)
    try:
        yield from _csv_figures(path, rows, lines, reading, decimal="," if delimiter == ";" else ".")
    except csv.Error as error:
        raise Place(path, rows.line_num).error(f"this is no CSV ({error}): correct the line") from None


def _csv_figures(
    path: Path, rows: Iterator[list[str]], lines: _Lines, reading: Reading, decimal: str
) -> Iterator[Figures]:
    header = next(rows, None)
    if header is None:
        return
    if {"run_id", "key", "value", "step"} <= set(header):
        yield from _long_figures(path, header, rows, lines, reading)
        return
    steps = [at for at, name in enumerate(header) if name.strip().strip('"') in STEP_NAMES]
    tensorboard = [name.strip() for name in header] == ["Wall time", "Step", "Value"]
    # wandb names a column 'run - metric' and adds its least and largest value.
    kept = [at for at, name in enumerate(header) if not name.endswith(("__MIN", "__MAX"))]
    kept = [2] if tensorboard else [at for at in kept if header[at].strip()]
    names = [tag_of(path)] * 3 if tensorboard else [name.rsplit(" - ", 1)[-1].strip() for name in header]
    if len({names[at] for at in kept}) < len(kept):
        raise _several_runs(path, [header[at] for at in kept])
    for number, row in enumerate(rows, start=2):
        if not any(row) or row == header:  # again where a second file was put behind the first
            continue
        place = Place(path, number)
        if len(row) < len(header) and not lines.whole:
            reading.left_out[CUT_OFF] += 1
            return
        if len(row) != len(header):
            raise place.error(
                f"there are {len(row)} values but the header names {len(header)}: correct the line"
            )
        figures = {
            names[at]: figure
            for at in kept
            if (figure := _text_number(row[at].replace(decimal, "."))) is not None
        }
        reading.valueless.update(names[at] for at in kept if is_valueless(row[at]))
        if not lines.whole and figures.pop(names[len(header) - 1], None) is not None:
            reading.left_out[_NO_END] += 1
        step = place.whole(row[steps[0]].replace(decimal, "."), "step") if steps and row[steps[0]] else None
        if figures:
            yield step, figures


def _long_figures(
    path: Path, header: Sequence[str], rows: Iterator[list[str]], lines: _Lines, reading: Reading
) -> Iterator[Figures]:
    """What MLflow exports: a row for each figure of each step, metric by metric. Raises OppoError."""
    runs = set[str]()
    found: dict[int, dict[str, float]] = {}
    for number, row in enumerate(rows, start=2):
        if not any(row):
            continue
        if not lines.whole:
            reading.left_out[CUT_OFF if len(row) < len(header) else _NO_END] += 1
            break
        place = Place(path, number)
        if len(row) != len(header):
            raise place.error(
                f"there are {len(row)} values but the header names {len(header)}: correct the line"
            )
        named = dict(zip(header, row, strict=True))
        runs.add(named["run_id"])
        if (value := _text_number(named["value"])) is not None:
            found.setdefault(place.whole(named["step"], "step"), {})[named["key"]] = value
        elif is_valueless(named["value"]):
            reading.valueless[named["key"]] += 1
    if len(runs) > 1:
        shown = ", ".join(sorted(each[:40] for each in runs)[:3])
        raise OppoError(f"{path} has figures of {len(runs)} runs ({shown}): export one run, and fit that")
    yield from sorted(found.items())


def _several_runs(path: Path, header: Sequence[str]) -> OppoError:
    runs = sorted({name.rsplit(" - ", 1)[0].strip() for name in header if " - " in name})
    if len(runs) > 1:
        shown = ", ".join(each[:40] for each in runs[:3])
        return OppoError(f"{path} has columns of {len(runs)} runs ({shown}): export one run, and fit that")
    return OppoError(f"{path} names a column twice: leave one of them out")


def _text_number(text: str) -> float | None:
    """A number, with its unit if it has one: ``850ms``, ``0.85 s``."""
    found = _WITH_UNIT.fullmatch(text)
    value = _real_or_none(text if found is None else found[1])
    return value / 1000.0 if value is not None and found is not None and found[2] == "ms" else value


def _real_or_none(text: str) -> float | None:
    try:
        value = float(text.replace(",", "") if _SEPARATED.fullmatch(text) else text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def tag_of(path: Path) -> str:
    """The metric in the name of an exported file, ``/`` written as ``_``: ``run-x-tag-a_b.csv``."""
    stem = plain_name(path).rsplit(".", 1)[0]
    return stem.split("tag-", 1)[-1]
