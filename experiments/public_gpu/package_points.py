"""Kernel seconds of aiconfigurator-core at points between those of any table, and what cost models say there.

`python experiments/public_gpu/package_points.py` asks the package (extra `kernels`) and writes
data/package_points.csv.gz; everything else reads that file.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from served import Engine, engine_costs
from split import DATA, load

from oppo_sim.costs.kernels.devices import SYSTEMS
from oppo_sim.costs.models import find_model

POINTS = DATA / "package_points.csv.gz"
CONFIGURATIONS = [
    *((device, "qwen2.5-7b", degree) for device in ("A100-80", "H100", "H200") for degree in (1, 2, 4)),
    *((device, "llama-3.1-8b", 1) for device in ("B200", "GB200", "L40S")),
    *((device, "llama-3.1-70b", 8) for device in ("A100-80", "H100", "B200")),
]
"""Device, model, tensor parallelism; bf16."""
COUNT = 30
"""Points of a configuration and stage."""
VERSIONS = {"a100_sxm": "0.14.0"}
NEWEST = "0.24.0"
HOST = "bare"
"""No host: the package's seconds are of the device alone."""


def ask() -> pd.DataFrame:
    """One row a point: unit, stage, rollouts or new tokens, context or past tokens, seconds."""
    found = [row for device, model, degree in CONFIGURATIONS for row in _ask(device, model, degree)]
    return pd.DataFrame(found)


def _ask(device: str, model: str, degree: int) -> Iterator[dict[str, Any]]:
    import aiconfigurator_core
    from aiconfigurator_core.sdk import engine

    system, unit = SYSTEMS[device], f"{device}/{model}/{degree}"
    generator = np.random.default_rng(list(unit.encode()))

    def drawn(low: float, high: float) -> int:
        return int(np.exp(generator.uniform(np.log(low), np.log(high))))

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(_config(model)), encoding="utf-8")
        version = VERSIONS.get(system, NEWEST)
        spec = engine.compile_engine(folder, system, "vllm", backend_version=version, tp_size=degree)
    package = aiconfigurator_core._aiconfigurator_core.AicEngine.from_spec(spec, None)
    base = {"device": device, "model": model, "tp": degree}
    for _ in range(COUNT):
        running, context = drawn(1, 500), drawn(64, 16_000)
        seconds = package.predict_decode_latency(running, context, 2) / 1000
        yield {**base, "stage": "decode", "count": running, "context": context, "seconds": seconds}
        new, past = drawn(16, 8_000), drawn(16, 8_000) * int(generator.integers(0, 2))
        seconds = package.predict_prefill_latency(1, new + past, past) / 1000
        yield {**base, "stage": "prefill", "count": new, "context": past, "seconds": seconds}


def _config(model: str) -> dict[str, Any]:
    shape = find_model(model)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    }


def point_rows(kind: str, held: bool, devices: tuple[str, ...] = ()) -> pd.DataFrame:
    """`predicted` and `measured` seconds by point, of `devices` (none named: all)."""
    rows = load("package_points")
    kept = rows["held_out"] == held
    rows = rows[kept & rows["device"].isin(devices)].copy() if devices else rows[kept].copy()
    rows["predicted"] = [
        _seconds(kind, *each)
        for each in rows[["device", "model", "tp", "stage", "count", "context"]].itertuples(index=False)
    ]
    return rows.rename(columns={"seconds": "measured"})


def _seconds(kind: str, device: str, model: str, degree: int, stage: str, count: int, context: int) -> float:
    actor = engine_costs(Engine(kind, model, device, int(degree), HOST)).actor
    if stage == "decode":
        return actor.decode_time(count, count * context)
    return actor.prefill_time(count, count * context + count * count / 2)


if __name__ == "__main__":
    ask().to_csv(POINTS, index=False, float_format="%.6g", compression={"method": "gzip", "mtime": 0})
