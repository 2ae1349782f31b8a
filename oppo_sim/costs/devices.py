"""Devices that are known by name, each with the datasheet its numbers come from."""

import difflib

from oppo_sim.costs.device import Device, Dtype
from oppo_sim.errors import OppoError

__all__ = ["DEVICES", "Device", "Dtype", "find_device"]

_GIB = 2**30


def _device(
    name: str,
    gib: float,
    gb_s: float,
    bf16: float,
    fp8: float | None,
    tf32: float,
    float32: float,
    link: float,
    host: float,
    source: str,
) -> Device:
    """GiB, GB/s, TFLOP/s, GB/s a direction."""
    return Device(
        name=name,
        hbm_bytes=gib * _GIB,
        hbm_bytes_per_s=gb_s * 1e9,
        bf16_flops=bf16 * 1e12,
        fp8_flops=None if fp8 is None else fp8 * 1e12,
        tf32_flops=tf32 * 1e12,
        float32_flops=float32 * 1e12,
        link_bytes_per_s=link * 1e9,
        host_link_bytes_per_s=host * 1e9,
        source=source,
    )


_A100 = (
    "NVIDIA A100 Tensor Core GPU datasheet (June 2021), SXM4: 312 TFLOP/s, NVLink 600 GB/s total, PCIe Gen4"
    " 64 GB/s total"
)
_A800 = "NVIDIA A800: an A100 (its datasheet) with NVLink at 400 GB/s total"
_A100_PCIE = (
    "NVIDIA A100 Tensor Core GPU datasheet (June 2021), 80 GB PCIe: 1,935 GB/s, PCIe Gen4 64 GB/s total; no"
    " NVLink bridge"
)
_H100 = (
    "NVIDIA H100 Tensor Core GPU datasheet, SXM5: 1,979 TFLOP/s bf16 with sparsity (half dense), NVLink 900"
    " GB/s, PCIe Gen5 128 GB/s"
)
_H100_PCIE = (
    "NVIDIA H100 PCIe product brief: 80 GB HBM2e at 2,000 GB/s, 1,513 TFLOP/s bf16 with sparsity (half),"
    " PCIe Gen5 128 GB/s total; no NVLink bridge"
)
_H200 = (
    "NVIDIA H200 Tensor Core GPU datasheet, SXM: 141 GB HBM3e at 4.8 TB/s, 1,979 TFLOP/s bf16 with sparsity,"
    " NVLink 900 GB/s"
)
_GH200 = (
    "NVIDIA GH200 Grace Hopper Superchip datasheet: 990 TFLOP/s bf16, NVLink 900 GB/s total, NVLink-C2C to"
    " the CPU 900 GB/s total"
)
_B200 = (
    "NVIDIA HGX B200 datasheet, one of eight: 180 GB HBM3e, 62 TB/s for eight, 4,500 TFLOP/s bf16 and 9,000"
    " fp8 with sparsity (half dense), NVLink 1.8 TB/s total, PCIe Gen5"
)
_B300 = (
    "NVIDIA HGX B300 datasheet, one of eight: 2,250 TFLOP/s bf16 dense, NVLink 1.8 TB/s total, PCIe Gen6;"
    " memory as nvidia-smi reports it (275,040 MiB)"
)
_GB200 = (
    "NVIDIA GB200 NVL72 datasheet, one of two devices of a superchip: 8 TB/s HBM3e, 5,000 TFLOP/s bf16 with"
    " sparsity (half dense), NVLink 1.8 TB/s total; NVLink-C2C of 900 GB/s total halved between the two;"
    " memory as nvidia-smi reports it (189,471 MiB)"
)
_GB300 = (
    "NVIDIA GB300 NVL72 datasheet, one of two devices of a superchip: 8 TB/s HBM3e, 2,500 TFLOP/s bf16 dense,"
    " NVLink 1.8 TB/s total, C2C as of the GB200; memory as nvidia-smi reports it (284,208 MiB)"
)
_L40S = (
    "NVIDIA L40S datasheet: 48 GB GDDR6 (in-line ECC takes 1/16), 864 GB/s, 362 TFLOP/s bf16, no NVLink, PCIe"
    " Gen4 64 GB/s total"
)
_A40 = (
    "NVIDIA A40 datasheet: 48 GB GDDR6 (in-line ECC takes 1/16), 696 GB/s, 149.7 TFLOP/s bf16, PCIe Gen4;"
    " NVLink 112.5 GB/s joins pairs only and is not counted"
)
_H20 = (
    "NVIDIA H20, as reported from its brief for partners (no public datasheet): 96 GB HBM3 at 4.0 TB/s, 148"
    " TFLOP/s bf16, 296 fp8, 74 tf32, 44 float32, NVLink 900 GB/s total, PCIe Gen5"
)
_H800 = "NVIDIA H800 SXM5: an H100 (its datasheet) with NVLink at 400 GB/s total"
_L20 = (
    "NVIDIA L20, as reported from its brief for partners (no public datasheet): 48 GB GDDR6 (ECC takes 1/16),"
    " 864 GB/s, 119.5 TFLOP/s bf16, 239 fp8, no NVLink, PCIe Gen4"
)
_L4 = "NVIDIA L4 datasheet: 24 GB GDDR6 (ECC takes 1/16), 300 GB/s, 242 TFLOP/s bf16 with sparsity, PCIe Gen4"
_A30 = "NVIDIA A30 datasheet: 24 GB HBM2 at 933 GB/s, 165 TFLOP/s bf16, PCIe Gen4; NVLink joins pairs only"
_RTX = (
    "NVIDIA RTX PRO 6000 Blackwell Server Edition datasheet: 96 GB GDDR7 at 1,597 GB/s, 117 TFLOP/s float32"
    " (bf16 four times as many), PCIe Gen5; memory as nvidia-smi reports it (97,887 MiB)"
)
_MI300X = (
    "AMD Instinct MI300X datasheet: 192 GB HBM3 at 5.3 TB/s, 1,307.4 TFLOP/s bf16, 2,614.9 fp8, 653.7 tf32,"
    " 163.4 float32, seven Infinity Fabric links of 128 GB/s total, PCIe Gen5"
)

DEVICES = {
    device.name: device
    for device in (
        _device("A100-40", 40, 1555, 312, None, 156, 19.5, 300, 32, _A100 + "; 40 GB HBM2 at 1,555 GB/s"),
        _device("A100-80", 80, 2039, 312, None, 156, 19.5, 300, 32, _A100 + "; 80 GB HBM2e at 2,039 GB/s"),
        _device("A100-80-PCIe", 80, 1935, 312, None, 156, 19.5, 32, 32, _A100_PCIE),
        _device("A800-40", 40, 1555, 312, None, 156, 19.5, 200, 32, _A800 + "; 40 GB HBM2 at 1,555 GB/s"),
        _device("A800-80", 80, 2039, 312, None, 156, 19.5, 200, 32, _A800 + "; 80 GB HBM2e at 2,039 GB/s"),
        _device("H100", 80, 3350, 989.5, 1979, 494.7, 67, 450, 64, _H100 + "; 80 GB HBM3 at 3.35 TB/s"),
        _device("H100-PCIe", 80, 2000, 756, 1513, 378, 51, 64, 64, _H100_PCIE),
        _device("H200", 141, 4800, 989.5, 1979, 494.7, 67, 450, 64, _H200),
        _device("H800", 80, 3350, 989.5, 1979, 494.7, 67, 200, 64, _H800 + "; 80 GB HBM3 at 3.35 TB/s"),
        _device("H20", 96, 4000, 148, 296, 74, 44, 450, 64, _H20),
        _device("GH200", 96, 4000, 990, 1979, 494, 67, 450, 450, _GH200 + "; 96 GB HBM3 at 4 TB/s"),
        _device("GH200-144", 144, 4900, 990, 1979, 494, 67, 450, 450, _GH200 + "; 144 GB HBM3e at 4.9 TB/s"),
        _device("B200", 180, 7700, 2250, 4500, 1125, 75, 900, 64, _B200),
        _device("GB200", 185, 8000, 2500, 5000, 1250, 80, 900, 225, _GB200),
        _device("B300", 268.5, 7750, 2250, 4500, 1125, 75, 900, 128, _B300),
        _device("GB300", 277.5, 8000, 2500, 5000, 1250, 80, 900, 225, _GB300),
        _device("A40", 45, 696, 149.7, None, 74.8, 37.4, 32, 32, _A40),
        _device("A30", 24, 933, 165, None, 82, 10.3, 32, 32, _A30),
        _device("L4", 22.5, 300, 121, 242.5, 60, 30.3, 32, 32, _L4),
        _device("L20", 45, 864, 119.5, 239, 59.8, 59.8, 32, 32, _L20),
        _device("L40S", 45, 864, 362, 733, 183, 91.6, 32, 32, _L40S),
        _device("RTX-PRO-6000", 95.6, 1597, 468, 936, 234, 117, 64, 64, _RTX),
        _device("MI300X", 192, 5300, 1307.4, 2614.9, 653.7, 163.4, 448, 64, _MI300X),
    )
}


def find_device(device: "str | Device") -> Device:
    """A device by name, whatever its case, or given inline. Raises OppoError for an unknown name."""
    if isinstance(device, Device):
        return device
    for name, found in DEVICES.items():
        if name.lower() == device.lower():
            return found
    names = {name.lower(): name for name in DEVICES}
    given = device.lower()
    # A name without its memory (A100), or one as its driver gives it (NVIDIA H100 80GB HBM3).
    close = [name for name in names if given and name.startswith(given)]
    close = close or sorted((name for name in names if name in given), key=len)[-1:]
    close = close or difflib.get_close_matches(given, names, n=1)
    hint = f"did you mean {' or '.join(repr(names[name]) for name in close)}? " if close else ""
    raise OppoError(
        f"costs: no device {device!r}; {hint}give a name that 'oppo scenario devices' lists, or in the file"
        ' its rates (docs/costs.md, "A device that is not listed")'
    )
