"""PipelineRL: file streams of training texts (JSON lines; a line is one text, or a list of them)."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from oppo_sim.traces.importers.importer import Importer, Peek
from oppo_sim.traces.importers.places import Place
from oppo_sim.traces.importers.reading import Reading, Rollout
from oppo_sim.traces.importers.rows import json_values


def _recognises(peek: Peek) -> bool:
    texts = _texts(peek.record)
    return bool(texts) and isinstance(texts[0], Mapping) and "n_predicted" in texts[0]


def _texts(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    texts = value.get("training_texts") if isinstance(value, Mapping) else None
    return texts if isinstance(texts, list) else [value]


def _read(path: Path, reading: Reading) -> Iterator[Rollout]:
    for number, value in json_values(path, reading):
        place = Place(path, number)
        for text in _texts(value):
            if not isinstance(text, Mapping):
                raise place.error("this is not a training text: is it a stream of PipelineRL?")
            yield _rollout(text, place, reading)


def _rollout(text: Mapping[str, Any], place: Place, reading: Reading) -> Rollout:
    # n_predicted counts characters of the text, output_tokens tokens; 0 is its default and means unknown.
    length = reading.pick(text, place, "response_length", "output_tokens")
    prompt = reading.pick(text, place, "prompt_length", "prompt_tokens")
    if not length and "response_length" not in reading.options.fields:
        length = text.get("logprobs")
        if not length:
            raise place.error(
                "there is neither output_tokens nor logprobs, so the length is not known: leave the line out"
            )
    ids = text.get("input_ids")
    tokens = place.tokens(length, "output_tokens")
    if not prompt and isinstance(ids, list) and len(ids) >= tokens:
        prompt = len(ids) - tokens
    named = text.get("metadata")
    metadata: Mapping[str, Any] = named if isinstance(named, Mapping) else {}
    version, index = metadata.get("model_version"), metadata.get("rollout_index")
    finished = text.get("finished")
    return Rollout(
        line=place.line,
        response_length=tokens,
        prompt_length=place.tokens(prompt, "prompt_tokens") if prompt else None,
        step=reading.whole(text, place, "step"),
        prompt_id=reading.name(text, place, "prompt_id", "group_id"),
        sample_id=None if index is None else str(index),
        finish_reason=None if not isinstance(finished, bool) else "stop" if finished else "length",
        reward=reading.reward(text, place, "reward"),
        head_version=(
            place.whole(version, "model_version") if isinstance(version, int) and version >= 0 else None
        ),
    )


IMPORTER: Final = Importer(
    name="pipelinerl",
    what="file streams of training texts (*.jsonl)",
    lengths="logged",
    example="oppo trace import --from pipelinerl streams/actor/ -o pipeline.parquet",
    patterns=("*.jsonl",),
    looks=_recognises,
    read=_read,
    notes=("there is no training step in a stream; group_id may repeat between epochs",),
)
