"""ms-swift: ``completions.jsonl`` (an object of columns a logged step, text), and its ``logging.jsonl``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from oppo_sim.traces.importers.completions import completion_rollout, note_several_rewards
from oppo_sim.traces.importers.formats.trl import IMPORTER as TRL
from oppo_sim.traces.importers.importer import Importer, Peek
from oppo_sim.traces.importers.places import Place
from oppo_sim.traces.importers.reading import Reading, Rollout
from oppo_sim.traces.importers.rows import json_records

_OTHER: Final = ("step", "advantages", "entropy", "num_turns")
"""Columns of numbers that are no reward."""


def _recognises(peek: Peek) -> bool:
    return peek.has("step", "prompt", "completion") and isinstance(peek.record["completion"], list)


def _read(path: Path, reading: Reading) -> Iterator[Rollout]:
    first = 0
    for place, columns in json_records(path, reading):
        if not isinstance(columns.get("completion"), list):
            raise place.error("there is no list 'completion': is it a completions.jsonl of log_completions?")
        rows = len(columns["completion"])
        # Not every column has a value for each row: what a run adds may be of part of them.
        whole = {name: each for name, each in columns.items() if isinstance(each, list) and len(each) == rows}
        scores = [name for name, each in whole.items() if name not in _OTHER and _of_numbers(each)]
        note_several_rewards(scores, reading)
        for row in range(rows):
            first += 1
            record = {name: values[row] for name, values in whole.items()}
            yield completion_rollout(record, Place(path, first, "row"), reading, scores, reading.prompt_from)


def _of_numbers(values: list[Any]) -> bool:
    numbers = [each for each in values if each is not None]
    return bool(numbers) and all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in numbers
    )


IMPORTER: Final = Importer(
    name="ms_swift",
    aliases=("swift",),
    what="log_completions (completions.jsonl, text); metrics: logging.jsonl, wandb, TensorBoard",
    lengths="text with a tokenizer, or fitted to the metrics",
    example=(
        "oppo trace import --from ms_swift output/v0/ --tokenizer model/ --max-response-length 1024 -o"
        " swift.parquet"
    ),
    patterns=("completions.jsonl",),
    looks=_recognises,
    read=_read,
    metrics=TRL.metrics,
    averages=TRL.averages,
    metrics_of=TRL.name,
    notes=("of several generations between two logged steps, the last is in completions.jsonl",),
)
