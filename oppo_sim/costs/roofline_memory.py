"""Whether what a scenario needs fits the memory of its devices, and how many tokens fit beside it."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from oppo_sim.costs.context import CostContext, stages_run
from oppo_sim.costs.device import Device, value_bytes, weight_value_bytes
from oppo_sim.costs.memory import (
    MicroBatch,
    StateBytes,
    adapted_state,
    adapter_parameters,
    gathered_bytes,
    gigabytes,
    inference_activation_bytes,
    layer_activation_bytes,
    model_parameters,
    training_activation_bytes,
    training_state,
    weight_bytes,
)
from oppo_sim.costs.model_shape import ModelShape
from oppo_sim.costs.roofline_parts import RewardModel, RolloutEngine, TrainingDevices, Verifier
from oppo_sim.errors import OppoError

_ROLLOUT_WEIGHTS: Final = "rollout weights"
_FILLS: Final = 4
"""Micro-batches a stage with which a pipeline's idle time is small (Huang et al., "GPipe", 2019, §2.3)."""
_WORTH_NAMING = 0.05e9
"""Bytes that a switch has to save to be named."""


class NoRoomError(OppoError):
    """A model does not fit its devices."""


class Item(NamedTuple):
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


_DEVICE_SHARE: Final = 0.9
"""Of device memory that an engine and what shares its device may take together, if the engine's own share
(``gpu_memory_utilization``) is not more. vLLM's share is of its instance alone."""


class _Need(NamedTuple):
    """What is to lie in one device at a time; ``least`` bytes beside the items."""

    items: list[Item]
    least: float

    @property
    def total(self) -> float:
        return sum(item.bytes for item in self.items) + self.least


def trained_adapters(parts: Parts, name: str, shape: ModelShape) -> int | None:
    """Parameters of a model's adapters; None: its weights are trained."""
    rank = parts.context.training.lora_rank
    return adapter_parameters(shape, rank) if rank and name == "actor" else None


def state_bytes(parts: Parts, name: str, shape: ModelShape, has_head: bool) -> StateBytes:
    """Of a trained model, on each device of the training group."""
    training, number = parts.context.training, parts.devices.num_training
    optimizer, sharding, degree = training.optimizer, training.sharding, training.model_parallel
    of_experts = training.pipeline_parallel * training.expert_devices
    others = model_parameters(shape, has_head) - shape.routed_params
    whole = training_state(others, optimizer, sharding, number, degree)
    whole = whole.beside(training_state(shape.routed_params, optimizer, sharding, number, of_experts))
    adapters = trained_adapters(parts, name, shape)
    if adapters is None:
        return whole
    return adapted_state(whole, training_state(adapters, optimizer, sharding, number, degree))


def ref_bytes(parts: Parts) -> float:
    """The reference model's weights, on each device of the training group."""
    training, shape = parts.context.training, parts.models.ref
    size = weight_bytes(shape, training.dtype, True)
    if training.sharding == "full":
        return size / parts.devices.num_training
    experts = value_bytes(training.dtype) * shape.routed_params
    return (size - experts) / training.model_parallel + experts / (
        training.pipeline_parallel * training.expert_devices
    )


def kv_capacity(parts: Parts, kv_bytes_per_token: float) -> int:
    """Tokens of KV cache of a replica, on all its ranks of attention: what weights and activations leave of
    the engine's share of the device, and co-located models of the device.

    Raises OppoError if that is not one token.
    """

    def engine(parts: Parts) -> _Need:
        rollout = parts.rollout
        activations = rollout.max_num_batched_tokens * layer_activation_bytes(
            parts.models.actor, rollout.dtype
        )
        items = [*_rollout_items(parts), Item("activations", activations / rollout.attention_devices)]
        return _Need([*items, *_bounded_states(parts)], kv_bytes_per_token)

    def device(parts: Parts) -> _Need:
        context, items = parts.context, engine(parts).items
        if context.colocated_training and not context.training.offload:
            if _generates_with_trained(parts):
                items = [item for item in items if item.name != _ROLLOUT_WEIGHTS]
            items += _training_items(parts)
        if context.colocated_scoring:
            items += _scoring_items(parts)
        return _Need(items, kv_bytes_per_token)

    cure = "raise costs.rollout.tensor_parallel or gpu_memory_utilization, or take a larger device"
    if _bounded_states(parts):
        cure = f"lower rollout.max_num_seqs, {cure}"
    share = parts.rollout.gpu_memory_utilization
    shares = ((device, max(share, _DEVICE_SHARE)), (engine, share))
    left = min(_left("rollout", parts, parts.devices.rollout, each, need, cure) for need, each in shares)
    return math.floor(left / kv_bytes_per_token) * parts.rollout.attention_data_parallel


def _bounded_states(parts: Parts) -> list[Item]:
    """What linear attention and sliding windows keep, whatever their length, of the rollouts of a batch that
    a replica has, or of as many as it may run."""
    context, rollout, shape = parts.context, parts.rollout, parts.models.actor
    at_once = math.ceil(context.rollout_batch_size / context.num_replicas)
    if context.max_num_seqs is not None:
        at_once = min(at_once, context.max_num_seqs)
    at_once = math.ceil(at_once / rollout.attention_data_parallel)
    size = at_once * shape.state_bytes_per_rollout(rollout.kv_value_bytes, rollout.attention_devices)
    kind = "states of linear attention" if shape.num_linear_layers else "sliding windows"
    return [Item(f"{kind} of {at_once} rollouts", size)] if size else []


def check_scoring(parts: Parts) -> None:
    """Raises OppoError if the weights of a scoring worker do not fit."""
    if _scoring_items(parts):
        share, cure = parts.reward_model.gpu_memory_utilization, "raise costs.reward_model.tensor_parallel"
        _left(
            "scoring",
            parts,
            parts.devices.scoring,
            share,
            lambda parts: _Need(_scoring_items(parts), 0.0),
            cure + " or take a larger device",
        )


def micro_batch(parts: Parts, name: str, shape: ModelShape, has_head: bool, backward: bool) -> MicroBatch:
    """A micro-batch on one device: as set, else as many tokens as fit beside what the training group holds
    then. ``name``: actor, critic or reference.

    What is set is refused only where no way to take the loss would fit; what is chosen here fits them all.
    Micro-batches of a number of rollouts take the memory of rollouts of half the longest, or of one longest.
    Raises OppoError if not all of it fits or a micro-batch cannot hold the longest rollout.
    """
    wanted, field = _wanted(parts, name, backward)
    context, training = parts.context, parts.context.training
    longest = context.max_prompt_length + context.max_response_length
    set_by_hand = isinstance(wanted, int)
    by_tokens = isinstance(wanted, int) and field.endswith("tokens")
    if isinstance(wanted, int) and by_tokens and wanted * training.sequence_parallel < longest:
        times = (
            f" times sequence_parallel {training.sequence_parallel}" if training.sequence_parallel > 1 else ""
        )
        raise OppoError(
            f"training: {field} {wanted}{times} is less than the longest rollout "
            f"(max_prompt_length + max_response_length = {longest}); raise it"
        )

    def least(parts: Parts) -> int:
        if isinstance(wanted, int) and by_tokens:
            return wanted
        share = 2 if parts.context.training.removes_padding(name) else 1
        held = max(longest, math.ceil(wanted * longest / share)) if isinstance(wanted, int) else longest
        return -(-held // parts.context.training.sequence_parallel)

    def need(parts: Parts) -> _Need:
        items = _training_items(parts, name)
        if parts.context.colocated_training:  # the KV cache is released while training runs
            alone = parts.rollout.sleep_mode or _generates_with_trained(parts)
            items += [] if alone else _rollout_items(parts)
            if parts.context.colocated_scoring:
                items += _scoring_items(parts)
        if parts.context.scores_beside_training:
            items += _scoring_items(parts)
        training, degree = parts.context.training, parts.context.training.tensor_parallel
        gradients = name != "reference" and trained_adapters(parts, name, shape) is None
        experts = training.expert_devices
        gathered = gathered_bytes(shape, training.sharding, degree, training.dtype, gradients, experts)
        per_token = _activation_bytes(parts, shape, has_head, backward, set_by_hand)
        return _Need([*items, Item("gathered layers", gathered)], least(parts) * per_token)

    per_token = _activation_bytes(parts, shape, has_head, backward, set_by_hand)
    stage = "" if backward else ", forward"
    left = _left(
        f"training ({name}{stage}, one micro-batch of {least(parts)} tokens with"
        f" {gigabytes(least(parts) * per_token)} of activations)",
        parts,
        parts.devices.training,
        parts.group.memory_utilization,
        need,
        (f"lower training.{field}, " if isinstance(wanted, int) else "")
        + "raise training.tensor_parallel or num_gpus, or shorten the responses",
    )
    if not isinstance(wanted, int):
        fitting = math.floor(left / per_token)
        filling = _filling(parts, backward)
        return MicroBatch(fitting if filling is None else max(least(parts), min(fitting, filling)))
    return MicroBatch(least(parts), 0.0 if by_tokens else wanted / training.sequence_parallel)


def _filling(parts: Parts, backward: bool) -> int | None:
    """Most tokens of a device's micro-batch with which a nominal mini-batch fills a pipeline; None: there is
    none."""
    training, nominal = parts.context.training, parts.context.nominal_batch
    if training.pipeline_parallel == 1:
        return None
    ranks = parts.devices.num_training // training.model_parallel
    mini_batches = training.num_mini_batches if backward else 1
    return math.ceil(nominal.tokens / ranks / mini_batches / (_FILLS * training.pipeline_parallel))


def _wanted(parts: Parts, name: str, backward: bool) -> tuple[int | str, str]:
    """A size and the field that gives it, which ends in tokens or rollouts."""
    training = parts.context.training
    of_stage = "" if backward else "ref_" if name == "reference" else "log_prob_"
    owners = ("critic_", of_stage) if name == "critic" else (of_stage,)
    fields = [f"{owner}micro_batch_{unit}" for owner in owners for unit in ("rollouts", "tokens")]
    for field in (*fields, "micro_batch_rollouts"):
        size: int | str | None = getattr(training, field)
        if size is not None and size != "auto":
            return size, field
    return training.micro_batch_tokens, "micro_batch_tokens"


def _activation_bytes(
    parts: Parts, shape: ModelShape, has_head: bool, backward: bool, in_place: bool
) -> float:
    """Of a token on one device."""
    training, degree = parts.context.training, parts.context.training.tensor_parallel
    forward = inference_activation_bytes(shape, has_head, degree, training.dtype)
    if not backward:
        return forward
    factor = parts.group.recompute_memory_factor if training.selective_recompute else 1.0
    checkpointing = training.gradient_checkpointing
    kept = training_activation_bytes(shape, has_head, degree, factor, checkpointing, training.dtype, in_place)
    return max(kept, forward)


def _scoring_items(parts: Parts) -> list[Item]:
    """Weights that a scoring worker holds on each of its devices."""
    models, items = parts.models, []
    dtype, degree = parts.reward_model.dtype, parts.reward_model.tensor_parallel
    if models.reward is not None:
        items.append(Item("reward model weights", weight_bytes(models.reward, dtype, False) / degree))
    if parts.context.training.stream_ref:
        items.append(Item("reference weights", weight_bytes(models.ref, dtype, True) / degree))
    return items


def _training_items(parts: Parts, running: str = "") -> list[Item]:
    """What the training group keeps on each of its devices while it runs a model, or none (between steps)."""
    training, models = parts.context.training, parts.models
    trained = [("actor", models.actor, True)]
    if training.critic == "separate":
        trained.append(("critic", models.critic, False))
    items = []
    for name, shape, has_head in trained:
        state, here = state_bytes(parts, name, shape, has_head), name == running
        # Without its adapters the actor is the reference model.
        here |= running == "reference" and trained_adapters(parts, name, shape) is not None
        kept = 0.0 if training.param_offload and not here else state.parameters + state.gradients
        kept += 0.0 if training.optimizer_offload and not here else state.optimizer
        items.append(Item(f"{name} training state", kept))
    own_ref = stages_run(training).ref and not training.lora_rank and not training.parallel_inference
    if own_ref and not training.ref_param_offload:
        items.append(Item("reference weights", ref_bytes(parts)))
    return items


def _rollout_items(parts: Parts) -> list[Item]:
    return [Item(_ROLLOUT_WEIGHTS, rollout_weight_bytes(parts))]


def _generates_with_trained(parts: Parts) -> bool:
    """Whether generation uses the very weights that a device trains (``weight_sync: {kind: shared}``), and no
    second copy: they are divided alike, not gathered from shards of all, stay, and have no fewer bits."""
    training, rollout = parts.context.training, parts.rollout
    alike = training.model_parallel == rollout.tensor_parallel
    whole = training.sharding != "full" or parts.devices.num_training == training.model_parallel
    stay = not (training.offload or training.param_offload)
    shared = parts.context.colocated_training and training.weight_sync.kind == "shared"
    return shared and alike and whole and stay and rollout.dtype != "fp8"


def rollout_weight_bytes(parts: Parts) -> float:
    """On each device of a replica: every rank of attention has all but the experts, which lie on all."""
    rollout, shape = parts.rollout, parts.models.actor
    size = weight_bytes(shape, rollout.dtype, True)
    if rollout.attention_data_parallel == 1:
        return size / rollout.tensor_parallel
    experts = weight_value_bytes(rollout.dtype) * shape.routed_params
    return (size - experts) / rollout.attention_devices + experts / rollout.tensor_parallel


def _left(
    place: str, parts: Parts, device: Device, utilization: float, need: Callable[[Parts], _Need], cure: str
) -> float:
    """Bytes of a device beside the items. Raises OppoError if that is less than the least, naming every item
    and what each switch would save."""
    asked, usable = need(parts), utilization * device.hbm_bytes
    left = usable - sum(item.bytes for item in asked.items)
    if left <= 0 or left < asked.least:
        listed = ", ".join(f"{item.name} {gigabytes(item.bytes)}" for item in asked.items)
        short = gigabytes(asked.least - left)
        raise NoRoomError(
            f"costs: {place} does not fit {device.name}: {listed}, of {gigabytes(usable)} usable; {short}"
            f" short; {cure}{_savings(parts, need)}"
        )
    return left


_TRAINING_SWITCHES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("gradient_checkpointing", {"gradient_checkpointing": True, "selective_recompute": False}),
    ("selective_recompute", {"selective_recompute": True, "gradient_checkpointing": False}),
    ("sharding: full", {"sharding": "full"}),
    # Of frozen weights half, which it counts in 16 bits.
    ("sharding: optimizer", {"sharding": "optimizer"}),
    ("offload", {"offload": True, "param_offload": False, "optimizer_offload": False}),
    ("param_offload", {"param_offload": True}),
    ("optimizer_offload", {"optimizer_offload": True}),
    ("ref_param_offload", {"ref_param_offload": True}),
    ("sequence_parallel: 2", {"sequence_parallel": 2}),
    ("sequence_parallel: 4", {"sequence_parallel": 4}),
    ("sequence_parallel: 8", {"sequence_parallel": 8}),
    ("expert_parallel: 8", {"expert_parallel": 8}),
    # Another training, and what most runs on few devices are.
    ("lora_rank: 16", {"lora_rank": 16}),
)


def _savings(parts: Parts, need: Callable[[Parts], _Need]) -> str:
    """What each switch that is off would save here, most first."""
    training, now = parts.context.training, need(parts).total
    found = []
    for name, change in _TRAINING_SWITCHES:
        degree = training.tensor_parallel * int(change.get("sequence_parallel", training.sequence_parallel))
        heads = [shape.num_attention_heads for shape in parts.models[:3]]
        uneven = any(number % degree for number in heads)
        uneven |= parts.devices.num_training % (degree * training.pipeline_parallel) > 0
        uneven |= training.pipeline_parallel > 1 and change.get("sharding") == "full"
        if "expert_parallel" in change:
            experts, groups = parts.models.actor.num_experts, 8 * training.pipeline_parallel
            groups *= training.expert_tensor_parallel or training.tensor_parallel
            uneven |= not experts or experts % 8 > 0 or parts.devices.num_training % groups > 0
            uneven |= training.expert_parallel >= 8
        if uneven or (training.offload and name in ("param_offload", "optimizer_offload")):
            continue
        context = CostContext(**{**vars(parts.context), "training": training.model_copy(update=dict(change))})
        found.append((now - need(parts._replace(context=context)).total, f"training.{name}"))
    rollout = parts.rollout.model_copy(update={"sleep_mode": True})
    found.append((now - need(parts._replace(rollout=rollout)).total, "costs.rollout.sleep_mode"))
    reward, models = parts.reward_model, parts.models
    if models.reward is not None and isinstance(reward, RewardModel):
        degree = 2 * reward.tensor_parallel
        wider = reward.model_copy(update={"tensor_parallel": degree})
        saved = now - need(parts._replace(reward_model=wider)).total
        if models.reward.num_attention_heads % degree == 0 and degree <= parts.context.gpus_per_node:
            found.append((saved, f"costs.reward_model.tensor_parallel: {degree}"))
    worth = sorted((each for each in found if each[0] > _WORTH_NAMING), reverse=True)
    if not worth:
        return ""
    return "; of the switches, " + ", ".join(f"{name} saves {gigabytes(saved)}" for saved, name in worth)
