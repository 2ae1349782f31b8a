"""What is measured on one GPU: models of public shapes, the scenarios that run them, and whether they fit
into its memory together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from oppo_real.calibrate.sizes import Sizes, sizes_of
from oppo_real.calibrate.subject import Subject, subject_of
from oppo_sim.costs.model_shape import ModelShape
from oppo_sim.costs.models import find_model
from oppo_sim.errors import OppoError
from oppo_sim.scenario.load import scenario_from_plain
from oppo_sim.scenario.schema import Scenario

Engine = Literal["torch", "vllm"]
ACTORS: Final = ("qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b")
REWARDS: Final = ("qwen2.5-1.5b", "qwen2.5-7b")
TRAINED: Final = ("qwen2.5-1.5b", "qwen2.5-3b")
"""Actors whose PPO update fits beside the engines; others are replayed without training (see
``memory_plan``)."""
KV_CAPACITY: Final = {"qwen2.5-1.5b": 262_144, "qwen2.5-3b": 196_608, "qwen2.5-7b": 196_608}
"""KV tokens of the replica. The scorer holds no more: only rollouts that the replica has not finished."""
FORWARD_TOKENS: Final = 16_384
"""Tokens of one forward of an engine, which bounds its activations."""
MICRO_BATCH_TOKENS: Final = 4_096
"""Tokens of one forward of the trainer."""
MAX_PROMPT: Final = 256
VLLM_UTILIZATION: Final = 0.35
"""vLLM refuses to start where less of the GPU than this share is free. Its KV is given in tokens, so nothing
is taken by this share."""

_REHEARSED: Final = {
    name: ModelShape(
        num_hidden_layers=1,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=64,
        tie_word_embeddings=True,
        qkv_bias=True,
    )
    for name, hidden in (("qwen2.5-1.5b", 32), ("qwen2.5-3b", 48), ("qwen2.5-7b", 64))
}


@dataclass(frozen=True)
class Pair:
    """Which models share the GPU, on which engine the actor runs, and where."""

    actor: str
    reward: str
    engine: Engine
    device: str = "cuda:0"
    rehearse: bool = False

    @property
    def name(self) -> str:
        """Such as ``qwen2.5-7b+1.5b/torch``: the end of the profile's name."""
        return f"{self.actor}+{self.reward.removeprefix('qwen2.5-')}/{self.engine}"

    @property
    def trains(self) -> bool:
        """PPO runs."""
        return self.actor in TRAINED

    def shape(self, model: str) -> ModelShape:
        """Of the actor or the reward model; in a rehearsal a tiny one."""
        return _REHEARSED[model] if self.rehearse else find_model(model)


@dataclass(frozen=True)
class Cell:
    """How much is generated a step, and from which lengths."""

    rollout_batch_size: int
    max_response_length: int
    trace: Mapping[str, Any]
    max_scoring_tokens: int = FORWARD_TOKENS
    max_prompt_length: int = MAX_PROMPT
    kv_capacity_tokens: int | None = None
    """None: ``KV_CAPACITY`` of the actor."""


def make_scenario(
    pair: Pair, cell: Cell, policy: Mapping[str, Any], name: str, steps: int, warmup_steps: int
) -> Scenario:
    """The scenario of a real run of ``pair``. Raises OppoError."""
    longest = cell.max_prompt_length + cell.max_response_length
    plain = {
        "format": "oppo-scenario/1",
        "name": name,
        "steps": steps,
        "warmup_steps": warmup_steps,
        "rollout_batch_size": cell.rollout_batch_size,
        "max_prompt_length": cell.max_prompt_length,
        "max_response_length": cell.max_response_length,
        "trace": dict(cell.trace),
        "rollout": {
            "kv_capacity_tokens": cell.kv_capacity_tokens or KV_CAPACITY[pair.actor],
            "kv_block_tokens": 16,
        },
        "scoring": {"max_scoring_tokens": cell.max_scoring_tokens},
        "training": {"num_ppo_epochs": 1, "old_log_prob": "behaviour", "ref": True, "critic": "value_head"},
        # One GPU: all three share it, by how much they slow each other down is what calibration measures.
        "placement": {"scoring": "rollout", "training": "rollout"},
        "costs": {"kind": "linear", "decode": {"fixed": 0.01}},  # of no account: replaced by the profile
        "policy": dict(policy),
        "real": real_section(pair, longest),
    }
    return scenario_from_plain(plain, where=name)


def real_section(pair: Pair, longest: int) -> dict[str, Any]:
    """The ``real:`` section: processes of their own on one device, random weights of the pair's shapes, bf16.

    ``longest``: prompt + response, tokens. The reward model gets the actor's vocabulary where that is larger,
    since it reads its tokens; it has no vocabulary head, so this costs it no time.
    """
    actor, reward = pair.shape(pair.actor), pair.shape(pair.reward)
    vocabulary = max(actor.vocab_size, reward.vocab_size)
    bounded = {"max_batched_tokens": FORWARD_TOKENS}
    vllm: dict[str, Any] = (
        {"gpu_memory_utilization": VLLM_UTILIZATION} if pair.device != "cpu" else {"enforce_eager": True}
    )
    return {
        "mode": "replay",
        "engine": pair.engine,
        "scorer": "torch",
        "models": {
            "actor": transformers_config(actor, longest),
            "reward": transformers_config(reward, longest, vocabulary),
        },
        "dtype": "bfloat16",
        "training_dtype": "bfloat16",
        "devices": {"training": pair.device, "rollout": [pair.device], "scoring": [pair.device]},
        "placement": {"kind": "processes", **({"threads": 1} if pair.rehearse else {})},
        "actor_args": vllm if pair.engine == "vllm" else bounded,
        "scorer_args": bounded,
        "ppo": {"enabled": pair.trains, "micro_batch_tokens": MICRO_BATCH_TOKENS},
        "checkpoint_every": None,
    }


def transformers_config(shape: ModelShape, longest: int, vocab_size: int | None = None) -> dict[str, Any]:
    """A Qwen2 configuration of a shape, for random weights. What no second depends on (rope, norms) is left
    to the defaults."""
    return {
        "model_type": "qwen2",
        "vocab_size": vocab_size or shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": max(8192, longest),
        "tie_word_embeddings": shape.tie_word_embeddings,
    }


def merged_sizes(scenarios: Sequence[Scenario]) -> Sizes:
    """Batches that span what any of ``scenarios`` can ask."""
    found = [sizes_of(scenario) for scenario in scenarios]
    first = found[0]
    capacities = [one.kv_capacity_tokens for one in found if one.kv_capacity_tokens is not None]
    return Sizes(
        max_running=max(one.max_running for one in found),
        rollout_batch_size=max(one.rollout_batch_size for one in found),
        max_prompt_length=max(one.max_prompt_length for one in found),
        max_response_length=max(one.max_response_length for one in found),
        chunk_sizes=tuple(sorted({size for one in found for size in one.chunk_sizes})),
        max_scoring_tokens=max(one.max_scoring_tokens for one in found),
        kv_capacity_tokens=max(capacities, default=None),
        kv_block_tokens=first.kv_block_tokens,
        training=first.training,
    )


def subject_for(scenario: Scenario) -> Subject:
    """What is calibrated for a scenario of ``make_scenario``."""
    return subject_of(scenario)


# ---- memory ------------------------------------------------------------------------------------------------

_GIB: Final = 2**30
_CONTEXT: Final = 0.7 * _GIB
"""Of one process on a GPU: CUDA context and libraries."""
_ROOM: Final = 1.5
"""Bytes of the actor's KV arena, which has its room from the start, over those of its capacity."""
_GROWING: Final = 2.5
"""Bytes of the scorer's while it grows, over the bytes of the tokens held: 1.5 of headroom, and old beside
new keys."""
_LOGITS: Final = 6
"""Float32 copies of 1024 rows of logits: scaled, softmax, their gradients."""


def memory_plan(pair: Pair, longest: int, kv_capacity_tokens: int | None = None) -> dict[str, float]:
    """Bytes on the GPU by what takes them, at the worst instant of a run: driver, replica and scoring worker.

    Training is AdamW in bf16 throughout: 2 + 2 + 4 bytes a parameter (weight, gradient, two moments).
    Activations of a layer and token: 20h + 8q + 4kv + 8f bytes (gated MLP; float32 copies of both norms;
    repeated keys of the packed attention).
    """
    actor, reward = pair.shape(pair.actor), pair.shape(pair.reward)
    tokens = kv_capacity_tokens or KV_CAPACITY[pair.actor]
    reward_weights = 2.0 * (reward.layer_params + reward.vocab_size * reward.hidden_size)
    plan = {
        "three CUDA contexts": 3 * _CONTEXT,
        "policy (driver)": 2.0 * actor.parameters,
        "actor (replica)": 2.0 * actor.parameters,
        "reward model (scorer)": reward_weights,
        "KV of the actor": _ROOM * _kv(actor, tokens),
        "KV of the reward model": _GROWING * _kv(reward, tokens),
        "forwards of the engines": _forward(actor) + _forward(reward),
    }
    if pair.trains:
        per_layer = (
            20 * actor.hidden_size + 8 * actor.query_width + 4 * actor.kv_width + 8 * actor.intermediate_size
        )
        plan |= {
            "reference (driver)": 2.0 * actor.parameters,
            "gradients and AdamW": 6.0 * actor.parameters,
            "activations of a micro-batch": float(
                max(MICRO_BATCH_TOKENS, longest) * per_layer * actor.num_hidden_layers
            ),
            "logits of the trainer": float(_LOGITS * 1024 * actor.vocab_size * 4),
        }
    return plan


def contention_plan(pair: Pair, longest: int, kv_capacity_tokens: int | None = None) -> dict[str, float]:
    """The same while ``oppo calibrate`` measures contention: two processes, each with every engine, of which
    one decodes and the other scores or trains.
    """
    alone = memory_plan(pair, longest, kv_capacity_tokens)
    twice = (
        "policy (driver)",
        "actor (replica)",
        "reward model (scorer)",
        "KV of the actor",
        "reference (driver)",
        "forwards of the engines",
    )
    plan = {f"2 × {name}": 2 * alone[name] for name in twice if name in alone}
    once = ("gradients and AdamW", "activations of a micro-batch", "logits of the trainer")
    plan |= {name: alone[name] for name in once if name in alone}
    return plan | {"three CUDA contexts": 3 * _CONTEXT}


def check_fits(pair: Pair, longest: int, device_bytes: float, kv_capacity_tokens: int | None = None) -> None:
    """Raises OppoError, naming the largest parts, where a run or the measurement of contention would not fit
    into the device."""
    for what, plan in (
        ("a run", memory_plan(pair, longest, kv_capacity_tokens)),
        ("the measurement of contention", contention_plan(pair, longest, kv_capacity_tokens)),
    ):
        total = sum(plan.values())
        if total > device_bytes:
            largest = sorted(plan, key=lambda name: -plan[name])[:3]
            parts = ", ".join(f"{name} {plan[name] / _GIB:.0f} GiB" for name in largest)
            raise OppoError(
                f"{pair.name}: {what} needs {total / _GIB:.0f} GiB and the device has"
                f" {device_bytes / _GIB:.0f} ({parts}, …): take smaller models, or lower KV_CAPACITY in"
                " subjects.py"
            )


def _kv(shape: ModelShape, tokens: int) -> float:
    return 4.0 * shape.kv_width * shape.num_hidden_layers * tokens


def _forward(shape: ModelShape) -> float:
    """Hidden states and the gated MLP of one layer over a forward's tokens."""
    return float(FORWARD_TOKENS * (6 * shape.intermediate_size + 24 * shape.hidden_size))
