"""What a step's row counts besides time."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from oppo_sim.costs.formulas import added


@dataclass(slots=True)
class Work:
    """Of one replica or scoring worker in one step, or of all: floating-point operations, bytes, and seconds
    with a kernel on the device. Kept apart, since the order of what ends at one time is nobody's, and sums in
    another order round otherwise."""

    flops: float = 0.0
    bytes: float = 0.0
    kernel_s: float = 0.0

    @classmethod
    def of_all(cls, each: "Sequence[Work]") -> "Work":
        """Their sum."""
        return cls(
            added(one.flops for one in each),
            added(one.bytes for one in each),
            added(one.kernel_s for one in each),
        )


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
    gen: Work = field(default_factory=Work)
    """Of all replicas, once the step is over."""
    scoring: Work = field(default_factory=Work)
    """Of all scoring workers, once the step is over."""
    # Seconds with a kernel on one training device.
    training_kernel_s: float = 0.0
    sync_kernel_s: float = 0.0
