"""What is not published of a set-up, as priors, and the scenario that a draw of them is.

One draw is a *world*: a value of every unknown below. What costs seconds beyond that (factors on kernels, the
host, seconds of a phase) are the terms of ``oppo_sim/costs/priors.py``, drawn by ``oppo fit --observe``.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from setups import UNRELATED, Setup
from study import World

from oppo_sim.costs.achieved import Achievable, achieved
from oppo_sim.costs.devices import find_device
from oppo_sim.errors import OppoError
from oppo_sim.scenario.build import build_parts
from oppo_sim.scenario.schema import Scenario

STEPS: Final = 9
"""Of which the first is not looked at."""
_PROMPT_TAIL: Final = 3.0
_ROWS: Final = 4000
_MOST_TRIES: Final = 50


class Choice(NamedTuple):
    """An unknown with a few values, equally likely unless ``odds`` are given."""

    values: tuple[Any, ...]
    source: str
    odds: tuple[float, ...] | None = None
    of_baseline: bool = True
    """The baseline depends on it."""


CHOICES: Final[Mapping[str, Choice]] = {
    "engine": Choice(
        ("generate", "vllm"), "built on TRL's PPO, whose generation is transformers' generate(); not said"
    ),
    "reward_dtype": Choice(("bf16", "float32"), "transformers loads a reward model in float32 unless told"),
    "scoring_padded": Choice((True, False), "TRL's PPO pads a batch to its longest rollout before it scores"),
    "training_padded": Choice((True, False), "likewise before it trains"),
    "num_ppo_epochs": Choice((1, 2, 4), "TRL's default is 4", (0.25, 0.25, 0.5)),
    "checkpointing": Choice((True, False), "a 7B actor, reference and value head on 7 GPUs: either fits"),
    "gpu_use": Choice(
        ("utilization/inference", "utilization/kernels", UNRELATED),
        "not said: busy share of the devices, time with a kernel on them, as NVML counts, or something else",
    ),
    "tail": Choice(("light", "heavy", "cut"), "not published; shipped traces have all three"),
    "keeps_kv": Choice((True, False), "chunked generate() with or without its cache", None, False),
    "chunk_size": Choice((128, 256, 512), "the candidates that are published", None, False),
    "delta_max": Choice((8, 14, 28), "not published; fixed 4 and 8 were tried beside it", None, False),
    "window": Choice((5, 10, 20), "not published", None, False),
}
"""Tail: p99 over mean 1.8 to 2.6 (light), 2.6 to 6 (heavy), or 3 to 30 % cut at the limit (cut)."""

_VERIFIER_HAS_NOT: Final = ("reward_dtype", "scoring_padded")


def names_of(setup: Setup) -> list[str]:
    """Unknowns with few values that a set-up has."""
    return [name for name in CHOICES if setup.reward is not None or name not in _VERIFIER_HAS_NOT]


def world_of(setup: Setup, number: int) -> dict[str, Any]:
    """Draw ``number`` of the prior; what cannot be (lengths, memory) is drawn again."""
    for attempt in range(_MOST_TRIES):
        world = _drawn(setup, np.random.default_rng([number, attempt, len(setup.name), ord(setup.name[0])]))
        try:
            build_parts(scenario_of(setup, world))
        except OppoError:
            continue
        return world
    raise OppoError(f"{setup.name}: nothing fits for world {number}: mend the priors")


def _drawn(setup: Setup, generator: np.random.Generator) -> dict[str, Any]:
    world = {
        name: choice.values[generator.choice(len(choice.values), p=choice.odds)]
        for name, choice in CHOICES.items()
    }
    for name in set(_VERIFIER_HAS_NOT) - set(names_of(setup)):
        del world[name]
    longest = int(generator.choice(setup.longest))
    mean, prompt = (
        median * float(np.exp(sigma * generator.standard_normal()))
        for median, sigma in (setup.mean_tokens, setup.prompt_tokens)
    )
    light, heavy, cut = generator.uniform(1.8, 2.6), generator.uniform(2.6, 6.0), generator.uniform(0.03, 0.3)
    shape = {"light": light, "heavy": heavy, "cut": cut}[world["tail"]]
    return {**world, "longest": longest, "mean": mean, "tail_shape": float(shape), "prompt": prompt}


def _synthetic(world: World) -> dict[str, Any]:
    longest, mean = int(world["longest"]), float(world["mean"])
    tail = (
        {"clip_ratio": float(world["tail_shape"])}
        if world["tail"] == "cut"
        else {"p99": float(world["tail_shape"]) * mean}
    )
    if mean >= longest:
        raise OppoError(f"a mean of {mean:.0f} is beyond {longest} tokens: draw again")
    if world["tail"] != "cut" and tail["p99"] > longest:
        raise OppoError(f"p99 {tail['p99']:.0f} is beyond {longest} tokens: draw again")
    prompt = float(world["prompt"])
    return {
        "mean": mean,
        **tail,
        "max_response_length": longest,
        "rows": _ROWS,
        "prompt_mean": prompt,
        "prompt_p99": _PROMPT_TAIL * prompt,
    }


def scenario_of(setup: Setup, world: World) -> Scenario:
    """Raises OppoError for lengths that cannot be."""
    engine = str(world["engine"])
    static = engine == "generate"
    prompt = round(_PROMPT_TAIL * 1.5 * float(world["prompt"]))
    plain: dict[str, Any] = {
        "name": setup.name,
        "steps": STEPS,
        "warmup_steps": 1,
        "rollout_batch_size": 112,
        "max_prompt_length": prompt,
        "max_response_length": int(world["longest"]),
        "trace": {"synth": _synthetic(world), "sampling": "resample"},
        "rollout": {
            "num_replicas": 7,
            "batching": "static" if static else "continuous",
            "keeps_kv_between_rounds": bool(world["keeps_kv"]),
        },
        "scoring": {"num_workers": 1},
        "placement": {"training": "rollout", "scoring": "separate"},
        "training": {
            "num_ppo_epochs": int(world["num_ppo_epochs"]),
            "num_mini_batches": 1,
            "critic": "value_head",
            "old_log_prob": "behaviour",
            "remove_padding": not world["training_padded"],
            "gradient_checkpointing": bool(world["checkpointing"]),
            "weight_sync": {"kind": "shared"} if static else {"kind": "reshard"},
        },
        "cluster": {"num_gpus_per_node": 8 // setup.nodes, "node_link_bytes_per_s": 2.5e10},
        "costs": {
            "kind": "roofline",
            "device": setup.device,
            "actor_model": setup.actor,
            "reward_model": _reward_model(setup, world, engine),
            "rollout": {"host": engine},
        },
        "policy": {"name": "sequential"},
        # Reward of TRL on Stack-Exchange: about 2.0 at step 150, about 4.1 at step 600.
        "rewards": {"kind": "saturating", "start": -0.1, "limit": 4.5, "time_constant": 246, "noise": 0.05},
    }
    return Scenario.model_validate(plain)


def _reward_model(setup: Setup, world: World, engine: str) -> dict[str, Any]:
    if setup.reward is None:
        return {"kind": "verifier", "fixed_s": 0.01, "per_token_s": 1e-6}
    model = {"kind": "model", "model": setup.reward, "host": engine, "dtype": world["reward_dtype"]}
    if world["scoring_padded"]:
        # Padded positions are computed and count for nothing: a lower achieved share of the arithmetic.
        known = achieved(find_device(setup.device), Achievable())
        part = 1.0 / padding(world)
        model["achievable"] = {"gemm": known.gemm * part, "attention": known.attention * part}
    return model


def padding(world: World) -> float:
    """Positions of a batch padded to its longest rollout, over its tokens."""
    prompt, mean = float(world["prompt"]), float(world["mean"])
    most = float(world["longest"]) if world["tail"] == "cut" else float(world["tail_shape"]) * mean
    return (_PROMPT_TAIL * prompt + most) / (prompt + mean)
