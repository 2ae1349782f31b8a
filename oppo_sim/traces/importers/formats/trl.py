"""TRL: ``completions/completions_{step:05d}.parquet`` (text) and the metrics of its trainers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from oppo_sim.errors import OppoError
from oppo_sim.traces.importers.completions import completion_rollout, note_several_rewards
from oppo_sim.traces.importers.importer import Importer
from oppo_sim.traces.importers.options import MetricNames
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
    note_several_rewards(numeric, reading)
    for place, record in parquet_rows(
        path, [name for name in schema.names if _wanted(name, numeric, reading)]
    ):
        yield completion_rollout(record, place, reading, numeric, reading.chat_prompt_from)


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
        tokens_so_far=("num_tokens",),
    ),
    averages=True,
)
