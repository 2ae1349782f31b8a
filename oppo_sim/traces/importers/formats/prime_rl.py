"""prime-rl: ``rollouts/step_{N}/train/…/traces.jsonl``, records of verifiers episodes."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from oppo_sim.traces.importers.importer import Importer, Peek
from oppo_sim.traces.importers.options import MetricNames
from oppo_sim.traces.importers.places import Place
from oppo_sim.traces.importers.reading import Reading, Rollout
from oppo_sim.traces.importers.rows import json_records

_LIMITS: Final = frozenset(
    ["max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed"]
)


def _recognises(peek: Peek) -> bool:
    return (
        (peek.has("traces") and isinstance(peek.record["traces"], list))
        or peek.has("nodes")
        or peek.has("trajectory")
    )


def _step_of(path: Path) -> int | None:
    found = (re.fullmatch(r"step_(\d{1,15})", part) for part in reversed(path.parts))
    return next((int(each.group(1)) for each in found if each), None)


def _select(files: list[Path]) -> tuple[list[Path], dict[str, int]]:
    """Training rollouts only, and of ``all`` and ``effective``, which is a part of it, the first."""
    training = [file for file in files if "eval" not in file.parts]
    whole = {file.parent.parent for file in training if file.parent.name == "all"}
    kept = [file for file in training if file.parent.name != "effective" or file.parent.parent not in whole]
    left_out = {
        "file of an evaluation": len(files) - len(training),
        "file whose rollouts are in 'all' too": len(training) - len(kept),
    }
    return kept, {reason: count for reason, count in left_out.items() if count}


def _read(path: Path, reading: Reading) -> Iterator[Rollout]:
    for place, record in json_records(path, reading):
        traces = record.get("traces", [record])
        if not isinstance(traces, list) or not all(isinstance(each, Mapping) for each in traces):
            raise place.error("traces is not a list of tables: is it a traces.jsonl of prime-rl?")
        if not traces:
            reading.left_out["episode without a trace"] += 1
        for trace in traces:
            rollout = _rollout(record, trace, place, reading)
            if rollout is not None:
                yield rollout


def _rollout(
    episode: Mapping[str, Any], trace: Mapping[str, Any], place: Place, reading: Reading
) -> Rollout | None:
    if _inside(trace, "agent", "trainable") is False:
        reading.left_out["trace of an agent that is not trained"] += 1
        return None
    lengths = _lengths(trace, place)
    if lengths is None:
        if trace.get("errors") or trace.get("error") or trace.get("ok") is False:
            reading.left_out["trace that failed before any token"] += 1
            return None
        raise place.error(
            "there are no token ids and no usage of model calls: is it a traces.jsonl of prime-rl?"
        )
    prompt, response = lengths
    step = _inside(episode, "run", "work", "step")
    group = (
        _inside(episode, "group", "id")
        or _inside(trace, "task", "key")
        or _inside(trace, "task", "hash")
        or trace.get("example_id")
    )
    return Rollout(
        line=place.line,
        response_length=response,
        prompt_length=prompt,
        step=None if step is None else place.whole(step, "step"),
        prompt_id=None if group is None else str(group),
        sample_id=None if trace.get("id") is None else str(trace["id"]),
        finish_reason=_reason(trace),
        reward=_reward(trace, place, reading),
        source=_inside(episode, "env", "name") or _inside(episode, "env", "id") or None,
        head_version=_version(episode, "start", place),
        tail_version=_version(episode, "end", place),
    )


def _lengths(trace: Mapping[str, Any], place: Place) -> tuple[int, int] | None:
    """(prompt, generated) tokens: of the nodes, else of the trajectory, else of the usage of model calls."""
    nodes = [each for each in trace.get("nodes") or () if isinstance(each, Mapping)]
    masks = [each.get("mask") for each in nodes]
    if any(isinstance(mask, list) and any(mask) for mask in masks):
        prompt = 0
        for mask in masks:
            sampled = next((at for at, each in enumerate(mask or ()) if each), None)
            prompt += len(mask or ()) if sampled is None else sampled
            if sampled is not None:
                break
        return prompt, sum(sum(1 for each in mask or () if each) for mask in masks)
    turns = [
        tokens
        for each in trace.get("trajectory") or ()
        if isinstance(tokens := _inside(each, "tokens"), Mapping)
    ]
    if turns:
        prompts = [place.tokens(turn.get("prompt_ids"), "prompt_ids") for turn in turns]
        return prompts[0], sum(place.tokens(turn.get("completion_ids"), "completion_ids") for turn in turns)
    usages = [
        usage for each in trace.get("calls") or () if isinstance(usage := _inside(each, "usage"), Mapping)
    ]
    if not usages:
        return None
    first = usages[0].get("input_tokens", usages[0].get("prompt_tokens"))
    made = [usage.get("completion_tokens", usage.get("output_tokens")) for usage in usages]
    prompt = place.whole(first, "usage of input tokens")
    return prompt, sum(place.whole(each, "usage of completion tokens") for each in made)


def _reason(trace: Mapping[str, Any]) -> str | None:
    if trace.get("errors") or trace.get("error") or trace.get("stop_condition") == "error":
        return "abort"
    calls = [each for each in trace.get("calls") or () if isinstance(each, Mapping) and not each.get("error")]
    if (
        trace.get("stop_condition") in _LIMITS
        or trace.get("is_truncated") is True
        or (calls and calls[-1].get("finish_reason") == "length")
    ):
        return "length"
    return "stop" if trace.get("is_completed") is True or trace.get("ok") is True or calls else None


def _reward(trace: Mapping[str, Any], place: Place, reading: Reading) -> float | None:
    rewards = trace.get("rewards")
    if "reward" in reading.options.fields or not isinstance(rewards, Mapping):
        return reading.reward(trace, place, "reward")
    parts = [each for each in rewards.values() if isinstance(each, Mapping)]
    if not parts:
        return None
    scores = [
        (place.real(each.get("score"), "score"), place.real(each.get("weight", 1.0), "weight"))
        for each in parts
    ]
    return sum((score or 0.0) * (1.0 if weight is None else weight) for score, weight in scores)


def _version(episode: Mapping[str, Any], end: str, place: Place) -> int | None:
    version = _inside(episode, "run", "work", "policy", end)
    return None if version is None else place.whole(version, "policy version")


def _inside(record: Any, *names: str) -> Any:
    for name in names:
        if not isinstance(record, Mapping):
            return None
        record = record.get(name)
    return record


def _named(figure: str) -> tuple[str, ...]:
    """Of all rollouts of a step, else of those that were trained."""
    return tuple(f"train/agg/{subset}/{figure}" for subset in ("all", "effective"))


IMPORTER: Final = Importer(
    name="prime_rl",
    what="rollouts/step_N/train/…/traces.jsonl (verifiers records); metrics: metrics.jsonl, wandb",
    lengths="token ids, or usage of the model calls, or fitted to the metrics",
    example="oppo trace import --from prime_rl outputs/rollouts/ -o prime.parquet",
    patterns=("traces.jsonl",),
    looks=_recognises,
    read=_read,
    find_step=_step_of,
    select=_select,
    metrics=MetricNames(
        mean=_named("num_output_tokens/mean"),
        max=_named("num_output_tokens/max"),
        min=_named("num_output_tokens/min"),
        prompt_mean=_named("num_input_tokens/mean"),
    ),
    notes=("generated tokens of all turns count as one response",),
)
