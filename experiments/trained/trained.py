"""Seconds of a training step under Megatron and FSDP, against what NVIDIA published of it.

    python experiments/trained/trained.py predict   # predicted.csv; reads no measured seconds
    python experiments/trained/trained.py score     # scored.csv, and the tables of the page

A row of rows.csv is a configuration in bf16: model, GPUs, global and micro-batch size in sequences, their
length, parallelism, and the seconds of a step. A step is ``update_actor`` of one epoch and mini-batch by the
roofline.
"""

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "public_gpu"))

from measures import errors_of  # noqa: E402
from overview import percent, signed  # noqa: E402
from overview import table as markdown  # noqa: E402

from oppo_sim.costs.context import CostContext  # noqa: E402
from oppo_sim.costs.devices import find_device  # noqa: E402
from oppo_sim.costs.interface import BatchShape  # noqa: E402
from oppo_sim.costs.model_shape import ModelShape  # noqa: E402
from oppo_sim.costs.models import find_model, plain_shape  # noqa: E402
from oppo_sim.costs.roofline_config import RooflineCostConfig  # noqa: E402
from oppo_sim.costs.training_config import TrainingConfig  # noqa: E402
from oppo_sim.errors import OppoError  # noqa: E402

NODES: Final = {
    "H100": (8, 5e10),
    "B200": (8, 5e10),
    "B300": (8, 1e11),
    "GB200": (72, 5e10),
    "GB300": (72, 1e11),
}
"""GPUs that NVLink joins, and bytes a second of one GPU to others."""
ENOUGH_BYTES: Final = 1e14
"""Of a device: these ran, whatever our memory formulas say of them."""


LATER: Final = ("dgxc interleaved", "dgxc finetuning")
"""Sources of configurations that were added after the second scoring, of no half."""
SHAPES: Final = {
    "llama-3.1-405b": plain_shape(126, 16384, 53248, 128, 8, 128256),
    "nemotron-4-15b": plain_shape(32, 6144, 24576, 48, 8, 256000, gated_mlp=False),
    "nemotron-4-340b": plain_shape(96, 18432, 73728, 96, 8, 256000, gated_mlp=False),
    "gpt3-175b": plain_shape(96, 12288, 49152, 96, 96, 51200, gated_mlp=False),
    "grok-1": plain_shape(64, 6144, 32768, 48, 8, 131072, num_experts=8, num_experts_per_tok=2),
}
"""From their papers and configurations; others are presets."""


def rows() -> pd.DataFrame:
    """Configurations with their measured seconds, with the half that their model is of."""
    table = pd.read_csv(FOLDER / "rows.csv")
    later = table["source"].isin(LATER)
    table["half"] = table["model"].map(half_of).mask(later, "later")
    table["kind"] = ["dense" if routing == "dense" else "experts" for routing in table["routing"]]
    return table


def half_of(model: str) -> str:
    """Of all models: ``fit`` or ``check``."""
    return ("fit", "check")[hashlib.sha256(model.encode()).digest()[0] % 2]


def shape_of(row: Any) -> ModelShape:
    """Its model, with fewer layers where a slice was run."""
    shape = SHAPES[row.model] if row.model in SHAPES else find_model(row.model)
    return shape if pd.isna(row.layers) else shape.model_copy(update={"num_hidden_layers": int(row.layers)})


def training_of(row: Any) -> TrainingConfig:
    """What the recipe says."""
    return TrainingConfig(
        num_ppo_epochs=1,
        micro_batch_rollouts=row.mbs,
        num_gpus=row.gpus,
        ref=False,
        old_log_prob="behaviour",
        critic="none",
        tensor_parallel=row.tp,
        pipeline_parallel=row.pp,
        virtual_pipeline_parallel=row.vp,
        sequence_parallel=row.cp,
        expert_parallel=row.ep,
        expert_tensor_parallel=None if pd.isna(row.etp) else int(row.etp),
        sharding=row.sharding,
        gradient_checkpointing=row.recompute == "full",
        lora_rank=row.lora_rank,
    )


def step_seconds(row: Any, **more: Any) -> float:
    """``more``: of ``costs.training``."""
    of_node, link = NODES[row.device]
    spans = row.gpus > of_node
    half = row.sequence_length // 2
    context = CostContext(
        num_replicas=1,
        num_scoring_workers=1,
        rollout_batch_size=row.gbs,
        max_prompt_length=half,
        max_response_length=half,
        training=training_of(row),
        node_link_bytes_per_s=link if spans else None,
        gpus_per_node=of_node,
        training_spans_nodes=spans,
    )
    costs = RooflineCostConfig.model_validate({
        "kind": "roofline",
        "device": find_device(row.device).model_copy(update={"hbm_bytes": ENOUGH_BYTES}),
        "actor_model": shape_of(row),
        "reward_model": {"kind": "verifier"},
        "training": {
            "fused_kernels": True,
            "tp_comm_overlap": row.source.startswith("dgxc") and row.tp > 1,  # as its recipes set it
            "expert_dispatch": "alltoall" if pd.isna(row.dispatch) else row.dispatch,
            **more,
        },
    })  # fmt: skip
    batch = BatchShape((half,) * row.gbs, (half,) * row.gbs)
    return float(costs.build(context).training.stage_times(batch).update_actor)


def predictions(table: pd.DataFrame) -> pd.DataFrame:
    """A line a row: seconds of a step, or why there is none."""
    made = []
    for row in table.itertuples():
        try:
            made.append({"row": row.Index, "predicted_s": step_seconds(row), "why": ""})
        except OppoError as error:
            made.append({"row": row.Index, "predicted_s": None, "why": str(error)})
    return pd.DataFrame(made)


def joined(predicted: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Rows with what is predicted of them."""
    return table.join(predicted.set_index("row")).dropna(subset=["predicted_s"])


def page_table(found: pd.DataFrame, by: Sequence[str]) -> str:
    """Errors for each value of ``by``."""
    lines = []
    for value, part in found.groupby(list(by), sort=True):
        errors = errors_of(part["predicted_s"].to_numpy(), part["step_s"].to_numpy())
        shown = percent(errors.median), percent(errors.worst), signed(errors.sign)
        lines.append([*map(str, value), str(errors.n), *shown])
    return markdown([*by, "n", "median", "worst", "bias"], lines) + "\n"


TABLES: Final = (["kind", "half"], ["kind", "routing", "device"], ["kind", "half", "model"])
"""Of the page."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("predict", "score"))
    if parser.parse_args(arguments).what == "predict":
        predictions(rows()).to_csv(FOLDER / "predicted.csv", index=False, float_format="%.5g")
        return
    found = joined(pd.read_csv(FOLDER / "predicted.csv"), rows())
    scored = found[["source", "model", "device", "gpus", "half", "kind", "predicted_s", "step_s"]]
    scored = scored.assign(error=found["predicted_s"] / found["step_s"] - 1.0)
    scored.to_csv(FOLDER / "scored.csv", index_label="row", float_format="%.4g")
    for by in TABLES:
        print(page_table(found, by))


if __name__ == "__main__":
    main()
