"""Rollouts of a log gathered into the columns of a trace: filtered, finish reasons completed."""

from collections import Counter as Tally
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from oppo_sim.columns import (
    ARRIVAL_S,
    FINISH_REASON,
    HEAD_VERSION,
    RESPONSE_LENGTH,
    REWARD,
    SOURCE,
    TAIL_VERSION,
    TOOL_SECONDS,
    TRACE_COLUMNS,
    TURN_COLUMNS,
)
from oppo_sim.errors import OppoError
from oppo_sim.traces.importers.places import Place
from oppo_sim.traces.importers.reading import Reading, Rollout
from oppo_sim.traces.schema import TEXT_COLUMNS, checked_frame

_CHUNK_ROWS: Final = 65_536
FURTHER: Final = (HEAD_VERSION, TAIL_VERSION, ARRIVAL_S, *TURN_COLUMNS)
OUTSIDE: Final = "step outside --steps"


class Gathering:
    """Takes rollouts one by one or as tables; ``frame`` gives the trace."""

    def __init__(self, name: str, reading: Reading) -> None:
        self._name = name
        self._reading = reading
        self._rows: list[Rollout] = []
        self._tables: list[pa.Table] = []
        self.read = 0
        self.kept = 0
        self.reasons: Tally[str] = Tally()
        """Where finish reasons come from: ``log``, ``length``, ``unknown``."""

    def add(self, file: Path, rollout: Rollout) -> None:
        """One rollout. Raises OppoError if steps are to be chosen and it has none."""
        self.read += 1
        steps, most = self._reading.options.steps, self._reading.options.max_response_length
        if steps is not None:
            if rollout.step is None:
                raise Place(file, rollout.line).error(
                    "there is no step, so --steps cannot choose: leave it out"
                )
            if not steps[0] <= rollout.step <= steps[1]:
                self._reading.left_out[OUTSIDE] += 1
                return
        if rollout.finish_reason is None and most is not None and not rollout.reason_inferred:
            whole = rollout.response_length + sum(
                rollout.tool_tokens or ()
            )  # a bound on both, as in a replay
            rollout = rollout._replace(
                finish_reason="length" if whole >= most else "stop", reason_inferred=True
            )
        self.reasons[
            "unknown" if rollout.finish_reason is None else "length" if rollout.reason_inferred else "log"
        ] += 1
        self.kept += 1
        self._rows.append(rollout)
        if len(self._rows) >= _CHUNK_ROWS:
            self._pack()

    def add_table(self, file: Path, table: pa.Table) -> None:
        """Rollouts as columns: lengths, ``source`` (a part's name), ``arrival_s``; no step, no reason.

        Raises OppoError where steps are chosen.
        """
        self._pack()
        rows, most = table.num_rows, self._reading.options.max_response_length
        self.read += rows
        if self._reading.options.steps is not None:
            raise OppoError(f"{file} has no steps, so --steps cannot choose: leave it out")
        columns = {name: table[name] for name in table.column_names}
        name, slash = (pa.scalar(each, pa.large_string()) for each in (self._name, "/"))
        columns[SOURCE] = pc.binary_join_element_wise(name, columns[SOURCE].cast(pa.large_string()), slash)
        if most is not None:
            cut = pc.greater_equal(columns[RESPONSE_LENGTH], most)
            columns[FINISH_REASON] = pc.if_else(cut, "length", "stop")
        self.reasons["unknown" if most is None else "length"] += rows
        self.kept += rows
        schema = _schema()
        missing = {each.name: pa.nulls(rows, each.type) for each in schema if each.name not in columns}
        self._tables.append(pa.table({**columns, **missing}).select(schema.names).cast(schema))

    def frame(self, where: str) -> pd.DataFrame:
        """The trace, checked; no column that is unknown throughout. Raises OppoError if it is empty."""
        self._pack()
        if not self._tables:
            raise self._nothing(where)
        table = pa.concat_tables(self._tables)
        self._tables.clear()
        unknown = [name for name in FURTHER if table[name].null_count == table.num_rows]
        return checked_frame(table.drop_columns(unknown) if unknown else table, where)

    def _nothing(self, where: str) -> OppoError:
        out = self._reading.left_out
        if not self.read and not out:
            return OppoError(f"{where} holds no rollouts: is it the right file or folder?")
        reasons = ", ".join(f"{count} for '{reason}'" for reason, count in out.most_common(3))
        return OppoError(
            f"all rows of {where} were left out ({reasons}): nothing is left for a trace, so change the"
            " options or the log"
        )

    def _pack(self) -> None:
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        sources = [self._name if row.source is None else f"{self._name}/{row.source}" for row in rows]
        columns: dict[str, list[Any]] = {
            name: [getattr(row, name) for row in rows] for name in _schema().names if name != SOURCE
        }
        try:
            self._tables.append(pa.table({**columns, SOURCE: sources}, schema=_schema()))
        except (OverflowError, pa.ArrowInvalid) as error:
            raise OppoError(
                f"{self._name} holds a number that a column of 64 bits cannot take ({error}): mend that row"
            ) from None


def _schema() -> pa.Schema:
    text, whole, real = pa.large_string(), pa.int64(), pa.float64()
    types = {name: text if name in TEXT_COLUMNS else whole for name in TRACE_COLUMNS}
    turns = {name: pa.large_list(real if name == TOOL_SECONDS else whole) for name in TURN_COLUMNS}
    further = {HEAD_VERSION: whole, TAIL_VERSION: whole, ARRIVAL_S: real, **turns}
    return pa.schema({**types, REWARD: real, **further})
