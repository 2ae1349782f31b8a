"""Training as frameworks configure it: recomputation, sequence parallelism, offload, dtypes, memory; by hand."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from oppo_sim.costs.achieved import Achievable, trainer_shares
from oppo_sim.costs.context import CostContext
from oppo_sim.costs.device import Device
from oppo_sim.costs.devices import DEVICES, find_device
from oppo_sim.costs.interface import BatchShape, Costs, StageTimes
from oppo_sim.costs.memory import (
    MicroBatch,
    StateBytes,
    adapter_parameters,
    inference_activation_bytes,
    projection_widths,
    training_activation_bytes,
    training_state,
)
from oppo_sim.costs.model_shape import ModelShape
from oppo_sim.costs.models import find_model
from oppo_sim.costs.operators import adapter_group, layer_groups
from oppo_sim.costs.roofline_config import RooflineCostConfig
from oppo_sim.costs.roofline_parts import TrainingDevices
from oppo_sim.costs.roofline_training import RooflineTraining
from oppo_sim.costs.split import Split, achievable_rates
from oppo_sim.costs.trained_model import TrainedModel
from oppo_sim.costs.training_config import TrainingConfig
from oppo_sim.errors import OppoError
from tests.perfect import perfect

TINY = ModelShape(
    num_hidden_layers=1,
    hidden_size=8,
    intermediate_size=16,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    vocab_size=32,
)
TOY = Device(
    name="toy",
    hbm_bytes=1e9,
    hbm_bytes_per_s=1e15,
    bf16_flops=1000.0,
    float32_flops=100.0,
    link_bytes_per_s=1e15,
    host_link_bytes_per_s=1.0,
    source="test",
)
EXACT = TrainingDevices(
    achievable=perfect(),
    micro_batch_overhead_s=0.25,
    launch_per_layer_s=0.0,
    adv_fixed_s=0.0,
    adv_per_token_s=0.0,
)
STATE = StateBytes(parameters=30.0, gradients=30.0, optimizer=40.0)
SMALL = BatchShape((2, 2), (2, 2))  # 8 tokens, 16 pairs
FORWARD = 9.728 + 4.096
"""Layers 2·576·8, attention 4·8·16 and head 2·256·8 operations at 1,000 a second."""
BACKWARD = 2 * FORWARD + 0.9 * 0.512
"""Attention takes 2.9 of its forward's seconds."""


def tiny(
    training: TrainingConfig,
    device: Device = TOY,
    num_gpus: int = 1,
    micro: int = 8,
    streamed: float = 0.0,
    rollouts: float = 0.0,
) -> RooflineTraining:
    held = MicroBatch(micro, rollouts)
    padding = {"remove_padding": training.remove_padding}
    model = TrainedModel(TINY, True, held, held, STATE, **padding)
    ref = TrainedModel(TINY, True, held, held, streamed_bytes=streamed, **padding)
    return RooflineTraining(model, ref, model, device, EXACT, training, num_gpus, 2000.0, SMALL)


def colocated(
    training: TrainingConfig, *, replicas: int, batch: int, prompt: int, response: int
) -> CostContext:
    """Training on the devices of the rollout replicas."""
    return CostContext(
        num_replicas=replicas,
        num_scoring_workers=1,
        rollout_batch_size=batch,
        max_prompt_length=prompt,
        max_response_length=response,
        training=training,
        colocated_training=True,
    )


def config(**fields: Any) -> TrainingConfig:
    return TrainingConfig(**{"num_ppo_epochs": 1, "critic": "none", **fields})


def test_gradient_checkpointing_is_one_more_forward_and_no_more_work() -> None:
    plain, again = (tiny(config(gradient_checkpointing=flag)) for flag in (False, True))
    assert plain.stage_times(SMALL).update_actor == pytest.approx(FORWARD + BACKWARD + 3 * 0.25)
    assert again.stage_times(SMALL).update_actor == pytest.approx(2 * FORWARD + BACKWARD + 4 * 0.25)
    assert again.work(SMALL) == plain.work(SMALL)
    # All of a stage but its overheads is arithmetic, the forward that is run again too: 1 + 1 + 2 forwards.
    computed = 4 * FORWARD + BACKWARD
    assert again.demand().arithmetic == pytest.approx(computed / (computed + 6 * 0.25))


def adapted(adapters: int, device: Device = TOY, num_gpus: int = 1, **fields: Any) -> RooflineTraining:
    group = tiny(config(lora_rank=1, **fields), device, num_gpus)
    actor = dataclasses.replace(group.actor, adapters=adapters)
    return dataclasses.replace(group, actor=actor, critic=actor)


def test_a_backward_through_frozen_weights_is_one_forward() -> None:
    whole, plain, again = tiny(config()), adapted(10), adapted(10, gradient_checkpointing=True)
    backward = BACKWARD - FORWARD + 0.512  # attention has no weights
    assert whole.stage_times(SMALL).update_actor == pytest.approx(FORWARD + BACKWARD + 3 * 0.25)
    assert plain.stage_times(SMALL).update_actor == pytest.approx(FORWARD + backward + 2 * 0.25)
    assert again.stage_times(SMALL).update_actor == pytest.approx(2 * FORWARD + backward + 3 * 0.25)
    assert again.work(SMALL) == plain.work(SMALL)
    unchanged = whole.stage_times(SMALL).old_log_prob
    assert plain.stage_times(SMALL).old_log_prob == pytest.approx(unchanged, rel=1e-9)
    # All stages of a whole model are 1 + 1 + 3 forwards of work.
    flops = [group.work(SMALL).flops for group in (whole, plain)]
    assert flops[1] == pytest.approx(flops[0] * 4 / 5)


def test_adapters_alone_are_reduced_and_stepped() -> None:
    slow = TOY.model_copy(update={"link_bytes_per_s": 10.0, "bf16_flops": 1e15, "float32_flops": 1e15})
    gather, weights = 111.2, tiny(config()).actor.parameters
    times = adapted(weights // 4, slow, 2, reduce_dtype="float32").stage_times(SMALL)
    share = (weights // 4) / weights
    assert times.update_actor == pytest.approx(gather * (2 + 2 * share) + 2 * 0.25)


def test_adapters_double_the_launches_of_a_layer() -> None:
    devices = EXACT.model_copy(update={"launch_per_layer_s": 100.0})
    layers = TINY.num_hidden_layers
    times = dataclasses.replace(adapted(10), devices=devices).stage_times(SMALL)
    assert times.old_log_prob == pytest.approx(200.0 * layers + 0.25)
    assert times.ref == pytest.approx(100.0 * layers + 0.25)  # without its adapters
    assert times.update_actor == pytest.approx(2 * (200.0 * layers + 0.25))


def test_one_gpu_without_sharding_launches_what_transformers_does_alone() -> None:
    layers = TINY.num_hidden_layers
    kernels = EXACT.model_copy(update={"launch_per_layer_s": 0.0, "micro_batch_overhead_s": 0.0})
    believed = kernels.model_copy(update={"launch_per_layer_s": None})
    for sharding, gpus, seconds in (("none", 1, 8e-4), ("none", 2, 2.2e-3), ("full", 1, 1.4e-3)):
        group = dataclasses.replace(tiny(config(sharding=sharding), find_device("H100")), num_gpus=gpus)
        beside = dataclasses.replace(group, devices=kernels).stage_times(SMALL).ref
        found = dataclasses.replace(group, devices=believed).stage_times(SMALL).ref
        assert found == pytest.approx(seconds * layers, rel=0.02) and found > 2 * beside


def test_an_entropy_beside_old_log_probabilities_moves_thirty_bytes_a_logit() -> None:
    slow = TOY.model_copy(update={"hbm_bytes_per_s": 1e3})
    group = tiny(config(), slow)
    without = dataclasses.replace(
        group, devices=EXACT.model_copy(update={"old_log_prob_entropy": False})
    ).stage_times(SMALL)
    times = group.stage_times(SMALL)
    assert times.old_log_prob - without.old_log_prob == pytest.approx(8 * 32 * 30 / 1e3)
    assert without.old_log_prob == times.ref == without.ref
    assert times.update_actor == without.update_actor


def test_adapters_read_and_write_beside_each_projection() -> None:
    slow = TOY.model_copy(update={"hbm_bytes_per_s": 1e4})
    shape = TINY.model_copy(update={"num_hidden_layers": 1})
    widths = projection_widths(shape, 0)
    assert widths == (8 + 8) + 2 * (8 + 4) + (8 + 8) + 3 * (8 + 16)
    split = Split(shape, 1, "bf16", 2.0, achievable_rates(slow, "bf16", EXACT.achievable))
    # Four values of two bytes for each, and half with two devices.
    assert adapter_group(split, 10.0, widths).memory_s == pytest.approx(10 * widths * 4 * 2 / 1e4)
    halves = dataclasses.replace(split, tensor_parallel=2)
    assert adapter_group(halves, 10.0, widths).bytes == 10 * widths * 4


def test_adapters_are_counted_as_peft_counts_them() -> None:
    """`print_trainable_parameters()` of Qwen2.5-7B-Instruct, rank 8, all linear layers: 20,185,088."""
    assert adapter_parameters(find_model("Qwen/Qwen2.5-7B-Instruct", None), 8) == 20_185_088
    # Two dense layers of four; others with three experts and a shared one.
    experts = TINY.model_copy(
        update={
            "num_hidden_layers": 4,
            "num_experts": 3,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 5,
            "shared_expert_intermediate_size": 7,
            "num_dense_layers": 2,
        }
    )
    hidden, attention = TINY.hidden_size, 2 * (2 * TINY.hidden_size + TINY.query_width + TINY.kv_width)
    dense = 3 * (hidden + TINY.intermediate_size)
    mixed = 3 * (3 * (hidden + 5) + hidden + 7)
    assert adapter_parameters(experts, 2) == 2 * (4 * attention + 2 * dense + 2 * mixed)


def test_the_host_bounds_forwards_of_few_tokens_from_below() -> None:
    def times(launch_s: float, **fields: Any) -> Any:
        group = EXACT.model_copy(update={"launch_per_layer_s": launch_s})
        return dataclasses.replace(tiny(config(**fields)), devices=group).stage_times(SMALL)

    # One layer, one micro-batch of a forward that the device runs in 13.824 s, and 0.25 s beside.
    assert times(13.0) == times(0.0)
    slow = times(20.0)
    assert slow.ref == slow.old_log_prob == pytest.approx(20.0 + 0.25)
    assert slow.update_actor == pytest.approx(3 * (20.0 + 0.25))
    assert times(20.0, gradient_checkpointing=True).update_actor == pytest.approx(4 * (20.0 + 0.25))


def test_sequence_parallel_devices_share_the_tokens_and_exchange_heads() -> None:
    slow = TOY.model_copy(update={"link_bytes_per_s": 10.0})
    apart = tiny(config(sharding="none"), slow, 2).stage_times(SMALL)
    assert apart.ref == pytest.approx(FORWARD / 2 + 0.25)
    shared = tiny(config(sharding="none", sequence_parallel=2), slow, 2).stage_times(SMALL)
    # 4 tokens on each device, 8 columns of queries and of outputs, 2 · 8 of keys and values (one head repeated
    # for the second device), 2 bytes, half of which leaves the device: 128 bytes.
    assert shared.ref == pytest.approx(FORWARD / 2 + 12.8 + 0.25)
    # A backward has the collectives of one forward.
    assert shared.update_actor - apart.update_actor == pytest.approx(2 * 12.8)


FOUR_LAYERS = TINY.model_copy(update={"num_hidden_layers": 4})


def piped_group(stages: int, *, shape: ModelShape = FOUR_LAYERS, head: bool = False) -> RooflineTraining:
    """A rollout a micro-batch."""
    training = config(sharding="optimizer", pipeline_parallel=stages)
    model = TrainedModel(shape, head, MicroBatch(4, 1.0), MicroBatch(4, 1.0))
    return RooflineTraining(model, model, model, TOY, EXACT, training, stages, 0.0, SMALL)


def piped(stages: int, rollouts: int, *, shape: ModelShape = FOUR_LAYERS, head: bool = False) -> StageTimes:
    """Of ``rollouts`` rollouts of 2 + 2 tokens, a micro-batch each, on one rank."""
    group = piped_group(stages, shape=shape, head=head)
    batch = BatchShape((2,) * rollouts, (2,) * rollouts)
    alone = dataclasses.replace(group, training=config(sharding="optimizer"), num_gpus=1)
    assert group.work(batch) == pytest.approx(alone.work(batch))
    return group.stage_times(batch)


def test_interleaved_chunks_shorten_the_filling_of_a_pipeline() -> None:
    plain, halves = (
        dataclasses.replace(
            piped_group(2),
            training=config(sharding="optimizer", pipeline_parallel=2, virtual_pipeline_parallel=chunks),
        ).stage_times(SMALL)
        for chunks in (1, 2)
    )
    # Two micro-batches of one rollout: 2/2 + 1/2 of one through all layers, and 2/2 + 1/4.
    assert halves.ref / plain.ref == pytest.approx(1.25 / 1.5)
    with pytest.raises(ValidationError, match="needs pipeline_parallel of 2 or more"):
        config(virtual_pipeline_parallel=2)


def test_all_reduces_beside_products_are_seen_only_where_they_are_longer() -> None:
    def seconds(link: float, *, overlap: bool) -> float:
        device = TOY.model_copy(update={"link_bytes_per_s": link})
        group = tiny(config(tensor_parallel=2, sharding="none"), device, 2)
        devices = EXACT.model_copy(update={"tp_comm_overlap": overlap})
        return dataclasses.replace(group, devices=devices).stage_times(SMALL).ref

    free, products = seconds(1e15, overlap=True), FORWARD / 2 - 0.256  # attention hides nothing
    for link in (1e3, 40.0, 10.0):
        reduced = seconds(link, overlap=False) - free
        assert seconds(link, overlap=True) - free == pytest.approx(max(0.0, reduced - products), abs=1e-6)


@given(st.integers(2, 4), st.integers(1, 9), st.integers(4, 9), st.booleans())
def test_a_pipeline_takes_what_micro_batches_take_that_wait_for_its_stages(
    stages: int, rollouts: int, layers: int, head: bool
) -> None:
    shape = TINY.model_copy(update={"num_hidden_layers": layers})
    alone = piped(1, 1, shape=shape, head=head).old_log_prob - 0.25
    # Layers 2·576 operations and attention (10 pairs) each, of which matrices count; the last has the head.
    share = 576 / (layers * 576 + 256 * head)
    of_stages = [share * (layers // stages + (number < layers % stages)) for number in range(stages)]
    of_stages[-1] += 1.0 - share * layers
    done = [0.0] * stages
    for _ in range(rollouts):
        free = 0.0
        for number, part in enumerate(of_stages):
            free = done[number] = max(free, done[number]) + part * alone
    overheads = 0.25 * stages * (1.0 + (rollouts - 1) * max(of_stages))
    found = piped(stages, rollouts, shape=shape, head=head).old_log_prob
    assert found == pytest.approx(done[-1] + overheads, rel=1e-9)


def test_each_stage_of_a_pipeline_holds_its_layers_and_is_gathered_by_its_own_ranks() -> None:
    slow = TOY.model_copy(update={"link_bytes_per_s": 10.0})

    def times(stages: int, num_gpus: int) -> StageTimes:
        training = config(sharding="none", pipeline_parallel=stages)
        model = TrainedModel(FOUR_LAYERS, False, MicroBatch(8), MicroBatch(8))
        return RooflineTraining(model, model, model, slow, EXACT, training, num_gpus, 0.0, SMALL).stage_times(
            SMALL
        )

    # 8 tokens of 8 values of 2 bytes to the next stage, and a stage's 0.25 s more.
    assert times(2, 2).ref - times(1, 1).ref == pytest.approx(12.8 + 0.25)
    # All-reduce of the gradients of half the layers between two ranks: 2 · 2 bytes · half, half of it sent.
    two, alone = times(2, 4), times(2, 2)
    half = (FOUR_LAYERS.layer_params + FOUR_LAYERS.lm_head_params + FOUR_LAYERS.hidden_size) / 2
    reduced = 2 * 2 * half / 2 / 10
    computed = (alone.update_actor - 3 * 0.5) / 2 + 3 * 0.5
    assert two.update_actor == pytest.approx(computed + reduced)


def test_what_a_pipeline_cannot_be_is_said() -> None:
    with pytest.raises(ValidationError, match="take sharding: optimizer"):
        config(pipeline_parallel=2)
    with pytest.raises(ValidationError, match="multiple of tensor_parallel 1 times pipeline_parallel 4;"):
        config(pipeline_parallel=4, num_gpus=6, sharding="optimizer")
    with pytest.raises(
        OppoError, match="pipeline_parallel 48 is more than the 36 layers of a model: lower it"
    ):
        verl(pipeline_parallel=48, sequence_parallel=1, sharding="optimizer", num_gpus=48)


def test_micro_batches_that_are_not_set_fill_a_pipeline() -> None:
    def tokens(stages: int, responses: int) -> int:
        training = TrainingConfig(num_gpus=4, pipeline_parallel=stages, sharding="optimizer", critic="none")
        context = CostContext(1, 1, responses, 1000, 3000, training)
        costs = RooflineCostConfig.model_validate(
            {
                "kind": "roofline",
                "device": "H100",
                "actor_model": "qwen2.5-1.5b",
                "reward_model": {"kind": "verifier"},
            }
        ).build(context)
        assert isinstance(costs.training, RooflineTraining)
        return costs.training.actor.training_micro_batch.tokens

    # Two ranks, rollouts of half the longest, four micro-batches for each of two stages.
    assert tokens(2, 64) == 64 * 2000 / 2 / 8
    assert tokens(2, 4) == 4000, "one longest rollout"
    assert tokens(2, 100_000) > tokens(1, 100_000), "what fits beside half of the weights"


def test_a_stage_of_a_pipeline_holds_its_part_of_weights_and_states() -> None:
    settings = {
        "sharding": "optimizer",
        "sequence_parallel": 1,
        "num_gpus": 8,
        "ref": False,
        "offload": False,
    }
    whole, halved = (verl("B200", **settings, pipeline_parallel=stages).training for stages in (1, 2))
    assert isinstance(whole, RooflineTraining)
    assert isinstance(halved, RooflineTraining)
    assert halved.actor.state.parameters == whole.actor.state.parameters / 2
    assert halved.actor.state.gradients == whole.actor.state.gradients / 2
    assert halved.actor.state.optimizer == whole.actor.state.optimizer  # divided among all devices


EXPERTS = TINY.model_copy(
    update={"num_hidden_layers": 2, "num_dense_layers": 1, "num_experts": 8, "num_experts_per_tok": 2}
)
OF_AN_EXPERT = 3 * 8 * 16


def divided(num_gpus: int, device: Device = TOY, **settings: Any) -> RooflineTraining:
    """A micro-batch of 8 tokens on each rank."""
    training = config(**{"sharding": "none"} | settings)
    model = TrainedModel(EXPERTS, False, MicroBatch(8), MicroBatch(8))
    return RooflineTraining(model, model, model, device, EXACT, training, num_gpus, 0.0, SMALL)


def test_devices_that_hold_other_experts_send_each_other_their_tokens() -> None:
    slow = TOY.model_copy(update={"link_bytes_per_s": 10.0})
    batch = BatchShape((2,) * 8, (2,) * 8)  # 8 tokens on each of four ranks

    def forward(**settings: Any) -> float:
        return divided(4, slow, **settings).stage_times(batch).ref

    # A vector of 8 values of 2 bytes to each of two experts, three of four to other devices, and back.
    assert forward(expert_parallel=4) - forward() == pytest.approx(8 * 2 * 16 * 2 * 3 / 4 / 10)
    assert forward(expert_parallel=2) - forward() == pytest.approx(8 * 2 * 16 * 2 * 1 / 2 / 10)
    # Two tensor-parallel devices have half of the tokens each, and sum attention and the dense MLP alone.
    halved, apart = forward(tensor_parallel=2), forward(tensor_parallel=2, expert_tensor_parallel=1)
    a_sum = 16 * 16 / 10  # 16 tokens a micro-batch of a rank's 8
    assert halved - apart == pytest.approx(a_sum)
    # Those that share an expert gather 16 tokens, and scatter as many sums.
    shared = forward(expert_parallel=2, expert_tensor_parallel=2)
    assert shared - forward() == pytest.approx((8 * 2 * 16 * 2 * 1 / 2 + 2 * 8 * 2 * 16) / 10)


def test_experts_in_parallel_are_read_once_for_all_that_send_them_tokens() -> None:
    batch = BatchShape((2,) * 8, (2,) * 8)
    reading = TOY.model_copy(update={"hbm_bytes_per_s": 1.0, "bf16_flops": 1e12})

    def read(degree: int) -> float:
        return divided(4, reading, expert_parallel=degree).stage_times(batch).ref

    # Of eight experts eight tokens use 8·(1 − (3/4)^8), and those of four ranks 8·(1 − (3/4)^32), two each.
    alone, together = 8 * (1 - 0.75**8), 8 * (1 - 0.75**32) / 4
    assert read(1) - read(4) == pytest.approx((alone - together) * OF_AN_EXPERT * 2)
    works = [divided(4, expert_parallel=degree).work(batch) for degree in (1, 4)]
    assert works[0] is not None
    assert works[1] is not None
    assert works[0].flops == works[1].flops


def test_gradients_of_experts_are_reduced_by_those_that_hold_the_same() -> None:
    slow = TOY.model_copy(update={"link_bytes_per_s": 10.0})
    batch = BatchShape((2,) * 8, (2,) * 8)

    def beside_forwards(degree: int) -> float:
        times = divided(4, slow, expert_parallel=degree).stage_times(batch)
        # A backward has the exchanges of one forward.
        alone = divided(4, TOY, expert_parallel=degree).stage_times(batch)
        return times.update_actor - alone.update_actor - 2 * (times.ref - alone.ref)

    experts, all_of = 8 * OF_AN_EXPERT, EXPERTS.parameters_without_head
    # All-reduce, 2 · 2 bytes · (d − 1)/d: of all by four, or of half the experts by two, or of none of them.
    assert beside_forwards(1) == pytest.approx(4 * all_of * 3 / 4 / 10)
    assert beside_forwards(2) == pytest.approx(4 * ((all_of - experts) * 3 / 4 + experts / 2 * 1 / 2) / 10)
    assert beside_forwards(4) == pytest.approx(4 * (all_of - experts) * 3 / 4 / 10)


def moe(
    sharding: str = "optimizer",
    cluster: Mapping[str, Any] | None = None,
    devices: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Costs:
    training = TrainingConfig.model_validate(
        {"num_gpus": 16, "critic": "none", "sharding": sharding} | settings
    )
    context = CostContext(2, 1, 64, 1000, 3000, training, **(cluster or {}))
    section = {
        "kind": "roofline",
        "device": "B200",
        "actor_model": "qwen3-30b-a3b",
        "reward_model": {"kind": "verifier"},
        "rollout": {"tensor_parallel": 8},
        "training": devices or {},
    }
    return RooflineCostConfig.model_validate(section).build(context)


def test_a_device_holds_its_experts_alone() -> None:
    shape = find_model("qwen3-30b-a3b")
    others = shape.parameters - shape.routed_params

    def state(**settings: Any) -> StateBytes:
        training = moe(ref=False, **settings).training
        assert isinstance(training, RooflineTraining)
        return training.actor.state

    apart = state(expert_parallel=8, offload=True)
    assert apart.parameters == apart.gradients == 2 * (others + shape.routed_params / 8)
    assert apart.optimizer == pytest.approx(12 * shape.parameters / 16)
    both = state(expert_parallel=4, expert_tensor_parallel=2, tensor_parallel=4, pipeline_parallel=2)
    assert both.parameters == pytest.approx(2 * (others / 8 + shape.routed_params / 16))
    with pytest.raises(OppoError, match=r"training\.expert_parallel: 8 saves"):
        moe("none")


def test_experts_on_two_nodes_are_reached_by_both_links_at_once() -> None:
    cluster = {"gpus_per_node": 8, "node_link_bytes_per_s": 5e10, "training_spans_nodes": True}
    inside, across = (moe(cluster=cluster, expert_parallel=each, offload=True).training for each in (8, 16))
    assert isinstance(inside, RooflineTraining)
    assert isinstance(across, RooflineTraining)
    assert inside.expert_link_bytes_per_s is None
    # 8 of the 15 others are on the other node.
    assert across.expert_link_bytes_per_s == pytest.approx(5e10 * 15 / 8)
    assert inside.expert_gather_link_bytes_per_s == 5e10  # one rank of a node and its link
    assert inside.gather_link_bytes_per_s == 8 * 5e10


def test_layers_of_experts_take_the_host_longer() -> None:
    def seconds(**devices: Any) -> float:
        found = moe(devices=devices, expert_parallel=8, offload=True).training
        return found.stage_times(BatchShape((8,) * 16, (8,) * 16)).old_log_prob

    more = seconds(expert_launch_per_layer_s=5e-3) - seconds(expert_launch_per_layer_s=4e-3)
    assert more == pytest.approx(48 * 1e-3)


def test_deepep_sends_a_token_once_to_each_node() -> None:
    cluster = {"gpus_per_node": 8, "node_link_bytes_per_s": 5e10, "training_spans_nodes": True}
    devices = {"expert_dispatch": "deepep"}
    found = moe(cluster=cluster, devices=devices, expert_parallel=16, offload=True).training
    assert isinstance(found, RooflineTraining)
    # Eight copies, of which 15/16 leave the device; one in 256 tokens uses no expert of the other node.
    assert found.expert_link_bytes_per_s == pytest.approx(8 * 15 / 16 / (1 - 0.5**8) * 5e10)


def test_a_sequence_on_two_nodes_is_exchanged_by_both_links_at_once() -> None:
    cluster = {"gpus_per_node": 8, "node_link_bytes_per_s": 5e10, "training_spans_nodes": True}

    def training(**settings: Any) -> RooflineTraining:
        built = moe(cluster=cluster, offload=True, ref=False, **settings).training
        assert isinstance(built, RooflineTraining)
        return built

    inside, across = (training(sequence_parallel=each) for each in (8, 16))
    assert inside.sequence_link_bytes_per_s is None
    # 8 of the 15 others are on the other node.
    assert across.sequence_link_bytes_per_s == pytest.approx(5e10 * 15 / 8)
    # Two tensor-parallel devices a rank leave four ranks to a node.
    both = training(sequence_parallel=8, tensor_parallel=2)
    assert both.sequence_link_bytes_per_s == pytest.approx(5e10 * 7 / 4)
    # Without it all sixteen would exchange by NVLink.
    batch = BatchShape((1000,) * 64, (3000,) * 64)
    fast = dataclasses.replace(across, sequence_link_bytes_per_s=None)
    assert across.stage_times(batch).old_log_prob > fast.stage_times(batch).old_log_prob


def test_what_experts_cannot_be_is_said() -> None:
    with pytest.raises(ValidationError, match="multiple of expert_parallel 4 times expert_tensor_parallel 2"):
        config(expert_parallel=4, tensor_parallel=2, num_gpus=12)
    with pytest.raises(OppoError, match="num_gpus 16 is not a multiple of expert_parallel 32"):
        moe(expert_parallel=32, num_gpus=None)
    with pytest.raises(OppoError, match="expert_parallel 3 does not divide the 128 experts"):
        moe(expert_parallel=3, num_gpus=12)
    with pytest.raises(OppoError, match="no model that is trained has any; leave them out"):
        verl(expert_parallel=2)
    with pytest.raises(OppoError, match="no model that is trained has any; leave them out"):
        verl(expert_parallel=2, expert_tensor_parallel=1, tensor_parallel=2, sequence_parallel=1)


def test_offloaded_parts_cross_the_host_link_out_and_in() -> None:
    kept = tiny(config()).stage_times(SMALL)
    weights = tiny(config(param_offload=True)).stage_times(SMALL)
    both = tiny(config(param_offload=True, optimizer_offload=True)).stage_times(SMALL)
    whole = tiny(config(offload=True)).stage_times(SMALL)
    assert weights.old_log_prob - kept.old_log_prob == pytest.approx(2 * 30)
    assert weights.update_actor - kept.update_actor == pytest.approx(2 * 30)
    assert both.update_actor - kept.update_actor == pytest.approx(2 * 70)
    assert both.old_log_prob == weights.old_log_prob
    assert weights.ref == kept.ref
    assert whole.update_actor - kept.update_actor == pytest.approx(2 * 100)
    assert whole.old_log_prob == kept.old_log_prob


def test_an_offloaded_reference_comes_in_with_every_micro_batch_beside_the_arithmetic() -> None:
    hidden, seen = (tiny(config(), streamed=size).stage_times(SMALL).ref for size in (10.0, 50.0))
    assert hidden == pytest.approx(FORWARD + 0.25)
    assert seen == pytest.approx(50 + 0.25)
    assert tiny(config(), micro=4, streamed=50.0).stage_times(SMALL).ref == pytest.approx(2 * 50.25)


def test_micro_batches_of_rollouts_are_as_many_whatever_their_tokens() -> None:
    # 8 short or 8 long rollouts on 2 ranks, two a micro-batch: 2 forwards each, of a quarter of the tokens.
    for length in (2, 40):
        batch = BatchShape((length,) * 8, (length,) * 8)
        halves = tiny(config(sharding="none"), num_gpus=2, micro=1, rollouts=2.0).stage_times(batch)
        tokens, pairs = 2 * length * 8, 8 * (2 * length) ** 2 / 2
        attention = 4 * 8 * pairs / 1000 / 2
        whole = (2 * 576 * tokens + 2 * 256 * tokens) / 1000 / 2 + attention
        assert halves.old_log_prob == pytest.approx(whole + 2 * 0.25)
        assert halves.update_actor == pytest.approx(3 * (whole + 2 * 0.25) + 0.9 * attention)
    # Two mini-batches: one micro-batch in each; three rollouts a micro-batch: the last holds what is left.
    two = tiny(config(sharding="none", num_mini_batches=2), num_gpus=2, rollouts=2.0).stage_times(batch)
    assert two.update_actor == pytest.approx(3 * (whole + 2 * 0.25) + 0.9 * attention)
    three = tiny(config(sharding="none"), num_gpus=2, rollouts=3.0).stage_times(batch)
    assert three.ref == pytest.approx(whole + 2 * 0.25)


def test_ranks_that_gather_weights_wait_for_the_longest_micro_batch() -> None:
    # 4 rollouts of 10 tokens and 4 of 30 on 4 ranks, one a micro-batch, two micro-batches: each brings 20 ± 10
    # tokens, of which half the variance is left, since a rank's two hold 40 tokens. The largest of four normal
    # numbers is 1.049 (Blom).
    batch = BatchShape((2,) * 8, (8, 28) * 4)
    many = tiny(config(), num_gpus=4, rollouts=1.0).stage_times(batch)
    even = tiny(config(), num_gpus=4, micro=20).stage_times(batch)
    longest = 1 + 1.0491 * (10 / 2**0.5) / 20
    forward = (even.ref - 2 * 0.25) * longest
    assert many.ref == pytest.approx(forward + 2 * 0.25, rel=1e-4)
    backward = even.update_actor - even.ref - 4 * 0.25
    assert many.update_actor == pytest.approx(forward + backward * longest + 6 * 0.25, rel=1e-4)
    # Nobody waits in every micro-batch without gathers, with one rank, or where all are as long.
    apart = tiny(config(sharding="none"), num_gpus=4, rollouts=1.0).stage_times(batch)
    assert apart.ref == pytest.approx(even.ref)
    alone = tiny(config(), rollouts=1.0), tiny(config(sharding="none"), rollouts=1.0)
    assert alone[0].stage_times(batch).ref == alone[1].stage_times(batch).ref
    same = BatchShape((2,) * 8, (18,) * 8)
    assert tiny(config(), num_gpus=4, rollouts=1.0).stage_times(same).ref == pytest.approx(
        tiny(config(), num_gpus=4, micro=20).stage_times(same).ref
    )


def test_padding_runs_every_rollout_at_the_longest_but_for_attention() -> None:
    padded = dataclasses.replace(tiny(config(remove_padding=False), rollouts=1.0), longest=10)
    packed = tiny(config(), rollouts=1.0)
    # Two rollouts of 10 instead of 4 tokens: products and head of 20, attention of 16 pairs.
    seconds = (2 * 576 * 20 + 4 * 8 * 16 + 2 * 256 * 20) / 1000
    assert padded.stage_times(SMALL).ref == pytest.approx(seconds + 2 * 0.25)
    assert padded.work(SMALL) == packed.work(SMALL)
    assert padded.stage_times(SMALL).update_actor == pytest.approx(3 * (seconds + 2 * 0.25) + 0.9 * 0.512)
    # A budget of tokens holds padding too: 5 rollouts' worth of 10 tokens in micro-batches of 8.
    budget = dataclasses.replace(tiny(config(remove_padding=False)), longest=10)
    assert budget.stage_times(SMALL).ref == pytest.approx(seconds + 3 * 0.25)


def test_a_trainers_element_wise_kernels_by_hand() -> None:
    # One token through one layer: norms 2·(36 + 6)·8 bytes, rotary 20·(8 + 4), copies 4·(8 + 2·4), the gate
    # 10·16. With a norm of queries and keys 36·12 more.
    split = Split(TINY, 1, "bf16", 2.0, achievable_rates(TOY, "bf16", EXACT.achievable))
    assert layer_groups(split, 1.0, fused=False)[-1].bytes == 672 + 240 + 64 + 160
    normed = dataclasses.replace(split, shape=TINY.model_copy(update={"qk_norm": True}))
    assert layer_groups(normed, 1.0, fused=False)[-1].bytes == 1136 + 36 * 12
    halves = dataclasses.replace(split, tensor_parallel=2)
    assert layer_groups(halves, 1.0, fused=False)[-1].bytes == 672 + 464 / 2
    # Fused ones move less; only they differ.
    fused = layer_groups(split, 1.0)
    assert fused[-1].bytes < 1136 and fused[:-1] == layer_groups(split, 1.0, fused=False)[:-1]


def test_offload_is_no_faster_than_memory_that_is_not_pinned() -> None:
    quick = TOY.model_copy(update={"host_link_bytes_per_s": 1e12})
    devices = EXACT.model_copy(update={"offload_bytes_per_s": 10.0})
    moved, kept = (
        dataclasses.replace(tiny(config(param_offload=flag), quick), devices=devices).stage_times(SMALL)
        for flag in (True, False)
    )
    assert moved.old_log_prob - kept.old_log_prob == pytest.approx(2 * 30 / 10)


def test_a_trainers_products_reach_less_than_a_serving_engines() -> None:
    expected = {
        "A100-80": 0.73,
        "H100": 0.63,
        "H200": 0.63,
        "B200": 0.65,
        # A card of 300 W, and one whose best product is known.
        "A100-80-PCIe": 0.73 * 252.9 / 271.2,
        "H20": 0.73 * (141.9 / 148.0) / (789.2 / 989.5),
        "MI300X": 668.4 / 1307.4,
    }
    for name, share in expected.items():
        assert trainer_shares(DEVICES[name], Achievable()).gemm == pytest.approx(share)
    given = trainer_shares(DEVICES["A100-80"], Achievable(gemm=0.9, link=0.5))
    assert (given.gemm, given.link, given.layer_latency_s) == (0.9, 0.5, 0.0)


def test_gradients_reduced_in_float32_are_twice_the_bytes() -> None:
    slow = TOY.model_copy(update={"link_bytes_per_s": 10.0, "bf16_flops": 1e15, "float32_flops": 1e15})
    gather = 111.2
    for sharding, gathers, reductions in (("full", 2, 1), ("none", 0, 2)):
        seconds = [
            tiny(config(sharding=sharding, dtype=dtype, reduce_dtype=reduced), slow, 2)
            .stage_times(SMALL)
            .update_actor
            for dtype, reduced in (("bf16", None), ("bf16", "float32"), ("float32", "float32"))
        ]
        expected = [gathers + reductions, gathers + 2 * reductions, 2 * (gathers + reductions)]
        assert seconds == pytest.approx([gather * times + 3 * 0.25 for times in expected])


def test_float32_training_runs_at_its_own_rate_and_gathers_twice_the_bytes() -> None:
    full = tiny(config(dtype="float32")).stage_times(SMALL)
    assert full.ref == pytest.approx(10 * FORWARD + 0.25)
    slow = TOY.model_copy(update={"link_bytes_per_s": 10.0, "bf16_flops": 1e15, "float32_flops": 1e15})
    gathers = [tiny(config(dtype=dtype), slow, 2).stage_times(SMALL).ref for dtype in ("bf16", "float32")]
    assert gathers == pytest.approx([111.2 + 0.25, 222.4 + 0.25])


def test_state_has_three_parts() -> None:
    assert training_state(1000, "adamw", "full", 4, 1) == pytest.approx((1000, 1000, 2000))
    assert training_state(1000, "adamw_8bit", "full", 4, 1) == pytest.approx((1000, 1000, 500))
    assert training_state(1000, "sgd", "none", 4, 2) == pytest.approx((2000, 2000, 0))
    assert training_state(1000, "adamw", "optimizer", 4, 2) == pytest.approx((1000, 1000, 3000))


def test_activations_of_a_token_by_hand() -> None:
    # One layer: 4·8 + 2·(8 + 4) + 4·16 = 120 values; 32 logits of their own 16 or 32 bits, and 8 bytes beside.
    assert training_activation_bytes(TINY, True, 1) == 120 * 2 + 32 * 10
    assert training_activation_bytes(TINY, True, 1, dtype="float32") == 120 * 4 + 32 * 12
    assert inference_activation_bytes(TINY, True, 1) == 120 * 2 + 32 * 6
    # Gradients in the logits' place: two values a logit.
    assert training_activation_bytes(TINY, True, 1, in_place=True) == 120 * 2 + 32 * 4
    assert training_activation_bytes(TINY, True, 1, dtype="float32", in_place=True) == 120 * 4 + 32 * 8
    two = TINY.model_copy(update={"num_hidden_layers": 2})
    # Inputs of both layers and one whole layer.
    assert training_activation_bytes(two, False, 1, checkpointing=True) == 2 * 8 * 2 + 120 * 2


# ---- real runs ---------------------------------------------------------------------------------------------


VERL = {
    "num_ppo_epochs": 1,
    "num_mini_batches": 2,
    "critic": "none",
    "num_gpus": 4,
    "sequence_parallel": 4,
    "gradient_checkpointing": True,
    "param_offload": True,
    "optimizer_offload": True,
    "ref_param_offload": True,
    "micro_batch_tokens": 10_144,
    "ref_micro_batch_tokens": 40_576,
}
"""An open verl run: GRPO of a 3B model with a 32B teacher as reference on four A800."""


def verl(device: str = "A800-80", rollout: Mapping[str, Any] | None = None, **changes: Any) -> Costs:
    section = {
        "kind": "roofline",
        "device": device,
        "actor_model": "qwen2.5-3b",
        "ref_model": "qwen2.5-32b",
        "reward_model": {"kind": "verifier"},
        "rollout": {
            "tensor_parallel": 4,
            "host": "vllm-async",
            "gpu_memory_utilization": 0.6,
            "sleep_mode": True,
            **(rollout or {}),
        },
    }
    training = TrainingConfig(**{**VERL, **changes})
    context = CostContext(1, 1, 512, 2048, 8096, training, colocated_training=True, colocated_scoring=True)
    return RooflineCostConfig.model_validate(section).build(context)


def test_a_run_with_a_teacher_of_32_billion_is_accepted_at_its_settings() -> None:
    costs = verl()
    assert costs.actor_kv_capacity_tokens is not None
    assert costs.actor_kv_capacity_tokens > 1_000_000
    derived = costs.provenance["derived"]
    assert isinstance(derived, dict)
    assert derived["actor_micro_batch_tokens"] == 10_144
    # 512 rollouts of 330 + 1,000 tokens: the reference model has ten times the parameters of the actor.
    times = costs.training.stage_times(BatchShape((330,) * 512, (1000,) * 512))
    assert 4 < times.ref / times.old_log_prob < 12
    assert 3 < times.update_actor / times.old_log_prob < 5


def test_an_engine_that_keeps_its_weights_asleep_copies_them_out() -> None:
    def sync(sleep_mode: bool, level: int, rate: float | None = 2e9) -> float:
        reshard = {"kind": "reshard", "sleep_level": level, "sleep_bytes_per_s": rate}
        costs = verl(rollout={"sleep_mode": sleep_mode, "tensor_parallel": 2}, weight_sync=reshard)
        return costs.training.stage_times(BatchShape((330,), (1000,))).update_weights

    # Half of 3.09 billion 16-bit weights a device; the head is the embedding.
    assert sync(True, 1) - sync(True, 2) == pytest.approx(3.0859e9 / 2e9, rel=1e-3)
    assert sync(False, 1) == sync(False, 2) == sync(True, 2)
    # After the first time at what the link to host memory reaches: 32 GB/s of an A800, 0.7 of them.
    assert sync(True, 1, None) - sync(True, 2) == pytest.approx(3.0859e9 / (0.7 * 32e9), rel=1e-3)


def test_the_memory_of_a_device_of_40_gb_is_too_small_for_it() -> None:
    with pytest.raises(
        OppoError, match=r"reference, forward, one micro-batch of 40576 tokens.*A800-40.*lower"
    ):
        verl("A800-40")


def paper(device: str, **changes: Any) -> Costs:
    """PPO of a 7B model with a value head on two nodes of four A100, responses to 8,192 tokens."""
    training = TrainingConfig(**{"num_gpus": 8, "critic": "value_head", **changes})
    section = {
        "kind": "roofline",
        "device": device,
        "actor_model": "qwen2.5-7b",
        "reward_model": {"kind": "model", "model": "qwen2.5-7b"},
        "rollout": {"host": "generate"},
    }
    context = CostContext(8, 1, 112, 1024, 8192, training, colocated_training=True)
    return RooflineCostConfig.model_validate(section).build(context)


def test_a_refusal_names_what_each_switch_would_save() -> None:
    with pytest.raises(OppoError) as refused:
        paper("A100-80")
    text = str(refused.value)
    assert "training (actor, one micro-batch of 9216 tokens" in text
    # 28 layers of 117,760 bytes less 28 inputs and one layer, 9,216 tokens.
    layer, tokens = 8 * 3584 + 4 * (3584 + 512) + 8 * 18944, 9216
    saved = tokens * (27 * layer - 28 * 2 * 3584) / 1e9
    assert f"training.gradient_checkpointing saves {saved:.1f} GB" in text
    assert "costs.rollout.sleep_mode saves 15.2 GB" in text
    assert "sequence_parallel: 8" not in text  # does not divide 28 heads
    assert "param_offload saves" in text.replace("ref_param_offload", "param_offload")
    # What it names helps.
    assert paper("A100-80", gradient_checkpointing=True).actor_kv_capacity_tokens
    assert paper("A100-80", sequence_parallel=4).actor_kv_capacity_tokens


def test_a_refusal_of_generation_names_what_training_could_leave() -> None:
    with pytest.raises(OppoError, match=r"rollout does not fit.*training\.offload saves .*optimizer_offload"):
        paper("A100-40", gradient_checkpointing=True, sharding="none")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"selective_recompute": True, "gradient_checkpointing": True}, "choose one"),
        ({"offload": True, "param_offload": True}, "leave out"),
        ({"num_gpus": 6, "sequence_parallel": 4}, "num_gpus 6 is not a multiple of"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainingConfig(**fields)


def test_what_ran_on_four_h20_is_accepted_and_what_is_chosen_keeps_room() -> None:
    """Qwen3-8B with micro-batches of 32,768 tokens: 55.6 GB were allocated at most, 8 of them the engine's."""

    def actor(**changes: Any) -> MicroBatch:
        training = TrainingConfig(
            num_ppo_epochs=1, num_gpus=4, critic="none", gradient_checkpointing=True, ref_param_offload=True,
            **changes,
        )  # fmt: skip
        config = RooflineCostConfig.model_validate(
            {
                "kind": "roofline",
                "device": "H20",
                "actor_model": "qwen3-8b",
                "ref_model": "qwen3-8b",
                "reward_model": {"kind": "verifier"},
                "rollout": {"tensor_parallel": 2, "sleep_mode": True, "gpu_memory_utilization": 0.6},
            }
        )
        costs = config.build(colocated(training, replicas=2, batch=128, prompt=2048, response=8192))
        assert isinstance(costs.training, RooflineTraining)
        return costs.training.actor.training_micro_batch

    assert actor(micro_batch_tokens=32_768) == (32_768, 0.0)
    assert 20_000 < actor().tokens < 32_768
    with pytest.raises(
        OppoError, match=r"65536 tokens .*does not fit H20.*lower training\.micro_batch_tokens"
    ):
        actor(micro_batch_tokens=65_536)


def test_adapters_of_a_7b_model_train_on_one_device() -> None:
    """As people do: weights of 7.6 billion parameters in 4 bytes each, and adapters of 0.3 % of them."""

    def group(sleep_level: int = 1, **changes: Any) -> RooflineTraining:
        costs = RooflineCostConfig.model_validate(
            {
                "kind": "roofline",
                "device": "A100-80",
                "actor_model": "Qwen/Qwen2.5-7B-Instruct",
                "reward_model": {"kind": "verifier"},
                "rollout": {"host": "vllm-eager", "sleep_mode": True},
            }
        )
        training = config(
            gradient_checkpointing=True,
            param_offload=True,
            optimizer_offload=True,
            num_gpus=1,
            weight_sync={"kind": "reshard", "sleep_level": sleep_level},
            **changes,
        )
        context = colocated(training, replicas=1, batch=8, prompt=1536, response=512)
        built = costs.build(context).training
        assert isinstance(built, RooflineTraining)
        return built

    with pytest.raises(
        OppoError, match=r"actor training state 121\.8 GB.*training\.lora_rank: 16 saves 108\.2 GB"
    ):
        group()
    adapters = group(lora_rank=8)
    state, weights = adapters.actor.state, 7_615_616_512
    assert state.parameters == pytest.approx(4 * (weights + 20_185_088))
    assert state.gradients + state.optimizer == pytest.approx(12 * 20_185_088)
    assert adapters.weights_bytes == 2 * 20_185_088
    # The reference model is the same weights, brought in once, not once more for each micro-batch.
    assert adapters.ref.state == state
    assert adapters.ref.streamed_bytes == 0
    # Out to host memory and in again for the engine, where its adapters alone are new.
    moved = adapters.sync_seconds() - 2 * 20_185_088 / 6e9
    link = adapters.device.host_link_bytes_per_s * adapters._achieved.link
    assert moved == pytest.approx(2 * 2 * weights / link, rel=1e-3)
    # One that discarded its weights takes them whole.
    assert group(sleep_level=2, lora_rank=8).weights_bytes == 2 * weights
    assert group(lora_merge=True, lora_rank=8).weights_bytes == 2 * weights
    with pytest.raises(ValueError, match="lora_merge: true needs a lora_rank"):
        config(lora_merge=True)


def test_a_micro_batch_is_of_a_sequence_parallel_group() -> None:
    with pytest.raises(OppoError, match=r"micro_batch_tokens 2000 times sequence_parallel 4 is less than"):
        verl(micro_batch_tokens=2000)
    with pytest.raises(
        OppoError, match=r"ref_micro_batch_tokens 2000 times sequence_parallel 4 is less than"
    ):
        verl(ref_micro_batch_tokens=2000)
    with pytest.raises(OppoError, match="times sequence_parallel 3 does not divide the 16 attention heads"):
        verl(sequence_parallel=3, num_gpus=6)


def test_micro_batches_of_rollouts_need_the_memory_of_half_the_longest() -> None:
    def held(**changes: Any) -> Any:
        return verl(micro_batch_tokens="auto", ref_micro_batch_tokens=None, **changes).training

    training = held(micro_batch_rollouts=8, ref_micro_batch_rollouts=1)
    # 8 · 10,144 / 2 tokens on four devices; one rollout may be the longest.
    assert training.actor.training_micro_batch == (10_144, 2.0)
    assert training.actor.inference_micro_batch == (10_144, 2.0)
    assert training.ref.inference_micro_batch == (2_536, 0.25)
    own = held(micro_batch_rollouts=8, log_prob_micro_batch_tokens=20_000).actor
    assert own.inference_micro_batch == (20_000, 0.0)
    # With padding each of the eight takes the longest.
    assert held(micro_batch_rollouts=8, remove_padding=False).actor.training_micro_batch == (20_288, 2.0)
    with pytest.raises(OppoError, match=r"lower training\.micro_batch_rollouts"):
        held(micro_batch_rollouts=200)
    with pytest.raises(ValueError, match="two sizes of one micro-batch: choose one"):
        verl(micro_batch_rollouts=8)


def test_a_critic_may_have_padding_and_micro_batches_of_its_own() -> None:
    batch = BatchShape((330,) * 512, (1000,) * 512)

    def times(**changes: Any) -> Any:
        return verl(critic="separate", **changes).training.stage_times(batch)

    alike, padded = times(), times(critic_remove_padding=False)
    # 10,144 tokens instead of 1,330 in every product.
    assert 5 < padded.values / alike.values < 8
    assert 5 < padded.update_critic / alike.update_critic < 8
    others = ("old_log_prob", "ref", "update_actor")
    assert [getattr(padded, name) for name in others] == [getattr(alike, name) for name in others]
    assert times(remove_padding=False, critic_remove_padding=True).values == alike.values

    held = verl(critic="separate", critic_micro_batch_tokens=30_000).training
    assert held.critic.training_micro_batch == held.critic.inference_micro_batch == (30_000, 0.0)
    assert held.actor.training_micro_batch == (10_144, 0.0)
    held = verl(critic="separate", critic_micro_batch_rollouts=4, log_prob_micro_batch_tokens=12_000).training
    assert held.critic.inference_micro_batch.rollouts == held.critic.training_micro_batch.rollouts == 1.0
    assert held.actor.inference_micro_batch == (12_000, 0.0)

    with pytest.raises(ValueError, match="critic_micro_batch_tokens and critic_micro_batch_rollouts are two"):
        verl(critic="separate", critic_micro_batch_tokens=30_000, critic_micro_batch_rollouts=4)
    with pytest.raises(
        ValueError, match="critic_remove_padding is of a critic of its own, and critic is none"
    ):
        verl(critic_remove_padding=False)


def test_sleep_and_offload_leave_room_for_larger_micro_batches() -> None:
    def tokens(**changes: Any) -> int:
        derived = verl(micro_batch_tokens="auto", **changes).provenance["derived"]
        assert isinstance(derived, dict)
        return int(derived["actor_micro_batch_tokens"])

    assert tokens() > tokens(ref_param_offload=False) > 10_144
    teacher = 2.0 * find_model("qwen2.5-32b").parameters / 4
    per_token = training_activation_bytes(find_model("qwen2.5-3b"), True, 1, checkpointing=True)
    assert tokens() - tokens(ref_param_offload=False) == pytest.approx(teacher / per_token, abs=2)
