"""Where rows go: frames in memory, or running summaries whose memory does not grow with the number of
steps."""

from collections.abc import Mapping, Sequence
from math import isnan, sqrt
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from oppo_sim.columns import FINISH_REASON, ROLLOUT_COLUMNS, RolloutRow

if TYPE_CHECKING:
    import pandas as pd

BLOCK = 16384  # rollout rows turned into typed arrays at once


class Sink(Protocol):
    """Takes rows as a run makes them."""

    def on_step(self, row: Mapping[str, Any]) -> None:
        """One row a step."""

    def on_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        """Rows of ``columns.ROLLOUT_COLUMNS``, one a trained rollout."""


class Sinks:
    """Several sinks as one."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks

    def on_step(self, row: Mapping[str, Any]) -> None:
        for sink in self._sinks:
            sink.on_step(row)

    def on_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        for sink in self._sinks:
            sink.on_rollouts(rows)


class RolloutBlocks:
    """Rollout rows as typed columns, a block at a time: about 130 bytes a row."""

    def __init__(self) -> None:
        self._pending: list[RolloutRow] = []
        self._blocks: list[dict[str, np.ndarray[Any, Any]]] = []

    def add(self, rows: Sequence[RolloutRow]) -> None:
        """Append rows."""
        self._pending.extend(rows)
        if len(self._pending) >= BLOCK:
            self._blocks.append(typed_columns(self._pending))
            self._pending = []

    def frame(self) -> "pd.DataFrame":
        """All rows so far."""
        import pandas as pd

        if self._pending:
            self._blocks.append(typed_columns(self._pending))
            self._pending = []
        if not self._blocks:
            return pd.DataFrame(columns=list(ROLLOUT_COLUMNS))
        data: dict[str, Any] = {}
        for name in ROLLOUT_COLUMNS:
            column = np.concatenate([block[name] for block in self._blocks])
            data[name] = np.array(FINISH_REASONS)[column] if name == FINISH_REASON else column
        return pd.DataFrame(data)


FINISH_REASONS = ["stop", "length"]
SECONDS = ("admitted_s", "finished_s", "scored_s")


def typed_columns(rows: Sequence[RolloutRow]) -> dict[str, np.ndarray[Any, Any]]:
    """Columns of rollout rows: seconds as float64, finish reasons as codes into FINISH_REASONS, the rest as
    int64."""
    columns: dict[str, np.ndarray[Any, Any]] = {}
    for name, values in zip(ROLLOUT_COLUMNS, zip(*rows, strict=True), strict=True):
        if name == FINISH_REASON:
            columns[name] = np.fromiter(
                (value == "length" for value in values), dtype=np.int8, count=len(values)
            )
        else:
            columns[name] = np.array(values, dtype=np.float64 if name in SECONDS else np.int64)
    return columns


class StepBlocks:
    """Step rows as columns, a block at a time: some 600 bytes a row instead of 6,000."""

    def __init__(self) -> None:
        self._pending: list[Mapping[str, Any]] = []
        self._blocks: list[tuple[int, dict[str, np.ndarray[Any, Any] | list[Any]]]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row."""
        self._pending.append(row)
        if len(self._pending) >= BLOCK:
            self._blocks.append((len(self._pending), _columns_of(self._pending)))
            self._pending = []

    def frame(self) -> "pd.DataFrame":
        """All rows so far, as pandas makes a frame of them."""
        import pandas as pd

        if not self._blocks:
            return pd.DataFrame(self._pending)
        blocks = [*self._blocks, (len(self._pending), _columns_of(self._pending))]
        names = dict.fromkeys(name for _, block in blocks for name in block)
        data: dict[str, Any] = {}
        for name in names:
            pieces = [block.get(name, [float("nan")] * rows) for rows, block in blocks if rows]
            if all(isinstance(piece, np.ndarray) for piece in pieces):
                data[name] = np.concatenate(pieces)
            else:
                data[name] = [value for piece in pieces for value in _plain_list(piece)]
        return pd.DataFrame(data)


def _columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray[Any, Any] | list[Any]]:
    """Numbers of one type as arrays, all else as it is; NaN where a row lacks a column."""
    columns: dict[str, np.ndarray[Any, Any] | list[Any]] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name, float("nan")) for row in rows]
        plain = set(map(type, values)) in ({float}, {int})
        columns[name] = np.array(values) if plain else values
    return columns


def _plain_list(values: np.ndarray[Any, Any] | list[Any]) -> list[Any]:
    return values if isinstance(values, list) else values.tolist()


class FrameSink:
    """Keeps every row."""

    def __init__(self, keep_rollouts: bool = True) -> None:
        self._steps = StepBlocks()
        self._rollouts = RolloutBlocks() if keep_rollouts else None

    def on_step(self, row: Mapping[str, Any]) -> None:
        self._steps.add(row)

    def on_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        if self._rollouts is not None:
            self._rollouts.add(rows)

    def steps(self) -> "pd.DataFrame":
        """The step table."""
        return self._steps.frame()

    def rollouts(self) -> "pd.DataFrame":
        """The rollout table (empty if it was not kept)."""
        return (self._rollouts or RolloutBlocks()).frame()


class Moments:
    """Running count, mean, variance (Welford 1962), minimum and maximum of one column."""

    __slots__ = ("_squares", "count", "maximum", "mean", "minimum", "total")

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.total = 0.0
        self.minimum = float("inf")
        self.maximum = float("-inf")
        self._squares = 0.0

    def add(self, value: float) -> None:
        """Take one value; NaN is left out."""
        if isnan(value):
            return
        self.count += 1
        self.total += value
        step = value - self.mean
        self.mean += step / self.count
        self._squares += step * (value - self.mean)
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)

    @classmethod
    def of(
        cls, count: int, mean: float, squares: float, total: float, minimum: float, maximum: float
    ) -> "Moments":
        """Moments taken elsewhere; ``squares``: Σ (value − mean)²."""
        running = cls()
        running.count, running.mean, running._squares, running.total, running.minimum, running.maximum = (
            count,
            mean,
            squares,
            total,
            minimum,
            maximum,
        )
        return running

    @property
    def std(self) -> float:
        """Sample standard deviation; 0 below two values."""
        return sqrt(self._squares / (self.count - 1)) if self.count > 1 else 0.0


class SummarySink:
    """Running moments of every numeric column after the warm-up; memory does not grow with the steps."""

    def __init__(self, warmup_steps: int) -> None:
        self._skip = warmup_steps
        self.columns: dict[str, Moments] = {}
        self.histograms: dict[str, list[int]] = {}
        """Columns of counts (of 0, 1, …), added up over the steps."""
        self.steps = 0

    def on_step(self, row: Mapping[str, Any]) -> None:
        if self._skip:
            self._skip -= 1
            return
        self.steps += 1
        for name, value in row.items():
            if isinstance(value, (int, float)):
                moments = self.columns.get(name)
                if moments is None:
                    moments = self.columns[name] = Moments()
                moments.add(value)
            elif isinstance(value, list):
                self.count(name, value)

    def count(self, name: str, counts: Sequence[int]) -> None:
        """Add the counts of a step to a histogram."""
        kept = self.histograms.setdefault(name, [])
        kept.extend([0] * (len(counts) - len(kept)))
        for value, number in enumerate(counts):
            kept[value] += number

    def on_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        """Rollouts are summarised in their step's row."""
