"""Any JSON lines, Parquet or CSV file with one rollout a row; ``--field`` says which field is which."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from oppo_sim.columns import TOOL_SECONDS, TOOL_TOKENS, TURN_COLUMNS, TURN_LENGTHS
from oppo_sim.errors import OppoError
from oppo_sim.traces.importers.importer import Importer
from oppo_sim.traces.importers.options import MetricNames
from oppo_sim.traces.importers.places import Place, short_id
from oppo_sim.traces.importers.reading import Reading, Rollout
from oppo_sim.traces.importers.rows import csv_rows, json_records, parquet_rows, parquet_schema, plain_name

_RESPONSE_LENGTHS: Final = (
    "response_length",
    "response_tokens",
    "output_length",
    "output_tokens",
    "completion_tokens",
    "response_ids",
)
_PROMPT_LENGTHS: Final = ("prompt_length", "prompt_tokens", "input_length", "input_tokens", "prompt_ids")
_RESPONSES: Final = ("response", "completion", "output")
_PROMPTS: Final = ("prompt", "input")


def _read(path: Path, reading: Reading) -> Iterator[Rollout]:
    name = plain_name(path)
    if name.endswith(".parquet"):
        rows = parquet_rows(path, parquet_schema(path).names)
    elif name.endswith(".csv"):
        rows = csv_rows(path)
    elif name.endswith((".jsonl", ".ndjson", ".json")):
        rows = json_records(path, reading)
    else:
        raise OppoError(
            f"{path} is neither JSON lines, Parquet nor CSV by its name: rename it to end in .jsonl, .parquet"
            " or .csv"
        )
    for place, record in rows:
        yield _rollout(record, place, reading)


def _rollout(record: Mapping[str, Any], place: Place, reading: Reading) -> Rollout:
    tokens, reason, inferred = _response(record, place, reading)
    prompt, prompt_id = _prompt(record, place, reading)
    logged = reading.reason(reading.pick(record, place, "finish_reason", "finish_reason"))
    source = record.get("source")
    turns = {name: reading.numbers(record, place, name) for name in TURN_COLUMNS}
    return Rollout(
        line=place.line,
        response_length=tokens,
        prompt_length=prompt,
        step=reading.whole(record, place, "step", "step"),
        prompt_id=prompt_id,
        sample_id=reading.name(record, place, "sample_id", "sample_id"),
        finish_reason=logged or reason,
        reward=reading.reward(record, place, "reward"),
        source=source if isinstance(source, str) and source else None,
        turn_response_lengths=turns[TURN_LENGTHS],
        tool_seconds=turns[TOOL_SECONDS],
        tool_tokens=turns[TOOL_TOKENS],
        reason_inferred=logged is None and inferred,
    )


def _response(record: Mapping[str, Any], place: Place, reading: Reading) -> tuple[int, str | None, bool]:
    fields = reading.options.fields
    by_text = "response" in fields and "response_length" not in fields
    length = None if by_text else reading.pick(record, place, "response_length", *_RESPONSE_LENGTHS)
    if length is not None:
        return place.tokens(length, fields.get("response_length", "the response's length")), None, False
    text = reading.pick(record, place, "response", *_RESPONSES)
    if text is None:
        if empty := [name for name in _RESPONSE_LENGTHS if name in record]:
            raise place.error(f"{empty[0]} is empty: fill it in, or leave the record out")
        raise place.error(
            "no field is known to hold a response's length: give --field response_length= one of"
            f" {', '.join(list(record)[:12])}"
        )
    if _is_ids(text):
        return len(text), None, False
    tokens, reason = reading.response_from(place.text(text, "the response"))
    return tokens, reason, True


def _prompt(record: Mapping[str, Any], place: Place, reading: Reading) -> tuple[int | None, str | None]:
    """(length, id); a prompt without an id is named after its text."""
    fields = reading.options.fields
    named = reading.name(record, place, "prompt_id", "prompt_id")
    by_text = "prompt" in fields and "prompt_length" not in fields
    length = None if by_text else reading.pick(record, place, "prompt_length", *_PROMPT_LENGTHS)
    text = reading.pick(record, place, "prompt", *_PROMPTS)
    if text is not None and _is_ids(text):
        length = len(text) if length is None else length
        text = None
    words = None if text is None else place.text(text, "the prompt")
    prompt_id = short_id(words) if named is None and words is not None else named
    if length is not None:
        return place.tokens(length, fields.get("prompt_length", "the prompt's length")), prompt_id
    return (reading.prompt_from(words) if words is not None else None), prompt_id


def _is_ids(value: Any) -> bool:
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    return listed and all(isinstance(each, int) for each in value)


IMPORTER: Final = Importer(
    name="generic",
    aliases=("jsonl", "parquet", "csv"),
    what="any .jsonl, .parquet or .csv with one rollout a row; --field says which field is which",
    lengths="logged, token ids, or text with a tokenizer",
    example=(
        "oppo trace import --from generic log.jsonl --columns response_length=n_out,prompt_length=n_in -o"
        " log.parquet"
    ),
    patterns=("*.jsonl", "*.parquet", "*.csv", "*.ndjson"),
    read=_read,
    metrics=MetricNames(),
)


def has_known_length(record: Any, columns: Sequence[str]) -> bool:
    """Whether a record or a table has a length under a common name."""
    names = set(record) if isinstance(record, Mapping) else set(columns)
    return bool(names & set(_RESPONSE_LENGTHS))
