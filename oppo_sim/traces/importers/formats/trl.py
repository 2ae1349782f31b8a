"""TRL: ``completions/completions_{step:05d}.parquet`` (text) and the metrics of its trainers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from oppo_sim.errors import OppoError
from oppo_sim.traces.importers.importer import Importer
from oppo_sim.traces.importers.options import MetricNames
from oppo_sim.traces.importers.places import short_id
from oppo_sim.traces.importers.reading import Reading, Rollout
from oppo_sim.traces.importers.rows import parquet_rows, parquet_schema

_OWN: Final = ("step", "prompt", "completion", "advantage")


def _read(path: Path, reading: Reading) -> Iterator[Rollout]:
    schema = parquet_schema(path)
    missing = [name for name in ("completion", "prompt") if name not in schema.names]
    if missing and "response" not in reading.options.fields:
        raise OppoError(
            f"{path} has no column '{missing[0]}' (columns: {', '.join(schema.names[:12])}): is it a file of"
            " log_completions?"
        )
    import pyarrow as pa

    numeric = [each.name for each in schema if pa.types.is_floating(each.type) and each.name not in _OWN]
    if len(numeric) > 1 and "reward" not in reading.options.fields:
        reading.notes[
            f"rewards are left empty, since there are several ({', '.join(numeric[:6])}): name one with"
            " --field reward=NAME"
        ] += 1
    for place, record in parquet_rows(
        path, [name for name in schema.names if _wanted(name, numeric, reading)]
    ):
        text = place.text(reading.pick(record, place, "response", "completion"), "completion")
        tokens, reason = reading.response_from(text)
        prompt: Any = reading.pick(record, place, "prompt", "prompt")
        named = reading.name(record, place, "prompt_id")
        words = place.text(prompt, "prompt") if prompt is not None else None
        yield Rollout(
            line=place.line,
            response_length=tokens,
            prompt_length=None if words is None else reading.chat_prompt_from(words),
            step=reading.whole(record, place, "step", "step"),
            prompt_id=short_id(words) if named is None and words is not None else named,
            sample_id=reading.name(record, place, "sample_id"),
            finish_reason=reason,
            reward=reading.reward(record, place, *(numeric if len(numeric) == 1 else ())),
            reason_inferred=True,
        )


def _wanted(name: str, numeric: list[str], reading: Reading) -> bool:
    named = {field.split(".", 1)[0] for field in reading.options.fields.values()}
    return (
        name in ("step", "prompt", "completion") or name in named or (name in numeric and len(numeric) == 1)
    )


IMPORTER: Final = Importer(
    name="trl",
    what=(
        "log_completions (completions_N.parquet, text); metrics: trainer_state.json, console, wandb,"
        " TensorBoard"
    ),
    lengths="text with a tokenizer, or fitted to the metrics",
    example=(
        "oppo trace import --from trl out/completions/ --tokenizer model/ --max-response-length 512 -o"
        " trl.parquet"
    ),
    patterns=("completions_*.parquet",),
    columns=("step", "prompt", "completion"),
    read=_read,
    step_name=r"completions_(\d{1,15})\.parquet",
    metrics=MetricNames(
        mean=("completions/mean_length", "completion_length"),
        max=("completions/max_length",),
        min=("completions/min_length",),
        clip_ratio=("completions/clipped_ratio", "clip_ratio"),
        reward_mean=("reward", "objective/scores"),
    ),
)
