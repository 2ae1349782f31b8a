"""The production PPO system (10B model, 16 A100-80) as a study: its system before is the baseline, and its
five changes are made one after the other."""

from functools import partial
from typing import Any, Final

import numpy as np
from study import Run, Study, World

from oppo_sim.costs.terms import CostTerms
from oppo_sim.errors import OppoError
from oppo_sim.scenario.build import build_parts
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.schema import Scenario

NAME: Final = "production-10b"
KNOWN: Final = ("rollouts_per_s=0.192",)
"""0.012 samples a GPU and second on 16 GPUs. Its iteration time, 13,376 s, does not agree with the ratio
and is not used."""
CHANGES: Final = ("sequential", "engine", "refit", "recompute", "parallel", "overlap")
"""Each with all before it: continuous batching and paged KV; weights refitted online; selective recomputation
with sequence parallelism; ref beside old_log_prob; rollouts scored as they finish."""
_MOST_TRIES: Final = 50
_ROWS: Final = 4000


def production_study() -> Study:
    """With the system before as its baseline."""
    return Study(
        NAME,
        _world,
        partial(_scenario, after="sequential"),
        lambda _world: list(KNOWN),
        CHANGES,
        _run,
        steps=8,
        warmup=2,
    )


def _world(number: int) -> dict[str, Any]:
    for attempt in range(_MOST_TRIES):
        world = _drawn(np.random.default_rng([number, attempt, *NAME.encode()]))
        try:
            for change in CHANGES:
                build_parts(_scenario(world, change))
        except OppoError:
            continue
        return world
    raise OppoError(f"{NAME}: nothing fits for world {number}: mend the priors")


def _drawn(generator: np.random.Generator) -> dict[str, Any]:
    return {
        "rollout_batch_size": int(generator.choice([128, 256, 512, 1024])),
        "longest": int(generator.choice([512, 1024, 2048])),
        "mean": 300.0 * float(np.exp(0.5 * generator.standard_normal())),
        "tail_ratio": float(generator.uniform(1.8, 5.0)),
        "prompt": 800.0 * float(np.exp(0.6 * generator.standard_normal())),
        "num_ppo_epochs": int(generator.choice([1, 2, 4])),
        "mini_batches": int(generator.choice([1, 4])),
        "trainer_share": float(generator.choice([0.3, 0.45, 0.6, 0.73])),
        "rollout_tp": int(generator.choice([1, 2, 4])),
    }


def _scenario(world: World, after: str) -> Scenario:
    """With the changes up to ``after``."""
    done = CHANGES.index(after)
    mean, longest = float(world["mean"]), int(world["longest"])
    p99 = mean * float(world["tail_ratio"])
    if p99 >= longest:
        raise OppoError(f"p99 {p99:.0f} is beyond {longest} tokens: draw again")
    plain = load_scenario("a100x16-10b").to_plain()
    costs = {name: value for name, value in plain["costs"].items() if name != "kernels"}
    degree = int(world["rollout_tp"])
    host = "vllm" if done >= CHANGES.index("engine") else "generate"
    costs |= {
        "kind": "roofline",
        "rollout": {"host": host, "tensor_parallel": degree},
        "training": {**costs["training"], "achievable": {"gemm": world["trainer_share"]}},
    }
    training = plain["training"] | {
        "num_ppo_epochs": int(world["num_ppo_epochs"]),
        "num_mini_batches": int(world["mini_batches"]),
        "parallel_inference": done >= CHANGES.index("parallel"),
        "selective_recompute": done >= CHANGES.index("recompute"),
        "gradient_checkpointing": done < CHANGES.index("recompute"),
        "weight_sync": (
            plain["training"]["weight_sync"] if done >= CHANGES.index("refit") else {"kind": "full_export"}
        ),
    }
    rollout: dict[str, Any] = {"num_replicas": 16 // degree, "batching": "static"}
    if host == "vllm":
        rollout |= {"batching": "continuous", "kv_capacity_tokens": "auto", "max_num_seqs": 256}
    prompt = float(world["prompt"])
    trace = {
        "synth": {
            "mean": mean,
            "p99": p99,
            "max_response_length": longest,
            "rows": _ROWS,
            "prompt_mean": prompt,
            "prompt_p99": 3.0 * prompt,
        },
        "sampling": "resample",
    }
    return Scenario.model_validate(
        plain
        | {
            "name": NAME,
            "steps": 4,
            "warmup_steps": 1,
            "rollout_batch_size": int(world["rollout_batch_size"]),
            "max_prompt_length": round(4.0 * prompt),
            "max_response_length": longest,
            "trace": trace,
            "rollout": rollout,
            "scoring": {"num_workers": 16},
            "training": training,
            "costs": costs,
            "policy": {"name": "sequential"},
        }
    )


def _run(world: World, terms: CostTerms, name: str) -> Run:
    policy = "rollout-overlap" if name == "overlap" else "sequential"
    done = CHANGES.index(name)
    own: dict[str, float] = {}
    if done >= CHANGES.index("engine"):
        # What the host of generate() adds is not the engine's.
        own |= {"host": 1.0, "iteration_s": 0.0, "rollout_iteration_s": 0.0}
    if done >= CHANGES.index("refit"):
        own |= {"update_weights": 1.0}  # nor what is unknown of the export the refit's
    return Run(_scenario(world, name), policy, {}, terms.model_copy(update=own))
