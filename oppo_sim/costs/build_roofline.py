"""Roofline costs from their section of a scenario: shapes, devices, and whether all fits the memory."""

import math
from pathlib import Path
from typing import Any, NamedTuple

from oppo_sim.costs.config import (
    ModelRef,
    RewardModel,
    RooflineCostConfig,
    Verifier,
    find_host,
)
from oppo_sim.costs.context import CostContext, stages_run
from oppo_sim.costs.devices import Device, find_device
from oppo_sim.costs.interface import BatchShape, Costs, PrefillCost
from oppo_sim.costs.linear import verifier
from oppo_sim.costs.memory import (
    gathered_bytes,
    gigabytes,
    inference_activation_bytes,
    layer_activation_bytes,
    model_parameters,
    training_activation_bytes,
    training_state_bytes,
    weight_bytes,
)
from oppo_sim.costs.models import ModelShape, find_model
from oppo_sim.costs.roofline_engine import Logits, RooflineEngine
from oppo_sim.costs.roofline_training import RooflineTraining, TrainedModel
from oppo_sim.costs.scoring import SummedPrefill
from oppo_sim.costs.strict import Strict
from oppo_sim.costs.training_config import TrainingConfig
from oppo_sim.errors import OppoError


class _Item(NamedTuple):
    """Something that takes device memory."""

    name: str
    bytes: float


class _Models(NamedTuple):
    actor: ModelShape
    ref: ModelShape
    critic: ModelShape
    reward: ModelShape | None


class _Devices(NamedTuple):
    rollout: Device
    scoring: Device
    training: Device
    num_training: int


def roofline_costs(config: RooflineCostConfig, context: CostContext, base_dir: Path | None) -> Costs:
    """See ``RooflineCostConfig.build``."""
    models, devices = _models(config, base_dir), _devices(config, context)
    if context.training.weight_sync.kind == "shared" and not context.colocated_training:
        raise OppoError(
            "training: weight_sync kind shared needs training on the rollout devices; colocate it or take"
            " online_refit"
        )
    for shape, name, degree in (
        (models.actor, "rollout", config.rollout.tensor_parallel),
        (models.actor, "training", context.training.tensor_parallel),
        (models.critic, "training", context.training.tensor_parallel),
        (models.reward or models.ref, "reward_model", config.reward_model.tensor_parallel),
    ):
        heads = shape.num_attention_heads
        if heads % degree:
            raise OppoError(
                f"costs: {name}: tensor_parallel {degree} does not divide the {heads} attention heads;"
                " change it"
            )
    rollout = config.rollout
    kv_bytes, host = 1.0 if rollout.kv_cache_dtype == "fp8" else 2.0, find_host(rollout.host)
    degree, dtype = rollout.tensor_parallel, rollout.dtype
    actor = RooflineEngine(models.actor, devices.rollout, degree, dtype, kv_bytes, rollout.achievable, host)
    actor.split  # noqa: B018 (a dtype that the device lacks is an error of now, not of the first iteration)
    capacity = _kv_capacity(config, context, models, devices, actor)
    training = _training(config, context, models, devices)
    derived = {
        "actor_kv_capacity_tokens": capacity,
        "actor_kv_bytes_per_token": actor.split.kv_bytes_per_token * actor.tensor_parallel,
        "training_gpus": devices.num_training,
        "actor_micro_batch_tokens": training.actor.training_micro_batch,
        "critic_micro_batch_tokens": (
            training.critic.training_micro_batch if context.training.critic == "separate" else None
        ),
        "update_weights_s": training.sync_seconds(),
    }
    return Costs(
        actor=actor,
        scorer=_scorer(config, context, models, devices),
        training=training,
        provenance={
            "kind": "roofline",
            "measured": False,
            "parameters": config.model_dump(mode="json"),
            "models": _plain({name: shape for name, shape in models._asdict().items() if shape is not None}),
            "devices": _plain({name: getattr(devices, name) for name in ("rollout", "scoring", "training")}),
            "hosts": _plain({"rollout": actor.host, "scoring": find_host(config.reward_model.host)}),
            "training": context.training.model_dump(mode="json"),
            "derived": derived,
        },
        actor_kv_capacity_tokens=capacity,
    )


def _plain(sections: dict[str, Strict]) -> dict[str, Any]:
    return {name: section.model_dump(mode="json") for name, section in sections.items()}


def _models(config: RooflineCostConfig, base_dir: Path | None) -> _Models:
    def other(ref: ModelRef | None) -> ModelShape:
        return find_model(config.actor_model if ref is None else ref, base_dir)

    reward = config.reward_model
    return _Models(
        actor=other(None),
        ref=other(config.ref_model),
        critic=other(config.critic_model),
        reward=find_model(reward.model, base_dir) if isinstance(reward, RewardModel) else None,
    )


def _devices(config: RooflineCostConfig, context: CostContext) -> _Devices:
    def one(device: str | Device | None) -> Device:
        return find_device(config.device if device is None else device)

    wanted = context.training.num_gpus
    number = context.num_replicas * config.rollout.tensor_parallel if wanted is None else wanted
    degree = context.training.tensor_parallel
    if number % degree:
        raise OppoError(
            f"training: tensor_parallel {degree} does not divide {number} GPUs; set training.num_gpus"
        )
    sections = config.rollout, config.reward_model, config.training
    rollout, scoring, training = (one(section.device) for section in sections)
    return _Devices(rollout, scoring, training, number)


def _remaining(
    place: str, device: Device, utilization: float, items: list[_Item], cure: str, needed: float = 0.0
) -> float:
    """Bytes left of a device. Raises OppoError if less than ``needed`` is left, naming every item."""
    usable = utilization * device.hbm_bytes
    left = usable - sum(item.bytes for item in items)
    if left <= 0 or left < needed:
        listed = ", ".join(f"{item.name} {gigabytes(item.bytes)}" for item in items)
        short = gigabytes(needed - left)
        raise OppoError(
            f"costs: {place} does not fit {device.name}: {listed}, of {gigabytes(usable)} usable; {short}"
            f" short; {cure}"
        )
    return left


def _scoring_items(config: RooflineCostConfig, context: CostContext, models: _Models) -> list[_Item]:
    """Weights that a scoring worker holds on each of its devices."""
    dtype, degree, items = config.reward_model.dtype, config.reward_model.tensor_parallel, []
    if models.reward is not None:
        items.append(_Item("reward model weights", weight_bytes(models.reward, dtype, False) / degree))
    if context.training.stream_ref:
        items.append(_Item("reference weights", weight_bytes(models.ref, dtype, True) / degree))
    return items


def _state_bytes(training: TrainingConfig, shape: ModelShape, has_head: bool, num_gpus: int) -> float:
    """On each device of the training group."""
    parameters, degree = model_parameters(shape, has_head), training.tensor_parallel
    return training_state_bytes(parameters, training.optimizer, training.sharding, num_gpus, degree)


def _training_items(context: CostContext, models: _Models, num_gpus: int) -> list[_Item]:
    """What the training group keeps on each of its devices between steps."""
    training = context.training

    items = [_Item("actor training state", _state_bytes(training, models.actor, True, num_gpus))]
    if training.critic == "separate":
        items.append(_Item("critic training state", _state_bytes(training, models.critic, False, num_gpus)))
    if stages_run(training).ref and not training.parallel_inference:
        shards = num_gpus if training.sharding == "full" else training.tensor_parallel
        items.append(_Item("reference weights", weight_bytes(models.ref, "bf16", True) / shards))
    return items


def _rollout_items(config: RooflineCostConfig, models: _Models) -> list[_Item]:
    size = weight_bytes(models.actor, config.rollout.dtype, True)
    return [_Item("rollout weights", size / config.rollout.tensor_parallel)]


def _kv_capacity(
    config: RooflineCostConfig,
    context: CostContext,
    models: _Models,
    devices: _Devices,
    actor: RooflineEngine,
) -> int:
    """Tokens of KV cache of a replica: what weights, activations and co-located models leave."""
    rollout = config.rollout
    activations = rollout.max_num_batched_tokens * layer_activation_bytes(models.actor)
    activations /= rollout.tensor_parallel
    items = [*_rollout_items(config, models), _Item("activations", activations)]
    cure = "raise rollout.tensor_parallel or gpu_memory_utilization, or take a larger device"
    if context.colocated_training and not context.training.offload:
        items += _training_items(context, models, devices.num_training)
        cure += ", or set training.offload"
    if context.colocated_scoring:
        items += _scoring_items(config, context, models)
    per_token = actor.split.kv_bytes_per_token
    share = rollout.gpu_memory_utilization
    left = _remaining("rollout", devices.rollout, share, items, cure, needed=per_token)
    return math.floor(left / per_token)


def _scorer(
    config: RooflineCostConfig, context: CostContext, models: _Models, devices: _Devices
) -> PrefillCost:
    reward = config.reward_model
    items = _scoring_items(config, context, models)
    if items:
        cure = "raise reward_model.tensor_parallel or take a larger device"
        _remaining("scoring", devices.scoring, reward.gpu_memory_utilization, items, cure)

    def engine(shape: ModelShape, logits: Logits) -> RooflineEngine:
        degree, dtype, host = reward.tensor_parallel, reward.dtype, find_host(reward.host)
        return RooflineEngine(shape, devices.scoring, degree, dtype, 2.0, reward.achievable, host, logits)

    parts: list[PrefillCost] = []
    if isinstance(reward, Verifier):
        parts.append(verifier(reward.fixed_s, reward.per_token_s))
    elif models.reward is not None:
        parts.append(engine(models.reward, "none"))
    if context.training.stream_ref:
        parts.append(engine(models.ref, "all"))
    return parts[0] if len(parts) == 1 else SummedPrefill(tuple(parts))


def _training(
    config: RooflineCostConfig, context: CostContext, models: _Models, devices: _Devices
) -> RooflineTraining:
    training, group = context.training, config.training
    items = _training_items(context, models, devices.num_training)
    if context.colocated_training:  # the KV cache is released while training runs, the weights are not
        items += _rollout_items(config, models)
        if context.colocated_scoring:
            items += _scoring_items(config, context, models)
    degree, longest = training.tensor_parallel, context.max_prompt_length + context.max_response_length
    factor = group.recompute_memory_factor if training.selective_recompute else 1.0

    def model(name: str, shape: ModelShape, has_head: bool, trained: bool) -> TrainedModel:
        gathered = _Item("gathered layers", gathered_bytes(shape, training.sharding, degree))
        per_token = training_activation_bytes(shape, has_head, degree, factor) if trained else 0.0
        per_token = max(per_token, inference_activation_bytes(shape, has_head, degree))
        wanted = training.micro_batch_tokens
        if isinstance(wanted, int) and wanted < longest:
            raise OppoError(
                f"training: micro_batch_tokens {wanted} is less than the longest rollout "
                f"(max_prompt_length + max_response_length = {longest}); raise it"
            )
        least = longest if isinstance(wanted, str) else wanted
        left = _remaining(
            f"training ({name}, one micro-batch of {least} tokens with {gigabytes(least * per_token)} of"
            " activations)",
            devices.training,
            group.memory_utilization,
            [*items, gathered],
            "set training.selective_recompute, raise training.tensor_parallel or num_gpus, or shorten the"
            " responses",
            needed=least * per_token,
        )
        inference = left / inference_activation_bytes(shape, has_head, degree)
        return TrainedModel(
            shape=shape,
            has_head=has_head,
            training_micro_batch=math.floor(left / per_token) if isinstance(wanted, str) else wanted,
            inference_micro_batch=math.floor(inference) if isinstance(wanted, str) else wanted,
            state_bytes=_state_bytes(training, shape, has_head, devices.num_training),
        )

    actor = model("actor", models.actor, True, trained=True)
    own_devices = training.parallel_inference or not stages_run(training).ref
    half = (context.max_prompt_length + 1) // 2, (context.max_response_length + 1) // 2
    return RooflineTraining(
        actor=actor,
        ref=_alone(models.ref, actor) if own_devices else model("reference", models.ref, True, trained=False),
        critic=(
            model("critic", models.critic, False, trained=True) if training.critic == "separate" else actor
        ),
        device=devices.training,
        devices=group,
        training=training,
        num_gpus=devices.num_training,
        weights_bytes=weight_bytes(models.actor, config.rollout.dtype, True),
        nominal=BatchShape((half[0],) * context.rollout_batch_size, (half[1],) * context.rollout_batch_size),
    )


def _alone(shape: ModelShape, actor: TrainedModel) -> TrainedModel:
    """A reference model on devices of its own, with the actor's micro-batches."""
    return TrainedModel(shape, True, actor.training_micro_batch, actor.inference_micro_batch, 0.0)
