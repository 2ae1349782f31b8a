"""One accelerator in numbers. Dense rates (no sparsity), one direction for links, bytes, seconds."""

from typing import Literal

from oppo_sim.costs.strict import Positive, Strict
from oppo_sim.errors import OppoError

Dtype = Literal["bf16", "fp16", "fp8", "tf32", "float32"]
"""Of weights and matrix products. ``tf32`` stores 32 bits and multiplies on tensor cores, ``float32`` without
them."""


class Device(Strict):
    """One accelerator. Rates are peaks; what a kernel gets of them is in the ``achievable`` shares."""

    name: str
    hbm_bytes: Positive
    """Memory; the datasheets' GB of device memory are 2^30 bytes, less what error correction takes."""
    hbm_bytes_per_s: Positive
    bf16_flops: Positive
    """Dense tensor-core rate for bf16 and fp16."""
    fp8_flops: Positive | None = None
    tf32_flops: Positive | None = None
    float32_flops: Positive | None = None
    link_bytes_per_s: Positive
    """To the other devices of a node, per direction (half of what datasheets call total bandwidth)."""
    host_link_bytes_per_s: Positive
    """To host memory, per direction."""
    source: str

    def flops(self, dtype: Dtype) -> float:
        """Dense peak for a dtype, per second. Raises OppoError where the device has none."""
        if dtype in ("bf16", "fp16"):
            return self.bf16_flops
        found: float | None = getattr(self, f"{dtype}_flops")
        if found is None:
            raise OppoError(f"device {self.name} has no {dtype} arithmetic that is known; use dtype bf16")
        return found


def value_bytes(dtype: Dtype) -> float:
    """Bytes of an activation, and of a weight that is not in fp8."""
    return 4.0 if dtype in ("tf32", "float32") else 2.0


def weight_value_bytes(dtype: Dtype) -> float:
    """Bytes of a weight in a layer's matrices."""
    return 1.0 if dtype == "fp8" else value_bytes(dtype)
