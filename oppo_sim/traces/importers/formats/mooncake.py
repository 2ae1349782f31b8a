"""Mooncake traces: JSON lines of timestamp (ms), input_length, output_length, hash_ids."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from oppo_sim.traces.importers.importer import Importer
from oppo_sim.traces.importers.reading import Reading, Rollout
from oppo_sim.traces.importers.rows import json_records, plain_name


def _read(path: Path, reading: Reading) -> Iterator[Rollout]:
    part = plain_name(path).removesuffix(".jsonl")
    for place, record in json_records(path, reading):
        if "output_length" not in record:
            raise place.error("there is no field 'output_length': is it a Mooncake trace?")
        prompt, time = record.get("input_length"), place.real(record.get("timestamp"), "timestamp")
        yield Rollout(
            line=place.line,
            response_length=place.tokens(record["output_length"], "output_length"),
            prompt_length=None if prompt is None else place.tokens(prompt, "input_length"),
            source=part,
            arrival_s=None if time is None else time / 1000,
        )


IMPORTER: Final = Importer(
    name="mooncake",
    what="Mooncake traces (*_trace.jsonl)",
    lengths="logged",
    example="oppo trace import --from mooncake conversation_trace.jsonl -o mooncake.parquet",
    patterns=("*.jsonl",),
    fields=("input_length", "output_length", "timestamp"),
    read=_read,
    notes=("requests of a serving system: no step, no prompt identity, no reward, and no finish reason",),
)
