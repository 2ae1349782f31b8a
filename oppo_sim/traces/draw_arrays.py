"""The draws of ``oppo_sim.draws`` for many counters at once: the same numbers, as arrays."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def _mixed(state: "npt.NDArray[np.uint64]") -> "npt.NDArray[np.uint64]":
    import numpy as np

    state = state + np.uint64(0x9E3779B97F4A7C15)  # wraps modulo 2^64
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def hashes(key: int, count: int) -> "npt.NDArray[np.uint64]":
    """64-bit draws 0 … count − 1 of the stream ``key``."""
    import numpy as np

    return _mixed(np.uint64(key) ^ _mixed(np.arange(count, dtype=np.uint64)))


def uniforms(key: int, count: int) -> "npt.NDArray[np.float64]":
    """``draws.draw_uniform(key, i)`` for i in range(count)."""
    import numpy as np

    return ((hashes(key, count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def indices(key: int, count: int, size: int) -> "npt.NDArray[np.int64]":
    """``draws.draw_index(key, i, size)`` for i in range(count); ``size`` below 2^31."""
    import numpy as np

    drawn = hashes(key, count)
    low, high = drawn & np.uint64(0xFFFFFFFF), drawn >> np.uint64(32)
    # (drawn · size) >> 64 in two halves, since the product has up to 95 bits.
    return ((high * np.uint64(size) + ((low * np.uint64(size)) >> np.uint64(32))) >> np.uint64(32)).astype(
        np.int64
    )
