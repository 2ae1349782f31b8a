"""Devices that reach their datasheets, for seconds worked out by hand."""

from oppo_sim.costs.achieved import Achievable


def perfect(collective_latency_s: float = 0.0) -> Achievable:
    """Every share 1, and no latency but that of a collective."""
    return Achievable(
        gemm=1.0,
        attention=1.0,
        memory=1.0,
        link=1.0,
        collective_latency_s=collective_latency_s,
        layer_latency_s=0.0,
        expert_layer_latency_s=0.0,
        latent_layer_latency_s=0.0,
    )
