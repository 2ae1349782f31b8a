"""slime and APRIL: ``--save-debug-rollout-data`` (``.pt`` files of samples) and their metrics."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from oppo_sim.errors import OppoError
from oppo_sim.traces.importers.importer import Importer
from oppo_sim.traces.importers.options import MetricNames
from oppo_sim.traces.importers.pickles import Array, load_pickle
from oppo_sim.traces.importers.places import Place
from oppo_sim.traces.importers.reading import Reading, Rollout
from oppo_sim.traces.masks import turns_of_mask


def _step_of(path: Path) -> int | None:
    found = re.findall(r"\d+", path.stem)
    return int(found[-1]) if found and len(found[-1]) < 16 else None


def _select(files: list[Path]) -> tuple[list[Path], dict[str, int]]:
    kept = [file for file in files if not file.name.startswith("eval")]
    return kept, {"file of an evaluation": len(files) - len(kept)} if len(kept) < len(files) else {}


def _read(path: Path, reading: Reading) -> Iterator[Rollout]:
    dump = load_pickle(path)
    samples = dump.get("samples") if isinstance(dump, Mapping) else None
    if not isinstance(samples, list):
        raise OppoError(f"{path} holds no list 'samples': is it a file of --save-debug-rollout-data?")
    rollout_id = dump.get("rollout_id")
    for number, sample in enumerate(samples, start=1):
        place = Place(path, number, "sample")
        if not isinstance(sample, Mapping):
            raise place.error("this is not a table of fields: is it a file of --save-debug-rollout-data?")
        rollout = _rollout(sample, place, reading, rollout_id)
        if rollout is not None:
            yield rollout


def _rollout(sample: Mapping[str, Any], place: Place, reading: Reading, rollout_id: Any) -> Rollout | None:
    status = reading.pick(sample, place, "finish_reason", "status")
    if status == "pending":
        reading.left_out["sample never generated (status pending)"] += 1
        return None
    response = reading.tokens(sample, place, "response_length", "response_length")
    if response is None:
        raise place.error("there is no response_length: is it a file of --save-debug-rollout-data?")
    total = _count(sample.get("tokens"))
    step = reading.pick(sample, place, "step")
    step = rollout_id if step is None else step
    prompt = reading.pick(sample, place, "prompt_length")
    if prompt is None and total is not None and total >= response:
        prompt = total - response
    versions = [int(each) for each in sample.get("weight_versions") or () if str(each).isdecimal()]
    rollout = Rollout(
        line=place.line,
        response_length=response,
        prompt_length=None if prompt is None else place.tokens(prompt, "prompt_length"),
        step=None if step is None else place.whole(step, "rollout_id"),
        prompt_id=reading.name(sample, place, "prompt_id", "group_index"),
        sample_id=reading.name(sample, place, "sample_id", "index"),
        finish_reason=reading.reason(status),
        reward=reading.reward(sample, place, "reward"),
        head_version=min(versions, default=None),
        tail_version=max(versions, default=None),
    )
    mask = sample.get("loss_mask")
    if not isinstance(mask, list) or len(mask) != response or not any(mask):
        return rollout  # one turn, or a sample that is not trained
    waited = place.real(sample.get("non_generation_time"), "non_generation_time")
    return reading.turns(rollout, turns_of_mask(mask), waited or 0.0)


def _count(tokens: Any) -> int | None:
    if isinstance(tokens, Array):
        return tokens.shape[0] if len(tokens.shape) == 1 else None
    return len(tokens) if isinstance(tokens, Sequence) and not isinstance(tokens, str) and tokens else None


IMPORTER: Final = Importer(
    name="slime",
    aliases=("april",),
    what="--save-debug-rollout-data (N.pt, read without running it); metrics: console, wandb, TensorBoard",
    lengths="logged, or fitted to the metrics",
    example="oppo trace import --from slime debug_rollouts/ -o slime.parquet",
    patterns=("*.pt",),
    looks=lambda peek: peek.path.suffix == ".pt",
    read=_read,
    confined=True,
    find_step=_step_of,
    select=_select,
    metrics=MetricNames(
        mean=("rollout/response_len/mean",),
        max=("rollout/response_len/max",),
        min=("rollout/response_len/min",),
        median=("rollout/response_len/median",),
        clip_ratio=("rollout/truncated_ratio",),
        reward_mean=("rollout/raw_reward",),
    ),
    notes=(
        "response_length counts tool output too, in multi-turn runs whose seconds of tools are not known",
    ),
)
