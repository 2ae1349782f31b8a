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

    def on(self, layers: float, tensor_parallel: int) -> "HostOverheads":
        """For a model of so many layers on so many devices: what ranks wait is in ``per_iteration_s``."""
        if tensor_parallel == 1 or not self.rank_wait_s:
            return self
        waits = 2 * layers * tensor_parallel * self.rank_wait_s
        return self.model_copy(update={"per_iteration_s": self.per_iteration_s + waits, "rank_wait_s": 0.0})


HOST_SECONDS = tuple(name for name in HostOverheads.model_fields if name.endswith("_s"))
"""Fields of ``HostOverheads`` that are seconds."""

VLLM_BATCH_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Batch sizes that vLLM captures as CUDA graphs by default."""

OLDER_MACHINE = 1.8
"""Seconds of the host in machines of Ampere over those in machines of Hopper, whose processors are younger:
1.7, 1.8 and 2.0 by launches, seconds a rollout and waits of ranks, each fitted in both (docs/costs.md)."""
_OLDER_MACHINES = ("A100", "A800", "A30", "A40")

_VLLM = HostOverheads(
    per_iteration_s=4.5e-4,
    per_rollout_s=3.5e-5,
    rank_wait_s=7e-7,
    captured_batch_sizes=VLLM_BATCH_SIZES,
)

HOSTS = {
    "vllm": _VLLM,
    "vllm-eager": _VLLM.model_copy(
        update={"launch_per_layer_s": 6e-4 / OLDER_MACHINE, "captured_batch_sizes": ()}
    ),
    "vllm-async": HostOverheads(
        per_iteration_s=2.1e-3 / OLDER_MACHINE,
        per_rollout_s=6.4e-5 / OLDER_MACHINE,
        rank_wait_s=1.4e-6 / OLDER_MACHINE,
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
loop, a KV cache concatenated anew. In a machine with devices of Hopper; ``find_host`` knows the others."""

HostRef = Literal["vllm", "vllm-eager", "vllm-async", "sglang", "trtllm", "generate"] | HostOverheads


def find_host(host: HostRef, device: Device) -> HostOverheads:
    """Overheads given inline, or a preset in the machines that the device comes in. ``generate`` is the same
    in all: it was measured in one."""
    if isinstance(host, HostOverheads):
        return host
    preset = HOSTS[host]
    if host == "generate" or not device.name.startswith(_OLDER_MACHINES):
        return preset
    return preset.model_copy(update={name: OLDER_MACHINE * getattr(preset, name) for name in HOST_SECONDS})
