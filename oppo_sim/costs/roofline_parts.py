"""The parts of a roofline section: engines, the host, the training devices, and what they achieve."""

from typing import Annotated, Literal

from pydantic import Field

from oppo_sim.costs.device import Device, Dtype
from oppo_sim.costs.models import ModelShape
from oppo_sim.costs.strict import Count, NonNegative, Positive, Share, Strict

ModelRef = str | ModelShape
"""A preset ("qwen2.5-7b"), a path to a Hugging Face ``config.json`` or its folder, or a shape inline."""
DeviceRef = str | Device
"""A device of ``devices.py`` by name, or its rates inline."""


class Achievable(Strict):
    """What of a datasheet's peak a kernel gets. Assumptions, not measurements: see docs/costs.md."""

    gemm: Share = 0.70
    attention: Share = 0.50
    memory: Share = 0.85
    link: Share = 0.70
    collective_latency_s: NonNegative = 8e-6
    """Of one collective between tensor-parallel devices."""
    layer_latency_s: NonNegative = 2e-5
    """Starts, tails and gaps of one layer's kernels, on the device."""


class HostOverheads(Strict):
    """What the host adds to an iteration."""

    per_iteration_s: NonNegative = 0.0
    per_rollout_s: NonNegative = 0.0
    launch_per_layer_s: NonNegative = 0.0
    """Launching a layer's kernels one by one; bounds an iteration from below (0 with CUDA graphs)."""
    kv_traffic_factor: Annotated[float, Field(ge=1)] = 1.0
    """KV traffic of an iteration over reading it once: 3 for a cache that is concatenated anew."""
    captured_batch_sizes: Annotated[tuple[Count, ...], Field(strict=False)] = ()
    """CUDA graphs exist for these batch sizes; smaller batches are padded to the next, larger ones not."""


HOST_SECONDS = tuple(name for name in HostOverheads.model_fields if name.endswith("_s"))
"""Fields of ``HostOverheads`` that are seconds."""

VLLM_BATCH_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Batch sizes that vLLM captures as CUDA graphs by default."""

HOSTS = {
    "vllm": HostOverheads(per_iteration_s=4e-4, per_rollout_s=4e-6, captured_batch_sizes=VLLM_BATCH_SIZES),
    "generate": HostOverheads(
        per_iteration_s=3e-3, per_rollout_s=2e-5, launch_per_layer_s=8e-4, kv_traffic_factor=3.0
    ),
}
"""``vllm``: graphs, a paged KV cache. ``generate``: a launch per kernel, a KV cache concatenated anew."""

HostRef = Literal["vllm", "generate"] | HostOverheads


def find_host(host: HostRef) -> HostOverheads:
    """A preset, or overheads given inline."""
    return host if isinstance(host, HostOverheads) else HOSTS[host]


class RolloutEngine(Strict):
    """One rollout replica."""

    device: DeviceRef | None = None
    """None: ``costs.device``; so everywhere below."""
    tensor_parallel: Count = 1
    dtype: Dtype = "bf16"
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    host: HostRef = "vllm"
    gpu_memory_utilization: Share = 0.9
    max_num_batched_tokens: Count = 8192
    """Tokens of one forward at most, for the activation memory set aside."""
    achievable: Achievable = Achievable()


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
    achievable: Achievable = Achievable(gemm=0.55, layer_latency_s=0.0)
    link_bytes_per_s: Positive | None = None
    """Per direction and device, where it is not the device's own link (several nodes)."""
    memory_utilization: Share = 0.9
    micro_batch_overhead_s: NonNegative = 0.02
    """Host and launch time of one forward of one micro-batch; its backward costs twice that."""
    recompute_memory_factor: Share = 0.5
    recompute_speed_factor: Share = 0.8
    adv_fixed_s: NonNegative = 0.01
    adv_per_token_s: NonNegative = 2e-8
