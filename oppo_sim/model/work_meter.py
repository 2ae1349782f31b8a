"""Operations, bytes and seconds with a kernel of what a replica has done in a row."""

from oppo_sim.costs.interface import Demand, EngineCost
from oppo_sim.model.formulas import time_on_device
from oppo_sim.model.tally import Work


class WorkMeter:
    """Of one replica."""

    def __init__(self, cost: EngineCost) -> None:
        self.work = Work()
        self._cost = cost
        self._lines: dict[int, tuple[float, float, float, float] | None] = {}

    def prefilled(self, seconds: float, demand: Demand, tokens: int, pairs: float) -> None:
        """A prefill that begins, of so many own seconds."""
        self.work.kernel_s += time_on_device(demand.memory, demand.arithmetic) * seconds
        work = self._cost.prefill_work(tokens, pairs)
        if work is not None:
            self.work.flops += work.flops
            self.work.bytes += work.bytes

    def decoded(self, seconds: float, demand: Demand, k: int, rows: int, kv: int) -> None:
        """``k`` iterations that have ended, of ``rows`` and, at their begin, ``kv`` tokens."""
        self.work.kernel_s += time_on_device(demand.memory, demand.arithmetic) * seconds
        if rows not in self._lines:
            self._lines[rows] = self._line(rows)
        line = self._lines[rows]
        if line is not None:
            kv_sum = k * kv + rows * (k * (k - 1) * 0.5)
            self.work.flops += k * line[0] + line[1] * kv_sum
            self.work.bytes += k * line[2] + line[3] * kv_sum

    def _line(self, rows: int) -> tuple[float, float, float, float] | None:
        """(flops at kv 0, flops a kv token, bytes at kv 0, bytes a kv token) of an iteration of ``rows``."""
        empty, unit = self._cost.decode_work(rows, 0.0), self._cost.decode_work(rows, 1.0)
        if empty is None or unit is None:
            return None
        return empty.flops, unit.flops - empty.flops, empty.bytes, unit.bytes - empty.bytes
