"""NeMo-RL: ``train_data_step{N}.jsonl`` in the log folder, and its metrics."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from oppo_sim.traces.importers.importer import Importer, Peek
from oppo_sim.traces.importers.options import MetricNames
from oppo_sim.traces.importers.places import Place, short_id
from oppo_sim.traces.importers.reading import Reading, Rollout
from oppo_sim.traces.importers.rows import json_records, plain_name
from oppo_sim.traces.masks import turns_of_mask

_NAME: Final = r"train_data_step(\d{1,15})\.jsonl"


def _recognises(peek: Peek) -> bool:
    return peek.has("token_loss_mask") or (
        peek.has("input_lengths") and re.fullmatch(_NAME, plain_name(peek.path)) is not None
    )


def _read(path: Path, reading: Reading) -> Iterator[Rollout]:
    for place, record in json_records(path, reading):
        mask = _row(record.get("token_loss_mask"))
        if not isinstance(mask, list):
            raise place.error(
                "there is no token_loss_mask, so which tokens were generated is not known: log with a newer"
                " NeMo-RL, or import its metrics instead"
            )
        if not all(isinstance(each, int | float) for each in mask):
            raise place.error("token_loss_mask is not a list of numbers: correct the line, or leave it out")
        # Rows are written one by one, each still a batch of one: [x] instead of x.
        total = _single(record.get("input_lengths"))
        generated = sum(1 for each in mask if each)
        length = place.whole(total, "input_lengths") if total is not None else len(mask)
        if generated > length:
            raise place.error(
                f"token_loss_mask marks {generated} tokens but input_lengths is {length}: correct the line,"
                " or leave it out"
            )
        rollout = Rollout(
            line=place.line,
            response_length=generated,
            prompt_length=length - generated,
            step=reading.whole(record, place, "step"),
            prompt_id=_prompt(record, place, reading),
            sample_id=_text(reading.pick(record, place, "sample_id", "idx")),
            finish_reason=reading.reason(
                _single(reading.pick(record, place, "finish_reason", "finish_reason"))
            ),
            reward=reading.reward(record, place, "rewards"),
        )
        turns = turns_of_mask(mask)
        turned = reading.turns(rollout, turns)
        yield turned if turned is rollout else turned._replace(prompt_length=turns.before)


def _prompt(record: Mapping[str, Any], place: Place, reading: Reading) -> str | None:
    named = reading.pick(record, place, "prompt_id")
    if named is not None:
        return str(_single(named))
    content = record.get("content")
    while isinstance(content, list) and len(content) == 1:
        content = content[0]
    # Messages in turn, the prompt first.
    first = content[0] if isinstance(content, list) and content else None
    return short_id(first) if isinstance(first, str) else None


def _row(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list) else value


def _single(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _text(value: Any) -> str | None:
    return None if value is None else str(_single(value))


IMPORTER: Final = Importer(
    name="nemo_rl",
    aliases=("nemo",),
    what="train_data_stepN.jsonl of the log folder; metrics: console, wandb, TensorBoard",
    lengths="token ids (sum of token_loss_mask), or fitted to the metrics",
    example="oppo trace import --from nemo_rl logs/exp_001/ --max-response-length 4096 -o nemo.parquet",
    patterns=("train_data_step*.jsonl",),
    looks=_recognises,
    read=_read,
    step_name=_NAME,
    metrics=MetricNames(
        mean=("mean_gen_tokens_per_sample", "gen_tokens_per_sample/mean"),
        max=("max_gen_tokens_per_sample", "gen_tokens_per_sample/max"),
        min=("gen_tokens_per_sample/min",),
        median=("gen_tokens_per_sample/median",),
        std=("gen_tokens_per_sample/stddev",),
        clip_ratio=("truncation_rate",),
        prompt_mean=("mean_prompt_length",),
        reward_mean=("reward",),
    ),
    notes=(
        "without --tool-seconds prompt_length is all that was not generated: in multi-turn runs the"
        " environment's messages too",
    ),
)
