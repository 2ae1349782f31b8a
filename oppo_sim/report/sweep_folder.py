"""A sweep's folder, read for pictures and reports."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.files import said
from oppo_sim.report import sweep_drawn
from oppo_sim.report.points import Points, read_table

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
    path = root / SWEEP
    if not path.is_file():
        raise OppoError(f"{root} holds no finished sweep (it has no {SWEEP}): run the sweep to its end")
    try:
        with said(path):
            record = json.loads(path.read_bytes())
        fields, region, best = tuple(record["fields"]), frozenset(map(int, record["region"])), record["best"]
        objective = str(record["objective"])
        assert "scenario" in record
        assert best is None or isinstance(best, int)
    except (ValueError, KeyError, TypeError, AssertionError):
        raise OppoError(f"{path} is damaged: {_MEND}") from None
    table = read_table(root / POINTS, _MEND)
    if len(table) != record.get("points") or any(row >= len(table) for row in (*region, best or 0)):
        raise OppoError(f"{root / POINTS} is not the table of {SWEEP} beside it: {_MEND}")
    return SweepFolder(root, record, Points(table, fields, best, region, _measure(objective, fields)))


def write_figures(sweep: SweepFolder, folder: str | Path, *, force: bool = False) -> list[Path]:
    """Every figure that the points admit, as PNG and SVG; returns the files. Raises OppoError when one exists
    (unless ``force``)."""
    return sweep_drawn.write_figures(sweep.points, folder, sweep.name, force=force)


# ---- inside ------------------------------------------------------------------------------------------------


def _measure(objective: str, fields: tuple[str, ...]) -> str:
    """The column that the best point is best at; steps of unlike batches are compared by what a rollout
    takes."""
    if objective == "speedup":
        return c.SPEEDUP
    return c.S_PER_ROLLOUT if _BATCH in fields else c.STEP_S
