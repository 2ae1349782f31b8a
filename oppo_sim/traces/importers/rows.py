"""Rows of a log's files, plain or gzipped: JSON lines, Parquet and CSV, a part in memory at a time."""

import csv as text_csv
import gzip
import json
import sys
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oppo_sim.errors import OppoError
from oppo_sim.files import file_errors
from oppo_sim.traces.config import MAX_LENGTH
from oppo_sim.traces.importers.places import Place
from oppo_sim.traces.importers.reading import Reading
from oppo_sim.unpacking import check_parquet, damage_not_disk, most_unpacked, unpacks_to_too_much

if TYPE_CHECKING:
    import pyarrow as pa

MOST_LINE: Final = 64 << 20
"""Bytes; a rollout with its token ids and their probabilities takes a few millions."""
_GZIP: Final = b"\x1f\x8b\x08"
CUT_OFF: Final = "last line cut off in the middle, as by a run that was stopped"


TORN: Final = "line that is no JSON, as of a run that was killed while it wrote"


def raw_lines(path: Path) -> Iterator[bytes]:
    """Lines with their ends, unpacked if the name ends in ``.gz``. Raises OppoError, also for a line or a
    whole that is too long to be one."""
    with file_errors(path):
        raw, packed = path.open("rb"), path.name.endswith(".gz")
    with raw:
        file = gzip.GzipFile(fileobj=raw) if packed else raw
        with file_errors(path):
            try:
                room, number = most_unpacked(path) if packed else sys.maxsize, 0
                while line := file.readline(MOST_LINE):
                    number, room = number + 1, room - len(line)
                    if number == 1 and line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                        raise OppoError(
                            f"{path} is UTF-16 text, as PowerShell writes: write it as UTF-8 (iconv -f UTF-16"
                            " -t UTF-8)"
                        )
                    if number == 1 and line.startswith(_GZIP):
                        raise OppoError(
                            f"{path} is packed by gzip, and its name does not say so: rename it to"
                            f" {path.name}.gz, or unpack it"
                        )
                    if len(line) == MOST_LINE:
                        raise Place(path, number).error(
                            f"the line is longer than {MOST_LINE >> 20} MB: is it the right file?"
                        )
                    if room < 0:
                        raise unpacks_to_too_much(path)
                    yield line
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise OppoError(
                    f"{path} is not a whole gzip file ({error}): copy it again, or unpack what is there first"
                ) from None


def json_values(path: Path, reading: Reading, *, torn: bool = False) -> Iterator[tuple[int, Any]]:
    """(line from 1, value) of every line that is not blank. A last line cut off in the middle is left out and
    counted; with ``torn`` any other line that is no JSON, too, as long as they are fewer than the rest.

    Raises OppoError naming file and line for another line that is no JSON.
    """
    read = left_out = 0
    for number, line in enumerate(raw_lines(path), start=1):
        stripped = line.strip()
        if not stripped:
            continue
        try:
            value = json.loads(stripped)
        except (ValueError, RecursionError) as error:
            if not line.endswith(b"\n") and number > 1:
                reading.left_out[CUT_OFF] += 1
                return
            left_out += 1
            if torn and left_out <= read:
                reading.left_out[TORN] += 1
                continue
            reason = str(error).splitlines()[0][:80]
            raise Place(path, number).error(
                f"this is no JSON ({reason}): correct the line, or remove it"
            ) from None
        read += 1
        yield number, value


def json_records(path: Path, reading: Reading) -> Iterator[tuple[Place, dict[str, Any]]]:
    """As ``json_values``, of a file whose every line is an object. Raises OppoError."""
    for number, value in json_values(path, reading):
        place = Place(path, number)
        if not isinstance(value, dict):
            raise place.error("this is not a JSON object with named fields: is it the right file?")
        yield place, value


def plain_name(path: Path) -> str:
    """The file's name without ``.gz``."""
    return path.name.removesuffix(".gz")


_BATCH_ROWS: Final = 512


def parquet_schema(path: Path) -> "pa.Schema":
    """Raises OppoError if the file is no Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with file_errors(path), damage_not_disk():
            return pq.read_schema(path)
    except (pa.ArrowException, ValueError) as error:
        raise _unreadable(path, error) from None


def parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[Place, dict[str, Any]]]:
    """(place, record) of every row, these columns only. Raises OppoError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with file_errors(path), damage_not_disk(), pq.ParquetFile(path) as file:
            check_parquet(path, file)
            for batch in file.iter_batches(_BATCH_ROWS, columns=list(columns)):
                for record in batch.to_pylist():
                    number += 1
                    yield Place(path, number, "row"), record
    except (pa.ArrowException, ValueError) as error:
        raise _unreadable(path, error) from None


def csv_rows(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """(place, record) of every row of a CSV file; empty values are None. Raises OppoError."""
    lines = (
        line.decode("utf-8-sig" if number == 0 else "utf-8", "replace")
        for number, line in enumerate(raw_lines(path))
    )
    rows = text_csv.reader(lines)
    try:
        header = [name.strip() for name in next(rows, [])]
        for row in rows:
            if not row:
                continue
            place = Place(path, rows.line_num)
            if len(row) != len(header):
                raise place.error(
                    f"there are {len(row)} values but the header names {len(header)}: correct the line"
                )
            yield place, {name: value or None for name, value in zip(header, row, strict=True)}
    except text_csv.Error as error:
        raise Place(path, rows.line_num).error(f"this is no CSV ({error}): correct the line") from None


def _unreadable(path: Path, error: Exception) -> OppoError:
    return OppoError(
        f"{path} is not a readable Parquet file ({str(error).splitlines()[0][:120]}): copy it again"
    )


_BLOCK_BYTES: Final = 8 << 20
Check = Callable[[Place, Any], object]


def csv_tables(path: Path, checks: Mapping[str, tuple[str, Check]]) -> "Iterator[pa.Table]":
    """Blocks of the columns named by ``checks``: for each its kind (``whole``, ``real`` or ``text``), and the
    check that names a bad line.

    Raises OppoError for a missing column, or naming the line of a value of another kind.
    """
    import pyarrow as pa
    from pyarrow import csv

    kinds = {"whole": pa.int64(), "real": pa.float64(), "text": pa.large_string()}
    types = {name: kinds[kind] for name, (kind, _) in checks.items()}
    convert = csv.ConvertOptions(column_types=types, include_columns=list(types), strings_can_be_null=True)
    with file_errors(path):
        empty = path.stat().st_size == 0
    if empty:
        return
    try:
        with (
            file_errors(path),
            csv.open_csv(path, csv.ReadOptions(block_size=_BLOCK_BYTES), convert_options=convert) as reader,
        ):
            for batch in reader:
                block = pa.Table.from_batches([batch])
                if any(_impossible(block[name]) for name, (kind, _) in checks.items() if kind == "whole"):
                    _name_the_line(path, checks)
                yield block
    except (pa.ArrowInvalid, pa.ArrowKeyError, KeyError) as error:
        _name_the_line(path, checks)
        raise OppoError(
            f"{path} is not a readable CSV file ({str(error).splitlines()[0][:120]}): copy it again"
        ) from None


def _impossible(lengths: "pa.ChunkedArray") -> bool:
    """Whether a length is missing, negative or absurdly large."""
    import pyarrow.compute as pc

    least, most = pc.min_max(lengths).as_py().values()
    return bool(lengths.null_count) or (least is not None and (least < 0 or most > MAX_LENGTH))


def _name_the_line(path: Path, checks: Mapping[str, tuple[str, Check]]) -> None:
    """Read the file slowly, up to the value that cannot be."""
    for place, record in csv_rows(path):
        for name, (_, check) in checks.items():
            if name not in record:
                raise OppoError(
                    f"{path} has no column '{name}' (columns: {', '.join(list(record)[:12])}): is it the"
                    " right file?"
                )
            check(place, record[name])


def whole(name: str) -> tuple[str, Check]:
    """A column of token counts."""
    return "whole", lambda place, value: place.whole(value, name, MAX_LENGTH)


def real(name: str) -> tuple[str, Check]:
    """A column of numbers."""
    return "real", lambda place, value: place.real(value, name)


def text() -> tuple[str, Check]:
    """A column of text."""
    return "text", lambda _place, value: value
