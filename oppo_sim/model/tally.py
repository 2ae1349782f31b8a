"""What a step's row counts besides time."""

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Sums over one step. Tokens, floating-point operations, bytes, seconds."""

    decoded: int = 0
    prefilled: int = 0
    recomputed: int = 0
    prefix_cached: int = 0
    padding: int = 0
    preemptions: int = 0
    kv_peak: int = 0
    pieces: int = 0
    scored: int = 0
    scoring_batches: int = 0
    rollout_flops: float = 0.0
    rollout_bytes: float = 0.0
    scoring_flops: float = 0.0
    scoring_bytes: float = 0.0
    # Seconds with a kernel on the device: of all replicas, of all workers, of one training device.
    gen_kernel_s: float = 0.0
    scoring_kernel_s: float = 0.0
    training_kernel_s: float = 0.0
    sync_kernel_s: float = 0.0
