"""Big CSV files of serving traces: a few columns, a block in memory at a time."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oppo_sim.errors import OppoError
from oppo_sim.files import file_errors
from oppo_sim.traces.config import MAX_LENGTH
from oppo_sim.traces.importers.parquet_rows import csv_rows
from oppo_sim.traces.importers.places import Place

if TYPE_CHECKING:
    import pyarrow as pa

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
