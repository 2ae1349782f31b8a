"""Seconds of decode stretches by a cost model's own lines, summed exactly."""

import math
import warnings
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from oppo_sim.costs.interface import EngineCost
from oppo_sim.costs.profile import ProfileRangeWarning
from oppo_sim.fit.terms.running import Stretches

Floats = npt.NDArray[np.float64]

_MOST_LINES: Final = 64
_SAME: Final = 1e-6

HOST_GRID: Final = tuple(2.0 ** (number / 2) for number in range(-8, 9))
"""Factors on the host's seconds, with the device's as they are, at which iterations are summed."""
_LATELY: Final[deque[tuple[EngineCost, float, "Decoding"]]] = deque(maxlen=len(HOST_GRID))
AS_IT_IS: Final = len(HOST_GRID) // 2
"""Place of the factor 1."""


def seconds_by_host(engine: EngineCost, phases: Sequence[Stretches]) -> Floats:
    """Σ seconds over the iterations of each phase, under each factor of ``HOST_GRID``: grid × phases.

    Where host and device add up, three of them are enough; where launches bound the device from below, each
    is summed.
    """
    ends = {place: _decoding(engine, HOST_GRID[place]).seconds(phases) for place in (0, AS_IT_IS, -1)}
    grid = np.array(HOST_GRID)
    slope = (ends[-1] - ends[0]) / (grid[-1] - grid[0])
    straight = ends[0] + slope * (grid[AS_IT_IS] - grid[0])
    if np.all(np.abs(straight - ends[AS_IT_IS]) <= _SAME * ends[AS_IT_IS]):
        line: Floats = ends[0] + slope * (grid[:, None] - grid[0])
        return line
    return np.array([_decoding(engine, factor).seconds(phases) for factor in HOST_GRID])


def _decoding(engine: EngineCost, factor: float) -> "Decoding":
    """That of the same engine at the same factor, if there was one lately: replicas are alike."""
    for known, its_factor, decoding in _LATELY:
        if known is engine and its_factor == factor:
            return decoding
    found = Decoding(engine.with_host(factor))
    _LATELY.append((engine, factor, found))
    return found


class Decoding:
    """An engine's decode lines, each running count queried once."""

    def __init__(self, engine: EngineCost) -> None:
        self._engine = engine
        self._known: dict[int, list[tuple[float, float, float]]] = {}

    def seconds(self, phases: Sequence[Stretches]) -> Floats:
        """Σ seconds over the iterations of each phase."""
        running, iterations, start, growth = (np.concatenate(parts) for parts in zip(*phases, strict=True))
        counts, place = np.unique(running, return_inverse=True)
        fixed, slope, until = self._lines(counts)
        growth = np.maximum(growth, 1).astype(np.float64)
        seconds, done = np.zeros(len(place)), np.zeros(len(place))
        for line in range(fixed.shape[1]):
            if np.all(done == iterations):
                break
            ends = until[place, line]
            with np.errstate(invalid="ignore"):
                reach = np.where(np.isinf(ends), iterations, np.floor((ends - start) / growth) + 1.0)
            upto = np.clip(reach, done, iterations)
            count = upto - done
            kv = start * count + growth * (done + upto - 1.0) * count / 2.0
            seconds += fixed[place, line] * count + slope[place, line] * kv
            done = upto
        owner = np.repeat(np.arange(len(phases)), [len(each.running) for each in phases])
        total: Floats = np.bincount(owner, weights=seconds, minlength=len(phases)).astype(np.float64)
        return total

    def _lines(self, counts: npt.NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
        """Lines of every running count: fixed seconds, seconds a KV token, end; counts × lines."""
        found = [self._lines_of(int(running)) for running in counts]
        most = max(map(len, found))
        padded = np.array([[*lines, *[lines[-1]] * (most - len(lines))] for lines in found])
        return padded[:, :, 0], padded[:, :, 1], padded[:, :, 2]

    def _lines_of(self, running: int) -> list[tuple[float, float, float]]:
        if running in self._known:
            return self._known[running]
        found: list[tuple[float, float, float]] = []
        kv = 0.0
        with warnings.catch_warnings():
            # It is queried where lines begin, which is no iteration.
            warnings.simplefilter("ignore", ProfileRangeWarning)
            while len(found) < _MOST_LINES:
                line = self._engine.decode_line(running, kv)
                found.append((line.fixed, line.per_kv_token, line.kv_until))
                if math.isinf(line.kv_until):
                    break
                kv = math.nextafter(max(line.kv_until, kv), math.inf)
        found[-1] = (*found[-1][:2], math.inf)
        self._known[running] = found
        return found
