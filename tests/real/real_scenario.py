"""A small scenario with a ``real:`` section."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from oppo_sim.scenario.load import scenario_from_plain
from oppo_sim.scenario.schema import Scenario

MODEL: dict[str, Any] = {
    "model_type": "qwen2", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256, "initializer_range": 0.3,
}  # fmt: skip


def damaged_model(folder: Path) -> str:
    """A folder of a model whose weights cannot be read: an engine finds that out where it is built."""
    (folder / "config.json").write_text(json.dumps(MODEL))
    (folder / "model.safetensors").write_bytes(b"nonsense")
    return str(folder)


def real_scenario(real: dict[str, Any] | None = None, **fields: Any) -> Scenario:
    """``fields`` replace those of the scenario, ``real`` those of its section."""
    section = {"models": {"actor": MODEL, "reward": MODEL}, "placement": {"threads": 1}, **(real or {})}
    plain = {
        "format": "oppo-scenario/1",
        "name": "small",
        "steps": 5,
        "rollout_batch_size": 4,
        "max_prompt_length": 12,
        "max_response_length": 40,
        "trace": {"synth": {"mean": 12, "p99": 36, "rows": 60, "seed": 1}, "prompt_length": 6},
        "costs": {"kind": "linear", "decode": {"fixed": 1.0}},
        "policy": {"name": "oppo", "overcommit": 2, "chunk_size": 5},
        "real": section,
    }
    return scenario_from_plain({**plain, **fields})
