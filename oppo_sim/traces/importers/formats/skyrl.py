"""SkyRL: ``global_step_{N}_training_input.pkl``, read without running it, and its metrics."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from oppo_sim.errors import OppoError
from oppo_sim.traces.importers.importer import Importer
from oppo_sim.traces.importers.options import MetricNames
from oppo_sim.traces.importers.pickles import HOW_TO_CONVERT, Array, Refused, StandInBatch, load_pickle
from oppo_sim.traces.importers.reading import Reading, Rollout
from oppo_sim.traces.masks import turns_of_mask


def _read(path: Path, reading: Reading) -> Iterator[Rollout]:
    batch = load_pickle(path)
    state = batch.state if isinstance(batch, StandInBatch) else None
    fields = state.get("batch_dict") if isinstance(state, Mapping) else None
    if not isinstance(fields, Mapping):
        raise OppoError(f"{path} holds no training batch: is it a file of trainer.dump_data_batch?")
    mask = _numbers(fields, "response_mask", path)
    if mask is None:
        mask = _numbers(fields, "loss_mask", path)
        reading.notes["response lengths are sums of loss_mask, since there is no response_mask"] += 1
    if mask is None or mask.ndim != 2:
        raise OppoError(
            f"{path} has no response_mask and no loss_mask: is it a file of trainer.dump_data_batch?"
        )
    made = _numbers(fields, "loss_mask", path)
    attended, rewards = _numbers(fields, "attention_mask", path), _numbers(fields, "rewards", path)
    metadata = state.get("metadata") if isinstance(state, Mapping) else None
    uids, padding = _metadata(metadata)
    for row in range(len(mask)):
        if row >= len(mask) - padding:
            reading.left_out["row that only fills the batch up"] += 1
            continue
        length = int((mask[row] != 0).sum())
        total = None if attended is None or len(attended) != len(mask) else int((attended[row] != 0).sum())
        rollout = Rollout(
            line=row + 1,
            response_length=length,
            prompt_length=None if total is None or total < length else total - length,
            prompt_id=uids[row] if row < len(uids) else None,
            reward=float(rewards[row].sum()) if rewards is not None and len(rewards) == len(mask) else None,
        )
        if made is None or made.shape != mask.shape:
            yield rollout
        else:
            yield reading.turns(rollout, turns_of_mask(made[row]))


def _metadata(metadata: Any) -> tuple[list[str], int]:
    if not isinstance(metadata, Mapping):
        return [], 0
    uids, padding = metadata.get("uids"), metadata.get("pad_size")
    return [str(each) for each in uids] if isinstance(uids, list) else [], (
        padding if isinstance(padding, int) and padding > 0 else 0
    )


def _numbers(fields: Mapping[str, Any], name: str, path: Path) -> npt.NDArray[np.float64] | None:
    held = fields.get(name)
    if not isinstance(held, Mapping) or held.get("format", "numpy") != "numpy":
        return None
    raw, shape, kind = held.get("data"), held.get("shape"), held.get("dtype")
    if (
        not isinstance(raw, bytes)
        or not isinstance(shape, tuple)
        or not all(type(size) is int and size >= 0 for size in shape)
    ):
        return None
    try:
        return Array(shape, str(kind), lambda: raw).values().astype(float)  # type: ignore[no-any-return]
    except Refused as error:
        raise OppoError(f"{path}: field {name} has {error}: {HOW_TO_CONVERT}") from None


IMPORTER: Final = Importer(
    name="skyrl",
    what=(
        "dump_data_batch (global_step_N_training_input.pkl, read without running it); metrics: wandb,"
        " TensorBoard"
    ),
    lengths="token ids (sum of response_mask), or fitted to the metrics",
    example="oppo trace import --from skyrl exports/dumped_data/ --max-response-length 1024 -o skyrl.parquet",
    patterns=("*_training_input.pkl",),
    looks=lambda peek: peek.path.suffix in (".pkl", ".pickle"),
    read=_read,
    confined=True,
    step_name=r"global_step_(\d{1,15})_training_input\.pkl",
    metrics=MetricNames(
        # num_tokens count what tools answered, too; versions before August 2026 have nothing else.
        mean=("generate/avg_assistant_tokens", "generate/avg_num_tokens"),
        max=("generate/max_assistant_tokens", "generate/max_num_tokens"),
        min=("generate/min_assistant_tokens", "generate/min_num_tokens"),
        std=("generate/std_assistant_tokens", "generate/std_num_tokens"),
    ),
    notes=("without --tool-seconds response_mask spans tool output too, in multi-turn runs",),
)
