"""Finished runs as tables: one row a point with intervals over paired seeds and draws of the machine."""

import json
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from oppo_sim import columns as c
from oppo_sim.runs.ranges import SPEEDUP_ENDS, SPEEDUP_PER_TOKEN_ENDS
from oppo_sim.runs.statistics import SPEEDUP_COLUMNS, STEP_COLUMNS, compared_row
from oppo_sim.runs.to_reward import TO_REWARD_COLUMNS, to_reward_columns
from oppo_sim.sweep.ranking import PointRuns, Ranking

if TYPE_CHECKING:
    import pandas as pd

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


def points_frame(points: Sequence[PointRuns], fields: Sequence[str], ranking: Ranking) -> "pd.DataFrame":
    """The points table: fields, measures, difference from the best, seeds, engine, status, error; one row a
    point, in order."""
    import pandas as pd

    rows = [
        _row(point, ranking.differences.get(number)) | ranking.drawn.get(number, {})
        for number, point in enumerate(points)
    ]
    measures = pd.DataFrame(rows, columns=[*_columns(), *(DRAWN_COLUMNS if ranking.drawn else ())])
    axes = {field: field_column([point.values.get(field) for point in points]) for field in fields}
    frame = pd.concat([pd.DataFrame(axes), measures], axis=1)
    kinds = {c.SEEDS: "int64", c.ENGINE: "string", c.STATUS: "string", c.ERROR: "string"}
    return frame.astype(
        kinds | (dict.fromkeys((c.MACHINE_WIDEST, c.DIFFERENCE_WIDEST), "string") if ranking.drawn else {})
    )


def runs_frame(points: Sequence[PointRuns]) -> "pd.DataFrame":
    """One row a finished run of a point: the point's row number, seed, engine, totals, and its baseline's
    seconds a rollout."""
    import pandas as pd

    rows = [
        {
            c.POINT: number,
            c.RUN_SEED: seed,
            c.ENGINE: run.engine,
            **run.totals,
            "baseline_s_per_rollout": float("nan") if base.totals is None else base.totals[c.S_PER_ROLLOUT],
        }
        for number, point in enumerate(points)
        for seed, run, base in zip(point.seeds, point.runs, point.baselines, strict=True)
        if run.totals is not None
    ]
    return pd.DataFrame(rows) if rows else pd.DataFrame({c.POINT: [], c.RUN_SEED: []}, dtype="int64")


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
    row |= to_reward_columns(totals, bases if complete else totals, point.learning, point.drawn_rows)
    if not complete:
        row |= dict.fromkeys((*SPEEDUP_COLUMNS, c.LENGTH_BIAS_PAIRED, *TO_REWARD_COLUMNS[-3:]), float("nan"))
        row[c.ERROR] = "its baseline failed: " + next(
            base.error or "" for base in point.baselines if base.totals is None
        )
    row |= {name: fmean([run[name] for run in totals]) for name in MEANS}
    row[c.COMPARED_KV_PEAK_TOKENS] = max(run[c.COMPARED_KV_PEAK_TOKENS] for run in totals)
    if difference is not None:
        row |= dict(zip(_DIFFERENCES, difference, strict=True))
    return row


DRAWN_COLUMNS: Final = (
    c.STEP_S_MACHINE_LOW, c.STEP_S_MACHINE_HIGH,
    *SPEEDUP_ENDS,
    *SPEEDUP_PER_TOKEN_ENDS,
    c.DIFFERENCE_BOTH_LOW, c.DIFFERENCE_BOTH_HIGH,
    c.P_BEST, c.MACHINE_WIDEST, c.MACHINE_WIDEST_SHARE, c.DIFFERENCE_WIDEST, c.DIFFERENCE_WIDEST_SHARE,
)  # fmt: skip
"""Of points with draws of the machine."""
_DIFFERENCES = (c.DIFFERENCE, c.DIFFERENCE_LOW, c.DIFFERENCE_HIGH)


def _columns() -> list[str]:
    compared = (
        *STEP_COLUMNS, *SPEEDUP_COLUMNS, c.GEN_S, c.REWARD_S, c.TRAINING_S,
        c.COMPARED_STALENESS_MEAN,
        c.COMPARED_STALENESS_MAX, c.LENGTH_BIAS, c.LENGTH_BIAS_PAIRED, c.DEFERRED, c.FILTERED,
        c.UTILIZATION, c.HOURS_PER_10K,
        c.COMPARED_DEFERRALS_MEAN, c.COMPARED_DEFERRALS_MAX,
        c.NUM_GPUS, c.TOKENS_PER_S_PER_GPU, c.GPU_HOURS_PER_1K_STEPS,
        *TO_REWARD_COLUMNS,
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
