"""The cost models of a roofline section, from its parts."""

from dataclasses import replace

from oppo_sim.costs.achieved import Nodes
from oppo_sim.costs.context import stages_run
from oppo_sim.costs.device import value_bytes
from oppo_sim.costs.hosts import find_host
from oppo_sim.costs.interface import PrefillCost
from oppo_sim.costs.linear import verifier
from oppo_sim.costs.memory import MicroBatch, weight_bytes
from oppo_sim.costs.model_shape import ModelShape
from oppo_sim.costs.roofline_engine import Logits, RooflineEngine
from oppo_sim.costs.roofline_memory import (
    Parts,
    check_scoring,
    micro_batch,
    ref_bytes,
    rollout_weight_bytes,
    state_bytes,
    trained_adapters,
)
from oppo_sim.costs.roofline_parts import Verifier
from oppo_sim.costs.roofline_training import RooflineTraining
from oppo_sim.costs.scoring import SummedPrefill
from oppo_sim.costs.trained_model import TrainedModel


def rollout_engine(parts: Parts) -> RooflineEngine:
    """One replica. Raises OppoError for a dtype that the device lacks."""
    rollout = parts.rollout
    layers, device = parts.models.actor.block_pairs, parts.devices.rollout
    host = find_host(rollout.host, device).on(layers, rollout.tensor_parallel)
    engine = RooflineEngine(
        shape=parts.models.actor,
        device=device,
        tensor_parallel=rollout.tensor_parallel,
        dtype=rollout.dtype,
        kv_bytes=rollout.kv_value_bytes,
        achievable=rollout.achievable,
        host=host,
        expert_parallel=rollout.expert_parallel,
        attention_data_parallel=rollout.attention_data_parallel,
        nodes=_nodes_of_a_replica(parts),
    )
    engine.split  # noqa: B018 (a dtype that the device lacks is an error of now, not of the first iteration)
    return engine


def _nodes_of_a_replica(parts: Parts) -> Nodes | None:
    context = parts.context
    if context.node_link_bytes_per_s is None or parts.rollout.tensor_parallel <= context.gpus_per_node:
        return None
    return Nodes(context.gpus_per_node, context.node_link_bytes_per_s)


def scoring_worker(parts: Parts) -> PrefillCost:
    """The reward model or the verifier, and the reference model where it is streamed. Raises OppoError if
    their weights do not fit."""
    reward, models, devices = parts.reward_model, parts.models, parts.devices
    check_scoring(parts)

    def engine(shape: ModelShape, logits: Logits) -> RooflineEngine:
        degree, dtype = reward.tensor_parallel, reward.dtype
        host = find_host(reward.host, devices.scoring).on(shape.block_pairs, degree)
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
    models, devices, context = parts.models, parts.devices, parts.context
    training = context.training

    def trained(name: str, shape: ModelShape, has_head: bool) -> TrainedModel:
        return TrainedModel(
            shape=shape,
            has_head=has_head,
            training_micro_batch=micro_batch(parts, name, shape, has_head, backward=True),
            inference_micro_batch=micro_batch(parts, name, shape, has_head, backward=False),
            state=state_bytes(parts, name, shape, has_head),
            adapters=trained_adapters(parts, name, shape),
            remove_padding=training.removes_padding(name),
        )

    actor = trained("actor", models.actor, True)
    moved = weight_bytes(models.actor, parts.rollout.dtype, True)
    sync = training.weight_sync
    level = sync.sleep_level if sync.kind == "reshard" and parts.rollout.sleep_mode else None
    whole = training.lora_merge or sync.kind == "full_export" or level == 2
    if actor.adapters is not None and not whole:
        moved = float(value_bytes(training.dtype) * actor.adapters)
    between, spans = context.node_link_bytes_per_s, context.training_spans_nodes

    def side_by_side(divided: int) -> float | None:
        # Each data-parallel rank of a node crosses to the next node by a link of its own.
        ranks = max(1, min(context.gpus_per_node, devices.num_training) // divided)
        return between * ranks if between and spans else None

    return RooflineTraining(
        actor=actor,
        ref=_reference(parts, actor),
        critic=trained("critic", models.critic, False) if training.critic == "separate" else actor,
        device=devices.training,
        devices=parts.group,
        training=training,
        num_gpus=devices.num_training,
        weights_bytes=moved,
        nominal=context.nominal_batch,
        longest=context.max_prompt_length + context.max_response_length,
        gather_link_bytes_per_s=side_by_side(training.tensor_parallel),
        expert_gather_link_bytes_per_s=side_by_side(training.expert_devices),
        expert_link_bytes_per_s=_expert_link(parts, models.actor),
        sequence_link_bytes_per_s=_exchange_link(
            parts, training.sequence_parallel, max(1, context.gpus_per_node // training.tensor_parallel)
        ),
        sync_link_bytes_per_s=between if context.sync_spans_nodes else None,
        engine_bytes=rollout_weight_bytes(parts) if level == 1 else 0.0,
    )


def _exchange_link(parts: Parts, devices: int, of_a_node: int) -> float | None:
    """Bytes a second that a device sends to the other ``devices`` of an exchange, of which so many are on a
    node; None: all are. What goes to other nodes takes the device's link between nodes, and the rest the one
    inside, at once."""
    context = parts.context
    inside = parts.group.link_bytes_per_s or parts.devices.training.link_bytes_per_s
    if not context.node_link_bytes_per_s or devices <= of_a_node:
        return None
    apart = (devices - of_a_node) / (devices - 1)
    return 1.0 / max((1.0 - apart) / inside, apart / context.node_link_bytes_per_s)


def _expert_link(parts: Parts, shape: ModelShape) -> float | None:
    """Bytes a second of the hidden vectors of all copies that a device sends to experts elsewhere. Without
    duplicates one goes to each node, and from there to each device (DeepSeek-AI, "DeepSeek-V3", 2024,
    §3.2.2); routing is uniform."""
    context, training = parts.context, parts.context.training
    devices, of_a_node = training.expert_devices, context.gpus_per_node
    spans = context.node_link_bytes_per_s is not None and devices > of_a_node
    degree, used = training.expert_parallel, shape.num_experts_per_tok
    if parts.group.expert_dispatch == "alltoall" or degree == 1 or not used:
        return _exchange_link(parts, devices, of_a_node)

    def elsewhere(places: float) -> float:
        return (places - 1.0) * (1.0 - (1.0 - 1.0 / places) ** used)

    inside = parts.group.link_bytes_per_s or parts.devices.training.link_bytes_per_s
    seconds = elsewhere(degree) / inside
    if spans and context.node_link_bytes_per_s:
        seconds = max(seconds, elsewhere(devices / of_a_node) / context.node_link_bytes_per_s)
    return used * (degree - 1) / degree / seconds


def _reference(parts: Parts, actor: TrainedModel) -> TrainedModel:
    """Beside the trained models; or on devices of its own, with the actor's micro-batches."""
    training, shape = parts.context.training, parts.models.ref
    own, of_a_device = training.ref_micro_batch_tokens, training.sequence_parallel
    held = actor.inference_micro_batch if own is None else MicroBatch(own)
    if training.ref_micro_batch_rollouts is not None:
        held = MicroBatch(held.tokens, training.ref_micro_batch_rollouts / of_a_device)
    if stages_run(training).ref and not training.parallel_inference:
        held = micro_batch(parts, "reference", shape, True, backward=False)
    if actor.adapters is not None and not training.parallel_inference:
        return replace(actor, training_micro_batch=held, inference_micro_batch=held, adapters=None)
    streamed = ref_bytes(parts) if training.ref_param_offload else 0.0
    return TrainedModel(
        shape, True, held, held, streamed_bytes=streamed, remove_padding=training.remove_padding
    )
