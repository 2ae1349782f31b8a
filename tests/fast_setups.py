"""Built scenarios in memory, for the compiled path against the SimPy model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from hypothesis import strategies as st

from oppo_sim.costs.adjusted import adjusted
from oppo_sim.costs.build_profile import costs_from_profile
from oppo_sim.costs.context import CostContext, stages_run
from oppo_sim.costs.interface import Costs
from oppo_sim.costs.kernels.composed_config import composed_costs
from oppo_sim.costs.kernels.table import (
    DecodeAttention,
    KernelOrigin,
    KernelQuery,
    KernelTable,
    PrefillAttention,
    RowsTable,
    kernel_shape,
)
from oppo_sim.costs.model_shape import ModelShape
from oppo_sim.costs.profile import Profile
from oppo_sim.costs.roofline_config import RooflineCostConfig
from oppo_sim.costs.training_config import TrainingConfig
from oppo_sim.draws import stream_key
from oppo_sim.policies import Batch
from oppo_sim.policies.registry import make_policy
from oppo_sim.rewards import (
    BatchRewards,
    NoRewards,
    RewardConfig,
    SaturatingRewards,
    SeriesRewards,
    TraceRewards,
)
from oppo_sim.scenario.build import Setup, build_setup
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.schema import Scenario
from oppo_sim.traces.replay import Replay
from tests.cases import Case
from tests.own_policies import OWN, own_policy

_TINY = {
    "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 256,
}  # fmt: skip
_MOE = _TINY | {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "num_dense_layers": 1,
}
_HYBRID = _TINY | {
    "num_hidden_layers": 4,
    "num_linear_layers": 2,
    "linear_kind": "mamba2",
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
_OF_EXPERTS = ("mixture", "ranks over nodes", "composed")
"""Kinds of costs whose actor is a mixture of experts."""


@cache
def any_scenario() -> Scenario:
    """A run's setup names its scenario; here nothing reads it."""
    return load_scenario("paper-gsm8k-7b")


@dataclass(frozen=True)
class Chosen:
    """What a case does not say: costs, sampling, rewards, warm-up."""

    costs: str
    sampling: str
    rewards: str
    warmup: int
    seed: int


def chosen() -> st.SearchStrategy[Chosen]:
    return st.builds(
        Chosen,
        st.sampled_from(
            [
                "linear",
                "linear",
                "profile",
                "profile on a GPU",
                "roofline",
                *_OF_EXPERTS,
                "hybrid",
                "verifier",
            ]
        ),
        st.sampled_from(["in_order", "resample", "by_step"]),
        st.sampled_from(["series", "trace", "saturating", "none"]),
        st.integers(0, 2),
        st.integers(0, 2**63 - 1),
    )


def setup_of(case: Case, chosen: Chosen) -> Setup:
    """A built scenario without files."""
    batch = Batch(case.batch, case.group_size)
    replay = replay_of(case, chosen)
    config: RewardConfig = {
        "series": SeriesRewards(values=case.rewards),
        "trace": TraceRewards(),
        "saturating": SaturatingRewards(time_constant=5.0, noise=0.5),
        "none": NoRewards(),
    }[chosen.rewards]
    return Setup(
        machine=case.machine,
        costs=costs_of(case, chosen.costs),
        policy_factory=lambda: (
            own_policy(case.policy, batch)
            if case.policy in OWN
            else make_policy(case.policy, batch, case.settings)
        ),
        batch=batch,
        replay=replay,
        rewards=lambda: BatchRewards(config, chosen.seed, replay.rewards),
        steps=case.steps + chosen.warmup,
        warmup_steps=chosen.warmup,
        seed=chosen.seed,
        scenario=any_scenario(),
        sample_rewards=case.sample_rewards or None,
    )


def replay_of(case: Case, chosen: Chosen) -> Replay:
    size = case.group_size
    groups = len(case.responses) // size
    rows = groups * size
    blocks = (
        ((0, groups),)
        if chosen.sampling != "by_step" or groups < 2
        else ((0, groups // 2), (groups // 2 * size, groups - groups // 2))
    )
    responses = list(case.responses[:rows])
    means = tuple(sum(responses[first : first + count * size]) / (count * size) for first, count in blocks)
    return Replay(
        prompt_lengths=list(case.prompts[:rows]),
        response_lengths=responses,
        clipped=[length > 10 for length in responses],
        rewards=[((7 * i) % 11) / 11.0 - 0.4 for i in range(rows)],
        content_hash="",
        provenance={},
        warnings=(),
        sampling=chosen.sampling,  # type: ignore[arg-type]
        group_size=size,
        blocks=blocks,
        block_means=means,
        key=stream_key(chosen.seed, "trace"),
        waits=list(case.calls[:rows]) or None,
    )


def costs_of(case: Case, kind: str) -> Costs:
    """Linear costs of the case, or small ones of the other kinds, under its terms."""
    if kind == "linear":
        return case.costs()
    training = TrainingConfig(
        num_ppo_epochs=2,
        num_mini_batches=2,
        micro_batch_tokens="auto" if case.batch % 2 else 200,
        micro_batch_rollouts=2 if case.batch % 2 else None,
        reduce_dtype="float32" if case.batch % 2 else None,
        sharding="full" if case.parallel_inference else "optimizer",
        parallel_inference=case.parallel_inference,
        stream_ref=case.batch > 2,
        offload=case.parallel_inference,
        gradient_checkpointing=not case.parallel_inference,
        param_offload=not case.parallel_inference,
        optimizer_offload=case.batch > 2 and not case.parallel_inference,
        ref_param_offload=not case.parallel_inference,
        lora_rank=4 if case.batch % 3 == 1 else 0,
        lora_merge=case.batch % 6 == 1,
        sequence_parallel=2 if case.batch > 1 else 1,
        pipeline_parallel=2 if case.batch % 2 and case.batch < 4 and not case.parallel_inference else 1,
        virtual_pipeline_parallel=2 if case.batch == 3 and not case.parallel_inference else 1,
        num_gpus=4 if case.batch % 2 else 2,
        expert_parallel=2 if case.batch < 4 and kind in _OF_EXPERTS else 1,
        remove_padding=case.batch % 3 > 0,
    )
    nodes: dict[str, Any] = {}
    engine: dict[str, Any] = {"tensor_parallel": 2}
    if kind == "ranks over nodes":
        nodes = {"node_link_bytes_per_s": 1e8, "gpus_per_node": 2, "training_spans_nodes": case.batch % 2 > 0}
        ranks = 2 if case.batch % 2 else 4
        engine = {"tensor_parallel": 4, "expert_parallel": ranks, "attention_data_parallel": ranks}
    context = CostContext(
        case.machine.num_replicas, case.machine.num_workers, case.batch, 12, 60, training, **nodes
    )
    if kind.startswith("profile"):
        content = profile_content() | ({"on_device": ON_DEVICE} if kind == "profile on a GPU" else {})
        built = costs_from_profile(Profile.model_validate(content), context)
        return adjusted(built, case.terms, stages_run(training), case.nominal)
    reward: dict[str, Any] = {"kind": "verifier", "fixed_s": 0.01, "per_token_s": 0.001}
    if kind != "verifier":
        reward = {"kind": "model", "model": _TINY}
    launches = {
        "launch_per_layer_s": 2e-5,
        "per_iteration_s": 1e-5,
        "per_rollout_s": 1e-6,
        "captured_batch_sizes": [1, 2, 4, 8],
    }
    config = {
        "kind": "roofline",
        "device": "L40S",
        "actor_model": _MOE if kind in _OF_EXPERTS else _HYBRID if kind == "hybrid" else _TINY,
        "reward_model": reward,
        "rollout": {**engine, "host": launches},
        "training": {
            "fused_kernels": case.batch % 2 > 0,
            "old_log_prob_entropy": case.batch % 3 > 0,
            "tp_comm_overlap": case.batch > 2,
            "expert_dispatch": "deepep" if case.batch % 2 else "alltoall",
        },
    }
    built = RooflineCostConfig.model_validate_json(_json(config)).build(context)
    if kind == "composed":
        built = composed_costs(built, lambda engine, place: kernel_table(engine.shape))
    return adjusted(built, case.terms, stages_run(training), case.nominal)


def kernel_table(shape: ModelShape) -> KernelTable:
    """A small table with knees, computed, not measured. Its range ends within what the cases ask."""
    tokens, contexts, batches, kv = (1, 4, 9, 30, 200), (0.5, 10, 40), (1, 2, 5), (1, 9, 30)
    query = KernelQuery(
        system="none", engine="vllm", version="0", tensor_parallel=2, dtype="bf16", kv_cache_dtype="bf16", shape=kernel_shape(shape),
    )  # fmt: skip
    return KernelTable(
        format="oppo-kernels/1",
        of=query,
        origin=KernelOrigin(
            package="none", package_version="0", licence="none", made="2026-01-01", kernels={}
        ),
        rows=RowsTable(
            tokens=tokens,
            seconds=(2e-5, 2.1e-5, 3e-5, 5e-5, 2e-4),
            collectives=(1e-5, 1e-5, 1.2e-5, 2e-5, 1e-4),
            head=(4e-6, 4e-6, 5e-6, 9e-6, 4e-5),
        ),
        decode_attention=DecodeAttention(
            n_running=batches,
            kv_per_rollout=kv,
            seconds=tuple(tuple(1e-6 + n * s for s in (1e-6, 1.5e-6, 1e-5)) for n in batches),
        ),
        prefill_attention=PrefillAttention(
            tokens=tokens,
            mean_context=contexts,
            seconds=tuple(tuple(1e-6 + 1e-8 * t * (c + t) for c in contexts) for t in tokens),
        ),
    )


def _json(plain: Any) -> str:
    import json

    return json.dumps(plain)


ON_DEVICE = {
    "decode": {"fixed": 0.01, "per_rollout": 0.002, "per_kv_token": 0.0001},
    "prefill": {"fixed": 0.004, "per_token": 0.0004, "per_pair": 0.00001},
    "score": {"fixed": 0.003, "per_token": 0.0009, "per_pair": 0.0},
}
"""Seconds in which a device computes, of ``profile_content``."""


def profile_content() -> dict[str, Any]:
    """A profile of small tables; computed, not measured."""

    def forwards(factor: float) -> dict[str, Any]:
        tokens, contexts = [4, 30, 200], [1, 10, 40]
        return {
            "tokens": tokens,
            "mean_context": contexts,
            "seconds": [[factor * (0.01 + 0.001 * t + 0.00003 * t * c) for c in contexts] for t in tokens],
        }

    rows = [
        {
            "n_running": n,
            "kv_tokens": [n * c for c in (2, 9, 30)],
            "seconds": [0.02 + 0.003 * n + s for s in (0.001, 0.004, 0.02)],
        }
        for n in (1, 2, 5)
    ]
    return {
        "format": "oppo-profile/1",
        "name": "computed",
        "measured": {
            "hardware": "none",
            "software": {"numpy": "0"},
            "engine": {},
            "method": "computed by a test; not a measurement",
            "repeats": 1,
            "date": "2026-01-01",
            "raw_samples": "none",
        },
        "decode": {"rows": rows},
        "prefill": forwards(1.0),
        "score": forwards(2.0),
        "score_ref": forwards(3.0),
        "training": {
            "tokens": [10, 60, 400],
            "old_log_prob": [0.01, 0.1, 0.2],
            "ref": [0.02, 0.05, 0.5],
            "values": [0.015, 0.1, 0.3],
            "adv": [0.0, 0.0, 0.01],
            "update_critic": [0.1, 0.3, 1.0],
            "update_actor": [0.2, 0.5, 2.0],
        },
        "update_weights": 0.5,
        "host": {
            "decode_per_iteration": 0.001,
            "decode_per_rollout": 0.0001,
            "prefill": 0.002,
            "score": 0.001,
        },
    }


def shipped(name: str, policy: str, steps: int, *overrides: str) -> Setup:
    """A shipped scenario, built."""
    return build_setup(load_scenario(name, list(overrides)), policy=policy, steps=steps)
