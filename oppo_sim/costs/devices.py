"""Devices: what datasheets say. Dense rates (no sparsity), one direction for links, bytes, seconds."""

from typing import Literal

from oppo_sim.costs.strict import Positive, Strict
from oppo_sim.errors import OppoError

Dtype = Literal["bf16", "fp16", "fp8"]
_GIB = 2**30


class Device(Strict):
    """One accelerator. Rates are peaks; what a kernel gets of them is in the ``achievable`` shares."""

    name: str
    hbm_bytes: Positive
    """Memory; the datasheets' GB of device memory are 2^30 bytes."""
    hbm_bytes_per_s: Positive
    bf16_flops: Positive
    """Dense tensor-core rate for bf16 and fp16."""
    fp8_flops: Positive | None = None
    link_bytes_per_s: Positive
    """To the other devices of a node, per direction (half of what datasheets call total bandwidth)."""
    host_link_bytes_per_s: Positive
    """To host memory, per direction."""
    source: str

    def flops(self, dtype: Dtype) -> float:
        """Dense peak for a dtype, per second. Raises OppoError where the device has none."""
        if dtype != "fp8":
            return self.bf16_flops
        if self.fp8_flops is None:
            raise OppoError(f"device {self.name} has no fp8 arithmetic; use dtype bf16")
        return self.fp8_flops

    def slower(self, *, memory: float, arithmetic: float, link: float = 1.0) -> "Device":
        """With rates divided."""
        device = self.times(1.0 / memory, "hbm_bytes_per_s")
        device = device.times(1.0 / arithmetic, "bf16_flops", "fp8_flops")
        return device.times(1.0 / link, "link_bytes_per_s", "host_link_bytes_per_s")


def _device(
    name: str, gib: float, gb_s: float, bf16: float, fp8: float | None, link: float, host: float, source: str
) -> Device:
    return Device(
        name=name,
        hbm_bytes=gib * _GIB,
        hbm_bytes_per_s=gb_s * 1e9,
        bf16_flops=bf16 * 1e12,
        fp8_flops=None if fp8 is None else fp8 * 1e12,
        link_bytes_per_s=link * 1e9,
        host_link_bytes_per_s=host * 1e9,
        source=source,
    )


_A100 = (
    "NVIDIA A100 Tensor Core GPU datasheet (June 2021), SXM4: 312 TFLOP/s, NVLink 600 GB/s total, PCIe Gen4"
    " 64 GB/s total"
)
_H100 = (
    "NVIDIA H100 Tensor Core GPU datasheet, SXM5: 1,979 TFLOP/s bf16 with sparsity (half dense), NVLink 900"
    " GB/s, PCIe Gen5 128 GB/s"
)
_H200 = (
    "NVIDIA H200 Tensor Core GPU datasheet, SXM: 141 GB HBM3e at 4.8 TB/s, 1,979 TFLOP/s bf16 with sparsity,"
    " NVLink 900 GB/s"
)
_GH200 = (
    "NVIDIA GH200 Grace Hopper Superchip datasheet: 990 TFLOP/s bf16, NVLink 900 GB/s total, NVLink-C2C to"
    " the CPU 900 GB/s total"
)
_L40S = (
    "NVIDIA L40S datasheet: 48 GB GDDR6 (in-line ECC takes 1/16), 864 GB/s, 362 TFLOP/s bf16, no NVLink, PCIe"
    " Gen4 64 GB/s total"
)

DEVICES = {
    device.name: device
    for device in (
        _device("A100-40", 40, 1555, 312, None, 300, 32, _A100 + "; 40 GB HBM2 at 1,555 GB/s"),
        _device("A100-80", 80, 2039, 312, None, 300, 32, _A100 + "; 80 GB HBM2e at 2,039 GB/s"),
        _device("H100", 80, 3350, 989.5, 1979, 450, 64, _H100 + "; 80 GB HBM3 at 3.35 TB/s"),
        _device("H200", 141, 4800, 989.5, 1979, 450, 64, _H200),
        _device("GH200", 96, 4000, 990, 1979, 450, 450, _GH200 + "; 96 GB HBM3 at 4 TB/s"),
        _device("GH200-144", 144, 4900, 990, 1979, 450, 450, _GH200 + "; 144 GB HBM3e at 4.9 TB/s"),
        _device("L40S", 45, 864, 362, 733, 32, 32, _L40S),
    )
}


def find_device(device: "str | Device") -> Device:
    """A device by name, whatever its case, or given inline. Raises OppoError for an unknown name."""
    if isinstance(device, Device):
        return device
    for name, found in DEVICES.items():
        if name.lower() == device.lower():
            return found
    raise OppoError(f"costs: no device {device!r}; known are {', '.join(DEVICES)}, or give its rates inline")
