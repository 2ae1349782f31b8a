"""open-instruct: ``rollouts_save_path`` (``{run}_rollouts_{shard}.jsonl``, token ids), and its metrics."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from oppo_sim.traces.importers.importer import Importer
from oppo_sim.traces.importers.options import MetricNames
from oppo_sim.traces.importers.reading import Reading, Rollout
from oppo_sim.traces.importers.rows import json_records


def _read(path: Path, reading: Reading) -> Iterator[Rollout]:
    for place, record in json_records(path, reading):
        response = reading.tokens(record, place, "response_length", "response_tokens")
        if response is None:
            raise place.error("there is no field 'response_tokens': is it a file of rollouts_save_path?")
        dataset: Any = record.get("dataset")
        while isinstance(dataset, list) and len(dataset) == 1:
            dataset = dataset[0]
        yield Rollout(
            line=place.line,
            response_length=response,
            prompt_length=reading.tokens(record, place, "prompt_length", "prompt_tokens"),
            step=reading.whole(record, place, "step", "step"),
            prompt_id=reading.name(record, place, "prompt_id", "prompt_idx"),
            sample_id=reading.name(record, place, "sample_id", "sample_idx"),
            finish_reason=reading.reason(reading.pick(record, place, "finish_reason", "finish_reason")),
            reward=reading.reward(record, place, "reward"),
            source=dataset if isinstance(dataset, str) and dataset else None,
        )


IMPORTER: Final = Importer(
    name="open_instruct",
    what="rollouts_save_path (RUN_rollouts_N.jsonl); metrics: wandb, TensorBoard",
    lengths="token ids, or fitted to the metrics",
    example="oppo trace import --from open_instruct rollouts/ -o open_instruct.parquet",
    patterns=("*_rollouts_*.jsonl",),
    fields=("prompt_tokens", "response_tokens", "finish_reason"),
    read=_read,
    metrics=MetricNames(
        mean=("val/sequence_lengths",), max=("val/sequence_lengths_max",), min=("val/sequence_lengths_min",)
    ),
    notes=("response_tokens counts tool output too, in runs with tools",),
)
