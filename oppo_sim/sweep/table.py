"""Finished runs as tables: one row a point with intervals over paired seeds, the best point, and those not
told apart from it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Literal

from oppo_sim import columns as c
from oppo_sim.runs.request import RunResult
from oppo_sim.runs.statistics import (
    SPEEDUP_COLUMNS,
    STEP_COLUMNS,
    Totals,
    alike,
    compared_row,
    loss,
    paired,
)
from oppo_sim.sweep.points import Values

if TYPE_CHECKING:
    import pandas as pd

Status = Literal["ok", "failed", "stopped"]
OK: Final = "ok"
FAILED: Final = "failed"
STOPPED: Final = "stopped"

MEANS: Final = (
    c.S_PER_ROLLOUT,
    c.TOKENS_PER_S,
    c.COMPARED_PARTIAL_RATIO,
    c.COMPARED_TOKENS_IN_FLIGHT,
    c.COMPARED_KV_PREEMPTIONS,
    c.COMPARED_SCORER_PIECES,
    c.COMPARED_BUSY_ROLLOUT,
    c.COMPARED_BUSY_SCORING,
    c.COMPARED_BUSY_TRAINING,
)
"""Totals whose mean over seeds is a column, beside those of a comparison."""


@dataclass(frozen=True)
class PointRuns:
    """A point and what its seeds gave."""

    values: Values
    seeds: tuple[int, ...]
    """Those that it was run with, from the first seed on."""
    runs: tuple[RunResult, ...]
    baselines: tuple[RunResult, ...]
    """Of the same seeds."""
    stopped: bool = False
    error: str | None = None
    """Why nothing was run."""
    bound_only: bool = False
    """Its policy knows what no real run can: in the table, never the best."""

    @property
    def status(self) -> Status:
        """Failed if a run is missing."""
        if self.sentence is not None:
            return FAILED
        return STOPPED if self.stopped else OK

    @property
    def sentence(self) -> str | None:
        """Why it failed: what the first failing seed says."""
        return self.error or next((run.error for run in self.runs if run.totals is None), None)

    @property
    def totals(self) -> list[Totals]:
        """Of a point that did not fail, by seed."""
        return [run.totals for run in self.runs if run.totals is not None]

    def losses(self, objective: str) -> list[float]:
        """What the point is ranked by, seed by seed; empty where it failed or its baseline did (objective
        ``speedup``)."""
        if self.sentence is not None:
            return []
        pairs = [(run.totals, base.totals) for run, base in zip(self.runs, self.baselines, strict=True)]
        if objective == "speedup" and any(base is None for _, base in pairs):
            return []
        return [loss(totals, base, objective) for totals, base in pairs if totals is not None]


@dataclass(frozen=True)
class Ranking:
    """Which point is best, and how sure that is."""

    best: int | None
    """Row of the points table; None: no point ran all its seeds."""
    region: tuple[int, ...]
    """Rows whose paired difference from the best is not significant (5 %), the best among them, ascending."""
    differences: dict[int, tuple[float, float, float]]
    """Row → relative difference from the best with its 95 % interval; 0.02: 2 % worse."""


def ranked(points: Sequence[PointRuns], objective: str) -> Ranking:
    """Find the best point: least mean loss among those that ran all their seeds."""
    losses = {number: found for number, point in enumerate(points) if (found := point.losses(objective))}
    complete = [number for number in losses if points[number].status == OK]
    real = [number for number in complete if not points[number].bound_only]
    if not complete:
        return Ranking(None, (), {})
    best = min(real or complete, key=lambda number: (fmean(losses[number]), number))
    differences = {number: paired(found, losses[best]) for number, found in losses.items()}
    region = [number for number in complete if alike(losses[number], losses[best])]
    return Ranking(best, tuple(region), differences)


def points_frame(points: Sequence[PointRuns], fields: Sequence[str], ranking: Ranking) -> "pd.DataFrame":
    """The points table: fields, measures, difference from the best, seeds, engine, status, error; one row a
    point, in order."""
    import pandas as pd

    rows = [_row(point, ranking.differences.get(number)) for number, point in enumerate(points)]
    measures = pd.DataFrame(rows, columns=_columns())
    axes = {field: field_column([point.values.get(field) for point in points]) for field in fields}
    frame = pd.concat([pd.DataFrame(axes), measures], axis=1)
    return frame.astype({c.SEEDS: "int64", c.ENGINE: "string", c.STATUS: "string", c.ERROR: "string"})


def runs_frame(points: Sequence[PointRuns]) -> "pd.DataFrame":
    """One row a finished run of a point: the point's row number, seed, engine, totals, and its baseline's
    seconds a rollout."""
    import pandas as pd

    rows = [
        {
            c.POINT: number,
            "seed": seed,
            c.ENGINE: run.engine,
            **run.totals,
            "baseline_s_per_rollout": float("nan") if base.totals is None else base.totals[c.S_PER_ROLLOUT],
        }
        for number, point in enumerate(points)
        for seed, run, base in zip(point.seeds, point.runs, point.baselines, strict=True)
        if run.totals is not None
    ]
    return pd.DataFrame(rows) if rows else pd.DataFrame({c.POINT: [], "seed": []}, dtype="int64")


def field_column(values: Sequence[Any]) -> "pd.Series[Any]":
    """The values of a field as a column: whole numbers, numbers or text where all are; else the YAML of each
    as text, since 1 (a rollout) is not 1.0 (the whole batch) and a controlled knob is a mapping."""
    import pandas as pd

    kinds = {type(value) for value in values}
    if kinds == {int}:
        return pd.Series(values, dtype="int64")
    if kinds == {float}:
        return pd.Series(values, dtype="float64")
    if kinds == {bool}:
        return pd.Series(values, dtype="bool")
    return pd.Series(
        [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values],
        dtype="string",
    )


def _row(point: PointRuns, difference: tuple[float, float, float] | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        c.SEEDS: len(point.runs),
        c.STATUS: point.status,
        c.ERROR: point.sentence,
        c.ENGINE: None,
        c.BOUND_ONLY: point.bound_only,
    }
    if point.sentence is not None:
        return row
    totals = point.totals
    row[c.ENGINE] = "+".join(sorted({run.engine for run in point.runs}))
    bases = [base.totals for base in point.baselines if base.totals is not None]
    complete = len(bases) == len(totals)
    row |= compared_row(totals, bases if complete else totals)
    if not complete:
        row |= dict.fromkeys(SPEEDUP_COLUMNS, float("nan"))
        row[c.ERROR] = "its baseline failed: " + next(
            base.error or "" for base in point.baselines if base.totals is None
        )
    row |= {name: fmean([run[name] for run in totals]) for name in MEANS}
    row[c.COMPARED_KV_PEAK_TOKENS] = max(run[c.COMPARED_KV_PEAK_TOKENS] for run in totals)
    if difference is not None:
        row |= dict(zip(_DIFFERENCES, difference, strict=True))
    return row


_DIFFERENCES = (c.DIFFERENCE, c.DIFFERENCE_LOW, c.DIFFERENCE_HIGH)


def _columns() -> list[str]:
    compared = (
        *STEP_COLUMNS, *SPEEDUP_COLUMNS, c.GEN_S, c.REWARD_S, c.TRAINING_S,
        c.COMPARED_STALENESS_MEAN,
        c.COMPARED_STALENESS_MAX, c.LENGTH_BIAS, c.DEFERRED, c.UTILIZATION, c.HOURS_PER_10K,
    )  # fmt: skip
    return [
        *compared,
        c.COMPARED_KV_PEAK_TOKENS,
        *MEANS,
        *_DIFFERENCES,
        c.BOUND_ONLY,
        c.SEEDS,
        c.ENGINE,
        c.STATUS,
        c.ERROR,
    ]
