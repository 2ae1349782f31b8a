"""Settings in sections of other frameworks that are not translated: all at once, with what says them here."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from oppo_sim.scenario.aliases import ALIASES

_OF_VERL = ("reward", "distillation", "global_profiler", "ray_kwargs", "transfer_queue")
"""Sections of verl's of which nothing is translated."""

_SAID_BY: Mapping[str, str] = {
    # verl. Of the reward model's engine its tensor parallelism alone is known here.
    "reward.num_workers": "scoring.num_workers",
    "reward_model.enable": "costs.reward_model, false: {kind: verifier}",
    "reward_model.enable_resource_pool": "placement.scoring, true: separate, false: rollout",
    "reward_model.nnodes": "cluster.split",
    "reward_model.n_gpus_per_node": "cluster.split",
    "reward_model.model_path": "costs.reward_model",
    "reward_model.rollout.tensor_model_parallel_size": "costs.reward_model.tensor_parallel",
    "reward_model.rollout": "",
    # Its recipes one step off and fully asynchronous have these at the top.
    "rollout.nnodes": "cluster.split",
    "rollout.n_gpus_per_node": "cluster.split",
    "rollout.pipeline_model_parallel_size": "",
    "lora.rank": "training.lora_rank",
    "fsdp_config.ulysses_sequence_parallel_size": "training.sequence_parallel",
    "trainer_mode": (
        "policy.name, sync: sequential or rollout-overlap, colocate_async: inter, separate_async: async"
    ),
    "separate_async.num_warmup_batches": "policy.max_staleness",
    "critic.model.path": "costs.critic_model",
    "model.path": "costs.actor_model",
    "use_kl_loss": "training.ref",
    "use_kl_in_reward": "training.ref",
    "strategy": "training.sharding",
    "use_dynamic_bsz": "true: training.micro_batch_tokens, false: training.micro_batch_rollouts",
    "multi_turn": "turns and tools of the trace",
    "total_epochs": "steps",
    "total_training_steps": "steps",
    "vllm.data_parallel_size": "costs.rollout.attention_data_parallel",
    "enable_dp_attention": "costs.rollout.attention_data_parallel",
    "calculate_log_probs": "training.old_log_prob",
    "context_parallel_size": "training.sequence_parallel",
    "recompute_granularity": "training.gradient_checkpointing, training.selective_recompute",
    "rollout_correction.bypass_mode": "training.old_log_prob, true: behaviour",
    "rollout_correction": "",
    "hybrid_engine": "placement.training, true: rollout, false: separate",
    "dtype": "costs.rollout.dtype, training.dtype",
    # NeMo RL
    "model_name": "costs.actor_model",
    "vllm_cfg.tensor_parallel_size": "costs.rollout.tensor_parallel",
    "vllm_cfg.expert_parallel_size": "costs.rollout.expert_parallel",
    "vllm_cfg.gpu_memory_utilization": "costs.rollout.gpu_memory_utilization",
    "generation.backend": "costs.rollout.host",
    "enforce_eager": "costs.rollout.host",
    "generation.max_new_tokens": "max_response_length",
    "colocated.enabled": "placement.training",
    "colocated.resources": "cluster.split",
    "dtensor_cfg.tensor_parallel_size": "training.tensor_parallel",
    "tensor_model_parallel_size": "training.tensor_parallel",
    "pipeline_model_parallel_size": "training.pipeline_parallel",
    "expert_model_parallel_size": "training.expert_parallel",
    "activation_checkpointing": "training.gradient_checkpointing",
    "train_global_batch_size": "training.num_mini_batches",
    "train_micro_batch_size": "training.micro_batch_rollouts",
    "train_mb_tokens": "training.micro_batch_tokens",
    "logprob_mb_tokens": "training.log_prob_micro_batch_tokens",
    "max_total_sequence_length": "max_prompt_length, max_response_length",
    "sequence_packing.enabled": "training.remove_padding",
    "max_num_steps": "steps",
    "async_grpo.enabled": "policy.name, true: async",
    "reference_policy_kl_penalty": "training.ref",
}
"""End of a setting, or a mapping on its way → what says it here; empty: nothing does."""

_FLAT: Mapping[str, str] = {
    **_SAID_BY,
    # TRL
    "beta": "training.ref",
    "vllm_mode": "placement.training, server: separate, colocate: rollout",
    "per_device_train_batch_size": "rollout_batch_size, training.micro_batch_rollouts",
    "gradient_accumulation_steps": "rollout_batch_size, training.num_mini_batches",
    "steps_per_generation": "training.num_mini_batches",
    "generation_batch_size": "rollout_batch_size",
    "model_name_or_path": "costs.actor_model",
    "use_peft": "training.lora_rank",
    # OpenRLHF
    "generate_max_len": "max_response_length",
    "prompt_max_len": "max_prompt_length",
    "async_train": "policy.name, true: one-step-off",
    "packing_samples": "training.remove_padding",
    "pretrain": "costs.actor_model",
    "reward_pretrain": "costs.reward_model",
    "remote_rm_url": "costs.reward_model",
    "critic_pretrain": "costs.critic_model",
    "micro_train_batch_size": "training.micro_batch_rollouts",
    "micro_rollout_batch_size": "training.log_prob_micro_batch_rollouts",
    "zero_stage": "training.sharding",
    "adam_offload": "training.optimizer_offload",
    "init_kl_coef": "training.ref",
    "colocate_all_models": "cluster.split",
    "actor_num_nodes": "cluster.split",
    "actor_num_gpus_per_node": "cluster.split",
    "critic_num_nodes": "cluster.split",
    "critic_num_gpus_per_node": "cluster.split",
    # slime
    "rollout_max_response_len": "max_response_length",
    "rollout_max_prompt_len": "max_prompt_length",
    "hf_checkpoint": "costs.actor_model",
    "colocate": "cluster.split",
    "rollout_num_gpus": "cluster.split",
    "use_dynamic_batch_size": "training.micro_batch_tokens",
    "global_batch_size": "training.num_mini_batches",
    "kl_loss_coef": "training.ref",
    "kl_coef": "training.ref",
    "sglang_mem_fraction_static": "costs.rollout.gpu_memory_utilization",
    "sglang_enable_dp_attention": "costs.rollout.attention_data_parallel",
    "num_rollout": "steps",
}
"""The same for settings that a framework has outside every section."""

_FEW = 6


def settings_of(section: str, value: Any) -> Iterator[str]:
    """The settings of a section as it was given, in full."""
    if not isinstance(value, Mapping) or not value:
        yield section
        return
    for key, inner in value.items():
        yield from settings_of(f"{section}.{key}", inner)


def is_of_a_framework(section: str) -> bool:
    """Whether names of another framework begin with it."""
    return section in _OF_VERL or any(name.startswith(f"{section}.") for name in ALIASES)


def is_a_model_of_nemo_rl(policy: Any) -> bool:
    """Whether a section ``policy`` is NeMo RL's, of the model that is trained."""
    return isinstance(policy, Mapping) and not {"model_name", "generation"}.isdisjoint(policy)


def is_a_flat_one(setting: str) -> bool:
    """Whether it is known as one that a framework has outside every section."""
    return setting in _FLAT


def not_read(settings: Sequence[str]) -> str:
    """One sentence for all settings that are not translated."""
    if len(settings) == 1:
        return f"unknown field {settings[0]}: {_of_one(settings[0])}"
    named = [f"{each} ({hint})" if (hint := _hint(each)) else each for each in settings]
    return (
        f"{len(settings)} settings are not read, remove them (in brackets what says it instead):"
        f" {', '.join(named)}"
    )


def said_by(setting: str) -> str:
    """What to do with a setting of another framework that something says here; empty where nothing does."""
    hint = _hint(setting)
    return f"{hint} says it, remove this" if hint and not hint.startswith("did you") else hint


def _of_one(setting: str) -> str:
    if said := said_by(setting):
        return said
    section = setting.partition(".")[0]
    known = [name for name in ALIASES if name.startswith(f"{section}.")]
    if not known:
        return "it is not read, remove it"
    listed = f"of {section} there are {', '.join(known)}"
    return listed if len(known) <= _FEW else "it is not read, remove it"


def _hint(setting: str) -> str:
    parts = setting.split(".")
    if len(parts) == 1:
        return _FLAT.get(setting, "")
    for end, field in _SAID_BY.items():
        if f".{setting}".endswith(f".{end}") or f".{end}." in setting:
            return field
    above = ".".join(parts[:-1])
    beside = [name for name in ALIASES if name.rpartition(".")[0] == above]
    near = get_close_matches(setting, beside, n=1, cutoff=0.9)
    return f"did you mean {near[0]}?" if near else ""
