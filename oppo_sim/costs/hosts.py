"""What the host adds to an iteration of an engine: presets, each with what its numbers were taken from.

docs/costs.md says which public measurements a number was fitted to: served Llama 3.1 on vLLM, SGLang and
TensorRT-LLM, vLLM of 2023 without CUDA graphs, steps of an open verl run on four A800.
"""

from typing import Annotated, Literal

from pydantic import Field

from oppo_sim.costs.device import Device
from oppo_sim.costs.strict import Count, NonNegative, Strict


class HostOverheads(Strict):
    """What the host adds to an iteration."""

    per_iteration_s: NonNegative = 0.0
    per_rollout_s: NonNegative = 0.0
    launch_per_layer_s: NonNegative = 0.0
    """Launching a layer's kernels one by one; bounds an iteration from below (0 with CUDA graphs)."""
    rank_wait_s: NonNegative = 0.0
    """Of each of the two all-reduces of a layer and each tensor-parallel rank: the slowest rank comes late.
    What the kernels take is not in it."""
    kv_traffic_factor: Annotated[float, Field(ge=1)] = 1.0
    """KV traffic of an iteration over reading it once: 3 for a cache that is concatenated anew."""
    captured_batch_sizes: Annotated[tuple[Count, ...], Field(strict=False)] = ()
    """CUDA graphs exist for these batch sizes; smaller batches are padded to the next, larger ones not."""

    def on(self, layers: int, tensor_parallel: int) -> "HostOverheads":
        """For a model of so many layers on so many devices: what ranks wait is in ``per_iteration_s``."""
        if tensor_parallel == 1 or not self.rank_wait_s:
            return self
        waits = 2 * layers * tensor_parallel * self.rank_wait_s
        return self.model_copy(update={"per_iteration_s": self.per_iteration_s + waits, "rank_wait_s": 0.0})


HOST_SECONDS = tuple(name for name in HostOverheads.model_fields if name.endswith("_s"))
"""Fields of ``HostOverheads`` that are seconds."""

VLLM_BATCH_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Batch sizes that vLLM captures as CUDA graphs by default."""

_VLLM = HostOverheads(
    per_iteration_s=4.5e-4,
    per_rollout_s=3.5e-5,
    rank_wait_s=7e-7,
    captured_batch_sizes=VLLM_BATCH_SIZES,
)

HOSTS = {
    "vllm": _VLLM,
    "vllm-eager": _VLLM.model_copy(update={"launch_per_layer_s": 6e-4, "captured_batch_sizes": ()}),
    "vllm-async": HostOverheads(
        per_iteration_s=2.1e-3,
        per_rollout_s=6.4e-5,
        rank_wait_s=1.4e-6,
        captured_batch_sizes=VLLM_BATCH_SIZES,
    ),
    "sglang": HostOverheads(per_rollout_s=1.7e-5, captured_batch_sizes=VLLM_BATCH_SIZES),
    "trtllm": HostOverheads(captured_batch_sizes=VLLM_BATCH_SIZES),
    "generate": HostOverheads(
        per_iteration_s=3e-3, per_rollout_s=2e-5, launch_per_layer_s=8e-4, kv_traffic_factor=3.0
    ),
}
"""``vllm``: CUDA graphs. ``vllm-eager``: ``enforce_eager``, a launch per kernel. ``vllm-async``: the server
that verl runs (``rollout.mode: async``), whose every token passes an event loop. ``sglang``, ``trtllm``: the
next iteration is prepared while the device computes this one. ``generate``: a transformers
loop, a KV cache concatenated anew."""

HostRef = Literal["vllm", "vllm-eager", "vllm-async", "sglang", "trtllm", "generate"] | HostOverheads


EAGER_LAUNCH_HOPPER_S = 3.5e-4
"""``launch_per_layer_s`` of ``vllm-eager`` in machines of Hopper and later, whose processors are younger than
those beside an A100: with models of 7B and more three of H100 took 0.28 to 0.38 ms (docs/costs.md)."""
_HOPPER_AND_LATER = ("H100", "H800", "H20", "H200", "GH200", "B200", "GB200", "B300", "GB300")


def find_host(host: HostRef, device: Device) -> HostOverheads:
    """Overheads given inline, or a preset, as machines with the device have it."""
    if isinstance(host, HostOverheads):
        return host
    if host == "vllm-eager" and device.name.startswith(_HOPPER_AND_LATER):
        return HOSTS[host].model_copy(update={"launch_per_layer_s": EAGER_LAUNCH_HOPPER_S})
    return HOSTS[host]
