"""The served-engine tier: time per output token of engines under a closed loop of requests.

A loop of `concurrency` clients keeps n = min(concurrency, what the KV cache holds) requests running. Their
mean context is prompt + half the response, and while one of them makes its tokens each of the others is
replaced once, so that a token takes decode(n, n·context) + (n − 1)/response · prefill(prompt).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from split import load

from oppo_sim.costs.interface import Costs
from oppo_sim.scenario.build import build_parts
from oppo_sim.scenario.schema import Scenario

DEVICES = {"h100_sxm": "H100", "h200_sxm": "H200", "a100-80gb": "A100-80", "h100-80gb": "H100"}
MODELS: dict[str, Any] = {
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "llama2-70b": {
        "num_hidden_layers": 80,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    },
    "bloom-176b": {
        "num_hidden_layers": 70,
        "hidden_size": 14336,
        "intermediate_size": 57344,
        "num_attention_heads": 112,
        "vocab_size": 250880,
        "gated_mlp": False,
    },
}
FP8_KV = ("meta-llama/Llama-3.1-70B", "nvidia/Llama-3.1-8B-Instruct-FP8")
"""InferenceMAX serves with kv-cache-dtype fp8; NVIDIA's 8B checkpoint names fp8 for its own KV cache."""
PREFIX_CACHED = (("nvidia/Llama-3.1-8B-Instruct-FP8", "vllm"),)
"""(model, backend) of benchmarks whose prompts vLLM finds in its prefix cache, on by default: seconds of a
token do not depend on how many prefills fall into it (develop rows of input 4,000, output 100 to 2,000)."""
BLOCK = 16
"""Tokens of a block of vLLM's KV cache; a found prompt still computes what follows its last whole block."""
INFERENCEMAX_LENGTHS = 0.9
"""InferenceMAX draws lengths evenly from 0.8 to 1 times the nominal ones (random-range-ratio 0.8)."""


@dataclass(frozen=True)
class Engine:
    """One served configuration."""

    kind: str
    """Of `costs`: roofline or composed."""
    model: str | dict[str, Any]
    """Of MODELS, or a shape."""
    device: str
    tensor_parallel: int
    host: str
    """A preset; bare: the device alone, every batch computed as it is."""
    dtype: str = "bf16"
    kv_cache_dtype: str = "auto"
    engine: str = "vllm"
    expert_parallel: int = 1
    attention_data_parallel: int = 1


def engine_scenario(engine: Engine) -> Scenario:
    """A scenario with these settings of the engine; nothing else of it is asked."""
    rollout = {
        "tensor_parallel": engine.tensor_parallel,
        "expert_parallel": engine.expert_parallel,
        "attention_data_parallel": engine.attention_data_parallel,
        "host": {} if engine.host == "bare" else engine.host,
        "dtype": engine.dtype,
        "kv_cache_dtype": engine.kv_cache_dtype,
    }
    model = MODELS.get(engine.model, engine.model) if isinstance(engine.model, str) else engine.model
    costs: dict[str, Any] = {
        "kind": engine.kind,
        "device": engine.device,
        "actor_model": model,
        "reward_model": {"kind": "verifier"},
        "rollout": rollout,
        "training": {"device": "H200"},  # it only has to fit
    }
    if engine.kind == "composed":
        costs["kernels"] = {"engine": engine.engine}
    scenario = {
        "rollout_batch_size": 1,
        "max_prompt_length": 16,
        "max_response_length": 16,
        "trace": {"synth": {"mean": 8.0, "p50": 7.0, "max_response_length": 16, "prompt_mean": 8.0}},
        "training": {"num_gpus": 1024, "critic": "none", "ref": False, "sharding": "full"},
        "placement": {"training": "separate"},
        "costs": costs,
    }
    return Scenario.model_validate(scenario)


def engine_costs(engine: Engine) -> Costs:
    """Seconds of the engine, as a scenario with these settings has them."""
    return build_parts(engine_scenario(engine)).costs


def token_seconds(
    costs: Costs, concurrency: int, prompt: float, response: float, cached: bool = False
) -> float:
    """Seconds of an output token in the closed loop; ``cached``: prompts are found in the prefix cache."""
    capacity = costs.actor_kv_capacity_tokens
    assert capacity is not None
    context = prompt + response / 2
    running = max(1, min(concurrency, int(capacity / context)))
    decode = costs.actor.decode_time(running, running * context)
    past = (prompt - 1) // BLOCK * BLOCK if cached else 0.0
    new = prompt - past
    prefill = costs.actor.prefill_time(new, new * past + new * new / 2)
    return decode + (running - 1) / response * prefill


def token_seconds_of(costs: Costs, rows: pd.DataFrame) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Of measurements of one configuration."""
    asked = rows[["conc", "prompt", "response", "cached"]].itertuples(index=False)
    return np.array([token_seconds(costs, int(clients), *how) for clients, *how in asked])


def served_engines(kind: str, held_out: bool) -> Iterator[tuple[str, Engine, pd.DataFrame]]:
    """The configurations of served_fp8_tpot: unit, engine, and its rows with mean lengths and `measured`
    seconds per output token."""
    rows = load("served_fp8_tpot")
    for unit, part in rows[rows["held_out"] == held_out].groupby("unit"):
        model, backend = part["model_path"].iloc[0], part["backend"].iloc[0]
        engine = Engine(
            kind=kind,
            model=model,
            device=DEVICES[part["system"].iloc[0]],
            tensor_parallel=int(part["tp_size"].iloc[0]),
            host=backend,
            dtype="fp8",
            kv_cache_dtype="fp8" if model in FP8_KV else "auto",
            engine=backend,
        )
        factor = INFERENCEMAX_LENGTHS if model == "meta-llama/Llama-3.1-70B" else 1.0
        asked = {"prompt": factor * part["isl"], "response": factor * part["osl"]}
        asked["cached"] = (model, backend) in PREFIX_CACHED
        yield str(unit), engine, part.assign(**asked, measured=part["silicon_tpot_ms"] / 1000)


def served_rows(kind: str, held_out: bool) -> pd.DataFrame:
    """`predicted` and `measured` seconds per output token, one row a measurement."""
    return pd.concat(
        [
            rows.assign(predicted=token_seconds_of(engine_costs(engine), rows))
            for _, engine, rows in served_engines(kind, held_out)
        ]
    )


def splitwise_rows(kind: str, held_out: bool) -> pd.DataFrame:
    """`predicted` and `measured` seconds of a token (stage decode) and a prompt batch (stage prefill) of
    splitwise_vllm2023: vLLM of 2023, which captured no CUDA graphs. Prompts at batch 64 are the last
    micro-batch only and are left out."""
    rows = load("splitwise_vllm2023")
    rows = rows[rows["held_out"] == held_out]
    keys = ["unit", "model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "token_size"]
    rows = rows.groupby(keys, as_index=False)[["prompt_time", "token_time"]].median()
    found = []
    for row in rows.to_dict("records"):
        degree = int(row["tensor_parallel"])
        actor = engine_costs(
            Engine(kind, row["model"], DEVICES[row["hardware"]], degree, "vllm-eager", "fp16")
        ).actor
        batch, prompt = int(row["batch_size"]), row["prompt_size"]
        kv = batch * (prompt + row["token_size"] / 2)
        base = {"unit": row["unit"], "batch": batch, "prompt": prompt}
        token = actor.decode_time(batch, kv)
        found.append({**base, "stage": "decode", "predicted": token, "measured": row["token_time"] / 1000})
        if batch < 64:
            seconds = actor.prefill_time(batch * prompt, batch * prompt * prompt / 2)
            found.append(
                {**base, "stage": "prefill", "predicted": seconds, "measured": row["prompt_time"] / 1000}
            )
    return pd.DataFrame(found)


def relative(rows: pd.DataFrame) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Predicted / measured − 1."""
    return rows["predicted"].to_numpy() / rows["measured"].to_numpy() - 1
