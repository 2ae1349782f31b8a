"""The kernel tier: one layer without attention, and one all-reduce, as vidur profiled them.

What a cost model says of one layer is the difference of models with 20 and with 10 layers, so that output
head and host cancel. A tensor-parallel shard is a model with that share of heads and columns on one device;
an all-reduce is half of what a layer costs more when the shard is one of several.
"""

from functools import cache
from typing import Any

import pandas as pd
from served import Engine, engine_costs
from split import load

from oppo_sim.costs.interpolate import linear

DEVICES = {"a100": "A100-80", "h100": "H100", "a40": "A40", "a100_dgx": "A100-80", "h100_dgx": "H100"}
SHAPES: dict[str, tuple[int, int, int, int]] = {
    "CodeLlama-34b-Instruct-hf": (8192, 22016, 64, 8),
    "Llama-2-70b-hf": (8192, 28672, 64, 8),
    "Llama-2-7b-hf": (4096, 11008, 32, 32),
    "Meta-Llama-3-70B": (8192, 28672, 64, 8),
    "Meta-Llama-3-8B": (4096, 14336, 32, 8),
}
"""Hidden size, columns of the MLP, heads, KV heads."""
LAYERS = 10
DECODE_TOKENS = 512
"""A layer of at most so many tokens is counted as decode, a larger one as prefill."""
ALL_REDUCE_MODEL = "Llama-2-70b-hf"


def shape_of(model: str, shards: int, layers: int) -> dict[str, Any]:
    """One of `shards` equal parts of a model."""
    hidden, columns, heads, kv_heads = SHAPES[model]
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": columns // shards,
        "num_attention_heads": heads // shards,
        "num_key_value_heads": max(1, kv_heads // shards),
        "head_dim": 128,
        "vocab_size": 32000,
    }


@cache
def _forward(kind: str, device: str, model: str, shards: int, degree: int, layers: int) -> Any:
    shape = shape_of(model, shards, layers)
    return engine_costs(Engine(kind, shape, device, degree, "vllm", "fp16")).actor


def layer_seconds(kind: str, device: str, model: str, shards: int, tokens: int, degree: int = 1) -> float:
    """Seconds of one layer for `tokens` tokens that attend to nothing. Of a composed model the table of rows,
    since its attention has no column for tokens without context."""
    if kind == "composed":
        rows = _forward(kind, device, model, shards, degree, LAYERS).table.rows
        return linear(rows.tokens, rows.seconds, tokens) / LAYERS
    two, one = (
        _forward(kind, device, model, shards, degree, count).prefill_time(tokens, 0.0)
        for count in (2 * LAYERS, LAYERS)
    )
    return (two - one) / LAYERS


def layer_rows(kind: str, held_out: bool, devices: tuple[str, ...] = ("a100", "a40", "h100")) -> pd.DataFrame:
    """`predicted` and `measured` seconds of vidur_layers; `stage` is decode or prefill by the tokens."""
    rows = load("vidur_layers")
    rows = rows[(rows["held_out"] == held_out) & rows["device"].isin(devices)].copy()
    rows["predicted"] = [
        layer_seconds(kind, DEVICES[device], model, degree, tokens)
        for device, model, degree, tokens in rows[["device", "model", "tp", "tokens"]].itertuples(index=False)
    ]
    rows["stage"] = ["decode" if tokens <= DECODE_TOKENS else "prefill" for tokens in rows["tokens"]]
    return rows


def all_reduce_rows(kind: str, held_out: bool) -> pd.DataFrame:
    """`predicted` and `measured` seconds of an all-reduce within one DGX (NVSwitch) by bytes."""
    rows = load("vidur_all_reduce")
    kept = (rows["held_out"] == held_out) & rows["machine"].isin(DEVICES) & (rows["num_workers"] <= 8)
    hidden = SHAPES[ALL_REDUCE_MODEL][0]
    rows = rows[kept & (rows["size"] >= 2 * hidden)].copy()
    predicted = []
    for machine, workers, size in rows[["machine", "num_workers", "size"]].itertuples(index=False):
        tokens = size // (2 * hidden)
        device = DEVICES[machine]
        several = layer_seconds(kind, device, ALL_REDUCE_MODEL, 1, tokens, degree=workers)
        alone = layer_seconds(kind, device, ALL_REDUCE_MODEL, workers, tokens)
        predicted.append((several - alone) / 2)
    rows["predicted"], rows["measured"] = predicted, rows["time_stats.all_reduce.median"] / 1000
    return rows
