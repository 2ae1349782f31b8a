"""Random draws that depend on (seed, purpose, counter) only, so that a new draw in one part shifts no other
part's."""

import hashlib
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


_MASK = (1 << 64) - 1


def stream_key(seed: int, purpose: str) -> int:
    """64-bit key of the stream ``purpose`` under ``seed``. The same on every machine and in every process."""
    digest = hashlib.blake2b(f"{seed}:{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _mix(state: Any) -> Any:
    # The finaliser of SplitMix64 (Steele, Lea, Flood 2014): full avalanche on 64 bits. Of an int, or of an
    # array of uint64, which wraps by itself.
    state = (state + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def draw_index(key: int, counter: int, size: int) -> int:
    """The counter-th draw of the stream, uniform over range(size)."""
    return int(_mix(key ^ _mix(counter)) * size) >> 64


def draw_uniform(key: int, counter: int) -> float:
    """The counter-th draw of the stream, uniform in the open interval (0, 1)."""
    return (int(_mix(key ^ _mix(counter)) >> 11) + 0.5) * 2.0**-53


def draw_normal(key: int, counter: int) -> float:
    """The counter-th draw of the stream, standard normal (Box and Muller)."""
    radius = math.sqrt(-2.0 * math.log(draw_uniform(key, 2 * counter)))
    return radius * math.cos(2.0 * math.pi * draw_uniform(key, 2 * counter + 1))


def hashes(key: int, count: int, first: int = 0) -> "npt.NDArray[np.uint64]":
    """64-bit draws ``first`` … first + count − 1 of the stream ``key``."""
    import numpy as np

    counters = np.arange(first, first + count, dtype=np.uint64)
    drawn: npt.NDArray[np.uint64] = _mix(np.uint64(key) ^ _mix(counters))
    return drawn


def uniforms(key: int, count: int) -> "npt.NDArray[np.float64]":
    """``draws.draw_uniform(key, i)`` for i in range(count)."""
    import numpy as np

    return ((hashes(key, count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def indices(key: int, count: int, size: int, first: int = 0) -> "npt.NDArray[np.int64]":
    """``draws.draw_index(key, i, size)`` for i in range(first, first + count); ``size`` below 2^31."""
    import numpy as np

    drawn = hashes(key, count, first)
    low, high = drawn & np.uint64(0xFFFFFFFF), drawn >> np.uint64(32)
    # (drawn · size) >> 64 in two halves, since the product has up to 95 bits.
    return ((high * np.uint64(size) + ((low * np.uint64(size)) >> np.uint64(32))) >> np.uint64(32)).astype(
        np.int64
    )
