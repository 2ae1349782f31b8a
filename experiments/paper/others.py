"""Baselines of NeMo RL and verl as studies: synchronous, colocated steps are known, and what training on
devices of its own, one step off or asynchronous, would take is asked."""

import csv
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from study import FOLDER, Run, Study, World

from oppo_sim.costs.terms import CostTerms
from oppo_sim.errors import OppoError
from oppo_sim.scenario.build import build_parts
from oppo_sim.scenario.schema import Scenario

BASELINES: Final = FOLDER / "data" / "others_baseline.csv"
POLICY: Final = "asked"
"""The run under the policy whose gain is published."""
_ROWS: Final = 8000
_MOST_TRIES: Final = 200
_SHAPES: Final[dict[str, dict[str, Any]]] = {
    "qwen3-32b": {
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "qk_norm": True,
    },
    "qwen3-235b-a22b": {
        "num_hidden_layers": 94,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "qk_norm": True,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1536,
    },
}
"""From their configurations on Hugging Face."""


class Other(NamedTuple):
    """A row of ``BASELINES``."""

    name: str
    model: str
    device: str
    node_gpus: int
    gpus: int
    async_rollout_gpus: int
    async_training_gpus: int
    rollout_batch_size: int
    asked_rollout_batch_size: int
    """Of the run under ``policy``."""
    mini_batches: int
    rollout_tp: int
    training_tp: int
    max_response_length: int
    mean_sequence: float | None
    """Tokens of prompt and response; None: not published."""
    observe: tuple[str, ...]
    policy: str
    source: str


def read_others() -> dict[str, Other]:
    """By name."""
    found = {}
    with BASELINES.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            numbers = {name: int(row[name]) for name in Other._fields[3:13]}
            mean = float(row["mean_sequence"]) if row["mean_sequence"] else None
            found[row["name"]] = Other(
                name=row["name"],
                model=row["model"],
                device=row["device"],
                **numbers,
                mean_sequence=mean,
                observe=tuple(row["observe"].split()),
                policy=row["policy"],
                source=row["source"],
            )
    return found


def other_study(other: Other) -> Study:
    """Of a row."""
    return Study(
        other.name,
        partial(_world, other),
        partial(_scenario, other),
        lambda _world: list(other.observe),
        ("sequential", POLICY),
        partial(_run, other),
        steps=14,
        warmup=4,
    )


def _world(other: Other, number: int) -> dict[str, Any]:
    for attempt in range(_MOST_TRIES):
        generator = np.random.default_rng([number, attempt, *other.name.encode()])
        world = _drawn(other, generator)
        try:
            for run in ("sequential", POLICY):
                build_parts(_run(other, world, CostTerms(), run).scenario)
        except OppoError:
            continue
        return world
    raise OppoError(f"{other.name}: nothing fits for world {number}: mend the priors")


def _drawn(other: Other, generator: np.random.Generator) -> dict[str, Any]:
    prompt = 150.0 * float(np.exp(0.4 * generator.standard_normal()))
    if other.mean_sequence is None:
        mean = 2500.0 * float(np.exp(0.6 * generator.standard_normal()))
    else:
        mean = max(other.mean_sequence - prompt, 10.0)
    tail = str(generator.choice(["light", "heavy", "cut"]))
    shapes = {"light": (1.8, 2.6), "heavy": (2.6, 6.0), "cut": (0.02, 0.6)}
    return {
        "prompt": prompt,
        "mean": mean,
        "tail": tail,
        "tail_shape": float(generator.uniform(*shapes[tail])),
        "trainer_share": float(generator.choice([0.3, 0.45, 0.6, 0.73])),
        "training_padded": bool(generator.random() < 0.2),
        "checkpointing": bool(generator.random() < 0.8),
        "host": str(generator.choice(["vllm", "vllm-async", "vllm-eager"])),
        "ref": bool(generator.random() < (0.5 if other.name.startswith("nemo") else 0.0)),
        "sequence_parallel": int(generator.choice([1, 2, 4])) if other.name.startswith("verl") else 1,
    }


def _scenario(other: Other, world: World) -> Scenario:
    """Of the colocated baseline. Raises OppoError for lengths that cannot be."""
    return _built(other, world, other.gpus // other.rollout_tp, None)


def _run(other: Other, world: World, terms: CostTerms, name: str) -> Run:
    if name == "sequential":
        return Run(_scenario(other, world), "sequential", {}, terms)
    replicas = max(1, other.async_rollout_gpus // other.rollout_tp)
    apart = _built(other, world, replicas, other.async_training_gpus)
    # verl's fully asynchronous trainer takes the engine's log-probabilities.
    settings = {"max_staleness": 1} if other.policy == "async" else {}
    return Run(apart, other.policy, settings, terms)


def _built(other: Other, world: World, replicas: int, training_gpus: int | None) -> Scenario:
    mean, longest = float(world["mean"]), other.max_response_length
    if world["tail"] == "cut":
        tail = {"clip_ratio": float(world["tail_shape"])}
    else:
        tail = {"p99": float(world["tail_shape"]) * mean}
        if tail["p99"] >= longest:
            raise OppoError(f"p99 {tail['p99']:.0f} is beyond {longest} tokens: draw again")
    if mean >= longest:
        raise OppoError(f"a mean of {mean:.0f} is beyond {longest} tokens: draw again")
    prompt = float(world["prompt"])
    apart = training_gpus is not None
    sync = (
        {"kind": "online_refit", "fixed_s": 0.5, "convert_bytes_per_s": 2.0e10}
        if apart
        else {"kind": "reshard", "load_bytes_per_s": 6e9}  # the default, whatever the GPUs, when this was run
    )
    training: dict[str, Any] = {
        "num_ppo_epochs": 1,
        "num_mini_batches": other.mini_batches,
        "critic": "none",
        "ref": bool(world["ref"]),
        "old_log_prob": "behaviour" if apart and other.policy == "async" else "recompute",
        "remove_padding": not world["training_padded"],
        "gradient_checkpointing": bool(world["checkpointing"]),
        "tensor_parallel": other.training_tp,
        "sequence_parallel": int(world["sequence_parallel"]),
        "offload": not apart,
        "weight_sync": sync,
    }
    if apart:
        training["num_gpus"] = training_gpus
    return Scenario.model_validate(
        {
            "name": other.name,
            "steps": 4,
            "warmup_steps": 1,
            "rollout_batch_size": other.asked_rollout_batch_size if apart else other.rollout_batch_size,
            "max_prompt_length": round(3.0 * prompt),
            "max_response_length": longest,
            "trace": {
                "synth": {
                    "mean": mean,
                    **tail,
                    "max_response_length": longest,
                    "rows": _ROWS,
                    "prompt_mean": prompt,
                    "prompt_p99": 2.5 * prompt,
                },
                "sampling": "resample",
            },
            "rollout": {"num_replicas": replicas, "batching": "continuous"},
            "placement": {"training": "separate" if apart else "rollout", "scoring": "separate"},
            "training": training,
            "cluster": {"num_gpus_per_node": other.node_gpus},
            "costs": {
                "kind": "roofline",
                "device": other.device,
                "actor_model": _SHAPES.get(other.model, other.model),
                "reward_model": {"kind": "verifier"},
                "rollout": {"tensor_parallel": other.rollout_tp, "host": world["host"]},
                "training": {"achievable": {"gemm": world["trainer_share"]}},
            },
            "policy": {"name": "sequential"},
        }
    )
