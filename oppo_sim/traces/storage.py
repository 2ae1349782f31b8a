"""Reading and writing traces: Parquet and CSV with one schema."""

import csv as text_csv
import gzip
import io
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from oppo_sim.columns import TRACE_COLUMNS, TURN_LENGTHS
from oppo_sim.errors import OppoError
from oppo_sim.files import file_errors, new_file
from oppo_sim.traces.schema import FORMAT, FORMAT_KEY, TEXT_COLUMNS, check_frame, checked_frame
from oppo_sim.unpacking import check_gzip, check_parquet, damage_not_disk

SUFFIXES: Final = (".parquet", ".csv", ".csv.gz")
_BLOCK_BYTES: Final = 8 << 20


def load_trace(path: str | Path) -> pd.DataFrame:
    """The rollouts of a ``.parquet``, ``.csv`` or ``.csv.gz`` file, one row each, checked; columns as
    ``schema.checked_frame``.

    ``prompt_tokens`` and ``response_tokens`` are accepted for ``prompt_length`` and ``response_length``. Rows
    keep the file's order; zero lengths and aborted rows stay as they are. Raises OppoError naming file, row
    and column.
    """
    path = Path(path)
    kind = suffix_of(path)
    with file_errors(path), path.open("rb") as file:
        if not file.read(1):
            raise OppoError(f"{path} is empty: give a trace with a header and at least one rollout")
    if kind == ".parquet":
        return checked_frame(read_parquet(path, FORMAT_KEY, FORMAT), str(path))
    return checked_frame(_read_csv(path), str(path))


def save_trace(frame: pd.DataFrame, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a trace by the suffix of ``path``; it is checked first, and appears whole or not at all.

    Columns that are missing throughout are left out. Raises OppoError for a bad frame or suffix, an existing
    file, or the disk.
    """
    path = Path(path)
    kind = suffix_of(path)
    good = check_frame(frame)
    if TURN_LENGTHS in good.columns and kind != ".parquet":
        raise OppoError(f"{path} cannot hold turns, which are lists: give it a name that ends in .parquet")
    good = good.drop(columns=[name for name in TRACE_COLUMNS if good[name].isna().all()])
    table = pa.Table.from_pandas(good, preserve_index=False).replace_schema_metadata({FORMAT_KEY: FORMAT})
    with new_file(path, overwrite=overwrite) as partial:
        if kind == ".parquet":
            write_parquet(table, partial)
        else:
            _write_csv(table, partial, compressed=kind == ".csv.gz")


def suffix_of(path: Path) -> str:
    """The trace format of a file name. Raises OppoError for another one."""
    for suffix in SUFFIXES:
        if path.name.endswith(suffix):
            return suffix
    raise OppoError(
        f"{path} is no trace file by its name: it must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]};"
        " 'oppo trace import' makes one of JSON lines and of what frameworks write"
    )


def write_parquet(table: pa.Table, path: Path) -> None:
    """Zstandard-compressed Parquet."""
    pq.write_table(table, path, compression="zstd", compression_level=9)


def read_parquet(path: Path, format_key: bytes, known_format: str) -> pa.Table:
    """A Parquet file; one that names another format is refused. Raises OppoError."""
    try:
        with file_errors(path), damage_not_disk(), pq.ParquetFile(path) as file:
            check_parquet(path, file)
            table = file.read()
    except (pa.ArrowException, ValueError) as error:
        raise OppoError(
            f"{path} is not a readable Parquet file ({str(error).splitlines()[0]}): write it again"
        ) from None
    named = (table.schema.metadata or {}).get(format_key, known_format.encode()).decode(errors="replace")
    if named != known_format:
        raise OppoError(
            f"{path} has format {named} but this version reads {known_format}: update the package, or convert"
            " the file"
        )
    return table


def _read_csv(path: Path) -> pa.Table:
    _check_csv(path)
    convert = csv.ConvertOptions(
        column_types=dict.fromkeys(TEXT_COLUMNS, pa.large_string()), timestamp_parsers=["@never@"]
    )
    read = csv.ReadOptions(block_size=_BLOCK_BYTES)
    try:
        return csv.read_csv(path, read, csv.ParseOptions(newlines_in_values=True), convert)
    except pa.ArrowInvalid as error:
        _refuse_other_encodings(path)
        _refuse_ragged(path)
        # A column looked like numbers at first and later holds something else: read it as text, so that the
        # check can name the row.
        return _read_csv_as_text(path, error)
    except (pa.ArrowException, OSError) as error:
        raise OppoError(
            f"{path} is not a readable CSV file ({str(error).splitlines()[0]}): write it again"
        ) from None


_LONGEST_HEADER: Final = 1 << 20
_MOST_COLUMNS: Final = 10_000


def _check_csv(path: Path) -> None:
    """Columns take memory before a row is read, and little packed data much when it is unpacked."""
    packed = path.name.endswith(".gz")
    with file_errors(path):
        try:
            with gzip.open(path) if packed else path.open("rb") as file:
                header = file.readline(_LONGEST_HEADER)
            if packed:
                check_gzip(path)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise OppoError(f"{path} is not a readable CSV file ({error}): write it again") from None
    _refuse_not_utf8(path, header, 1)
    _refuse_other_separators(path, header)
    if len(header) == _LONGEST_HEADER or header.count(b",") >= _MOST_COLUMNS:
        raise OppoError(
            f"{path} begins with a header of more than {_MOST_COLUMNS:,} columns: is it the right file?"
        )


def _refuse_other_separators(path: Path, header: bytes) -> None:
    """As a spreadsheet writes them where a comma is the mark of decimals."""
    for mark, name in ((b";", "semicolons"), (b"\t", "tabs")):
        if mark in header and b"," not in header:
            raise OppoError(f"{path} has {name} between its columns: write it with commas")


def _refuse_other_encodings(path: Path) -> None:
    with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
        for number, line in enumerate(file, 1):
            _refuse_not_utf8(path, line, number)


def _refuse_not_utf8(path: Path, line: bytes, number: int) -> None:
    try:
        line.decode()
    except UnicodeDecodeError:
        raise OppoError(f"{path}, line {number}, is not UTF-8 text: save the file as UTF-8") from None


def _refuse_ragged(path: Path) -> None:
    """Name the first row that has more or fewer values than the header."""
    ragged: list[Any] = []

    def note(row: Any) -> str:
        ragged.append(row)
        return "error"

    with suppress(pa.ArrowInvalid):
        # Only a single thread counts rows.
        csv.read_csv(
            path,
            csv.ReadOptions(use_threads=False),
            csv.ParseOptions(newlines_in_values=True, invalid_row_handler=note),
        )
    if ragged:
        row = ragged[0]
        values = f"{row.actual_columns} values but the header names {row.expected_columns} columns"
        raise OppoError(f"{path}, data row {row.number - 1}, has {values}: correct the row")


def _read_csv_as_text(path: Path, first: Exception) -> pa.Table:
    reason = str(first).splitlines()[0]
    try:
        with csv.open_csv(path, parse_options=csv.ParseOptions(newlines_in_values=True)) as reader:
            names = reader.schema.names
        convert = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.large_string()))
        return csv.read_csv(
            path, parse_options=csv.ParseOptions(newlines_in_values=True), convert_options=convert
        )
    except pa.ArrowInvalid:
        raise OppoError(
            f"{path} is not a readable CSV file ({reason}): write it again, as UTF-8 with commas"
        ) from None


def _write_csv(table: pa.Table, path: Path, *, compressed: bool) -> None:
    def write(style: str) -> None:
        with path.open("wb") as raw:
            options = csv.WriteOptions(include_header=False, quoting_style=style)
            if not compressed:
                raw.write(header)
                csv.write_csv(table, raw, options)
                return
            # No time stamp: the same rows give the same bytes.
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed:
                packed.write(header)
                csv.write_csv(table, packed, options)

    line = io.StringIO()
    text_csv.writer(line, lineterminator="\n").writerow(table.column_names)
    header = line.getvalue().encode()

    try:
        write("none")
    except pa.ArrowInvalid:
        write("needed")  # some text holds a comma or a quote
