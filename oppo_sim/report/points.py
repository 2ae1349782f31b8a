"""A table of points as pictures and pages read it: which fields vary, which row is best, which rows cannot be
told apart from it.

A points table has one row a configuration: the varied scenario fields as columns under their dotted names,
then measures (``columns.py``), then ``status`` (``ok``, ``failed``, ``stopped``) and ``error``, if there are
such."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.inside import file_inside
from oppo_sim.plain_json import read_json
from oppo_sim.report.labels import OVERCOMMIT, as_number, is_missing, measure_of, value_text
from oppo_sim.runs.statistics import OBJECTIVE_COLUMN, ROLLOUTS
from oppo_sim.tables import numbers, read_table

if TYPE_CHECKING:
    import pandas as pd

FAILED: Final = "failed"
STOPPED: Final = "stopped"
CHUNK_FIELD: Final = "policy.chunk_size"
WHAT: Final = "points"
LEAST_FILLED: Final = 0.5
"""Share of a grid's cells that must have a point for a heat map or a curve; below it points are scattered."""


@dataclass(frozen=True)
class Points:
    """The rows of a sweep and what was found among them."""

    table: "pd.DataFrame"
    """One row a configuration, index 0 … n − 1."""
    axes: tuple[str, ...]
    """Columns of the varied fields, in the order given."""
    best: int | None = None
    """Row of the best point; None: the one with the best objective, if any."""
    region: frozenset[int] = field(default_factory=frozenset)
    """Rows whose paired difference from the best is not significant, the best among them."""
    objective: str = c.STEP_S
    """The measure that ``best`` is best at."""

    def __post_init__(self) -> None:
        if len(self.table) == 0:
            raise OppoError("the points table has no rows: nothing can be shown of it")
        for axis in self.axes:
            if axis not in self.table.columns:
                raise OppoError(f"the points table lacks the column '{axis}': add it")

    def measured(self, column: str) -> NDArray[np.float64]:
        """A measure by row; NaN where the point failed. Raises OppoError when the table lacks it."""
        values = numbers(self.table, column, WHAT)
        return (
            values
            if c.STATUS not in self.table.columns
            else np.where(self.table[c.STATUS] != FAILED, values, np.nan)
        )

    def has(self, column: str) -> bool:
        """The table has the column, with a value in at least one row."""
        return column in self.table.columns and bool(np.isfinite(self.measured(column)).any())

    def best_row(self, column: str = "") -> int | None:
        """The given best row for the objective (or nothing named), else the row with the best finite value;
        None: there is none."""
        name = column or self.objective
        if name == self.objective and self.best is not None:
            return self.best
        return best_of(self.achievable(self.measured(name)), name)

    def achievable(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """``values`` by row, NaN for policies that only bound what a real run can reach, unless there are no
        others."""
        real = np.array(values)
        real[self.bounds()] = np.nan
        return real if np.isfinite(real).any() else values

    def bounds(self) -> list[int]:
        """Rows of policies that know what no real run can, which are never the best."""
        known = c.BOUND_ONLY in self.table.columns
        return np.flatnonzero(self.table[c.BOUND_ONLY].to_numpy(dtype=bool)).tolist() if known else []

    def texts(self, axis: str) -> list[str]:
        """A field by row, exactly as ``--set`` takes it."""
        if axis not in self._texts:
            self._texts[axis] = [value_text(value) for value in self.table[axis]]
        return self._texts[axis]

    @cached_property
    def _texts(self) -> dict[str, list[str]]:
        """Of the fields that were asked for: figures ask once a cell."""
        return {}

    def numbers(self, axis: str) -> NDArray[np.float64]:
        """A field by row; NaN for what is no number."""
        found = [as_number(value) for value in self.table[axis]]
        return np.array([np.nan if value is None else value for value in found], dtype=np.float64)

    def values(self, axis: str) -> list[Any]:
        """Values of a field in display order: numbers ascending, then text by first occurrence; missing ones
        last."""
        return ordered_values(self.table[axis])

    def numeric(self, axis: str) -> bool:
        """A column of numbers, of which there are at least two. Text is none: among 4, 0.5 and null, 0.5 is a
        share, no half rollout."""
        return (
            self.table[axis].dtype.kind in "iuf"
            and len([value for value in self.values(axis) if not is_missing(value)]) > 1
        )

    def label_of(self, row: int, without: Collection[str] = ()) -> list[tuple[str, Any]]:
        """(field, value) of a row for every varied field but ``without``."""
        return [(axis, self.table[axis].iloc[row]) for axis in self.axes if axis not in without]

    def like(self, row: int, free: Collection[str]) -> list[int]:
        """Rows that equal ``row`` in every varied field but the ``free`` ones."""
        held = [axis for axis in self.axes if axis not in free]
        alike = np.ones(len(self.table), dtype=bool)
        for texts in map(self.texts, held):
            alike &= np.array(texts) == texts[row]
        return np.flatnonzero(alike).tolist()


def best_of(values: NDArray[np.float64], column: str) -> int | None:
    """Position of the best finite value: lowest, highest or nearest to 0 as the measure wants; None: no value
    is finite."""
    better = measure_of(column).better
    keyed = -values if better == "high" else np.abs(values) if better == "zero" else values
    keyed = np.where(np.isfinite(keyed), keyed, np.inf)
    return int(np.argmin(keyed)) if np.isfinite(keyed).any() else None


def ordered_values(values: "pd.Series[Any] | Sequence[Any]") -> list[Any]:
    """Distinct values: numbers ascending, then text in order of occurrence, then a missing one."""
    distinct: dict[str, Any] = {}
    for value in values:
        distinct.setdefault(value_text(value), value)
    numeric = [value for value in distinct.values() if as_number(value) is not None]
    text = [value for value in distinct.values() if as_number(value) is None and not is_missing(value)]
    missing = [value for value in distinct.values() if is_missing(value)]
    return [*sorted(numeric, key=lambda value: as_number(value) or 0.0), *text, *missing[:1]]


def heat_axes(points: Points) -> tuple[str, str] | None:
    """Fields for a heat map (across, upwards): overcommit and chunk size if both vary, else the two numeric
    fields with the most values."""
    numeric = [axis for axis in points.axes if points.numeric(axis)]
    if OVERCOMMIT in numeric and CHUNK_FIELD in numeric:
        return OVERCOMMIT, CHUNK_FIELD
    if len(numeric) < 2:
        return None
    first, second = sorted(numeric, key=lambda axis: -len(points.values(axis)))[:2]
    return first, second


def category(points: Points) -> str | None:
    """A field for one line or colour a value: placement or policy first, else the first that is not numeric;
    None: there is none."""
    few = [axis for axis in points.axes if 2 <= len(points.values(axis)) <= 8]
    for wanted in ("placement.scoring", "policy.name", "placement.training"):
        if wanted in few:
            return wanted
    return next((axis for axis in few if not points.numeric(axis)), None)


def filled(points: Points, x: str, y: str) -> float:
    """Share of the cells over two fields, with all values that either has, that have a point, among rows that
    agree in the others: 1 for a grid, small for random samples and for a search."""
    rows = points.like(points.best_row() or 0, free=(x, y))
    cells = {(points.texts(x)[row], points.texts(y)[row]) for row in rows}
    return len(cells) / max(1, len(points.values(x)) * len(points.values(y)))


def is_grid(points: Points) -> bool:
    """The points fill most of a grid over their numeric fields, so that lines and cells mean something."""
    numeric = [axis for axis in points.axes if points.numeric(axis)]
    axes = heat_axes(points)
    return filled(points, *axes) >= LEAST_FILLED if axes else len(numeric) == 1


SWEEP: Final = "sweep.json"
POINTS: Final = "points.parquet"
_MEND: Final = "run the sweep again, its finished runs are kept"
_BATCH: Final = "rollout_batch_size"


@dataclass(frozen=True)
class SweepFolder:
    """A finished sweep."""

    root: Path
    record: Mapping[str, Any]
    """``sweep.json``."""
    points: Points

    @property
    def name(self) -> str:
        """Of the scenario."""
        return str(self.record["scenario"])


def read_sweep(folder: str | Path) -> SweepFolder:
    """Read a sweep's folder. Raises OppoError when it never finished, is damaged or holds none."""
    root = Path(folder)
    path = file_inside(root, SWEEP)
    if not path.is_file():
        raise OppoError(f"{root} holds no finished sweep (it has no {SWEEP}): run the sweep to its end")
    record = read_json(path, _MEND)
    try:
        fields, region, best = tuple(record["fields"]), frozenset(map(int, record["region"])), record["best"]
        objective = str(record["objective"])
        assert "scenario" in record
        assert best is None or isinstance(best, int)
    except (ValueError, KeyError, TypeError, AssertionError):
        raise OppoError(f"{path} is damaged: {_MEND}") from None
    table = read_table(file_inside(root, POINTS), _MEND)
    if len(table) != record.get("points") or any(row >= len(table) for row in (*region, best or 0)):
        raise OppoError(f"{root / POINTS} is not the table of {SWEEP} beside it: {_MEND}")
    return SweepFolder(
        root, record, Points(table, fields, best, region, objective_measure(objective, fields))
    )


def objective_measure(objective: str, fields: tuple[str, ...]) -> str:
    """The column that the best point is best at; steps of unlike batches are compared by what a rollout
    takes."""
    if objective in OBJECTIVE_COLUMN and objective != ROLLOUTS:
        return OBJECTIVE_COLUMN[objective]
    return c.S_PER_ROLLOUT if _BATCH in fields else c.STEP_S
