"""How a model is divided among devices, and the rates that each of them achieves."""

from dataclasses import dataclass
from typing import NamedTuple

from oppo_sim.costs.achieved import Achievable, Collective, achieved, all_reduce
from oppo_sim.costs.device import Device, Dtype, value_bytes, weight_value_bytes
from oppo_sim.costs.model_shape import ModelShape


class Rates(NamedTuple):
    """What one device achieves, per second."""

    gemm: float
    head: float
    attention: float
    memory: float
    all_reduce: Collective
    all_to_all: Collective
    """Between sequence-parallel devices; bytes that one device sends."""


@dataclass(frozen=True)
class Split:
    """A model on ``tensor_parallel`` devices; ``kv_bytes`` of an element of the KV cache."""

    shape: ModelShape
    tensor_parallel: int
    dtype: Dtype
    kv_bytes: float
    rates: Rates
    sequence_parallel: int = 1
    """Devices among which the tokens of a sequence lie; each runs its own."""
    pipeline_parallel: int = 1
    """Stages that the layers are divided among."""
    expert_parallel: int = 1
    """Devices that the experts of a layer are divided among."""
    expert_tensor_parallel: int | None = None
    """Devices that share an expert; None: ``tensor_parallel``."""
    expert_link: Collective | None = None
    """Between the devices of the experts; bytes that one device sends. None: as ``rates.all_to_all``."""
    sequence_link: Collective | None = None
    """Likewise between sequence-parallel devices."""
    gather: Collective | None = None
    """An all-reduce between all devices of an inference engine, which gathers all tokens before its experts
    and sums what they give (vLLM's, SGLang's and TensorRT-LLM's default). None: all-to-alls."""

    @property
    def experts_apart(self) -> bool:
        """Whether experts lie on other devices than what tensor parallelism divides."""
        return self.expert_parallel > 1 or self.devices_of_an_expert != self.tensor_parallel

    @property
    def devices_of_an_expert(self) -> int:
        """That share its matrices."""
        return self.expert_tensor_parallel or self.tensor_parallel

    @property
    def expert_ranks(self) -> float:
        """Ranks whose tokens a layer's experts run together."""
        return self.expert_parallel * self.devices_of_an_expert / self.tensor_parallel

    @property
    def weight_bytes_per_param(self) -> float:
        return weight_value_bytes(self.dtype)

    @property
    def activation_bytes(self) -> float:
        """Of a value of activations, embeddings and the output head: 16 bits, also with fp8 weights."""
        return value_bytes(self.dtype)

    @property
    def kv_bytes_per_token(self) -> float:
        """On one device."""
        return self.shape.kv_bytes_per_token(self.kv_bytes, self.tensor_parallel)


def achievable_rates(
    device: Device, dtype: Dtype, shares: Achievable, degree: int = 1, link_bytes_per_s: float | None = None
) -> Rates:
    """The datasheet's rates times the achievable shares, between ``degree`` tensor-parallel devices. Raises
    OppoError for a dtype the device lacks."""
    activations = device.bf16_flops if dtype == "fp8" else device.flops(dtype)
    found = achieved(device, shares)
    link = device.link_bytes_per_s if link_bytes_per_s is None else link_bytes_per_s
    return Rates(
        gemm=device.flops(dtype) * found.gemm,
        head=activations * found.gemm,
        attention=activations * found.attention,
        memory=device.hbm_bytes_per_s * found.memory,
        all_reduce=all_reduce(device, shares, degree, link_bytes_per_s),
        all_to_all=Collective(found.collective_latency_s, link * found.link),
    )
