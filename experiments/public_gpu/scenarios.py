"""Scenarios of the public runs, from each run's own configuration; no measured second is looked at."""

from pathlib import Path
from typing import Any

import pandas as pd
from split import DATA

from oppo_sim.scenario.schema import Scenario
from oppo_sim.traces.importers.importing import import_log

ACTORS = {
    "qwen1_5b_opd": {
        # DeepSeek-R1-Distill-Qwen-1.5B: the shape of Qwen2.5-1.5B with an output head of its own.
        "num_hidden_layers": 28,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "qkv_bias": True,
    },
    "qwen2_3b_opd": "Qwen/Qwen2.5-3B-Instruct",
    "qwen3_4b_opd": {
        # Qwen3-4B-RA-SFT: the shape of Qwen3-4B-Instruct-2507.
        "num_hidden_layers": 36,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "qk_norm": True,
    },
}
"""Experiment name of an openagentrl run → the model that its configuration names."""
TEACHER = "qwen2.5-32b"
"""Shape of DeepSeek-R1-Distill-Qwen-32B."""
DEVICE = "A800-80"
"""The machine reports A800-SXM4-40GB, but the logs have 46 GB allocated at most."""


def openagentrl(run: str) -> dict[str, Any]:
    """The scenario of one run, without its trace."""
    tables = [pd.read_csv(DATA / f"openagentrl{name}_runs.csv.gz") for name in ("", "_later")]
    said = pd.concat(tables).set_index("run").loc[run]
    prompts, samples = int(said["data.train_batch_size"]), int(said["rollout.n"])
    return {
        "format": "oppo-scenario/1",
        "name": f"openagentrl-{run}",
        "rollout_batch_size": prompts * samples,
        "group_size": samples,
        "max_prompt_length": int(said["data.max_prompt_length"]),
        "max_response_length": int(said["data.max_response_length"]),
        "rollout": {"kv_capacity_tokens": "auto", "max_num_seqs": int(said["rollout.max_num_seqs"])},
        "training": {
            "num_ppo_epochs": int(said["actor.ppo_epochs"]),
            "num_mini_batches": prompts // int(said["actor.ppo_mini_batch_size"]),
            "micro_batch_tokens": int(said["actor.ppo_max_token_len_per_gpu"]),
            "reduce_dtype": "float32",
            "ref_micro_batch_tokens": int(said["ref.log_prob_max_token_len_per_gpu"]),
            "num_gpus": int(said["trainer.n_gpus_per_node"]),
            "sequence_parallel": int(said["actor.ulysses_sequence_parallel_size"]),
            "critic": "none",
            "gradient_checkpointing": bool(said["model.enable_gradient_checkpointing"]),
            "param_offload": bool(said["actor.fsdp_config.param_offload"]),
            "optimizer_offload": bool(said["actor.fsdp_config.optimizer_offload"]),
            "ref_param_offload": bool(said["ref.fsdp_config.param_offload"]),
            "weight_sync": {"kind": "reshard"},
        },
        "costs": {
            "kind": "composed",
            "device": DEVICE,
            "actor_model": ACTORS[said["trainer.experiment_name"]],
            "ref_model": TEACHER,
            "reward_model": {"kind": "verifier"},
            "rollout": {
                "tensor_parallel": int(said["rollout.tensor_model_parallel_size"]),
                "host": host_of(said["rollout.mode"], bool(said["rollout.enforce_eager"])),
                "gpu_memory_utilization": float(said["rollout.gpu_memory_utilization"]),
                "sleep_mode": bool(said["rollout.free_cache_engine"]),
                "max_num_batched_tokens": int(said["rollout.max_num_batched_tokens"]),
            },
        },
        "policy": "sequential",
    }


def gpg(device: str) -> dict[str, Any]:
    """The scenario of the GPG run, without its trace: the command line that its log begins with. The log
    does not say how its devices are linked."""
    prompts, samples = 1024, 5
    return {
        "format": "oppo-scenario/1",
        "name": "gpg",
        "rollout_batch_size": prompts * samples,
        "group_size": samples,
        "max_prompt_length": 1024,
        "max_response_length": 1024,
        "rollout": {"num_replicas": 4, "kv_capacity_tokens": "auto", "max_num_seqs": 1024},
        "training": {
            "num_ppo_epochs": 1,
            "num_mini_batches": prompts // 256,
            "micro_batch_rollouts": 16,
            "reduce_dtype": "float32",
            "num_gpus": 8,
            "critic": "none",
            "ref": False,
            "gradient_checkpointing": True,
            # verl of June 2025: FSDPVLLMShardingManager leaves by sleep(level=1).
            "weight_sync": {"kind": "reshard", "sleep_level": 1},
        },
        "costs": {
            "kind": "composed",
            "device": device,
            "actor_model": "Qwen/Qwen2.5-7B-Instruct",
            "reward_model": {"kind": "verifier"},
            "rollout": {
                "tensor_parallel": 2,
                "host": host_of("sync", eager=True),
                "gpu_memory_utilization": 0.6,
                "sleep_mode": True,
            },
        },
        "policy": "sequential",
    }


def gpg_megatron() -> dict[str, Any]:
    """The scenario of the GPG run that Megatron trains, without its trace: the command line that its log
    begins with. Megatron's distributed optimizer, gradients in float32, nothing offloaded, rollouts packed
    without padding (verl's defaults of June 2025)."""
    scenario = gpg("A100-80")
    training = {
        **scenario["training"],
        "micro_batch_rollouts": 4,
        "tensor_parallel": 2,
        "pipeline_parallel": 2,
        "sharding": "optimizer",
    }
    return {**scenario, "name": "gpg_megatron", "training": training}


def _eager_engine(tensor_parallel: int, share: float) -> dict[str, Any]:
    """The engine of a trainer with vLLM in its own processes, in eager mode; ``share`` of the memory."""
    return {
        "tensor_parallel": tensor_parallel,
        "host": host_of("sync", eager=True),
        "gpu_memory_utilization": share,
        "sleep_mode": True,
        "max_num_batched_tokens": 8192,
    }


def dstack_h100() -> dict[str, Any]:
    """The scenario of a PPO run with a critic on two nodes of 8 × H100, without its trace: the configuration
    that its log prints, and the fleet and task files beside it (Lambda, 400 Gb/s a GPU between nodes)."""
    return {
        "format": "oppo-scenario/1",
        "name": "dstack_h100",
        "rollout_batch_size": 256,
        "max_prompt_length": 512,
        "max_response_length": 256,
        "rollout": {"num_replicas": 16, "kv_capacity_tokens": "auto", "max_num_seqs": 1024},
        "training": {
            "num_ppo_epochs": 1,
            "num_mini_batches": 256 // 64,
            "micro_batch_rollouts": 4,
            "log_prob_micro_batch_rollouts": 8,
            "remove_padding": False,
            "reduce_dtype": "float32",
            "num_gpus": 16,
            "ref": False,
            "gradient_checkpointing": True,
            # As in GPG's run: verl of May 2025.
            "weight_sync": {"kind": "reshard", "sleep_level": 1},
        },
        "cluster": {"num_gpus_per_node": 8},
        "costs": {
            "kind": "composed",
            "device": "H100",
            "actor_model": "Qwen/Qwen2.5-7B-Instruct",
            "critic_model": "Qwen/Qwen2.5-7B-Instruct",
            "reward_model": {"kind": "verifier"},
            "rollout": _eager_engine(1, 0.4),
        },
        "policy": "sequential",
    }


GEMMA_2_2B = {
    "num_hidden_layers": 26,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 256000,
    "tie_word_embeddings": True,
}


def verl_2024(
    model: str | dict[str, Any], gpus: int, batch: int, prompt: int, response: int
) -> dict[str, Any]:
    """The scenario of one of verl's PPO runs of December 2024 on GSM8K, without its trace: the configuration
    that its log prints. The log does not name the GPU; its allocations are of one with 80 GB. Micro-batches
    of that version are of all ranks together."""
    return {
        "format": "oppo-scenario/1",
        "name": "verl_2024",
        "rollout_batch_size": batch,
        "max_prompt_length": prompt,
        "max_response_length": response,
        "rollout": {"num_replicas": 1, "kv_capacity_tokens": "auto", "max_num_seqs": 1024},
        "training": {
            "num_ppo_epochs": 1,
            "num_mini_batches": 4,
            "micro_batch_rollouts": 2,
            "log_prob_micro_batch_rollouts": 4 // gpus,
            "ref_micro_batch_rollouts": 4 // gpus,
            "remove_padding": False,
            "reduce_dtype": "float32",
            "num_gpus": gpus,
            "ref_param_offload": True,
            "weight_sync": {"kind": "reshard"},
        },
        "costs": {
            # The package has no attention kernels with heads of 64 or 256 on A100.
            "kind": "roofline",
            "device": "A100-80",
            "actor_model": model,
            "critic_model": model,
            "ref_model": model,
            "reward_model": {"kind": "verifier"},
            "rollout": _eager_engine(gpus, 0.4),
        },
        "policy": "sequential",
    }


def play_verl(name: str) -> dict[str, Any]:
    """The scenario of one of four verl runs on GSM8K on a node of 8 × H100 (so its README; the scripts still
    say A100), without its trace: the configuration that the run's log prints. verl of April 2025."""
    large = "_7b_" in name
    prompts, samples, response, replica, share = {
        "play_verl_05b_grpo": (256, 2, 192, 1, 0.6),
        "play_verl_05b_ppo": (2048, 1, 256, 1, 0.6),
        "play_verl_7b_min": (512, 1, 1024, 1, 0.5),
        "play_verl_7b_recommended": (1024, 5, 1024, 2, 0.6),
    }[name]
    padded_critic = {"critic_micro_batch_tokens": 32768, "critic_remove_padding": False}
    training: dict[str, Any] = {
        "play_verl_05b_grpo": {"num_mini_batches": 4, "micro_batch_tokens": 8000, "critic": "none"},
        "play_verl_05b_ppo": {
            "num_mini_batches": 4,
            "micro_batch_rollouts": 4,
            "log_prob_micro_batch_rollouts": 8,
            "critic_micro_batch_rollouts": 4,
            "remove_padding": False,
            "ref": False,
        },
        "play_verl_7b_min": {
            "num_mini_batches": 16,
            "micro_batch_tokens": 8192,
            **padded_critic,
            "param_offload": True,
            "optimizer_offload": True,
            "ref_param_offload": True,
        },
        "play_verl_7b_recommended": {"num_mini_batches": 16, "micro_batch_tokens": 12000, **padded_critic},
    }[name]
    # Qwen2-7B has the shape of Qwen2.5-7B.
    model = "Qwen/Qwen2.5-7B-Instruct" if large else "Qwen/Qwen2.5-0.5B-Instruct"
    models = {"actor_model": model, "ref_model": model, "critic_model": model}
    if not training.get("ref", True):
        del models["ref_model"]
    if training.get("critic") == "none":
        del models["critic_model"]
    return {
        "format": "oppo-scenario/1",
        "name": name,
        "rollout_batch_size": prompts * samples,
        "group_size": samples,
        "max_prompt_length": 512,
        "max_response_length": response,
        "rollout": {"num_replicas": 8 // replica, "kv_capacity_tokens": "auto", "max_num_seqs": 1024},
        "training": {
            "num_ppo_epochs": 1,
            "reduce_dtype": "float32",
            "num_gpus": 8,
            "gradient_checkpointing": True,
            # As in GPG's run: FSDPVLLMShardingManager leaves by sleep(level=1).
            "weight_sync": {"kind": "reshard", "sleep_level": 1},
            **training,
        },
        "costs": {
            "kind": "composed",
            "device": "H100",
            **models,
            "reward_model": {"kind": "verifier"},
            "rollout": _eager_engine(replica, share),
        },
        "policy": "sequential",
    }


DEEPSEEK_LLM_7B = {
    "num_hidden_layers": 30,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "vocab_size": 102400,
    "tie_word_embeddings": False,
}


def verl_mi300x(critic: bool) -> dict[str, Any]:
    """The scenario of two verl runs on GSM8K on a node of 8 × MI300X, GRPO or PPO with a ``critic``, without
    its trace: the command at the head of each log, the GPU after verl's table of baselines. verl of March
    2025, whose images for AMD have a vLLM that leaves by dropping its weights."""
    samples, replica, share = (1, 4, 0.4) if critic else (5, 2, 0.6)
    training: dict[str, Any] = {
        "micro_batch_rollouts": 16 if critic else 80,
        "log_prob_micro_batch_rollouts": 32 if critic else 110,
        **({"critic_micro_batch_rollouts": 32} if critic else {"critic": "none"}),
    }
    models: dict[str, Any] = {"actor_model": DEEPSEEK_LLM_7B, "ref_model": DEEPSEEK_LLM_7B}
    if critic:
        models["critic_model"] = DEEPSEEK_LLM_7B
    return {
        "format": "oppo-scenario/1",
        "name": "verl_mi300x",
        "rollout_batch_size": 1024 * samples,
        "group_size": samples,
        "max_prompt_length": 512,
        "max_response_length": 512 if critic else 1024,
        "rollout": {"num_replicas": 8 // replica, "kv_capacity_tokens": "auto", "max_num_seqs": 1024},
        "training": {
            "num_ppo_epochs": 1,
            "num_mini_batches": 1024 // 256,
            "reduce_dtype": "float32",
            "num_gpus": 8,
            "gradient_checkpointing": True,
            "ref_param_offload": True,
            "weight_sync": {"kind": "reshard"},
            **training,
        },
        "costs": {
            "kind": "roofline",  # the package has no tables of it
            "device": "MI300X",
            **models,
            "reward_model": {"kind": "verifier"},
            "rollout": _eager_engine(replica, share),
        },
        "policy": "sequential",
    }


GEMMA_3_1B = {
    "num_hidden_layers": 26,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "vocab_size": 262144,
    "tie_word_embeddings": True,
}


def nemo_rl_b200() -> dict[str, Any]:
    """The scenario of a GRPO run of NeMo RL 0.5 on 8 × B200, without its trace: the configuration that its
    log prints. vLLM 0.11 in eager mode; the reference's weights wait in the host's memory."""
    return {
        "format": "oppo-scenario/1",
        "name": "nemo_rl_b200",
        "steps": 50,
        # Of no account: a fit rebuilds lengths from each step's mean, and no longest response is logged.
        "trace": {"synth": {"mean": 600, "p99": 1020, "rows": 2000}, "prompt_length": 90},
        "rollout_batch_size": 32 * 16,
        "group_size": 16,
        "max_prompt_length": 1024,
        "max_response_length": 1024,
        "rollout": {
            "num_replicas": 8,
            "kv_capacity_tokens": "auto",
            "kv_block_tokens": 32,
            "max_num_seqs": 1024,
        },
        "training": {
            "num_ppo_epochs": 1,
            "num_mini_batches": 1,
            "micro_batch_tokens": 8192,
            "num_gpus": 8,
            "critic": "none",
            "gradient_checkpointing": False,
            "ref_param_offload": True,
            "optimizer_offload": True,
            "weight_sync": {"kind": "reshard", "sleep_level": 1},
        },
        "costs": {
            "kind": "roofline",  # the package has no attention kernels with heads of 256
            "device": "B200",
            "actor_model": GEMMA_3_1B,
            "ref_model": GEMMA_3_1B,
            "reward_model": {"kind": "verifier"},
            "rollout": _eager_engine(1, 0.6),
            "training": {"old_log_prob_entropy": False},
        },
        "policy": "sequential",
    }


def qwen3_8b_h20(reference: bool = True) -> dict[str, Any]:
    """The scenario of a GRPO run on 4 × H20 with NVLink, without its trace: the overrides and the resolved
    configuration beside its log. verl of September 2026. DAPO has no ``reference`` model."""
    scenario: dict[str, Any] = {
        "format": "oppo-scenario/1",
        "name": "qwen3_8b_h20",
        "rollout_batch_size": 128,
        "group_size": 8,
        "max_prompt_length": 2048,
        "max_response_length": 8192,
        "rollout": {"num_replicas": 2, "kv_capacity_tokens": "auto", "max_num_seqs": 256},
        "training": {
            "num_ppo_epochs": 1,
            "num_mini_batches": 16 // 8,
            "micro_batch_tokens": 32768,
            "reduce_dtype": "float32",
            "num_gpus": 4,
            "critic": "none",
            "gradient_checkpointing": True,
            "ref_param_offload": True,
            "weight_sync": {"kind": "reshard"},
        },
        "costs": {
            "kind": "roofline",  # the package has no tables of an H20
            "device": "H20",
            "actor_model": "Qwen/Qwen3-8B",
            "ref_model": "Qwen/Qwen3-8B",
            "reward_model": {"kind": "verifier"},
            "rollout": {
                "tensor_parallel": 2,
                "host": host_of("async", eager=False),
                "gpu_memory_utilization": 0.6,
                "sleep_mode": True,
                "max_num_batched_tokens": 8192,
            },
        },
        "policy": "sequential",
    }
    if not reference:
        del scenario["costs"]["ref_model"], scenario["training"]["ref_param_offload"]
    return scenario


def econ_lora(samples: int) -> dict[str, Any]:
    """The scenario of one of nine verl runs (0.6.1, vLLM 0.8.5 eager) that train a LoRA adapter of
    Qwen2.5-7B-Instruct on two prompts a step, without its trace: the configuration that its log prints. The
    device, which no log names, is taken to be an A100 of 80 GB."""
    return {
        "format": "oppo-scenario/1",
        "name": "econ_lora",
        "rollout_batch_size": 2 * samples,
        "group_size": samples,
        "max_prompt_length": 1536,
        "max_response_length": 128,
        "rollout": {"num_replicas": 1, "kv_capacity_tokens": "auto", "max_num_seqs": max(2, samples)},
        "training": {
            "num_ppo_epochs": 1,
            "num_mini_batches": 1,
            "micro_batch_tokens": 4096,
            "remove_padding": False,
            "num_gpus": 1,
            "gradient_checkpointing": True,
            "param_offload": True,
            "optimizer_offload": True,
            "lora_rank": 8,
            "ref": False,
            "critic": "none",
            "weight_sync": {"kind": "reshard", "sleep_level": 1},
        },
        "costs": {
            "kind": "composed",
            "device": "A100-80",
            "actor_model": "Qwen/Qwen2.5-7B-Instruct",
            "reward_model": {"kind": "verifier"},
            "rollout": _eager_engine(1, 0.7),
        },
        "policy": "sequential",
    }


def asycn_verl() -> dict[str, Any]:
    """The scenario of 36 verl runs (0.8, vLLM server, eager) of DeepSeek-R1-Distill-Qwen-1.5B on a node of 8
    GPUs, which differ in losses and learning rates alone, without its trace: the configuration beside each
    log. verl's own MFU says that the GPU is one of Hopper with all of its products; an H100 is taken."""
    return {
        "format": "oppo-scenario/1",
        "name": "asycn_verl",
        "rollout_batch_size": 128 * 8,
        "group_size": 8,
        "max_prompt_length": 1024,
        "max_response_length": 8192,
        "rollout": {"num_replicas": 8, "kv_capacity_tokens": "auto", "max_num_seqs": 1024},
        "training": {
            "num_ppo_epochs": 1,
            "num_mini_batches": 128 // 32,
            "micro_batch_tokens": 9516,
            "reduce_dtype": "float32",
            "num_gpus": 8,
            "critic": "none",
            "ref": False,
            "gradient_checkpointing": True,
            "param_offload": True,
            "optimizer_offload": True,
            "weight_sync": {"kind": "reshard"},
        },
        "costs": {
            "kind": "composed",
            "device": "H100",
            "actor_model": ACTORS["qwen1_5b_opd"],
            "reward_model": {"kind": "verifier"},
            "rollout": {
                "tensor_parallel": 1,
                "host": host_of("async", eager=True),
                "gpu_memory_utilization": 0.8,
                "sleep_mode": True,
                "max_num_batched_tokens": 24576,
            },
        },
        "policy": "sequential",
    }


def cluster_verl() -> dict[str, Any]:
    """The scenario of a verl run (0.4, vLLM eager) of Qwen2.5-Math-7B on eight nodes of 8 GPUs, without its
    trace: the script and the configuration that its log prints. verl's own MFU and 113 GB reserved say that
    the GPU is an H20 of 141 GB. Parameters are sharded over 32 of the 64."""
    return {
        "format": "oppo-scenario/1",
        "name": "cluster_verl",
        "rollout_batch_size": 512 * 16,
        "group_size": 16,
        "max_prompt_length": 2048,
        "max_response_length": 8192,
        "rollout": {"num_replicas": 16, "kv_capacity_tokens": "auto", "max_num_seqs": 1024},
        "training": {
            "num_ppo_epochs": 1,
            "num_mini_batches": 512 // 32,
            "micro_batch_tokens": 20480,
            "log_prob_micro_batch_tokens": 30720,
            "reduce_dtype": "float32",
            "num_gpus": 64,
            "sequence_parallel": 4,
            "critic": "none",
            "ref": False,
            "gradient_checkpointing": True,
            "param_offload": True,
            "optimizer_offload": True,
            "weight_sync": {"kind": "reshard"},
        },
        "cluster": {"num_gpus_per_node": 8},
        "costs": {
            "kind": "roofline",  # the package has no tables of an H20
            "device": "H20",
            # Qwen2.5-Math-7B has the shape of Qwen2.5-7B.
            "actor_model": "Qwen/Qwen2.5-7B-Instruct",
            "reward_model": {"kind": "verifier"},
            "rollout": _eager_engine(4, 0.8) | {"max_num_batched_tokens": 10240},
        },
        "policy": "sequential",
    }


def mini_r1_zero() -> dict[str, Any]:
    """The scenario of a GRPO run of TRL on one A800 of 80 GB, without its trace: the settings that the run
    wrote down and its notebook. Eight completions of one prompt a step, padded to the longest of them, one at
    a time through model and reference; vLLM in the same process, which never sleeps. Old log-probabilities
    are computed, for they correct what vLLM sampled."""
    model = {  # Qwen3-1.7B
        "num_hidden_layers": 28,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "qk_norm": True,
    }
    return {
        "format": "oppo-scenario/1",
        "name": "mini_r1_zero",
        "rollout_batch_size": 8,
        "group_size": 8,
        "max_prompt_length": 512,
        "max_response_length": 1024,
        "rollout": {"num_replicas": 1, "kv_capacity_tokens": "auto", "max_num_seqs": 8},
        "training": {
            "num_ppo_epochs": 1,
            "num_mini_batches": 1,
            "micro_batch_rollouts": 1,
            "remove_padding": False,
            "num_gpus": 1,
            "sharding": "none",  # as `oppo scenario init --framework TRL` writes since
            "critic": "none",
            "gradient_checkpointing": True,
            "weight_sync": {"kind": "reshard", "load_bytes_per_s": 5e10},
        },
        "costs": {
            "kind": "composed",
            "device": DEVICE,
            "actor_model": model,
            "ref_model": model,
            "reward_model": {"kind": "verifier"},
            "terms": {
                "gen_phase_s": 0.0
            },  # as `oppo scenario init --framework TRL` writes since its first look
            "rollout": {
                "tensor_parallel": 1,
                "host": host_of("sync", eager=False),
                "gpu_memory_utilization": 0.3,
                "sleep_mode": False,
            },
        },
        "policy": "sequential",
    }


def trl_rho() -> dict[str, Any]:
    """The scenario of 27 GRPO runs of TRL that differ in the weights of their loss, without its trace: the
    configuration and the script of two days later, and the head of each log. A LoRA adapter of
    Qwen2.5-7B-Instruct on one H100 each; eight completions of two prompts a step, two at a time; vLLM in the
    same process, which never sleeps. Without ``beta`` there is no reference model."""
    return {
        "format": "oppo-scenario/1",
        "name": "trl_rho",
        "rollout_batch_size": 8,
        "group_size": 4,
        "max_prompt_length": 256,
        "max_response_length": 512,
        "rollout": {"num_replicas": 1, "kv_capacity_tokens": "auto", "max_num_seqs": 8},
        "training": {
            "num_ppo_epochs": 1,
            "num_mini_batches": 1,
            "micro_batch_rollouts": 2,
            "num_gpus": 1,
            "sharding": "none",  # as `oppo scenario init --framework TRL` writes since
            "critic": "none",
            "ref": False,
            "gradient_checkpointing": True,
            "lora_rank": 64,
            "lora_merge": True,
            "weight_sync": {"kind": "reshard", "load_bytes_per_s": 5e10},
        },
        "costs": {
            "kind": "composed",
            "device": "H100",
            "actor_model": "Qwen/Qwen2.5-7B-Instruct",
            "reward_model": {"kind": "verifier"},
            "terms": {"gen_phase_s": 0.0},
            "rollout": {
                "tensor_parallel": 1,
                "host": host_of("sync", eager=False),
                "gpu_memory_utilization": 0.35,
                "sleep_mode": False,
            },
        },
        "policy": "sequential",
    }


def host_of(mode: str, eager: bool) -> str:
    """The host preset of vLLM under verl, from `rollout.mode` and `rollout.enforce_eager`."""
    if eager:
        return "vllm-eager"
    return "vllm-async" if mode == "async" else "vllm"


UNLOGGED_PROMPTS = {"mini_r1_zero": 100, "trl_rho": 120}
"""How a scenario's name begins → tokens of a prompt where no log has them: a question of GSM8K and a short
template."""


def unlogged_prompt(name: str) -> int | None:
    """Those of a scenario of this name."""
    return next((tokens for begins, tokens in UNLOGGED_PROMPTS.items() if name.startswith(begins)), None)


def with_trace(scenario: dict[str, Any], log: Path, folder: Path, names: str = "verl") -> Scenario:
    """The scenario with lengths rebuilt from its log's figures a step, as `oppo trace import --from verl`
    rebuilds them, or from those of the framework ``names``; each step replays the rollouts of the same step
    of the log. Prompts of which no length is logged are the scenario's."""
    frame, _ = import_log(
        names,
        log,
        rows_per_step=scenario["rollout_batch_size"],
        max_response_length=scenario["max_response_length"],
    )
    path = folder / f"{scenario['name']}.parquet"
    frame.to_parquet(path, index=False)
    trace: dict[str, Any] = {"path": str(path), "sampling": "by_step"}
    if (prompt := unlogged_prompt(scenario["name"])) is not None:
        trace["prompt_length"] = prompt
    return Scenario.model_validate({**scenario, "steps": int(frame["step"].nunique()), "trace": trace})
