"""ROLL: ``rollout_dump_data.step_{N}.jsonl`` (one JSON object of columns, text), and its metrics."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from oppo_sim.traces.importers.importer import Importer, Peek
from oppo_sim.traces.importers.options import MetricNames
from oppo_sim.traces.importers.places import Place, short_id
from oppo_sim.traces.importers.reading import Reading, Rollout
from oppo_sim.traces.importers.rows import json_records


def _recognises(peek: Peek) -> bool:
    return peek.has("responses", "global_step") and isinstance(peek.record["responses"], list)


def _read(path: Path, reading: Reading) -> Iterator[Rollout]:
    first = 0
    for place, columns in json_records(path, reading):
        if not isinstance(columns.get("responses"), list):
            raise place.error("there is no list 'responses': is it a file of rollout_dump_dir?")
        rows = len(columns["responses"])
        uneven = next(
            (name for name, values in columns.items() if not isinstance(values, list) or len(values) != rows),
            None,
        )
        if uneven is not None:
            raise place.error(
                f"column '{uneven}' does not have one value for each of the {rows} responses: correct the"
                " file, or leave it out"
            )
        for row in range(rows):
            first += 1
            yield _rollout(
                {name: values[row] for name, values in columns.items()}, Place(path, first, "row"), reading
            )


def _rollout(record: Mapping[str, Any], place: Place, reading: Reading) -> Rollout:
    length, reason = _generation(record.get("sampling_params"))
    inferred = length is None
    if length is None:
        text = reading.pick(record, place, "response", "responses")
        length, reason = reading.response_from(place.text(text, "responses"))
    prompt = reading.pick(record, place, "prompt", "prompt")
    named = reading.name(record, place, "prompt_id", "id")
    words = place.text(prompt, "prompt") if prompt is not None else None
    domain = record.get("domain")
    return Rollout(
        line=place.line,
        response_length=length,
        prompt_length=reading.prompt_from(words) if words is not None else None,
        step=reading.whole(record, place, "step", "global_step"),
        prompt_id=short_id(words) if named is None and words is not None else named,
        finish_reason=reading.reason(reason),
        reward=reading.reward(record, place, "scores"),
        source=domain if isinstance(domain, str) and domain else None,
        reason_inferred=inferred,
    )


def _generation(sampling_params: Any) -> tuple[int | None, str | None]:
    """Tokens and finish reason where ``sampling_params`` carries this sample's own."""
    try:
        named = json.loads(sampling_params) if isinstance(sampling_params, str) else sampling_params
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(named, Mapping):
        return None, None
    ids, reason = named.get("output_token_ids"), named.get("finish_reasons")
    if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
        return None, None
    return len(ids), reason if isinstance(reason, str) else None


IMPORTER: Final = Importer(
    name="roll",
    what="rollout_dump_dir (rollout_dump_data.step_N.jsonl, text); metrics: wandb, TensorBoard",
    lengths="text with a tokenizer, token ids where a dump has them, or fitted to the metrics",
    example="oppo trace import --from roll dumps/ --tokenizer model/tokenizer.json -o roll.parquet",
    patterns=("rollout_dump_data.step_*.jsonl",),
    looks=_recognises,
    read=_read,
    step_name=r"rollout_dump_data\.step_(\d{1,15})\.jsonl",
    metrics=MetricNames(
        # Of agents: all that were rolled out, else those that were trained.
        mean=("token/response_length/mean", "rollout/response_length/mean", "tokens/response_length/mean"),
        max=("token/response_length/max", "rollout/response_length/max", "tokens/response_length/max"),
        min=("token/response_length/min", "rollout/response_length/min", "tokens/response_length/min"),
        prompt_mean=("token/prompt_length/mean", "rollout/prompt_length/mean", "tokens/prompt_length/mean"),
        reward_mean=("critic/score/mean",),
    ),
    notes=("a file is one JSON object, and is in memory as a whole",),
)
