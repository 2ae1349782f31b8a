"""What devices achieve of their datasheet, from public kernel measurements; and the collectives between them.

Shares were fitted to NVIDIA's measured kernel tables (aiconfigurator-core 0.12, vLLM, bf16) put together for
Qwen2.5 3B and 7B and Llama 3 8B on one device; collectives to its all-reduce tables (vLLM with CUDA graphs,
4 KB to 256 MB). docs/costs.md has the errors that remain.
"""

from math import log2
from typing import NamedTuple

from oppo_sim.costs.device import Device
from oppo_sim.costs.strict import NonNegative, Share, Strict


class Achievable(Strict):
    """What of a datasheet's peak a kernel gets; None: as known of the device, else a general assumption."""

    gemm: Share | None = None
    attention: Share | None = None
    memory: Share | None = None
    link: Share | None = None
    collective_latency_s: NonNegative | None = None
    """Of one collective between tensor-parallel devices. Where it or ``link`` is given, collectives are
    rings: latency + 2·(t−1)/t · bytes / link."""
    layer_latency_s: NonNegative | None = None
    """Starts, tails and gaps of one layer's kernels, on the device."""
    expert_layer_latency_s: NonNegative | None = None
    """What a layer of experts takes more, on the device: routing, sorting of tokens, starts."""
    latent_layer_latency_s: NonNegative | None = None
    """Likewise one with latent attention, which has more kernels."""


class Collective(NamedTuple):
    """An all-reduce: seconds whatever its size, and bytes of the message a second."""

    latency_s: float
    bytes_per_s: float


class Achieved(NamedTuple):
    """Shares with nothing left open."""

    gemm: float
    attention: float
    memory: float
    layer_latency_s: float
    link: float = 0.70
    collective_latency_s: float = 8e-6
    expert_layer_latency_s: float = 4.5e-5
    latent_layer_latency_s: float = 4e-5
    """Both of served mixtures of experts on H200, B200 and B300 (experiments/served): 60 and 20 µs in one
    half of the engines, 42 and 40 in the other."""


_GENERAL = Achieved(gemm=0.70, attention=0.50, memory=0.85, layer_latency_s=2e-5)
"""Where no kernel of a device was measured."""
_A100 = Achieved(gemm=0.80, attention=0.64, memory=0.75, layer_latency_s=6.7e-5)
_H100 = Achieved(gemm=0.77, attention=0.67, memory=0.89, layer_latency_s=4.1e-5)
_H200 = Achieved(gemm=0.75, attention=0.62, memory=0.87, layer_latency_s=4.2e-5)
_L40S = Achieved(gemm=0.65, attention=0.39, memory=0.79, layer_latency_s=1.0e-5)
_PRODUCTS = {"A100-80-PCIe": 252.9 / 271.2, "H20": (141.9 / 148.0) / (789.2 / 989.5)}
"""What products reach of the peak, over what they reach on the device that shares the table: TFLOP/s of
PyTorch's best bf16 products. A card of 300 W beside one of 400 W (github.com/stas00/ml-engineering @744d01e1,
compute/accelerator); an H20, whose few units are never short of power, beside an H100
(github.com/zzc0721/torch-performance-test-data @bbb8e247, database.md)."""
_ACHIEVED = {
    "A100-40": _A100,
    "A100-80": _A100,
    "A800-40": _A100,
    "A800-80": _A100,
    "A100-80-PCIe": _A100._replace(gemm=_A100.gemm * _PRODUCTS["A100-80-PCIe"]),
    "A30": _A100,
    "H100": _H100,
    "H800": _H100,
    # Attention: FlashAttention 3 of 2,048 tokens, 0.73 with a causal mask and 0.85 without
    # (github.com/Dao-AILab/flash-attention/issues/1310); FlashMLA 0.87 (deepseek-ai/FlashMLA/issues/30).
    "H20": _H100._replace(gemm=_H100.gemm * _PRODUCTS["H20"], attention=0.80),
    "H100-PCIe": _H100,
    "H200": _H200,
    "GH200": _H200,
    "GH200-144": _H200,
    "B200": Achieved(gemm=0.65, attention=0.60, memory=0.91, layer_latency_s=4.0e-5),
    "GB200": Achieved(gemm=0.60, attention=0.45, memory=0.92, layer_latency_s=4.3e-5),
    "B300": Achieved(gemm=0.70, attention=0.69, memory=0.89, layer_latency_s=3.8e-5),
    "GB300": Achieved(gemm=0.73, attention=0.69, memory=0.87, layer_latency_s=4.0e-5),
    # Layers of vidur's profiling (github.com/microsoft/vidur); attention is not in them.
    "A40": Achieved(gemm=0.74, attention=0.50, memory=0.79, layer_latency_s=2.2e-5),
    "L4": _L40S,
    "L20": _L40S,
    "L40S": _L40S,
    "RTX-PRO-6000": Achieved(gemm=0.82, attention=0.68, memory=0.93, layer_latency_s=3.2e-5),
    # No kernel of a layer was measured; PyTorch's best bf16 products are (as in ``_PRODUCTS``).
    "MI300X": _GENERAL._replace(gemm=668.4 / 1307.4),
}
"""Devices without a table of their own have that of the same architecture (A800, A30, PCIe cards: A100; H800,
H20, PCIe cards: H100; GH200: H200; L4, L20: L40S), products as ``_PRODUCTS`` says."""


def _by_degree(*pairs: tuple[float, float]) -> dict[int, Collective]:
    """Microseconds and GB/s for 2, 4 and 8 devices."""
    return {2 << i: Collective(us * 1e-6, gb_s * 1e9) for i, (us, gb_s) in enumerate(pairs)}


_NVLINK_A100 = _by_degree((5.1, 181), (5.9, 118), (7.8, 104))
_NVLINK_A800 = _by_degree((5.1, 121), (5.9, 79), (7.8, 69))  # two thirds of the links
_NVLINK_H100 = _by_degree((4.3, 259), (4.9, 179), (6.1, 194))
_NVLINK_H200 = _by_degree((4.4, 261), (5.0, 189), (6.2, 207))
_COLLECTIVES = {
    "A100-40": _NVLINK_A100,
    "A100-80": _NVLINK_A100,
    "A800-40": _NVLINK_A800,
    "A800-80": _NVLINK_A800,
    "H100": _NVLINK_H100,
    "H800": _by_degree((4.3, 115), (4.9, 80), (6.1, 86)),  # four ninths of the links
    "H20": _NVLINK_H200,
    "H200": _NVLINK_H200,
    "GH200": _NVLINK_H200,
    "GH200-144": _NVLINK_H200,
    "B200": _by_degree((7.0, 419), (7.3, 300), (8.4, 309)),
    "GB200": _by_degree((5.2, 183), (5.4, 232)),
    "B300": _by_degree((7.0, 423), (7.2, 301), (8.3, 324)),
    "GB300": _by_degree((7.5, 444), (8.0, 312), (14.0, 340)),
    "L40S": _by_degree((5.4, 19), (11.1, 2.8), (20.3, 1.2)),  # a host without peer-to-peer over PCIe
    "RTX-PRO-6000": _by_degree((4.4, 37), (14.0, 19), (26.3, 13)),
}


TRAINER_GEMM = 0.73
"""Of the peak, what PyTorch's matrix products reach in vidur's profiles of whole layers (A100 0.73, H100
0.72, A40 0.74)."""
_SUSTAINED_GEMM = dict.fromkeys(("H100", "H100-PCIe", "H800", "H200", "GH200", "GH200-144"), 0.63)
"""Likewise over steps of training, where that is less: a Hopper GPU lowers its clock when products run for
long (experiments/trained, one half of the models)."""


def trainer_shares(device: Device, given: Achievable) -> Achievable:
    """``given`` with what a trainer's forward reaches where it says nothing."""
    known = achieved(device, given)
    most = _SUSTAINED_GEMM.get(device.name, TRAINER_GEMM) * _PRODUCTS.get(device.name, 1.0)
    gemm = min(known.gemm, most) if given.gemm is None else given.gemm
    latency_s = 0.0 if given.layer_latency_s is None else given.layer_latency_s
    return given.model_copy(update={"gemm": gemm, "layer_latency_s": latency_s})


def achieved(device: Device, given: Achievable) -> Achieved:
    """What is given, else what is known of the device."""
    known = _ACHIEVED.get(device.name, _GENERAL)
    return known._replace(**{name: value for name, value in given if value is not None})


def kernels_known(device: Device, given: Achievable) -> bool:
    """Kernels of the device, or of its architecture, were measured, or what they achieve is given."""
    if given.gemm is not None and given.memory is not None:
        return True
    return _ACHIEVED.get(device.name, _GENERAL)._replace(gemm=_GENERAL.gemm) != _GENERAL


def all_reduce(
    device: Device, given: Achievable, degree: int, link_bytes_per_s: float | None = None
) -> Collective:
    """Between ``degree`` devices: as measured on them (for the next larger degree that was measured, else the
    largest), or a ring (latency, and each byte 2·(t−1)/t times through the link) where nothing was measured,
    or ``given`` or ``link_bytes_per_s`` say otherwise."""
    measured = _COLLECTIVES.get(device.name)
    own = given.link is not None or given.collective_latency_s is not None or link_bytes_per_s is not None
    if measured is None or own:
        shares = achieved(device, given)
        link = device.link_bytes_per_s if link_bytes_per_s is None else link_bytes_per_s
        through = max(1.0, 2.0 * (degree - 1) / degree)
        return Collective(shares.collective_latency_s, link * shares.link / through)
    return measured[min((each for each in measured if each >= degree), default=max(measured))]


BETWEEN_NODES_S = 2.5e-5
"""Of a small all-reduce between two nodes beside that inside one, and of each doubling of the nodes: assumed,
after the 25 µs in all that NCCL itself counts between 16 H100 (github.com/NVIDIA/nccl/issues/1453)."""


class Nodes(NamedTuple):
    """The nodes that devices lie in."""

    devices: int
    """Of a node."""
    link_bytes_per_s: float
    """Of a device, per direction, to other nodes."""


def all_reduce_over(device: Device, given: Achievable, degree: int, nodes: Nodes | None) -> Collective:
    """Likewise, where ``degree`` devices may lie in several nodes: sums inside each, then each device with
    its peers in the others, a ring for its part, then inside again."""
    if nodes is None or degree <= nodes.devices:
        return all_reduce(device, given, degree)
    inside, number = all_reduce(device, given, nodes.devices), degree / nodes.devices
    link = nodes.link_bytes_per_s * achieved(device, given).link
    between = 2.0 * (number - 1.0) / number / nodes.devices / link
    return Collective(
        inside.latency_s + BETWEEN_NODES_S * log2(number), 1.0 / (1.0 / inside.bytes_per_s + between)
    )
