"""Turns in a trace: the columns of rollouts that wait for tools, checked, hashed and turned into waits."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from oppo_sim.columns import RESPONSE_LENGTH, TOOL_SECONDS, TOOL_TOKENS, TURN_COLUMNS, TURN_LENGTHS
from oppo_sim.errors import OppoError
from oppo_sim.traces.config import LONGEST_WAIT_S, MAX_LENGTH
from oppo_sim.turns import ToolWait

_KINDS: dict[str, Any] = {TURN_LENGTHS: pa.int64(), TOOL_SECONDS: pa.float64(), TOOL_TOKENS: pa.int64()}
_LEAST = {TURN_LENGTHS: 1, TOOL_SECONDS: 0, TOOL_TOKENS: 0}
_MOST = {TURN_LENGTHS: MAX_LENGTH, TOOL_SECONDS: LONGEST_WAIT_S, TOOL_TOKENS: MAX_LENGTH}


def checked_turns(
    given: Mapping[str, pa.ChunkedArray], response_lengths: Any, where: str
) -> dict[str, pd.Series]:
    """The three columns as series of arrays, one a row: int64, float64, int64; a row without turns has one
    turn and no wait. ``given``: those that the table has.

    Raises OppoError naming row and column: one of the three is missing, no list, of another length than the
    turns, or out of range; the turns do not add up to ``response_length``.
    """
    missing = [name for name in TURN_COLUMNS if name not in given]
    if missing:
        raise OppoError(
            f"{where} has {' and '.join(given)} but no {' and '.join(missing)}: give all three columns of"
            " turns"
        )
    lists = {name: _lists(given[name], name, where) for name in TURN_COLUMNS}
    empty = np.array([len(part) == 0 for part in lists[TURN_LENGTHS]])
    for one in np.flatnonzero(empty):
        lists[TURN_LENGTHS][one] = np.array([response_lengths[one]], dtype=np.int64)
    turns = np.array([len(part) for part in lists[TURN_LENGTHS]])
    for name in (TOOL_SECONDS, TOOL_TOKENS):
        counts = np.array([len(part) for part in lists[name]])
        wrong = counts != turns - 1
        if wrong.any():
            row = int(wrong.argmax())
            raise OppoError(
                f"{where}, data row {row + 1}, column {name} has {counts[row]} entries for {turns[row]}"
                " turns: give one for each turn but the last"
            )
    for name in TURN_COLUMNS:
        least = 0 if name != TURN_LENGTHS else 1
        _check_range(lists[name], name, where, skip=empty if least else None)
    sums = np.array([int(part.sum()) for part in lists[TURN_LENGTHS]])
    wrong = sums != np.asarray(response_lengths)
    if wrong.any():
        row = int(wrong.argmax())
        raise OppoError(
            f"{where}, data row {row + 1}: the turns have {sums[row]} response tokens but {RESPONSE_LENGTH}"
            f" is {response_lengths[row]}: it counts what the actor decodes, without the answers of tools"
        )
    return {name: pd.Series(parts, dtype=object) for name, parts in lists.items()}


def waits_of(frame: pd.DataFrame, seconds_factor: float = 1.0) -> list[tuple[ToolWait, ...]] | None:
    """The waits of each row of a checked frame; None: no row has one."""
    if TURN_LENGTHS not in frame.columns:
        return None
    columns = (frame[name] for name in TURN_COLUMNS)
    waits = [
        tuple(
            ToolWait(after, second * seconds_factor, answer)
            for after, second, answer in zip(
                accumulate(turns.tolist()[:-1]), seconds.tolist(), tokens.tolist(), strict=True
            )
        )
        for turns, seconds, tokens in zip(*columns, strict=True)
    ]
    return waits if any(waits) else None


def cut_waits(
    waits: Sequence[ToolWait], response_length: int, longest: int
) -> tuple[int, tuple[ToolWait, ...]]:
    """(response length, waits) of a response that with the answers of tools has ``longest`` tokens at most.

    An answer that leaves no room for another token is not waited for: the response ends with its turn.
    """
    kept: list[ToolWait] = []
    answers = 0
    for wait in waits:
        if wait.after + answers + wait.tokens >= longest:
            return min(wait.after, longest - answers), tuple(kept)
        kept.append(wait)
        answers += wait.tokens
    return min(response_length, longest - answers), tuple(kept)


def scaled_turns(frame: pd.DataFrame, factor: float) -> dict[str, Any]:
    """Columns of a checked frame with turns whose response lengths are multiplied (rounded, at least 1)."""
    turns = [np.maximum(np.rint(part * factor), 1).astype(np.int64) for part in frame[TURN_LENGTHS]]
    return {
        TURN_LENGTHS: pd.Series(turns, dtype=object, index=frame.index),
        RESPONSE_LENGTH: np.array([int(part.sum()) for part in turns], dtype=np.int64),
    }


def hash_turns(frame: pd.DataFrame, digest: "hashlib._Hash") -> None:
    """Add the columns to a content hash; a frame without waits adds nothing."""
    if TURN_LENGTHS not in frame.columns or all(len(part) < 2 for part in frame[TURN_LENGTHS]):
        return
    for name in TURN_COLUMNS:
        parts = list(frame[name])
        digest.update(f"|{name}:".encode())
        digest.update(np.array([len(part) for part in parts], dtype="<i8").tobytes())
        values = np.concatenate(parts)
        digest.update((values + 0).astype("<f8" if name == TOOL_SECONDS else "<i8").tobytes())


def _lists(column: pa.ChunkedArray, name: str, where: str) -> list[Any]:
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_null(kind)):
        raise OppoError(
            f"{where}, column {name} is of type {kind} but must be a list a row: store the trace as Parquet,"
            " which has lists"
        )
    try:
        column = column.cast(pa.large_list(_KINDS[name]))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise OppoError(
            f"{where}, column {name} holds something else than numbers ({str(error).splitlines()[0]}):"
            " correct the values"
        ) from None
    if pc.any(pc.is_null(pc.list_flatten(column))).as_py():
        raise OppoError(f"{where}, column {name} has empty entries in a list: give a number for each turn")
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    values = pc.list_flatten(column).to_numpy()
    return np.split(values, np.cumsum(lengths)[:-1])


def _check_range(parts: list[Any], name: str, where: str, skip: Any) -> None:
    for row, part in enumerate(parts):
        if skip is not None and skip[row]:
            continue
        bad = ~((part >= _LEAST[name]) & (part <= _MOST[name]))
        if bad.any():
            raise OppoError(
                f"{where}, data row {row + 1}, column {name} has {part[bad.argmax()]:g}, which must lie"
                f" between {_LEAST[name]} and {_MOST[name]:,.0f}: correct the value"
            )
