"""Devices whose kernels were measured, and the measured ones that stand in for others.

Systems, engines and versions as ``aiconfigurator-core`` 0.12 names them; of each system one version of an
engine is complete.
"""

from typing import Final, Literal

from oppo_sim.costs.devices import Device, find_device
from oppo_sim.costs.strict import NonNegative, Strict
from oppo_sim.errors import OppoError

KernelEngine = Literal["vllm", "sglang", "trtllm"]

SYSTEMS: Final = {
    "A100-80": "a100_sxm",
    "H100": "h100_sxm",
    "H200": "h200_sxm",
    "B200": "b200_sxm",
    "B300": "b300_sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "L40S": "l40s",
    "RTX-PRO-6000": "rtx_pro_6000_server",
}
"""By our name of the device."""

STAND_INS: Final = {
    "A100-40": "A100-80",
    "A100-80-PCIe": "A100-80",
    "A800-40": "A100-80",
    "A800-80": "A100-80",
    "A30": "A100-80",
    "A40": "L40S",
    "GH200": "H200",
    "GH200-144": "H200",
    "H100-PCIe": "H100",
    "H800": "H100",
    "H20": "H100",
    "L20": "L40S",
    "L4": "L40S",
}
"""The measured device of the same generation, or the nearest one, whose kernels are scaled."""

_VERSIONS: Final[dict[KernelEngine, dict[str, str]]] = {
    "vllm": {"a100_sxm": "0.14.0", "": "0.24.0"},
    "sglang": {"a100_sxm": "0.5.10", "": "0.5.14"},
    "trtllm": {"a100_sxm": "1.0.0", "": "1.3.0rc20"},
}
"""By system; "" for all others."""


_SAME_CHIP: Final = frozenset({"A100-40", "A100-80-PCIe", "A800-40", "A800-80", "H800", "GH200", "GH200-144"})
"""Stand-ins are this very chip, with other memory or links."""


class KernelSource(Strict):
    """Whose kernels: the engine that ran them while they were measured."""

    engine: KernelEngine = "vllm"
    version: str | None = None
    """None: the newest that was measured on the device."""
    device: str | None = None
    """A measured device whose kernels are scaled to the requested one; None: the device itself, or
    its stand-in."""
    fp8_scales: Literal["auto", "static", "dynamic", "block"] = "auto"
    """With dtype fp8: scales fixed in the checkpoint, taken of every token as it runs, or of blocks of 128;
    auto: static, and block for a mixture of experts, as most public checkpoints are."""
    layer_gap_s: NonNegative = 0.0
    """Seconds of the device a layer beside its kernels, whose own starts and ends are in the tables."""


def measured_device(device: Device, source: KernelSource) -> Device:
    """The device whose kernels answer for ``device``. Raises OppoError where there is none."""
    wanted = device.name if source.device is None else find_device(source.device).name
    known = wanted if wanted in SYSTEMS else STAND_INS.get(wanted)
    if source.device is not None and wanted not in SYSTEMS:
        raise OppoError(
            f"costs: kernels.device {wanted}: its kernels were not measured; take one of {', '.join(SYSTEMS)}"
        )
    if known is None:
        raise OppoError(
            f"costs: the kernels of device {wanted} were not measured: take kind: roofline, or name in"
            f" kernels.device a measured one to scale by the ratio of datasheets: {', '.join(SYSTEMS)}"
        )
    return find_device(known)


def own_kernels(device: Device, source: KernelSource) -> bool:
    """The kernels were measured on the device, or on its chip: not scaled from another chip's."""
    return source.device is None and (device.name in SYSTEMS or device.name in _SAME_CHIP)


def newest_version(engine: KernelEngine, system: str) -> str:
    """Of the engine, among those measured on the system."""
    versions = _VERSIONS[engine]
    return versions.get(system, versions[""])
