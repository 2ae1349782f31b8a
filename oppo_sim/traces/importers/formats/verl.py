"""verl: ``trainer.rollout_data_dir`` dumps (one ``{global_step}.jsonl`` a step, text) and its metrics."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from oppo_sim.traces.importers.importer import Importer
from oppo_sim.traces.importers.options import MetricNames
from oppo_sim.traces.importers.places import short_id
from oppo_sim.traces.importers.reading import Reading, Rollout
from oppo_sim.traces.importers.rows import json_records

_SAMPLE_UID: Final = re.compile(r"(.+)_(\d+)_(\d+)")
_FILLS_UP: Final = re.compile(r"pad[0-9a-f]{32}_\d+_\d+")
"""Rows of one token that the v1 trainer adds, until the batch can be divided among its processes."""


def _read(path: Path, reading: Reading) -> Iterator[Rollout]:
    for place, record in json_records(path, reading):
        if isinstance(uid := record.get("uid"), str) and _FILLS_UP.fullmatch(uid):
            reading.left_out["row that only fills the batch up"] += 1
            continue
        output = reading.pick(record, place, "response", "output")
        length, reason = reading.tokens(record, place, "response_length"), None
        counted = length is None
        if length is None:
            if output is None:
                raise place.error("there is no field 'output': is it a file of trainer.rollout_data_dir?")
            length, reason = reading.response_from(place.text(output, "output"))
        prompt = reading.pick(record, place, "prompt", "input")
        prompt_length = reading.tokens(record, place, "prompt_length")
        if prompt_length is None and prompt is not None:
            prompt_length = reading.chat_prompt_from(place.text(prompt, "input"))
        given_reason = reading.reason(reading.pick(record, place, "finish_reason", "finish_reason"))
        prompt_id, sample_id = _ids(reading.pick(record, place, "prompt_id", "uid"), prompt)
        sample = reading.name(record, place, "sample_id")
        yield Rollout(
            line=place.line,
            response_length=length,
            prompt_length=prompt_length,
            step=reading.whole(record, place, "step", "step"),
            prompt_id=prompt_id,
            sample_id=sample_id if sample is None else sample,
            finish_reason=given_reason or reason,
            reward=reading.reward(record, place, "score"),
            reason_inferred=given_reason is None and counted,
        )


def _ids(uid: object, prompt: object) -> tuple[str | None, str | None]:
    """Prompt and sample: of uid ``{sample}_{rollout}_{output}``; another uid or the text names a prompt."""
    if uid is not None:
        found = _SAMPLE_UID.fullmatch(str(uid))
        return (found.group(1), f"{found.group(2)}_{found.group(3)}") if found else (str(uid), None)
    return (short_id(str(prompt)), None) if prompt is not None else (None, None)


IMPORTER: Final = Importer(
    name="verl",
    what="rollout_data_dir (N.jsonl, text); metrics: file logger, console, wandb, TensorBoard",
    lengths="text with a tokenizer, or fitted to the metrics",
    example=(
        "oppo trace import --from verl rollouts/ --tokenizer Qwen3-8B/tokenizer.json --max-response-length"
        " 8192 -o verl.parquet"
    ),
    patterns=("[0-9]*.jsonl",),
    fields=("input", "output", "score"),
    read=_read,
    step_name=r"(\d+)\.jsonl",
    metrics=MetricNames(
        mean=("response_length_non_aborted/mean", "response_length/mean"),
        max=("response_length_non_aborted/max", "response_length/max"),
        min=("response_length_non_aborted/min", "response_length/min"),
        clip_ratio=("response_length_non_aborted/clip_ratio", "response_length/clip_ratio"),
        prompt_mean=("prompt_length/mean",),
        reward_mean=("critic/score/mean", "critic/rewards/mean"),
    ),
)
