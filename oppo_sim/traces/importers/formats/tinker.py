"""Tinker's cookbook: ``iteration_N/train_rollout_summaries.jsonl``, a record a trajectory with the tokens of
every observation and action."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from oppo_sim.traces.importers.importer import Importer
from oppo_sim.traces.importers.places import Place
from oppo_sim.traces.importers.reading import Reading, Rollout
from oppo_sim.traces.importers.rows import json_records
from oppo_sim.traces.masks import Turns

_TRAINED: Final = "train"


def _read(path: Path, reading: Reading) -> Iterator[Rollout]:
    for place, record in json_records(path, reading):
        steps = record.get("steps")
        if not isinstance(steps, list) or not all(isinstance(each, Mapping) for each in steps):
            raise place.error("there is no list of steps: is it a file of rollout summaries?")
        if record.get("split", _TRAINED) != _TRAINED:
            reading.left_out["rollout of an evaluation"] += 1
        elif not steps:
            reading.left_out["rollout without an action"] += 1
        else:
            yield _rollout(record, steps, place, reading)


def _rollout(
    record: Mapping[str, Any], steps: list[Mapping[str, Any]], place: Place, reading: Reading
) -> Rollout:
    seen, made = (
        [place.whole(each.get(name), f"steps.{name}") for each in steps] for name in ("ob_len", "ac_len")
    )
    version = record.get("sampling_client_step")
    rollout = Rollout(
        line=place.line,
        response_length=sum(made),
        prompt_length=seen[0],
        step=reading.whole(record, place, "step", "iteration"),
        prompt_id=reading.name(record, place, "prompt_id", "group_idx"),
        sample_id=reading.name(record, place, "sample_id", "traj_idx"),
        finish_reason=reading.reason(steps[-1].get("stop_reason")),
        reward=reading.reward(record, place, "reward", "total_reward"),
        head_version=None if version is None else place.whole(version, "sampling_client_step"),
    )
    # An observation holds all before it.
    answers = [
        later - before - action for (before, later), action in zip(pairwise(seen), made[:-1], strict=True)
    ]
    if any(each < 0 for each in answers):
        reading.notes[
            "rollout of several turns counts as one response: a later observation does not hold the turns"
            " before it"
        ] += 1
        return rollout
    return reading.turns(rollout, _turns(made, answers, seen[0]))


def _turns(made: list[int], answers: list[int], prompt: int) -> Turns:
    """Two turns without an answer between them count as one."""
    lengths, between = [made[0]], list[int]()
    for length, answer in zip(made[1:], answers, strict=True):
        if answer:
            lengths.append(length)
            between.append(answer)
        else:
            lengths[-1] += length
    return Turns(lengths, between, prompt)


IMPORTER: Final = Importer(
    name="tinker",
    aliases=("tinker_cookbook",),
    what="rollout summaries of the cookbook (iteration_N/train_rollout_summaries.jsonl)",
    lengths="logged",
    example="oppo trace import --from tinker runs/mine/ -o tinker.parquet",
    patterns=("*rollout_summaries.jsonl",),
    fields=("steps", "group_idx", "traj_idx", "iteration"),
    read=_read,
    notes=("group_idx counts the prompts of an iteration anew",),
)
