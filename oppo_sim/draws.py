"""Random draws that depend on (seed, purpose, counter) only, so that a new draw in one part shifts no other
part's."""

import hashlib
import math

_MASK = (1 << 64) - 1


def stream_key(seed: int, purpose: str) -> int:
    """64-bit key of the stream ``purpose`` under ``seed``. The same on every machine and in every process."""
    digest = hashlib.blake2b(f"{seed}:{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _mix(state: int) -> int:
    # The finaliser of SplitMix64 (Steele, Lea, Flood 2014): full avalanche on 64 bits.
    state = (state + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def draw_index(key: int, counter: int, size: int) -> int:
    """The counter-th draw of the stream, uniform over range(size)."""
    return (_mix(key ^ _mix(counter)) * size) >> 64


def draw_uniform(key: int, counter: int) -> float:
    """The counter-th draw of the stream, uniform in the open interval (0, 1)."""
    return ((_mix(key ^ _mix(counter)) >> 11) + 0.5) * 2.0**-53


def draw_normal(key: int, counter: int) -> float:
    """The counter-th draw of the stream, standard normal (Box and Muller)."""
    radius = math.sqrt(-2.0 * math.log(draw_uniform(key, 2 * counter)))
    return radius * math.cos(2.0 * math.pi * draw_uniform(key, 2 * counter + 1))
