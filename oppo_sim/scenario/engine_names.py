"""What verl, TRL, slime (by Megatron's names) and others call the settings of engines and of training."""

from typing import Any

from oppo_sim.errors import OppoError

_VERL = "actor_rollout_ref"
_MEGATRON = f"{_VERL}.actor.megatron.override_transformer_config"

SAME: dict[str, tuple[str, ...]] = {
    "costs.rollout.tensor_parallel": ("rollout_num_gpus_per_engine",),
    "costs.rollout.expert_parallel": (
        f"{_VERL}.rollout.expert_parallel_size",
        "sglang_ep_size",
        "sglang_expert_parallel_size",
    ),
    "costs.rollout.gpu_memory_utilization": (
        f"{_VERL}.rollout.gpu_memory_utilization",
        "vllm_gpu_memory_utilization",
    ),
    "costs.rollout.max_num_batched_tokens": (f"{_VERL}.rollout.max_num_batched_tokens",),
    "costs.rollout.sleep_mode": (f"{_VERL}.rollout.free_cache_engine", "vllm_enable_sleep_mode"),
    "training.gradient_checkpointing": (f"{_VERL}.model.enable_gradient_checkpointing",),
    "training.lora_rank": (f"{_VERL}.model.lora_rank", "lora_rank", "lora_r", "actor.lora_rank"),
    "training.lora_merge": (f"{_VERL}.model.lora.merge",),
    "training.sequence_parallel": (f"{_VERL}.actor.ulysses_sequence_parallel_size",),
    "training.pipeline_parallel": (
        f"{_VERL}.actor.megatron.pipeline_model_parallel_size",
        "pipeline_model_parallel_size",
    ),
    "costs.training.tp_comm_overlap": (f"{_MEGATRON}.tp_comm_overlap", "tp_comm_overlap"),
    "training.virtual_pipeline_parallel": (
        f"{_VERL}.actor.megatron.virtual_pipeline_model_parallel_size",
        "virtual_pipeline_model_parallel_size",
    ),
    "training.expert_parallel": (
        f"{_VERL}.actor.megatron.expert_model_parallel_size",
        "expert_model_parallel_size",
    ),
    "training.expert_tensor_parallel": (
        f"{_VERL}.actor.megatron.expert_tensor_parallel_size",
        "expert_tensor_parallel_size",
    ),
    "training.tensor_parallel": (
        f"{_VERL}.actor.megatron.tensor_model_parallel_size",
        "tensor_model_parallel_size",
    ),
    "training.param_offload": (f"{_VERL}.actor.fsdp_config.param_offload",),
    "training.optimizer_offload": (f"{_VERL}.actor.fsdp_config.optimizer_offload",),
    "training.ref_param_offload": (f"{_VERL}.ref.fsdp_config.param_offload",),
    "training.micro_batch_tokens": (f"{_VERL}.actor.ppo_max_token_len_per_gpu", "max_tokens_per_gpu"),
    "training.log_prob_micro_batch_tokens": (
        f"{_VERL}.rollout.log_prob_max_token_len_per_gpu",
        "log_probs_max_tokens_per_gpu",
    ),
    "training.ref_micro_batch_tokens": (f"{_VERL}.ref.log_prob_max_token_len_per_gpu",),
    "training.remove_padding": (f"{_VERL}.model.use_remove_padding",),
    "training.critic_micro_batch_tokens": ("critic.ppo_max_token_len_per_gpu",),
    "training.critic_micro_batch_rollouts": ("critic.ppo_micro_batch_size_per_gpu",),
    "training.critic_remove_padding": ("critic.model.use_remove_padding",),
    "training.micro_batch_rollouts": (f"{_VERL}.actor.ppo_micro_batch_size_per_gpu",),
    "training.log_prob_micro_batch_rollouts": (f"{_VERL}.rollout.log_prob_micro_batch_size_per_gpu",),
    "training.ref_micro_batch_rollouts": (f"{_VERL}.ref.log_prob_micro_batch_size_per_gpu",),
}
"""Our field → names of the same value elsewhere."""

RANKS = "costs.rollout.attention_data_parallel"
SGLANG_RANKS_NAMES = ("sglang_dp_size", "sglang_data_parallel_size", "dp_size", "sglang.dp_size")
"""SGLang's ranks of attention are among the GPUs of its ``tp_size``."""
VLLM_RANKS_NAMES = (f"{_VERL}.rollout.data_parallel_size", "data_parallel_size")
DEGREE = "costs.rollout.tensor_parallel"
VLLM_DEGREE_NAMES = (f"{_VERL}.rollout.tensor_model_parallel_size", "vllm_tensor_parallel_size")
"""vLLM's are of so many GPUs each."""

HOST = "costs.rollout.host"
HOST_NAMES = (f"{_VERL}.rollout.enforce_eager", f"{_VERL}.rollout.mode", f"{_VERL}.rollout.name")
"""Settings that choose a host preset."""

DISPATCH = "costs.training.expert_dispatch"
DISPATCH_NAMES = (f"{_MEGATRON}.moe_token_dispatcher_type", "moe_token_dispatcher_type")
"""Of how tokens get to their experts."""

CRITIC = "training.critic"
CRITIC_NAMES = ("algorithm.adv_estimator", "adv_estimator", "advantage_estimator")
"""Of the advantage, which decides whether there is a critic."""

_WITH_CRITIC = ("gae", "ppo")
_WITHOUT_CRITIC = (
    *("grpo", "grpo_passk", "grpo_vectorized", "dr_grpo", "gspo", "group_norm", "gpg", "opo", "cispo"),
    *("rloo", "rloo_vectorized", "reinforce", "reinforce_baseline", "step_reinforce", "agentic_reinforce"),
    *("reinforce_plus_plus", "reinforce_plus_plus_baseline", "optimal_token_baseline"),
    *("tir_optimal_token_baseline", "on_policy_distillation"),
)

_PRESETS: dict[str, dict[Any, str | None]] = {
    "enforce_eager": {True: "vllm-eager", False: None},
    "mode": {"async": "vllm-async", "sync": None},
    "name": {"vllm": None, "sglang": "sglang", "trtllm": "trtllm", "hf": "generate"},
}


def host_preset(alias: str, value: Any) -> str | None:
    """The host preset that a setting names; None: it chooses none beside the default.

    Raises OppoError for a value that names none.
    """
    known = _PRESETS[alias.rpartition(".")[2]]
    if isinstance(value, bool | str) and value in known:
        return known[value]
    choices = ", ".join(str(each).lower() for each in known)
    raise OppoError(f"{alias} is {value!r} but must be one of {choices}; or give {HOST} yourself")


def expert_dispatch(alias: str, value: Any) -> str:
    """What a dispatcher of Megatron's is here. Raises OppoError for one that is not known."""
    known = {"alltoall": "alltoall", "flex": "deepep"}
    if isinstance(value, str) and value in known:
        return known[value]
    raise OppoError(
        f"{alias} is {value!r} but must be one of {', '.join(known)}; or give {DISPATCH} yourself"
    )


def has_critic(alias: str, value: Any) -> bool:
    """Whether an estimator of advantages takes a critic. Raises OppoError for one that is not known."""
    if value in _WITH_CRITIC or value in _WITHOUT_CRITIC:
        return value in _WITH_CRITIC
    if value == "remax":
        raise OppoError(
            f"{alias} is remax, which generates one more response a prompt: that is not simulated; give"
            f" {CRITIC}: none to leave it out"
        )
    raise OppoError(
        f"{alias} is {value!r}, of which it is not known whether it takes a critic: give {CRITIC}"
    )
