"""The parts of a roofline section: engines, the host, the training devices, and what they achieve."""

from typing import Literal

from oppo_sim.costs.achieved import Achievable
from oppo_sim.costs.device import Device, Dtype, value_bytes
from oppo_sim.costs.hosts import HostRef
from oppo_sim.costs.model_shape import ModelShape
from oppo_sim.costs.strict import Count, NonNegative, Positive, Share, Strict

ModelRef = str | ModelShape
"""A preset ("qwen2.5-7b"), a path to a Hugging Face ``config.json`` or its folder, or a shape inline."""
DeviceRef = str | Device
"""A device of ``devices.py`` by name, or its rates inline."""


class RolloutEngine(Strict):
    """One rollout replica."""

    device: DeviceRef | None = None
    """None: ``costs.device``; so everywhere below."""
    tensor_parallel: Count = 1
    """GPUs of a replica, whatever the next two divide among them (SGLang's ``tp_size``; vLLM's
    ``tensor_parallel_size`` times ``data_parallel_size``)."""
    expert_parallel: Count = 1
    """Ranks of these GPUs that the experts of a layer are divided among, whole ones to each; the GPUs of a
    rank share each of its experts (SGLang's ``ep_size``). vLLM knows 1 and all."""
    attention_data_parallel: Count = 1
    """Ranks of these GPUs that each have whole attention, all but the experts, and rollouts and a KV cache of
    their own (SGLang's ``dp_size`` with ``enable_dp_attention``, vLLM's ``data_parallel_size``)."""
    dtype: Dtype = "bf16"
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    host: HostRef = "vllm"
    gpu_memory_utilization: Share = 0.9
    sleep_mode: bool = False
    """The engine's weights leave the device memory while training runs (vLLM's sleep mode, verl's
    ``free_cache_engine``), like the KV cache always does. The seconds of waking are in ``gen_phase_s``."""
    max_num_batched_tokens: Count = 8192
    """Tokens of one forward at most, for the activation memory set aside."""
    achievable: Achievable = Achievable()

    @property
    def attention_devices(self) -> int:
        """GPUs that share what is not an expert."""
        return self.tensor_parallel // self.attention_data_parallel

    @property
    def kv_value_bytes(self) -> float:
        """Of an element of the KV cache."""
        return 1.0 if self.kv_cache_dtype == "fp8" else value_bytes(self.dtype)


class RewardModel(Strict):
    """A reward model on scoring workers."""

    kind: Literal["model"]
    model: ModelRef
    device: DeviceRef | None = None
    tensor_parallel: Count = 1
    dtype: Dtype = "bf16"
    host: HostRef = "vllm"
    gpu_memory_utilization: Share = 0.9
    achievable: Achievable = Achievable()


class Verifier(Strict):
    """Rules instead of a model: a scoring batch costs fixed_s + per_token_s·tokens seconds of a host, and no
    device work."""

    kind: Literal["verifier"]
    fixed_s: NonNegative = 0.0
    per_token_s: NonNegative = 0.0
    device: DeviceRef | None = None
    """Where ``training.stream_ref`` runs the reference model; likewise the fields below."""
    tensor_parallel: Count = 1
    dtype: Dtype = "bf16"
    host: HostRef = "vllm"
    gpu_memory_utilization: Share = 0.9
    achievable: Achievable = Achievable()


class TrainingDevices(Strict):
    """The training group's devices and what they reach; their number is in ``training:``."""

    device: DeviceRef | None = None
    achievable: Achievable = Achievable()
    """What is left out: products reach ``TRAINER_GEMM``, or what is known of the device if that is less; a
    layer has no latency of its own; the rest is as known of the device."""
    fused_kernels: bool = False
    """Norms, rotary positions and the gate are one kernel each (Liger, Megatron); False: the transformers
    library's operators one by one."""
    link_bytes_per_s: Positive | None = None
    """Per direction and device, where it is not the device's own link (several nodes)."""
    offload_bytes_per_s: Positive = 4e9
    """Of a device to or from host memory for ``param_offload`` and ``optimizer_offload``, out and in: far
    below the link's rate where pages are new, or pinned anew (``docs/costs.md`` has the sources). The host
    link's rate where that is less."""
    memory_utilization: Share = 0.9
    micro_batch_overhead_s: NonNegative | None = None
    """Host and launch time of one forward of one micro-batch; its backward costs twice that. None: 20 ms with
    ``training.sharding: full``, whose hooks wait between micro-batches, and none without."""
    launch_per_layer_s: NonNegative | None = None
    """Of the host, for a layer of a forward: launching its kernels one by one. It bounds a forward of few
    tokens from below (``docs/costs.md`` has the sources); a backward takes it twice. None: 1.4 ms with
    ``training.sharding: full`` (transformers' layers, FSDP's hooks), 0.8 ms on one GPU with ``none``
    (transformers' layers alone), else 2.2 ms (Megatron's)."""
    old_log_prob_entropy: bool = True
    """``old_log_prob`` computes the entropy over the vocabulary, too, as verl's does."""
    tp_comm_overlap: bool = False
    """All-reduces of tensor parallelism run beside the matrix products (Megatron's field of this name)."""
    expert_dispatch: Literal["alltoall", "deepep"] = "alltoall"
    """How tokens get to their experts: a copy to each (Megatron's ``moe_token_dispatcher_type: alltoall``);
    or one to each node and device that has any of them (DeepEP, HybridEP; ``flex``)."""
    expert_launch_per_layer_s: NonNegative = 1e-3
    """What a layer of experts takes the host more: routing, permutations, and waiting for the number of
    tokens of each expert (experiments/trained)."""
    recompute_memory_factor: Share = 0.5
    recompute_speed_factor: Share = 0.8
    adv_fixed_s: NonNegative = 0.01
    adv_per_token_s: NonNegative = 2e-8
