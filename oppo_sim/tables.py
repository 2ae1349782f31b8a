"""Tables as files and as columns: Parquet written piece by piece or whole, read back, numbers taken out."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self

import numpy as np
from numpy.typing import NDArray

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.files import make_durable, partial_path, reading, whole_file, write_errors
from oppo_sim.unpacking import damage_not_disk

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

ROW_GROUP_ROWS: Final = 131_072
"""Rows held in memory before they become a row group."""

COMPRESSION: Final = "zstd"

_KNOWN_TYPES: Final[Mapping[str, str]] = (
    dict.fromkeys(c.ROLLOUT_COLUMNS, "int64")
    | dict.fromkeys((c.FINISH_REASON, c.SOURCE), "string")
    | dict.fromkeys((c.ADMITTED_S, c.FINISHED_S, c.SCORED_S, c.REWARD), "double")
)


class ParquetTable:
    """Rows appended in pieces, zstd-compressed; the file appears under its name at ``close()``.

    Until then, and after a failure, what was written lies in ``<name>.partial``. As a context manager it
    closes at the end of the block, or gives up (the partial file stays) if the block raised.
    """

    def __init__(
        self,
        path: str | Path,
        columns: Sequence[str] | Mapping[str, str],
        *,
        row_group_rows: int = ROW_GROUP_ROWS,
    ) -> None:
        """``columns`` are names in order, or a mapping of names to Arrow types (``int64``, ``double``,
        ``string``).

        Names without a type have the one this project gives them (rollout columns), else that of the first
        row group (``double`` if that has no value). Raises OppoError when the file cannot be opened.
        """
        self.path = Path(path)
        self._types: dict[str, str | None] = (
            dict(columns)
            if isinstance(columns, Mapping)
            else {name: _KNOWN_TYPES.get(name) for name in columns}
        )
        self._row_group_rows = row_group_rows
        self._pieces: list[Mapping[str, Any]] = []
        self._pending_rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._schema: pa.Schema | None = None
        self._closed = False
        with write_errors(self.path):
            self._file: BinaryIO = partial_path(self.path).open("wb")

    def append(self, rows: Mapping[str, Any]) -> None:
        """Add rows: a numpy array or list per column, all of one length, None or NaN where a value is
        missing.

        Raises OppoError for wrong columns, unequal lengths, values that do not fit the column's type, or a
        full disk.
        """
        if self._closed:
            raise OppoError(f"{self.path} is closed already: append before close()")
        if set(rows) != set(self._types):
            wrong = sorted(set(rows) ^ set(self._types))
            raise OppoError(
                f"rows for {self.path} differ from its columns in {', '.join(wrong)}: give every column, and"
                " no other"
            )
        lengths = {len(values) for values in rows.values()}
        if len(lengths) > 1:
            raise OppoError(
                f"rows for {self.path} have columns of {sorted(lengths)} values: give as many in each"
            )
        # A caller may fill the same arrays again before they are written.
        self._pieces.append({name: copy(values) for name, values in rows.items()})
        self._pending_rows += lengths.pop() if lengths else 0
        if self._pending_rows >= self._row_group_rows:
            self._flush()

    def close(self) -> None:
        """Write what is pending and give the file its name. Raises OppoError when the disk refuses. A second
        call does nothing."""
        if self._closed:
            return
        if self._pending_rows or self._writer is None:
            self._flush()
        assert self._writer is not None
        with self._giving_up_on_failure():
            self._writer.close()
            make_durable(self._file)
            self._file.close()
            os.replace(partial_path(self.path), self.path)
        self._closed = True

    def abandon(self) -> None:
        """Stop without giving the file its name; the partial file stays, readable if the disk still took its
        footer."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._writer is not None:
                self._writer.close()
        except OSError:
            # pyarrow would try again when the writer is collected, with nobody there to hear of it.
            assert self._writer is not None
            self._writer.is_open = False
        with suppress(OSError):
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    # ---- inside --------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        arrays = {name: self._column(name) for name in self._types}
        self._pieces.clear()
        self._pending_rows = 0
        if self._schema is None:
            self._schema = pa.schema([(name, array.type) for name, array in arrays.items()])
        with self._giving_up_on_failure():
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._file, self._schema, compression=COMPRESSION)
            self._writer.write_table(pa.table(arrays, schema=self._schema))

    def _column(self, name: str) -> Any:
        import pyarrow as pa

        if self._schema is not None:
            kind = self._schema.field(name).type
        else:
            known = self._types[name]
            kind = None if known is None else pa.type_for_alias(known)
        try:
            pieces = [pa.array(piece[name], type=kind, from_pandas=True) for piece in self._pieces]
            if kind is None:
                kind = next(
                    (piece.type for piece in pieces if not pa.types.is_null(piece.type)), pa.float64()
                )
                pieces = [piece.cast(kind) for piece in pieces]
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            self.abandon()
            reason = str(error).splitlines()[0]
            raise OppoError(
                f"column '{name}' of {self.path} takes {kind} values ({reason}): give one type throughout"
            ) from error
        return pa.chunked_array(pieces, type=kind)

    @contextmanager
    def _giving_up_on_failure(self) -> Iterator[None]:
        try:
            with write_errors(self.path):
                yield
        except BaseException:
            self.abandon()
            raise


def write_frame(path: Path, frame: "pd.DataFrame") -> None:
    """Write a whole table as Parquet (zstd). A named index becomes the first columns, a nameless one is left
    out. Raises OppoError when the disk refuses."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    named = [level for level in frame.index.names if level is not None]
    table = pa.Table.from_pandas(frame.reset_index(named) if named else frame, preserve_index=False)
    with whole_file(path) as file:
        # Without pandas' own metadata the bytes do not depend on its version.
        pq.write_table(table.replace_schema_metadata(None), file, compression=COMPRESSION)


def read_table(path: Path, mend: str, columns: list[str] | None = None) -> "pd.DataFrame":
    """A Parquet table that this program wrote, or some of its columns. Raises OppoError when it is missing or
    damaged; ``mend`` says what then helps."""
    import pyarrow.parquet as pq

    with reading(path, mend), damage_not_disk():
        frame: pd.DataFrame = pq.ParquetFile(path).read(columns=columns).to_pandas()
    return frame


def numbers(frame: "pd.DataFrame", name: str, what: str) -> NDArray[np.float64]:
    """A column as floats, NaN where a value is missing. ``what`` names the frame in the OppoError for an
    absent column or no rows."""
    if len(frame) == 0:
        raise OppoError(f"the {what} table has no rows: nothing can be shown of it")
    if name not in frame.columns:
        close = get_close_matches(name, map(str, frame.columns), n=1)
        hint = f"did you mean '{close[0]}'?" if close else "oppo_sim.explain(table) names those that it has"
        raise OppoError(f"the {what} table lacks the column '{name}': {hint}")
    return frame[name].to_numpy(dtype=np.float64, na_value=np.nan)


def largest(values: NDArray[np.float64]) -> float:
    """The largest finite value, 0 if there is none."""
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else 0.0
