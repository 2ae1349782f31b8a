"""The cost models of a roofline section, from its parts; and whether all fits the memory of the devices."""

import math
from typing import NamedTuple

from oppo_sim.costs.context import CostContext, stages_run
from oppo_sim.costs.device import Device, value_bytes
from oppo_sim.costs.hosts import find_host
from oppo_sim.costs.interface import PrefillCost
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
from oppo_sim.costs.models import ModelShape
from oppo_sim.costs.roofline_engine import Logits, RooflineEngine
from oppo_sim.costs.roofline_parts import RewardModel, RolloutEngine, TrainingDevices, Verifier
from oppo_sim.costs.roofline_training import RooflineTraining, TrainedModel
from oppo_sim.costs.scoring import SummedPrefill
from oppo_sim.costs.training_config import TrainingConfig
from oppo_sim.errors import OppoError


class _Item(NamedTuple):
    """Something that takes device memory."""

    name: str
    bytes: float


class Models(NamedTuple):
    """Shapes; ``reward`` is None for a verifier."""

    actor: ModelShape
    ref: ModelShape
    critic: ModelShape
    reward: ModelShape | None


class Devices(NamedTuple):
    rollout: Device
    scoring: Device
    training: Device
    num_training: int


class Parts(NamedTuple):
    """A roofline section with its models and devices found, and the scenario that it is for."""

    rollout: RolloutEngine
    reward_model: RewardModel | Verifier
    group: TrainingDevices
    models: Models
    devices: Devices
    context: CostContext


def rollout_engine(parts: Parts) -> RooflineEngine:
    """One replica. Raises OppoError for a dtype that the device lacks."""
    rollout = parts.rollout
    host = find_host(rollout.host).on(parts.models.actor.num_hidden_layers, rollout.tensor_parallel)
    kv_bytes = 1.0 if rollout.kv_cache_dtype == "fp8" else value_bytes(rollout.dtype)
    engine = RooflineEngine(
        shape=parts.models.actor,
        device=parts.devices.rollout,
        tensor_parallel=rollout.tensor_parallel,
        dtype=rollout.dtype,
        kv_bytes=kv_bytes,
        achievable=rollout.achievable,
        host=host,
    )
    engine.split  # noqa: B018 (a dtype that the device lacks is an error of now, not of the first iteration)
    return engine


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


def _scoring_items(parts: Parts) -> list[_Item]:
    """Weights that a scoring worker holds on each of its devices."""
    models, items = parts.models, []
    dtype, degree = parts.reward_model.dtype, parts.reward_model.tensor_parallel
    if models.reward is not None:
        items.append(_Item("reward model weights", weight_bytes(models.reward, dtype, False) / degree))
    if parts.context.training.stream_ref:
        items.append(_Item("reference weights", weight_bytes(models.ref, dtype, True) / degree))
    return items


def _state_bytes(training: TrainingConfig, shape: ModelShape, has_head: bool, num_gpus: int) -> float:
    """On each device of the training group."""
    parameters, degree = model_parameters(shape, has_head), training.tensor_parallel
    return training_state_bytes(parameters, training.optimizer, training.sharding, num_gpus, degree)


def _training_items(parts: Parts) -> list[_Item]:
    """What the training group keeps on each of its devices between steps."""
    training, models, num_gpus = parts.context.training, parts.models, parts.devices.num_training
    items = [_Item("actor training state", _state_bytes(training, models.actor, True, num_gpus))]
    if training.critic == "separate":
        items.append(_Item("critic training state", _state_bytes(training, models.critic, False, num_gpus)))
    if stages_run(training).ref and not training.parallel_inference:
        shards = num_gpus if training.sharding == "full" else training.tensor_parallel
        items.append(_Item("reference weights", weight_bytes(models.ref, "bf16", True) / shards))
    return items


def _rollout_items(parts: Parts) -> list[_Item]:
    size = weight_bytes(parts.models.actor, parts.rollout.dtype, True)
    return [_Item("rollout weights", size / parts.rollout.tensor_parallel)]


def kv_capacity(parts: Parts, engine: RooflineEngine) -> int:
    """Tokens of KV cache of a replica: what weights, activations and co-located models leave.

    Raises OppoError if that is not one token.
    """
    rollout, context = parts.rollout, parts.context
    activations = rollout.max_num_batched_tokens * layer_activation_bytes(parts.models.actor)
    activations /= rollout.tensor_parallel
    items = [*_rollout_items(parts), _Item("activations", activations)]
    cure = "raise rollout.tensor_parallel or gpu_memory_utilization, or take a larger device"
    if context.colocated_training and not context.training.offload:
        items += _training_items(parts)
        cure += ", or set training.offload"
    if context.colocated_scoring:
        items += _scoring_items(parts)
    per_token = engine.split.kv_bytes_per_token
    share = rollout.gpu_memory_utilization
    left = _remaining("rollout", parts.devices.rollout, share, items, cure, needed=per_token)
    return math.floor(left / per_token)


def scoring_worker(parts: Parts) -> PrefillCost:
    """The reward model or the verifier, and the reference model where it is streamed. Raises OppoError if
    their weights do not fit."""
    reward, models, devices = parts.reward_model, parts.models, parts.devices
    items = _scoring_items(parts)
    if items:
        cure = "raise reward_model.tensor_parallel or take a larger device"
        _remaining("scoring", devices.scoring, reward.gpu_memory_utilization, items, cure)

    def engine(shape: ModelShape, logits: Logits) -> RooflineEngine:
        degree, dtype = reward.tensor_parallel, reward.dtype
        host = find_host(reward.host).on(shape.num_hidden_layers, degree)
        kv_bytes = value_bytes(dtype)
        return RooflineEngine(
            shape, devices.scoring, degree, dtype, kv_bytes, reward.achievable, host, logits
        )

    costs: list[PrefillCost] = []
    if isinstance(reward, Verifier):
        costs.append(verifier(reward.fixed_s, reward.per_token_s))
    elif models.reward is not None:
        costs.append(engine(models.reward, "none"))
    if parts.context.training.stream_ref:
        costs.append(engine(models.ref, "all"))
    return costs[0] if len(costs) == 1 else SummedPrefill(tuple(costs))


def training_group(parts: Parts) -> RooflineTraining:
    """The training stages. Raises OppoError if state and one micro-batch do not fit, or if a micro-batch
    cannot hold the longest rollout."""
    group, models, devices, context = parts.group, parts.models, parts.devices, parts.context
    training, items = context.training, _training_items(parts)
    if context.colocated_training:  # the KV cache is released while training runs, the weights are not
        items += _rollout_items(parts)
        if context.colocated_scoring:
            items += _scoring_items(parts)
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
        weights_bytes=weight_bytes(models.actor, parts.rollout.dtype, True),
        nominal=context.nominal_batch,
    )


def _alone(shape: ModelShape, actor: TrainedModel) -> TrainedModel:
    """A reference model on devices of its own, with the actor's micro-batches."""
    return TrainedModel(shape, True, actor.training_micro_batch, actor.inference_micro_batch, 0.0)
