"""Rows of a Parquet or CSV file as records, a batch in memory at a time."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oppo_sim.errors import OppoError
from oppo_sim.files import file_errors
from oppo_sim.traces.importers.lines import raw_lines
from oppo_sim.traces.importers.places import Place

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS: Final = 2048


def parquet_schema(path: Path) -> "pa.Schema":
    """Raises OppoError if the file is no Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with file_errors(path):
            return pq.read_schema(path)
    except (pa.ArrowException, ValueError) as error:
        raise _unreadable(path, error) from None


def parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[Place, dict[str, Any]]]:
    """(place, record) of every row, these columns only. Raises OppoError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with file_errors(path), pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS, columns=list(columns)):
                for record in batch.to_pylist():
                    number += 1
                    yield Place(path, number, "row"), record
    except (pa.ArrowException, ValueError) as error:
        raise _unreadable(path, error) from None


def csv_rows(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """(place, record) of every row of a CSV file, plain or gzipped; empty values are None. Raises
    OppoError."""
    lines = (
        line.decode("utf-8-sig" if number == 0 else "utf-8", "replace")
        for number, line in enumerate(raw_lines(path))
    )
    rows = csv.reader(lines)
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
    except csv.Error as error:
        raise Place(path, rows.line_num).error(f"this is no CSV ({error}): correct the line") from None


def _unreadable(path: Path, error: Exception) -> OppoError:
    return OppoError(
        f"{path} is not a readable Parquet file ({str(error).splitlines()[0][:120]}): copy it again"
    )
