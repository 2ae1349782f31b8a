"""What `oppo fit` reaches: the first steps of a run against its rest, and some runs against others.

The naive predictors are fitted on the same steps, and everything is judged on the same ones.
"""

import gzip
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from logs import write_log
from measures import errors_of, line_predictor, mean_predictor
from rows import Row, interval_columns, row_of
from split import DATA
from steps import Run, scenario_of

from oppo_sim.columns import TIMING_STEP
from oppo_sim.fit.estimate import HeldOut, fit_logs
from oppo_sim.fit.reading import StepLog, read_step_log
from oppo_sim.scenario.schema import Scenario

FIRST = 15
"""Steps of a run that are fitted before its rest is judged."""
LEAST_REST = 10
"""Steps that must be left to judge."""


def log_of(run: Run, folder: Path) -> StepLog:
    """The run's own console log where it is shipped, else its steps as verl's file logger writes them."""
    raw = DATA / "logs" / f"{run.source}_{run.name}.log.gz"
    path = folder / f"{run.name}.log"
    if raw.exists():
        path.write_bytes(gzip.decompress(raw.read_bytes()))
        return read_step_log(path, "verl")
    return read_step_log(write_log(run.steps, path.with_suffix(".jsonl")), "verl")


def first_steps(run: Run, folder: Path) -> Row | None:
    """The step of the rest of a run from its first steps; None where too few are left."""
    if len(run.steps) < FIRST + LEAST_REST:
        return None
    result = fit_logs([_given(run, folder)], fit_steps=FIRST)
    known = run.steps[:FIRST]
    way = f"fitted, first {FIRST} steps → rest"
    return _row(run, result.held_out[0], known, way, result.fitted_terms)


def other_runs(fitted: Sequence[Run], judged: Sequence[Run], folder: Path) -> list[Row]:
    """The steps of runs from other runs of the cluster."""
    result = fit_logs([_given(run, folder) for run in fitted], [_given(run, folder) for run in judged])
    known = pd.concat([run.steps for run in fitted])
    way = f"fitted, {' + '.join(run.name[4:] for run in fitted)} → this run"
    return [
        _row(run, found, known, way, result.fitted_terms)
        for run, found in zip(judged, result.judged, strict=True)
    ]


def _given(run: Run, folder: Path) -> tuple[StepLog, Scenario]:
    folder.mkdir(parents=True, exist_ok=True)
    return log_of(run, folder), scenario_of(run, folder)


def _row(run: Run, found: HeldOut, known: pd.DataFrame, way: str, terms: int) -> Row:
    prediction = next(each for each in found.judgements if each.column == TIMING_STEP).prediction
    asked = run.steps.set_index("step").loc[list(prediction.steps)].reset_index()
    measured = asked["step_s"].to_numpy(float)
    pairs = pd.DataFrame({"predicted": prediction.predicted, "measured": measured})
    row = row_of("step", f"{run.source} {run.name}", "step", run.gpu, run.framework, way, pairs)
    line = errors_of(line_predictor(known, asked, "step_s"), measured)
    mean = errors_of(mean_predictor(known, asked, "step_s"), measured)
    return replace(
        row,
        line_median=line.median,
        line_p90=line.p90,
        mean_median=mean.median,
        mean_p90=mean.p90,
        terms=terms,
        **interval_columns(prediction.low, prediction.high, measured),
    )
