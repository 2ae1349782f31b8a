"""BurstGPT: CSV of Timestamp, Model, Request tokens, Response tokens, Total tokens, Log Type."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oppo_sim.columns import ARRIVAL_S, PROMPT_LENGTH, RESPONSE_LENGTH, SOURCE
from oppo_sim.traces.importers.importer import Importer
from oppo_sim.traces.importers.reading import Reading
from oppo_sim.traces.importers.rows import csv_tables, real, text, whole

if TYPE_CHECKING:
    import pyarrow as pa

_TIME, _MODEL, _KIND = "Timestamp", "Model", "Log Type"
_PROMPT, _RESPONSE = "Request tokens", "Response tokens"


def _read(path: Path, reading: Reading) -> "Iterator[pa.Table]":
    import pyarrow as pa
    import pyarrow.compute as pc

    def named(column: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.fill_null(column, pa.scalar("unknown", pa.large_string()))

    checks = {
        _TIME: real(_TIME),
        _MODEL: text(),
        _PROMPT: whole(_PROMPT),
        _RESPONSE: whole(_RESPONSE),
        _KIND: text(),
    }
    for block in csv_tables(path, checks):
        answered = block.filter(pc.greater(block[_RESPONSE], 0))
        if len(answered) < len(block):
            reading.left_out["request that failed (no response tokens)"] += len(block) - len(answered)
        if not len(answered):
            continue
        yield pa.table(
            {
                SOURCE: pc.binary_join_element_wise(
                    named(answered[_MODEL]), named(answered[_KIND]), pa.scalar("/", pa.large_string())
                ),
                PROMPT_LENGTH: answered[_PROMPT],
                RESPONSE_LENGTH: answered[_RESPONSE],
                ARRIVAL_S: answered[_TIME],
            }
        )


IMPORTER: Final = Importer(
    name="burstgpt",
    what="BurstGPT (BurstGPT_*.csv)",
    lengths="logged",
    example="oppo trace import --from burstgpt BurstGPT_1.csv -o burstgpt.parquet",
    patterns=("BurstGPT*.csv",),
    columns=(_PROMPT, _RESPONSE),
    read=_read,
    notes=("requests of a serving system: no step, no prompt identity, no reward, and no finish reason",),
)
