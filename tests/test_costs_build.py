"""From the ``costs:`` and ``training:`` sections to cost models: linear and roofline, training, memory,
weight sync."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from oppo_sim.costs.config import CostConfig
from oppo_sim.costs.context import CostContext
from oppo_sim.costs.devices import DEVICES, Device
from oppo_sim.costs.interface import BatchShape, Costs, Demand, Work
from oppo_sim.costs.memory import MicroBatch, StateBytes, training_state
from oppo_sim.costs.model_shape import ModelShape
from oppo_sim.costs.models import MODELS
from oppo_sim.costs.roofline_config import RooflineCostConfig
from oppo_sim.costs.roofline_parts import TrainingDevices
from oppo_sim.costs.roofline_training import RooflineTraining
from oppo_sim.costs.trained_model import TrainedModel
from oppo_sim.costs.training_config import FullExport, OnlineRefit, Reshard, SharedWeights, TrainingConfig
from oppo_sim.errors import OppoError
from oppo_sim.scenario.yaml_text import parse_yaml
from tests.perfect import perfect

ADAPTER: TypeAdapter[CostConfig] = TypeAdapter(CostConfig)
BATCH = BatchShape((300,) * 112, (900,) * 112)


def context(training: TrainingConfig | None = None, **changes: object) -> CostContext:
    fields = {
        "num_replicas": 7,
        "num_scoring_workers": 1,
        "rollout_batch_size": 112,
        "max_prompt_length": 512,
        "max_response_length": 2048,
        "training": TrainingConfig() if training is None else training,
        "colocated_training": True,
    }
    return CostContext(**{**fields, **changes})  # type: ignore[arg-type]


def roofline(
    training: TrainingConfig | None = None, costs: Mapping[str, object] | None = None, **changes: object
) -> Costs:
    section = {
        "kind": "roofline",
        "device": "H200",
        "actor_model": "qwen2.5-7b",
        "reward_model": {"kind": "model", "model": "qwen2.5-7b"},
        **(costs or {}),
    }
    return ADAPTER.validate_python(section).build(context(training, **changes))


# ---- linear ------------------------------------------------------------------------------------------------

LINEAR = {
    "kind": "linear",
    "decode": {"fixed": 0.02, "per_rollout": 1e-5, "per_kv_token": 1e-8},
    "prefill": {"fixed": 0.003, "per_token": 1e-5, "per_pair": 1e-10},
    "score": {"fixed": 0.004, "per_token": 2e-5},
    "score_ref": {"fixed": 0.001, "per_token": 1e-5, "per_pair": 1e-9},
    "stages": {
        name: {"fixed": seconds}
        for name, seconds in [
            ("old_log_prob", 1.0),
            ("ref", 2.0),
            ("values", 3.0),
            ("adv", 0.5),
            ("update_critic", 4.0),
            ("update_actor", 5.0),
        ]
    }
    | {"update_weights": 6.0},
}


def linear(training: TrainingConfig, **changes: object) -> Costs:
    return ADAPTER.validate_python({**LINEAR, **changes}).build(context(training))


def test_linear_coefficients_arrive() -> None:
    costs = linear(TrainingConfig())
    assert costs.actor.decode_time(10, 1000) == pytest.approx(0.02 + 1e-4 + 1e-5)
    assert costs.actor.prefill_time(100, 5000) == pytest.approx(0.003 + 1e-3 + 5e-7)
    assert costs.scorer.prefill_time(100, 5000) == pytest.approx(0.006)
    assert costs.training.stage_times(BATCH) == (1.0, 2.0, 3.0, 0.5, 4.0, 5.0, 6.0)
    assert costs.provenance["measured"] is False
    assert costs.actor_kv_capacity_tokens is None
    assert costs.training.demand() == Demand(0.0, 1.0)


def test_training_switches_stages_off() -> None:
    off = TrainingConfig(
        old_log_prob="behaviour", ref=False, critic="none", parallel_inference=True, num_ppo_epochs=2
    )
    costs = linear(off)
    assert costs.training.stage_times(BATCH) == (0.0, 0.0, 0.0, 0.5, 0.0, 5.0, 6.0)
    assert costs.training.parallel_inference
    assert costs.provenance["unused_training_fields"] == ["num_ppo_epochs"]
    head = linear(TrainingConfig(critic="value_head")).training.stage_times(BATCH)
    assert (head.old_log_prob, head.values, head.update_critic) == (1.0, 0.0, 0.0)
    stored = linear(TrainingConfig(critic="value_head", old_log_prob="behaviour")).training.stage_times(BATCH)
    assert (stored.old_log_prob, stored.values, stored.update_critic) == (0.0, 3.0, 0.0)


def test_streamed_reference_moves_to_the_scorer() -> None:
    costs = linear(TrainingConfig(stream_ref=True))
    assert costs.training.stage_times(BATCH).ref == 0.0
    assert costs.scorer.prefill_time(100, 5000) == pytest.approx(0.005 + 3e-3 + 5e-6)
    with pytest.raises(OppoError, match=r"stream_ref needs costs.score_ref"):
        linear(TrainingConfig(stream_ref=True), score_ref=None)
    with pytest.raises(ValidationError, match="stream_ref: true needs ref: true"):
        TrainingConfig(stream_ref=True, ref=False)


def test_demands_can_be_given() -> None:
    costs = linear(
        TrainingConfig(), demands={"decode": {"memory": 0.7, "arithmetic": 0.1}, "update_weights": {}}
    )
    assert costs.actor.decode_demand(1, 1) == Demand(0.7, 0.1)
    assert costs.training.sync_demand() == Demand(0.0, 0.0)


@pytest.mark.parametrize(
    "section",
    [
        {**LINEAR, "decode": {"fixed": 0.0}},
        {**LINEAR, "decode": {"fixed": float("inf")}},
        {**LINEAR, "decode": {"fixed": "1"}},
        {**LINEAR, "decode": {"fixed": 1.0, "per_rollouts": 1.0}},
        {**LINEAR, "score": {"per_token": -1.0}},
        {**LINEAR, "demands": {"decode": {"memory": 1.5}}},
        {**LINEAR, "kind": "quadratic"},
        {"kind": "roofline", "device": "H200", "actor_model": "qwen2.5-7b"},
        {"kind": "profile"},
    ],
)
def test_sections_that_are_wrong_are_refused(section: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(section)


# ---- training by roofline, by hand -------------------------------------------------------------------------

TINY = ModelShape(
    num_hidden_layers=1,
    hidden_size=8,
    intermediate_size=16,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    vocab_size=32,
)
"""576 parameters in matrices, 16 in layer norms, 8 in the final one, 2 · 256 in embedding and head: 1,112."""
TOY = Device(
    name="toy",
    hbm_bytes=1e9,
    hbm_bytes_per_s=1e15,
    bf16_flops=1000.0,
    link_bytes_per_s=1e15,
    host_link_bytes_per_s=1.0,
    source="test",
)
EXACT = TrainingDevices(
    achievable=perfect(),
    micro_batch_overhead_s=0.25,
    launch_per_layer_s=0.0,
    adv_fixed_s=1.0,
    adv_per_token_s=0.5,
)
STATE = StateBytes(parameters=30.0, gradients=30.0, optimizer=40.0)
SMALL = BatchShape((2, 2), (2, 2))  # 8 tokens, 16 pairs


def tiny_training(
    training: TrainingConfig,
    device: Device = TOY,
    num_gpus: int = 1,
    micro_batch: int = 8,
    batch: BatchShape = SMALL,
) -> RooflineTraining:
    held = MicroBatch(micro_batch)
    model = TrainedModel(TINY, True, held, held, STATE)
    critic = TrainedModel(TINY, False, held, held, STATE)
    return RooflineTraining(model, model, critic, device, EXACT, training, num_gpus, 2000.0, batch)


# A forward of 8 tokens and 16 pairs: layers 2·576·8 = 9,216, attention 4·8·16 = 512, head 2·256·8 = 4,096
# operations, at 1,000 a second.
TRUNK, HEAD = 9.728, 4.096


def test_stages_by_hand() -> None:
    times = tiny_training(TrainingConfig(num_ppo_epochs=2)).stage_times(SMALL)
    assert times.old_log_prob == pytest.approx(TRUNK + HEAD + 0.25)
    assert times.ref == pytest.approx(TRUNK + HEAD + 0.25)
    assert times.values == pytest.approx(TRUNK + 0.25)
    assert times.adv == pytest.approx(1.0 + 8 * 0.5)
    # A backward is two forwards, and its attention 2.9 times that of one, 0.512 s.
    assert times.update_actor == pytest.approx(2 * (3 * (TRUNK + HEAD + 0.25) + 0.9 * 0.512))
    assert times.update_critic == pytest.approx(2 * (3 * (TRUNK + 0.25) + 0.9 * 0.512))


def test_micro_batches_cost_their_overhead_and_their_weight_reads() -> None:
    one, four = (
        tiny_training(TrainingConfig(num_ppo_epochs=1), micro_batch=size).stage_times(SMALL)
        for size in (8, 2)
    )
    assert four.update_actor - one.update_actor == pytest.approx(3 * 3 * 0.25)
    assert four.ref - one.ref == pytest.approx(3 * 0.25)
    # With 1,000 bytes a second and free arithmetic, each further forward reads 2·(576 + 256) bytes of weights
    # again: 1.664 s.
    slow = TOY.model_copy(update={"hbm_bytes_per_s": 1000.0, "bf16_flops": 1e15})
    one, four = (
        tiny_training(TrainingConfig(num_ppo_epochs=1), slow, micro_batch=size).stage_times(SMALL)
        for size in (8, 2)
    )
    # Attention re-reads nothing here: its traffic depends on tokens and pairs only.
    assert four.ref - one.ref == pytest.approx(3 * (1.664 + 0.25))


def test_optimizer_step_is_bound_by_memory_and_sharded() -> None:
    slow = TOY.model_copy(update={"hbm_bytes_per_s": 100.0, "bf16_flops": 1e15})

    def step(optimizer: str, num_gpus: int = 1, sharding: str = "full") -> float:
        config = {"num_ppo_epochs": 1, "optimizer": optimizer, "sharding": sharding}
        four = TrainingConfig.model_validate({**config, "num_mini_batches": 2})
        batch = BatchShape((2, 2) * num_gpus, (2, 2) * num_gpus)
        model = tiny_training(TrainingConfig.model_validate(config), slow, num_gpus, micro_batch=4)
        return (
            tiny_training(four, slow, num_gpus, micro_batch=4).stage_times(batch).update_actor
            - model.stage_times(batch).update_actor
        )

    # Two mini-batches of one micro-batch each against one of two: exactly one optimizer step more, 28 bytes
    # for each of 1,112 parameters.
    assert step("adamw") == pytest.approx(28 * 1112 / 100)
    assert step("adamw_8bit") == pytest.approx(16 * 1112 / 100)
    assert step("sgd") == pytest.approx(12 * 1112 / 100)
    assert step("adamw", num_gpus=2) == pytest.approx(14 * 1112 / 100)
    assert step("adamw", num_gpus=2, sharding="none") == pytest.approx(28 * 1112 / 100)


def test_gradients_cross_the_link() -> None:
    slow = TOY.model_copy(update={"link_bytes_per_s": 10.0, "bf16_flops": 1e15})
    # Fully sharded, two ranks: three transfers of half of 2,224 bytes in place of the arithmetic, 333.6 s,
    # and three overheads.
    full = tiny_training(TrainingConfig(num_ppo_epochs=1), slow, 2).stage_times(SMALL)
    assert full.update_actor == pytest.approx(3 * 111.2 + 0.75)
    assert full.ref == pytest.approx(111.2 + 0.25)
    # Plain data parallelism: one all-reduce, two such transfers, after the backward.
    plain = tiny_training(TrainingConfig(num_ppo_epochs=1, sharding="none"), slow, 2).stage_times(SMALL)
    assert plain.update_actor == pytest.approx(2 * 111.2 + 0.75)


def test_selective_recompute_costs_a_fifth_of_the_speed() -> None:
    plain, recompute = (
        tiny_training(TrainingConfig(num_ppo_epochs=1, selective_recompute=flag)).stage_times(SMALL)
        for flag in (False, True)
    )
    assert recompute.update_actor - 0.75 == pytest.approx((plain.update_actor - 0.75) / 0.8)


def test_offload_moves_the_state_out_and_in() -> None:
    kept, moved = (tiny_training(TrainingConfig(offload=flag)).stage_times(SMALL) for flag in (False, True))
    assert moved.update_actor - kept.update_actor == pytest.approx(200.0)
    assert moved.update_critic - kept.update_critic == pytest.approx(200.0)


def test_work_counts_forward_and_backward() -> None:
    work = tiny_training(TrainingConfig(num_ppo_epochs=2)).work(SMALL)
    assert isinstance(work, Work)
    trunk, head = 9728, 4096
    assert work.flops == pytest.approx(2 * (trunk + head) + trunk + 2 * 3 * (2 * trunk + head))


def test_weight_sync_at_the_published_calibration_point() -> None:
    # 10B parameters in 16 bits: 15 minutes by full export, 20 seconds by online refit.
    def seconds(sync: FullExport | OnlineRefit | Reshard | SharedWeights) -> float:
        model = TrainedModel(TINY, True, MicroBatch(8), MicroBatch(8))
        device = DEVICES["A100-80"]
        return (
            RooflineTraining(
                model,
                model,
                model,
                device,
                TrainingDevices(),
                TrainingConfig(weight_sync=sync),
                16,
                20e9,
                SMALL,
            )
            .stage_times(SMALL)
            .update_weights
        )

    assert seconds(FullExport(kind="full_export")) == pytest.approx(900)
    reported = OnlineRefit(fixed_s=1.0, convert_bytes_per_s=1.06e9)
    assert seconds(reported) == pytest.approx(20, rel=0.01)
    # Frameworks report 2 to 87 GB/s (docs/costs.md).
    assert 20 / 87 < seconds(OnlineRefit()) < 20 / 2
    assert seconds(
        OnlineRefit(fixed_s=0.0, convert_bytes_per_s=20e9, link_bytes_per_s=10e9)
    ) == pytest.approx(3.0)
    assert seconds(SharedWeights(kind="shared", fixed_s=0.1)) == 0.1
    # 20 GB loaded at 10 GB/s, gathered over 300 GB/s at a share of 0.7.
    resharded = seconds(Reshard(kind="reshard", load_bytes_per_s=10e9))
    assert resharded == pytest.approx(2.0 + 20 / 210, rel=1e-6)
    # By default 6 GB/s of 8 GPUs, and 2^0.3 or 2^0.6 times as much of these 16.
    assert seconds(Reshard(kind="reshard")) == pytest.approx(20 / (6 * 2**0.3) + 20 / 210, rel=1e-6)
    assert seconds(OnlineRefit()) == pytest.approx(0.5 + 20 / (6 * 2**0.6) + 20 / 210, rel=1e-6)


def test_state_bytes_follow_zero() -> None:
    # ZeRO's example: 7.5B parameters on 64 devices with Adam: 120 GB, 31.4 GB with the optimizer sharded, 1.9
    # GB with everything.
    sizes = [
        training_state(7_500_000_000, "adamw", sharding, 64, 1).total / 1e9
        for sharding in ("none", "optimizer", "full")
    ]
    assert sizes == pytest.approx([120, 31.4, 1.875], rel=0.001)


# ---- roofline from its section -----------------------------------------------------------------------------


def test_states_of_linear_attention_take_the_place_of_keys_and_values() -> None:
    costs = {"actor_model": "qwen3.5-35b-a3b", "reward_model": {"kind": "verifier"}}
    costs["rollout"] = {"tensor_parallel": 2}
    training = TrainingConfig(num_gpus=64, sharding="full", critic="none")

    def capacity(rollouts: int, **more: object) -> int:
        built = roofline(
            training, costs, colocated_training=False, num_replicas=2, rollout_batch_size=rollouts, **more
        )
        return built.actor_kv_capacity_tokens or 0

    shape = MODELS["qwen3.5-35b-a3b"]
    states = 128 * shape.state_bytes_per_rollout(2.0, 2) / shape.kv_bytes_per_token(2.0, 2)
    assert capacity(256) - capacity(512) == pytest.approx(states, abs=1)
    assert capacity(512, max_num_seqs=128) == capacity(256)
    with pytest.raises(
        OppoError, match=r"states of linear attention of 4096 rollouts 131\.9 GB.*rollout\.max_num_seqs"
    ):
        capacity(8192)


def test_kv_capacity_by_hand() -> None:
    # One H200, nothing beside the actor: 0.9 · 141 · 2^30 − 2 · 7,615,616,512 − 8,192 · 196,608 (activations
    # of one layer), 57,344 a token.
    capacity = roofline(colocated_training=False).actor_kv_capacity_tokens
    assert capacity == int((0.9 * 141 * 2**30 - 2 * 7_615_616_512 - 8192 * 196_608) / 57_344)
    assert roofline(
        costs={"rollout": {"kv_cache_dtype": "fp8"}}, colocated_training=False
    ).actor_kv_capacity_tokens in (
        2 * (capacity or 0),
        2 * (capacity or 0) + 1,
    )


def test_an_engines_share_is_its_own() -> None:
    """Half of a device for the engine: training state lies in the other half. At 0.9 both share it."""
    half: dict[str, Any] = {"rollout": {"gpu_memory_utilization": 0.5}}
    alone = roofline(costs=half, colocated_training=False).actor_kv_capacity_tokens
    assert roofline(costs=half).actor_kv_capacity_tokens == alone
    whole = roofline(colocated_training=False).actor_kv_capacity_tokens
    assert (roofline().actor_kv_capacity_tokens or 0) < (whole or 0)


def test_what_shares_the_devices_takes_their_memory() -> None:
    def capacity(training: TrainingConfig | None = None, **changes: Any) -> int:
        found = roofline(training, **changes).actor_kv_capacity_tokens
        assert found is not None
        return found

    alone = capacity(colocated_training=False)
    scorer = capacity(colocated_training=False, colocated_scoring=True)
    everything = capacity(colocated_scoring=True)
    assert alone > scorer > everything
    assert (
        alone
        > capacity(TrainingConfig(critic="none", ref=False))
        > capacity(TrainingConfig(critic="none"))
        > capacity()
    )
    assert capacity(TrainingConfig(offload=True)) == alone
    assert capacity(TrainingConfig(optimizer="adamw_8bit")) > capacity()


def test_a_scorer_on_training_devices_takes_their_memory() -> None:
    # What is left for the activations of a micro-batch: 0.9 · 141 · 2^30 less all that lies there. A second
    # reward model's weights take as much of it again as the first's; a verifier's take none.
    def tokens(model: str | None, **changes: object) -> int:
        costs = {"reward_model": {"kind": "model", "model": model} if model else {"kind": "verifier"}}
        found = roofline(costs=costs, colocated_training=False, **changes).provenance["derived"]
        assert isinstance(found, dict)
        return int(found["actor_micro_batch_tokens"])

    apart = tokens("qwen2.5-7b")
    small, large = (tokens(model, scores_beside_training=True) for model in ("qwen2.5-1.5b", "qwen2.5-7b"))
    sizes = [MODELS[model].parameters for model in ("qwen2.5-1.5b", "qwen2.5-7b")]
    assert apart == tokens(None, scores_beside_training=True)
    assert (apart - small) / (apart - large) == pytest.approx(sizes[0] / sizes[1], rel=0.1)


def test_recompute_allows_larger_micro_batches() -> None:
    def derived(training: TrainingConfig, name: str) -> int:
        found = roofline(training).provenance["derived"]
        assert isinstance(found, dict)
        number = found[name]
        assert isinstance(number, int)
        return number

    plain = derived(TrainingConfig(), "critic_micro_batch_tokens")
    halved = derived(TrainingConfig(selective_recompute=True), "critic_micro_batch_tokens")
    assert halved == pytest.approx(2 * plain, abs=2)
    assert derived(TrainingConfig(micro_batch_tokens=4096), "actor_micro_batch_tokens") == 4096


def test_a_model_that_does_not_fit_says_what_and_by_how_much() -> None:
    with pytest.raises(
        OppoError,
        match=(
            r"rollout does not fit H200: rollout weights 141.1 GB.*of 136.3 GB usable; .* GB short; raise"
            r" costs.rollout"
        ),
    ):
        roofline(costs={"actor_model": "llama-3-70b"}, colocated_training=False)
    small = {
        "device": "A100-40",
        "actor_model": "qwen2.5-14b",
        "reward_model": {"kind": "verifier"},
        "rollout": {"tensor_parallel": 2},
    }
    with pytest.raises(
        OppoError,
        match=(
            r"training \(actor, one micro-batch of 2560 tokens.*\) does not fit A100-40: actor training state"
        ),
    ):
        roofline(TrainingConfig(num_gpus=7), small, colocated_training=False)
    with pytest.raises(
        OppoError, match=r"scoring does not fit L40S: reward model weights .*; raise costs.reward_model"
    ):
        roofline(costs={"reward_model": {"kind": "model", "model": "qwen2.5-32b", "device": "L40S"}})
    with pytest.raises(
        OppoError, match=r"scoring does not fit A100-80: reward model weights 139.0 GB.*; 61.7 GB short"
    ):
        roofline(costs={"reward_model": {"kind": "model", "model": "llama-3-70b", "device": "A100-80"}})
    halves = {
        "reward_model": {"kind": "model", "model": "llama-3-70b", "device": "A100-80", "tensor_parallel": 2}
    }
    assert roofline(costs=halves).scorer.prefill_time(1000, 5e5) > 0
    with pytest.raises(OppoError, match=r"micro-batch of 90000 tokens"):
        roofline(TrainingConfig(micro_batch_tokens=90_000))


@pytest.mark.parametrize(
    ("training", "costs", "changes", "words"),
    [
        (
            TrainingConfig(),
            {"rollout": {"tensor_parallel": 3}},
            {},
            "rollout: tensor_parallel 3 does not divide the 28 attention heads",
        ),
        (TrainingConfig(tensor_parallel=4), {}, {}, "tensor_parallel 4 does not divide 7 GPUs"),
        (
            TrainingConfig(micro_batch_tokens=1000),
            {},
            {},
            "micro_batch_tokens 1000 is less than the longest rollout",
        ),
        (
            TrainingConfig(weight_sync=SharedWeights(kind="shared")),
            {},
            {"colocated_training": False},
            "weight_sync kind shared",
        ),
        (
            TrainingConfig(weight_sync=Reshard(kind="reshard")),
            {},
            {"colocated_training": False},
            "weight_sync kind reshard needs training on the rollout devices",
        ),
        (TrainingConfig(), {"device": "A100-80", "rollout": {"dtype": "fp8"}}, {}, "no fp8"),
        (TrainingConfig(), {"actor_model": "nope"}, {}, "no model 'nope'"),
        (TrainingConfig(), {"device": "nope"}, {}, "no device 'nope'"),
    ],
)
def test_impossible_settings_are_refused(
    training: TrainingConfig, costs: dict[str, object], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(OppoError, match=words):
        roofline(training, costs, **changes)


def test_training_config_refuses_uneven_groups() -> None:
    with pytest.raises(ValidationError, match="num_gpus 6 is not a multiple of tensor_parallel 4"):
        TrainingConfig(num_gpus=6, tensor_parallel=4)


def test_verifier_costs_host_time_and_no_device() -> None:
    costs = roofline(costs={"reward_model": {"kind": "verifier", "fixed_s": 0.5, "per_token_s": 1e-4}})
    assert costs.scorer.prefill_time(1000, 5e5) == pytest.approx(0.6)
    assert costs.scorer.prefill_demand(1000, 5e5) == Demand(0.0, 0.0)
    assert costs.scorer.prefill_work(1000, 5e5) == Work(0.0, 0.0)
    assert not hasattr(costs.scorer, "decode_time")


def test_streamed_reference_adds_up_and_weighs_demands() -> None:
    alone, both = roofline(), roofline(TrainingConfig(stream_ref=True))
    tokens, pairs = 4096, 4096 * 500.0
    extra = both.scorer.prefill_time(tokens, pairs) - alone.scorer.prefill_time(tokens, pairs)
    assert extra > alone.scorer.prefill_time(tokens, pairs)  # a reference model also has an output head
    demand = both.scorer.prefill_demand(tokens, pairs)
    assert 0 < demand.memory < demand.arithmetic <= 1
    one, two = alone.scorer.prefill_work(tokens, pairs), both.scorer.prefill_work(tokens, pairs)
    assert one is not None
    assert two is not None
    assert two.flops > 2 * one.flops
    assert both.scorer.peak == alone.scorer.peak
    assert both.training.stage_times(BATCH).ref == 0.0
    rules = roofline(TrainingConfig(stream_ref=True), {"reward_model": {"kind": "verifier", "fixed_s": 0.5}})
    assert rules.scorer.prefill_time(tokens, pairs) == pytest.approx(0.5 + extra)


def test_models_may_differ_and_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "critic.json").write_text(
        '{"model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896, "intermediate_size": 4864,'
        ' "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings":'
        " true}"
    )
    section = ADAPTER.validate_python(
        {
            "kind": "roofline",
            "device": "H200",
            "actor_model": MODELS["qwen2.5-3b"].model_dump(),
            "ref_model": "qwen2.5-7b",
            "critic_model": "critic.json",
            "reward_model": {"kind": "verifier"},
        }
    )
    assert isinstance(section, RooflineCostConfig)
    times = section.build(context(), tmp_path).training.stage_times(BATCH)
    assert times.ref > 1.5 * times.old_log_prob
    assert times.update_critic < times.update_actor / 3


def test_provenance_names_everything_and_claims_no_measurement() -> None:
    provenance = roofline().provenance
    assert provenance["measured"] is False
    assert {"kind", "parameters", "models", "devices", "hosts", "training", "derived"} <= set(provenance)


def test_parallel_inference_frees_the_training_devices_of_the_reference() -> None:
    serial, parallel = (roofline(TrainingConfig(parallel_inference=flag)) for flag in (False, True))
    assert (parallel.actor_kv_capacity_tokens or 0) > (serial.actor_kv_capacity_tokens or 0)
    assert parallel.training.parallel_inference


configs = st.builds(
    TrainingConfig,
    num_ppo_epochs=st.integers(1, 4),
    num_mini_batches=st.integers(1, 4),
    gradient_checkpointing=st.booleans(),
    param_offload=st.booleans(),
    optimizer_offload=st.booleans(),
    ref_param_offload=st.booleans(),
    sequence_parallel=st.sampled_from([1, 2]),
    sharding=st.sampled_from(["full", "optimizer"]),
    critic=st.sampled_from(["separate", "value_head", "none"]),
    old_log_prob=st.sampled_from(["behaviour", "recompute"]),
    tensor_parallel=st.sampled_from([1, 2]),
)


@given(
    configs,
    st.lists(st.tuples(st.integers(1, 512), st.integers(1, 2048)), min_size=1, max_size=60),
    st.integers(0, 500),
)
@settings(max_examples=40)
def test_stages_are_monotone_in_the_batch_and_demands_are_shares(
    config: TrainingConfig, lengths: list[tuple[int, int]], longer: int
) -> None:
    costs = roofline(config, {"actor_model": "qwen2.5-1.5b"}, num_replicas=8).training
    prompts, responses = zip(*lengths, strict=True)
    times = costs.stage_times(BatchShape(prompts, responses))
    more = costs.stage_times(BatchShape(prompts, tuple(r + longer for r in responses)))
    assert all(later >= earlier * (1 - 1e-12) for earlier, later in zip(times, more, strict=True))
    assert all(seconds >= 0 for seconds in times)
    assert times.update_actor > 0
    demand = costs.demand()
    assert 0 < demand.memory <= 1
    assert 0 < demand.arithmetic <= 1
    work, peak = costs.work(BatchShape(prompts, responses)), costs.peak
    assert work is not None
    assert peak is not None
    assert work.flops / sum(times[:6]) < peak.flops


def test_documented_sections_are_valid() -> None:
    text = (Path(__file__).parent.parent / "docs" / "costs.md").read_text(encoding="utf-8")
    sections = [
        parse_yaml(block, "docs")["costs"] for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    ]
    assert [ADAPTER.validate_python(section).kind for section in sections] == [
        "linear",
        "linear",
        "roofline",
        "roofline",
        "composed",
        "profile",
    ]


def test_weights_that_generation_shares_with_training_lie_there_once() -> None:
    """TRL with ``generate()`` on one GPU, adapters beside a model in 32 bits."""

    def kept(sync: Reshard | SharedWeights, sharding: str = "none", length: int = 512) -> Costs:
        training = TrainingConfig.model_validate(
            {
                "sharding": sharding,
                "weight_sync": sync,
                "lora_rank": 16,
                "critic": "none",
                "gradient_checkpointing": True,
            }
        )
        small = {
            "device": "L40S",
            "actor_model": "qwen3-8b",
            "reward_model": {"kind": "verifier"},
            "rollout": {"host": "generate"},
        }
        return roofline(training, small, num_replicas=1, max_prompt_length=length, max_response_length=length)

    # 32.8 GB of frozen weights and 0.7 of adapters leave 10.0 of 43.5 GB; 16.4 more do not fit.
    with pytest.raises(OppoError, match=r"rollout weights 16\.4 GB, .* actor training state 33\.5 GB"):
        kept(Reshard(kind="reshard"))
    shared = SharedWeights(kind="shared")
    room = kept(shared).actor_kv_capacity_tokens
    assert room is not None
    # Less 1.2 of activations.
    assert room * 144 * 1024 == pytest.approx(8.8e9, rel=0.01)
    with pytest.raises(OppoError, match=r"training\.sharding: optimizer saves 16\.4 GB"):
        kept(shared, length=4608)
    assert kept(shared, "optimizer", 4608).actor_kv_capacity_tokens


def test_a_model_that_does_not_fit_beside_a_reward_model_names_what_halves_that() -> None:
    training = TrainingConfig(lora_rank=32, critic="none", gradient_checkpointing=True)
    tight = {
        "device": "A100-40",
        "actor_model": "qwen2.5-14b",
        "rollout": {"tensor_parallel": 2},
    }
    shape = {"max_prompt_length": 1024, "max_response_length": 4096, "num_replicas": 4}
    with pytest.raises(OppoError, match=r"costs\.reward_model\.tensor_parallel: 2 saves 7\.1 GB"):
        roofline(training, tight, colocated_scoring=True, gpus_per_node=8, **shape)
