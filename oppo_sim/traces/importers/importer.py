"""What an importer is: the files it reads, how it recognises them, and its reader."""

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oppo_sim.errors import OppoError
from oppo_sim.traces.importers.options import MetricNames
from oppo_sim.traces.importers.reading import Reading, Rollout
from oppo_sim.traces.importers.rows import plain_name, raw_lines

if TYPE_CHECKING:
    import pyarrow as pa

_HEAD_LINES: Final = 400


@dataclass(frozen=True)
class Peek:
    """The beginning of a file, by which a format is recognised."""

    path: Path
    record: Any = None
    """First value of a JSON lines file."""
    columns: tuple[str, ...] = ()
    """Of a CSV or Parquet file."""
    text: str = ""
    """First lines of a text file."""

    def has(self, *names: str) -> bool:
        """Whether the first record has all these fields."""
        return isinstance(self.record, dict) and all(name in self.record for name in names)


def _nothing(path: Path, _reading: Reading) -> "Iterator[Rollout | pa.Table]":
    raise OppoError(f"{path} holds no rollouts that this importer reads")


@dataclass(frozen=True)
class Importer:
    """One framework's or serving system's logs."""

    name: str
    what: str
    """What it reads, for the list."""
    lengths: str
    """Where lengths come from: logged, token ids, text (tokenizer), or fitted."""
    example: str
    aliases: tuple[str, ...] = ()
    """Other names under which it is found."""
    patterns: tuple[str, ...] = ()
    """Names of files with rollouts, in a folder."""
    fields: tuple[str, ...] = ()
    """Of the first record of a JSON lines file with rollouts, by which it is recognised."""
    columns: tuple[str, ...] = ()
    """Likewise, of a CSV or Parquet file."""
    looks: Callable[[Peek], bool] | None = None
    """Likewise, where names alone do not tell."""
    read: "Callable[[Path, Reading], Iterator[Rollout | pa.Table]]" = _nothing
    confined: bool = False
    """Files are programs (pickles): ``read`` is called in a process of its own, with limits."""
    step_name: str | None = None
    """Regular expression with one group, the step in a file's name: files outside --steps are not opened."""
    find_step: Callable[[Path], int | None] | None = None
    """Likewise, where the name alone does not tell."""
    select: Callable[[list[Path]], tuple[list[Path], dict[str, int]]] | None = None
    """Which of the matching files to read, and how many are left out for which reason."""
    metrics: MetricNames | None = None
    """Names of per-step figures, where rollouts are not logged."""
    averages: bool = False
    """A line of metrics is their mean over the steps since the line before."""
    metrics_of: str = ""
    """Importer that has the same ones, for whose a log is taken where nothing is said."""
    notes: tuple[str, ...] = field(default=())
    """What is not known from these logs."""

    def recognises(self, peek: Peek) -> bool:
        """Whether a file holds rollouts of this format."""
        if self.looks is not None:
            return self.looks(peek)
        if self.columns:
            return set(self.columns) <= set(peek.columns)
        return bool(self.fields) and peek.has(*self.fields)

    def step_of(self, path: Path) -> int | None:
        """The step in a file's name or folder; None where there is none."""
        if self.find_step is not None:
            return self.find_step(path)
        found = re.fullmatch(self.step_name, plain_name(path)) if self.step_name else None
        return int(found.group(1)) if found else None


def peek_at(path: Path) -> Peek:
    """The beginning of a file; its path alone if it cannot be understood. Raises OppoError if unreadable."""
    name = plain_name(path)
    if name.endswith(".parquet"):
        return Peek(path, columns=_parquet_columns(path))
    if name.endswith((".pt", ".pth", ".pkl", ".pickle", ".wandb")) or "tfevents" in name:
        return Peek(path)
    lines = []
    for line in raw_lines(path):
        lines.append(line)
        if len(lines) >= _HEAD_LINES or (len(lines) == 1 and name.endswith((".jsonl", ".csv"))):
            break
    if not lines:
        return Peek(path)
    first = next((line for line in lines if line.strip()), b"")
    if name.endswith(".csv"):
        try:
            header = next(csv.reader([first.decode("utf-8-sig", "replace")]), [])
        except csv.Error:  # a header of a hundred thousand letters; who reads it says so
            return Peek(path)
        return Peek(path, columns=tuple(column.strip() for column in header))
    try:
        return Peek(path, record=json.loads(first), text=first[:100_000].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return Peek(path, text=b"".join(lines)[:100_000].decode("utf-8", "replace"))


def _parquet_columns(path: Path) -> tuple[str, ...]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return tuple(pq.read_schema(path).names)
    except (pa.ArrowException, OSError, ValueError):
        return ()
