"""The one schema of a length trace, checked: the same columns and types whatever the file format."""

import hashlib
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from oppo_sim.columns import (
    FINISH_REASON,
    PROMPT_ID,
    PROMPT_LENGTH,
    RECORDED_REASONS,
    RESPONSE_LENGTH,
    REWARD,
    SAMPLE_ID,
    SOURCE,
    STEP,
    TRACE_COLUMNS,
    TURN_COLUMNS,
)
from oppo_sim.errors import OppoError
from oppo_sim.traces.config import MAX_LENGTH
from oppo_sim.traces.turns import checked_turns, hash_turns

FORMAT: Final = "oppo-trace/1"
FORMAT_KEY: Final = b"oppo_trace_format"
ALIASES: Final = {"prompt_tokens": PROMPT_LENGTH, "response_tokens": RESPONSE_LENGTH}
"""Names that other tables give to our columns."""

TEXT_COLUMNS: Final = (SOURCE, PROMPT_ID, SAMPLE_ID, FINISH_REASON)
WHOLE_COLUMNS: Final = (STEP, PROMPT_LENGTH, RESPONSE_LENGTH)
_MISSING: Final = ("", "NA", "N/A", "NaN", "nan", "null", "None")
_HIGHEST: Final = {PROMPT_LENGTH: MAX_LENGTH, RESPONSE_LENGTH: MAX_LENGTH, STEP: 2**53}
_LARGEST_REWARD: Final = 1e100
"""Sums of larger ones are no numbers."""


def checked_frame(table: pa.Table, where: str) -> pd.DataFrame:
    """The rows of ``table`` as a frame with ``TRACE_COLUMNS`` in order, ``TURN_COLUMNS`` where it has them,
    then further columns as they are.

    ``source``, ``prompt_id``, ``sample_id`` and ``finish_reason`` are strings, ``step`` and ``prompt_length``
    nullable ``Int64``, ``response_length`` ``int64``, ``reward`` ``float64``; what is unknown is missing.
    ``where`` names the origin in errors, in which data rows count from 1 (the header of a CSV file is none).

    Raises OppoError naming row and column for a missing ``response_length``, a value that is not a whole
    number, is negative or absurdly large, or a ``finish_reason`` that does not exist.
    """
    columns = _columns_by_name(table, where)
    rows = table.num_rows
    if rows == 0:
        raise OppoError(f"{where} has no rows: give a trace with at least one rollout")
    place = _Place(where)
    frame: dict[str, Any] = {}
    for name in TRACE_COLUMNS:
        column = columns.pop(name, None)
        if name in TEXT_COLUMNS:
            frame[name] = _text(column, name, rows, place)
        elif name in WHOLE_COLUMNS:
            frame[name] = _whole(column, name, rows, place)
        else:
            frame[name] = _real(column, name, rows, place)
    lengths = frame[RESPONSE_LENGTH]
    if lengths.hasnans:
        raise OppoError(
            f"{place.of(lengths.isna().to_numpy(), RESPONSE_LENGTH)} is empty: every rollout needs its"
            " response length"
        )
    frame[RESPONSE_LENGTH] = lengths.astype("int64")
    _check_reasons(frame[FINISH_REASON], place)
    given: dict[str, Any] = {name: columns.pop(name) for name in TURN_COLUMNS if name in columns}
    if given:
        frame |= checked_turns(given, frame[RESPONSE_LENGTH].to_numpy(), where)
    for name, column in columns.items():
        frame[name] = column.to_pandas()
    return pd.DataFrame(frame)


def check_frame(frame: pd.DataFrame, where: str = "the trace") -> pd.DataFrame:
    """A frame of a caller, checked like a file. Raises OppoError as ``checked_frame``."""
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise OppoError(
            f"{where} has a column of mixed types ({str(error).splitlines()[0]}): give one type a column"
        ) from None
    return checked_frame(table, where)


@dataclass(frozen=True)
class _Place:
    where: str

    def of(self, bad: Any, column: str) -> str:
        """'file, data row 3, column x' for the first True of ``bad``."""
        return self.at(int(bad.argmax()), column)

    def at(self, row: int, column: str) -> str:
        return f"{self.where}, data row {row + 1}, column {column}"


def _columns_by_name(table: pa.Table, where: str) -> dict[str, pa.ChunkedArray]:
    columns: dict[str, pa.ChunkedArray] = {}
    for given, column in zip(table.column_names, table.columns, strict=True):
        if given.startswith("__index_level_"):
            continue
        name = ALIASES.get(given, given)
        if name in columns:
            raise OppoError(
                f"{where} has column {name} twice{f' (once as {given})' if name != given else ''}: remove one"
            )
        columns[name] = column
    if RESPONSE_LENGTH not in columns:
        given_names = [name for name in table.column_names if not name.startswith("__index_level_")]
        shown = ", ".join(given_names[:8]) or "none"
        others = [name for name in given_names if ALIASES.get(name, name) not in TRACE_COLUMNS]
        close = [name for name in get_close_matches(RESPONSE_LENGTH, others, n=1) if name.isidentifier()]
        hint = (
            f"rename '{close[0]}'"
            if close
            else "add it (response_tokens is accepted too), or bring the file in with oppo trace import,"
            " which knows other names; CSV columns are separated by commas"
        )
        raise OppoError(f"{where} has no column {RESPONSE_LENGTH} (columns: {shown}): {hint}")
    for name in columns:
        known = (*TRACE_COLUMNS, *TURN_COLUMNS)
        if name in known:
            continue
        # A misspelt optional column would otherwise be ignored in silence.
        meant = get_close_matches(name, known, n=1, cutoff=0.85)
        if meant and meant[0] not in columns:
            raise OppoError(
                f"{where} has an unknown column '{name}': did you mean '{meant[0]}'? rename it (or give it a"
                " less similar name)"
            )
    return columns


def _numbers(column: pa.ChunkedArray, name: str, place: _Place) -> pa.ChunkedArray:
    """The column as int64 or float64, text parsed."""
    column = _decoded(column)
    kind = column.type
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return column.cast(pa.int64())
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_uint64(kind):
        return column.cast(pa.float64(), safe=False)
    if pa.types.is_null(kind):
        return column.cast(pa.int64())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = pc.if_else(pc.is_in(column, value_set=pa.array(_MISSING, column.type)), None, column)
        try:
            return column.cast(pa.float64())
        except pa.ArrowInvalid:
            pass
        row = _first_unparsable(column)
        text = str(column[row].as_py())[:40]
        raise OppoError(f"{place.at(row, name)} is '{text}' but must be a number: correct the value")
    raise OppoError(f"{place.at(0, name)} is of type {kind} but must be a number: store it as one")


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def _first_unparsable(column: pa.ChunkedArray) -> int:
    """Row of the first text that is no number; by halving, since the parser does not say which."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            column.slice(low, middle - low).cast(pa.float64())
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def _whole(column: pa.ChunkedArray | None, name: str, rows: int, place: _Place) -> Any:
    if column is None:
        return pd.Series(pd.array([pd.NA], dtype="Int64").repeat(rows))
    numbers = _numbers(column, name, place)
    missing = numbers.is_null(nan_is_null=True).to_numpy()
    values = numbers.fill_null(0).to_numpy()
    if values.dtype.kind == "f":
        values = np.where(missing, 0.0, values)
        broken = ~(np.isfinite(values) & (values == np.floor(values)))
        if broken.any():
            raise OppoError(
                f"{place.of(broken, name)} is {values[broken.argmax()]:g} but must be a whole number: correct"
                " the value"
            )
    negative = values < 0
    if negative.any():
        raise OppoError(
            f"{place.of(negative, name)} is {_shown(values[negative.argmax()])} but must not be negative:"
            " correct the value"
        )
    huge = values > _HIGHEST[name]
    if huge.any():
        raise OppoError(
            f"{place.of(huge, name)} is {_shown(values[huge.argmax()])}, above {_HIGHEST[name]:,}: correct"
            " the value, or leave the row out"
        )
    return pd.Series(pd.arrays.IntegerArray(values.astype("int64"), missing))


def _real(column: pa.ChunkedArray | None, name: str, rows: int, place: _Place) -> Any:
    if column is None:
        return pd.Series(np.full(rows, np.nan))
    numbers = _numbers(column, name, place).cast(pa.float64(), safe=False)
    values = np.where(numbers.is_null(nan_is_null=True).to_numpy(), np.nan, numbers.fill_null(0.0).to_numpy())
    if np.isinf(values).any():
        raise OppoError(f"{place.of(np.isinf(values), name)} is infinite: correct the value")
    huge = np.abs(values) > _LARGEST_REWARD
    if huge.any():
        raise OppoError(f"{place.of(huge, name)} is {values[huge.argmax()]:g}: correct the value")
    return pd.Series(values)


def _text(column: pa.ChunkedArray | None, name: str, rows: int, place: _Place) -> Any:
    if column is None:
        column = pa.chunked_array([pa.nulls(rows, pa.large_string())])
    column = _decoded(column)
    kind = column.type
    if pa.types.is_floating(kind):
        # Whole numbers with gaps come back from pandas as floats: 7.0 means the id 7.
        column = _as_whole_if_possible(column)
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        raise OppoError(
            f"{place.at(0, name)} is of type {kind} but must be text or a number: store it as one"
        )
    text = column.cast(pa.large_string())
    return pc.if_else(pc.equal(text, ""), None, text).to_pandas()


def _as_whole_if_possible(column: pa.ChunkedArray) -> pa.ChunkedArray:
    column = pc.if_else(pc.is_nan(column), None, column)
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        return column


def _shown(value: Any) -> str:
    return f"{int(value):,}" if float(value) == int(value) else f"{value:g}"


def _check_reasons(reasons: Any, place: _Place) -> None:
    known = reasons.isin(RECORDED_REASONS) | reasons.isna()
    if not known.all():
        bad = ~known.to_numpy(dtype=bool)
        value = str(reasons.iloc[int(bad.argmax())])
        raise OppoError(
            f"{place.of(bad, FINISH_REASON)} is '{value[:40]}' but must be stop, length, abort or empty:"
            " correct the value"
        )


def content_hash(frame: pd.DataFrame) -> str:
    """SHA-256 (hex) over the ``TRACE_COLUMNS`` of a checked frame, row by row; a column that is absent hashes
    as one that is missing throughout. The same for CSV and Parquet, and on every machine.
    """
    digest = hashlib.sha256(f"oppo-trace-rows/1:{len(frame)}".encode())
    for name in TRACE_COLUMNS:
        if name not in frame.columns or frame[name].isna().all():
            continue
        column = frame[name]
        missing = column.isna().to_numpy(dtype=bool)
        digest.update(f"|{name}:".encode())
        digest.update(np.packbits(missing).tobytes())
        if name in TEXT_COLUMNS:
            text = pa.array(column.fillna(""), type=pa.large_string())
            text = text.combine_chunks() if isinstance(text, pa.ChunkedArray) else text
            _, offsets, data = text.buffers()
            bounds = np.frombuffer(offsets, dtype="<i8", count=len(text) + text.offset + 1)[text.offset :]
            digest.update((bounds - bounds[0]).astype("<i8").tobytes())
            digest.update(memoryview(data)[bounds[0] : bounds[-1]] if data is not None else b"")
        elif name == REWARD:
            # Adding zero makes one of −0.0 and 0.0, which are equal but differ in their bytes.
            digest.update(
                (np.where(missing, 0.0, column.to_numpy(dtype="float64")) + 0.0).astype("<f8").tobytes()
            )
        else:
            digest.update(column.fillna(0).to_numpy(dtype="<i8").tobytes())
    hash_turns(frame, digest)
    return digest.hexdigest()
