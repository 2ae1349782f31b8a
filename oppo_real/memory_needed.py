"""What a real run needs of each device's memory: weights, what training holds beside them, KV caches. Without
activations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from oppo_real.engines.vllm_arguments import CPU_KV_BYTES
from oppo_real.placement.engines import EngineKind, gpu_number, spread_over

if TYPE_CHECKING:
    from oppo_real.config import RealConfig
    from oppo_sim.scenario.schema import Scenario

BYTES: Final[Mapping[str, int]] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_OPTIMIZER: Final = 4
"""Weights, gradients and two moments of Adam, each in the training dtype (docs/ppo.md)."""
_GROWN: Final = 1.5
"""Room of the torch engine's KV store over the tokens that it holds (``packed_store``)."""
_UTILIZATION: Final = 0.9
"""Of a GPU, vLLM's ``gpu_memory_utilization`` where it is not given (0.92 in later versions)."""


@dataclass
class Needed:
    """Of one device, bytes."""

    held: float = 0.0
    """Weights, gradients, optimizer."""
    kv: float = 0.0
    claimed: float = 0.0
    """By vLLM engines that take their share of a GPU whatever they need, weights and KV in it."""

    @property
    def total(self) -> float:
        """All of it."""
        return self.held + self.kv + self.claimed


@dataclass(frozen=True)
class _Engine:
    kind: EngineKind
    arguments: Mapping[str, Any]
    capacity: int | None
    """KV tokens; None: not bounded."""

    @property
    def claims(self) -> bool:
        """Takes its share of a GPU, whatever it needs."""
        bounded = self.capacity is not None or self.arguments.get("kv_cache_memory_bytes") is not None
        return self.kind == "vllm" and not bounded

    def kv_bytes(self, a_token: float, held: float) -> float:
        """Of its KV cache: where not bounded, on the torch engine for the tokens ``held``, on vLLM as on a
        CPU."""
        if (given := self.arguments.get("kv_cache_memory_bytes")) is not None and self.kind == "vllm":
            return float(given)
        if self.capacity is not None:
            return self.capacity * a_token
        return float(CPU_KV_BYTES) if self.kind == "vllm" else _GROWN * held * a_token


def spread(config: "RealConfig") -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """(Devices of a replica on each of ``devices.rollout``, of a scoring worker on each of
    ``devices.scoring``): an engine over several GPUs takes those that follow."""

    def devices(first: str, count: int) -> tuple[str, ...]:
        number = gpu_number(first)
        return (first,) if number is None else tuple(f"cuda:{number + at}" for at in range(count))

    actors, scorers = (
        spread_over(config.engine, config.actor_args),
        spread_over(config.scorer, config.scorer_args),
    )
    return (
        [devices(one, actors) for one in config.devices.rollout],
        [devices(one, scorers) for one in config.devices.scoring],
    )


def needed_memory(
    scenario: "Scenario",
    config: "RealConfig",
    capacity: int | None,
    peak: float,
    size_of: Callable[[str], int | None],
) -> dict[str, Needed]:
    """By device. Models that are left out are tiny: no bytes.

    Args:
        capacity: KV tokens of a replica; None: not bounded.
        peak: KV tokens that a replica holds at once, at most.
        size_of: bytes of a device's whole memory; None: not known.
    """
    from oppo_real.engines.models import kv_numbers, parameter_count

    models, devices = config.models, config.devices
    actor = 0 if models.actor is None else parameter_count("causal_lm", models.actor)
    reward = 0 if models.reward is None else parameter_count("score", models.reward)
    element, trained = BYTES[config.dtype], BYTES[config.training_dtype]
    found: dict[str, Needed] = {}

    def at(device: str) -> Needed:
        return found.setdefault(device, Needed())

    learned = actor
    if config.trains and config.ppo_config(scenario.training).critic == "separate":
        learned += actor if models.critic is None else parameter_count("score", models.critic)
    number = gpu_number(devices.training)
    training = at(devices.training if number is None else f"cuda:{number}")
    training.held += learned * trained * (_OPTIMIZER if config.trains else 1)
    if config.trains and scenario.training.ref:
        training.held += actor * trained

    a_token = 0 if models.actor is None else kv_numbers(models.actor)
    a_scored = 0 if models.reward is None else kv_numbers(models.reward)
    scoring = reward
    if scenario.training.stream_ref:
        scoring, a_scored = scoring + actor, a_scored + a_token

    def add(across: tuple[str, ...], engine: _Engine, weights: float, kv_token: float, held: float) -> None:
        for device in across:
            size = None if gpu_number(device) is None else size_of(device)
            own_weights = weights * element / len(across)
            if size is not None and engine.claims:
                share = float(engine.arguments.get("gpu_memory_utilization", _UTILIZATION))
                at(device).claimed += max(share * size, own_weights)
            else:
                at(device).held += own_weights
                at(device).kv += engine.kv_bytes(kv_token * element, held) / len(across)

    replicas, workers = spread(config)
    count, counted = scenario.rollout.num_replicas, scenario.scoring.num_workers
    for index in range(count):
        engine = _Engine(config.engine, config.actor_args, capacity)
        add(replicas[index % len(replicas)], engine, actor, a_token, peak)
    for index in range(counted):
        engine = _Engine(config.scorer, config.scorer_args, None)
        add(workers[index % len(workers)], engine, scoring, a_scored, peak * count / counted)
    return found


def shared_bytes(config: "RealConfig") -> float:
    """Of the block of weights that processes share."""
    from oppo_real.engines.models import parameter_count

    actor = config.models.actor
    return 0.0 if actor is None else float(parameter_count("causal_lm", actor) * BYTES[config.training_dtype])
