"""Which files of a log to read, whether they hold rollouts or figures a step, and whose log it is."""

import re
from collections import Counter as Tally
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Final

from oppo_sim.errors import OppoError
from oppo_sim.files import file_errors
from oppo_sim.traces.importers.bare_consoles import refused_console
from oppo_sim.traces.importers.figures import chosen
from oppo_sim.traces.importers.formats import IMPORTERS
from oppo_sim.traces.importers.formats.generic import IMPORTER as GENERIC
from oppo_sim.traces.importers.formats.generic import has_known_length
from oppo_sim.traces.importers.importer import Importer, Peek, peek_at
from oppo_sim.traces.importers.metric_files import PATTERNS as METRIC_PATTERNS
from oppo_sim.traces.importers.metric_files import read_metrics
from oppo_sim.traces.importers.options import ImportOptions
from oppo_sim.traces.importers.reading import Reading
from oppo_sim.traces.importers.rows import plain_name

_MOST_PEEKED: Final = 40
_MOST_FIGURES: Final = 400
OTHER_KIND: Final = "file of another kind"
EMPTY: Final = "empty file"


@dataclass(frozen=True)
class Chosen:
    """Files to read, in order."""

    files: list[Path]
    aggregated: bool
    """They hold figures a step, no rollouts."""
    files_left_out: dict[str, int] = field(default_factory=dict)


def choose_files(importer: Importer, path: Path, options: ImportOptions) -> Chosen:
    """The files of a log. Raises OppoError if there are none that the importer reads."""
    files = files_of(path)
    figures = importer.metrics is not None and bool(importer.metrics.mean or "mean" in options.fields)
    if "mean" in options.fields and figures:
        return Chosen(_metric_files(files, path), True)
    if path.is_file():
        if importer is GENERIC or importer.recognises(peek_at(path)) or not figures:
            return Chosen(files, False)
        named = bool(matching(files, importer.patterns))
        return Chosen(files, not named or bool(_means(path, importer, options)))
    left_out: Tally[str] = Tally()
    kept = _of_format(importer, matching(files, importer.patterns), left_out)
    if importer.select is not None:
        kept, dropped = importer.select(kept)
        left_out.update(dropped)
    if kept:
        return Chosen(kept, False, dict(left_out))
    if figures and (found := _metric_files(files, path)):
        return Chosen(found, True)
    looked = " or ".join(importer.patterns or METRIC_PATTERNS)
    raise OppoError(
        f"{path} holds no file of {importer.name} (looked for {looked}): is it the right folder, and the"
        " right --from?"
    )


def detect(path: Path, options: ImportOptions) -> Importer:
    """The importer whose format the files have. Raises OppoError if there is none, or more than one."""
    files = files_of(path)
    if not files:
        raise OppoError(f"{path} is empty: give a log's file or folder")
    peeks = [peek_at(file) for file in _some(files)]
    found = [each for each in IMPORTERS if any(each.recognises(peek) for peek in peeks)]
    lengths = any(has_known_length(peek.record, peek.columns) for peek in peeks)
    if not found:
        found, whole = _by_figures([peek.path for peek in peeks], options)
        # A mean of several rollouts is a whole number now and then, those of many steps never.
        found = [GENERIC] if lengths and whole else found
    if not found and lengths:
        found = [GENERIC]
    if len(found) == 1:
        return found[0]
    if found:
        raise OppoError(
            f"{path} looks like logs of {' and of '.join(each.name for each in found)}: say which with --from"
        )
    raise refused_console(matching([peek.path for peek in peeks], METRIC_PATTERNS)) or OppoError(
        f"{path} looks like no log that is known here: say whose it is with --from (see 'oppo trace import"
        " --list'), or name its fields with --from generic --field response_length=NAME"
    )


def _some(files: list[Path]) -> list[Path]:
    """Evenly spread, so that a folder of thousands is quickly recognised."""
    if len(files) <= _MOST_PEEKED:
        return files
    return [files[at * len(files) // _MOST_PEEKED] for at in range(_MOST_PEEKED)]


def _of_format(importer: Importer, files: list[Path], left_out: "Tally[str]") -> list[Path]:
    """Those that hold rollouts of the format, or are damaged: their reader says what is wrong."""
    kept = []
    for file in files:
        peek = peek_at(file)
        if importer is GENERIC or importer.recognises(peek) or _damaged(peek):
            kept.append(file)
        else:
            left_out[OTHER_KIND if file.stat().st_size else EMPTY] += 1
    return sorted(kept, key=lambda file: natural(file.as_posix()))


def _damaged(peek: Peek) -> bool:
    return peek.record is None and (bool(peek.text) or (peek.path.suffix == ".parquet" and not peek.columns))


def _metric_files(files: list[Path], path: Path) -> list[Path]:
    return files if path.is_file() else matching(files, METRIC_PATTERNS)


def _by_figures(files: list[Path], options: ImportOptions) -> tuple[list[Importer], bool]:
    """The importers that know a mean length in the files, and whether all of these are whole numbers."""
    known = [each for each in IMPORTERS if each.metrics and each.metrics.mean and not each.metrics_of]
    for file in matching(files, METRIC_PATTERNS):
        means = {each.name: _means(file, each, options) for each in known}
        if found := [each for each in known if means[each.name]]:
            return found, all(mean == int(mean) for each in found for mean in means[each.name])
    return [], False


def _means(file: Path, importer: Importer, options: ImportOptions) -> list[float]:
    """Of the file's first figures."""
    if importer.metrics is None:
        return []
    try:
        first = islice(read_metrics(file, Reading(options)), _MOST_FIGURES)
        lines = [chosen(figures, importer.metrics, options.fields) for _, figures in first]
    except OppoError:
        return []
    return [line["mean"] for line in lines if "mean" in line]


def files_of(path: Path) -> list[Path]:
    """The file, or all below the folder but hidden ones, numbers in order. Raises OppoError."""
    if not path.exists():
        raise OppoError(f"{path} does not exist: check the path")
    if path.is_file():
        return [path]
    with file_errors(path):
        below = {each.relative_to(path): each for each in path.rglob("*") if each.is_file()}
        shown = [name for name in below if not any(part.startswith(".") for part in name.parts)]
        return [below[name] for name in sorted(shown, key=lambda name: natural(name.as_posix()))]


def matching(files: list[Path], patterns: tuple[str, ...]) -> list[Path]:
    """Those whose name (without ``.gz``) matches a pattern."""
    return [file for file in files if any(fnmatchcase(plain_name(file), pattern) for pattern in patterns)]


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key under which ``2.jsonl`` comes before ``10.jsonl``."""
    parts = re.split(r"(\d+)", text)
    return tuple(
        (0, int(part), "") if part.isdecimal() and len(part) < 30 else (1, 0, part) for part in parts if part
    )


def shown_name(file: Path, root: Path) -> str:
    """The name for the provenance: below the folder that was given, never a path of this machine."""
    return file.relative_to(root).as_posix() if root.is_dir() else file.name
