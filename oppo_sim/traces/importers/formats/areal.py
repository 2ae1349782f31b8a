"""AReaL: ``rollout.dump_to_file`` (``{tail_version}/{task_id}.jsonl``), lengths and versions logged."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from oppo_sim.traces.importers.importer import Importer
from oppo_sim.traces.importers.reading import Reading, Rollout
from oppo_sim.traces.importers.rows import json_records


def _read(path: Path, reading: Reading) -> Iterator[Rollout]:
    for place, record in json_records(path, reading):
        if "seqlen" not in record or "prompt_len" not in record:
            raise place.error("there is no seqlen or prompt_len: is it a file of rollout.dump_to_file?")
        total = place.whole(record["seqlen"], "seqlen")
        prompt = place.whole(record["prompt_len"], "prompt_len")
        if prompt > total:
            raise place.error(
                f"prompt_len {prompt} is above seqlen {total}: correct the line, or leave it out"
            )
        head, tail = record.get("head_version"), record.get("tail_version")
        # A version of -1 means that no token was generated.
        first = place.whole(head, "head_version") if head is not None and head != -1 else None
        last = place.whole(tail, "tail_version") if tail is not None and tail != -1 else None
        step = reading.whole(record, place, "step")
        yield Rollout(
            line=place.line,
            response_length=total - prompt,
            prompt_length=prompt,
            step=next((each for each in (step, first, last) if each is not None), None),
            prompt_id=reading.name(record, place, "prompt_id", "task_id"),
            sample_id=reading.name(record, place, "sample_id", "sample_idx"),
            finish_reason=reading.reason(
                reading.pick(record, place, "finish_reason", "finish_reason", "stop_reason")
            ),
            reward=reading.reward(record, place, "reward"),
            head_version=first,
            tail_version=last,
        )


IMPORTER: Final = Importer(
    name="areal",
    what="rollout.dump_to_file (VERSION/TASK.jsonl)",
    lengths="logged",
    example="oppo trace import --from areal generated/ --max-response-length 16384 -o areal.parquet",
    patterns=("*.jsonl",),
    fields=("seqlen", "prompt_len"),
    read=_read,
    notes=(
        "step is the weight version of the first token (head_version): the step in which a rollout began",
    ),
)
