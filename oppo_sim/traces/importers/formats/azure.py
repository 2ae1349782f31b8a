"""Azure LLM inference traces of 2023 and 2024: CSV of TIMESTAMP, ContextTokens, GeneratedTokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oppo_sim.columns import ARRIVAL_S, PROMPT_LENGTH, RESPONSE_LENGTH, SOURCE
from oppo_sim.errors import OppoError
from oppo_sim.traces.importers.importer import Importer
from oppo_sim.traces.importers.reading import Reading
from oppo_sim.traces.importers.rows import csv_tables, plain_name, text, whole

if TYPE_CHECKING:
    import pyarrow as pa

_TIME, _PROMPT, _RESPONSE = "TIMESTAMP", "ContextTokens", "GeneratedTokens"


def _read(path: Path, _reading: Reading) -> "Iterator[pa.Table]":
    import pyarrow as pa
    import pyarrow.compute as pc

    checks = {_TIME: text(), _PROMPT: whole(_PROMPT), _RESPONSE: whole(_RESPONSE)}
    first: Any = None
    part = plain_name(path).removesuffix(".csv")
    for block in csv_tables(path, checks):
        # 2024 ends its times with the zone, always UTC.
        plain = pc.replace_substring_regex(block[_TIME], r"(\+00:00|Z)$", "")
        try:
            times = plain.cast(pa.timestamp("ns")).cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise OppoError(
                f"{path} has a {_TIME} that is no time ({str(error).splitlines()[0][:100]}): correct or"
                " remove the row"
            ) from None
        if first is None:
            first = next((each.as_py() for each in times if each.is_valid), None)
        seconds = (
            pc.divide(pc.cast(pc.subtract(times, first), pa.float64()), 1e9)
            if first is not None
            else times.cast(pa.float64())
        )
        yield pa.table(
            {
                SOURCE: pa.array([part] * len(block), pa.large_string()),
                PROMPT_LENGTH: block[_PROMPT],
                RESPONSE_LENGTH: block[_RESPONSE],
                ARRIVAL_S: seconds,
            }
        )


IMPORTER: Final = Importer(
    name="azure",
    what="Azure LLM inference traces 2023 and 2024 (AzureLLMInferenceTrace_*.csv)",
    lengths="logged",
    example="oppo trace import --from azure AzureLLMInferenceTrace_conv.csv -o azure_conv.parquet",
    patterns=("AzureLLMInferenceTrace_*.csv",),
    columns=(_TIME, _PROMPT, _RESPONSE),
    read=_read,
    notes=("requests of a serving system: no step, no prompt identity, no reward, and no finish reason",),
)
