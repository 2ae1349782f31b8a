"""What `oppo fit` reaches: the first steps of a run against its rest, and some runs against others.

The naive predictors are fitted on the same steps, and everything is judged on the same ones.
"""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from logs import write_log
from measures import errors_of, line_predictor, mean_predictor
from rows import Row, interval_columns, row_of
from split import DATA
from steps import Run, scenario_of

from oppo_sim.columns import TIMING_STEP
from oppo_sim.fit.estimate import HeldOut, fit_logs
from oppo_sim.fit.log.reading import read_step_log
from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.scenario.schema import Scenario

FIRST = 15
"""Steps of a run that are fitted before its rest is judged."""
FIRST_STEPS = f"fitted, first {FIRST} steps → rest"
OTHER_RUNS = "fitted, other runs → this run"
LEAST_REST = 10
"""Steps that must be left to judge."""


def log_of(run: Run, folder: Path) -> StepLog:
    """The run's own console log where it is shipped, else its steps as verl's file logger writes them."""
    raw = DATA / "logs" / f"{run.source}_{run.name}.log.gz"
    path = folder / f"{run.name}.log"
    if run.log is not None:
        return read_step_log(run.log, run.names, fields=run.fields)
    if raw.exists():
        path.write_bytes(gzip.decompress(raw.read_bytes()))
        return read_step_log(path, "verl")
    return read_step_log(write_log(run.steps, path.with_suffix(".jsonl")), "verl")


@dataclass(frozen=True)
class Judged:
    """Steps of one run that a fit has not seen."""

    run: Run
    way: str
    terms: int
    """Unknowns of the fit."""
    steps: pd.DataFrame
    """A row a step, seconds: ``measured``, ``predicted``, ``low``, ``high`` (95 %), ``line``, ``mean``."""

    @property
    def row(self) -> Row:
        run = self.run
        return _row(f"{run.source} {run.name}", run, self.way, self.terms, self.steps)


def together(judged: Sequence[Judged], way: str) -> list[Row]:
    """One row over the steps of all runs of a cluster; none for fewer than two runs."""
    if len({each.run.name for each in judged}) < 2:
        return []
    first = judged[0]
    terms = max(each.terms for each in judged)
    steps = pd.concat([each.steps for each in judged])
    return [_row(f"{first.run.source}, all {len(judged)} runs", first.run, way, terms, steps)]


def first_steps(run: Run, folder: Path) -> Judged | None:
    """The step of the rest of a run from its first steps; None where too few are left."""
    if len(run.steps) < FIRST + LEAST_REST:
        return None
    result = fit_logs([_given(run, folder)], fit_steps=FIRST)
    known = run.steps[:FIRST]
    return _judged(run, result.held_out[0], known, FIRST_STEPS, result.fitted_terms)


def other_runs(fitted: Sequence[Run], judged: Sequence[Run], folder: Path) -> list[Judged]:
    """The steps of runs from other runs of the cluster."""
    result = fit_logs([_given(run, folder) for run in fitted], [_given(run, folder) for run in judged])
    known = pd.concat([run.steps for run in fitted])
    way = f"fitted, {' + '.join(_short(run) for run in fitted)} → this run"
    return [
        _judged(run, found, known, way, result.fitted_terms)
        for run, found in zip(judged, result.judged, strict=True)
    ]


def _short(run: Run) -> str:
    """A name without its year."""
    return run.name.removeprefix("2025")


def _given(run: Run, folder: Path) -> tuple[StepLog, Scenario]:
    folder.mkdir(parents=True, exist_ok=True)
    return log_of(run, folder), scenario_of(run, folder)


def _judged(run: Run, found: HeldOut, known: pd.DataFrame, way: str, terms: int) -> Judged:
    prediction = next(each for each in found.judgements if each.column == TIMING_STEP).prediction
    asked = run.steps.set_index("step").loc[list(prediction.steps)].reset_index()
    steps = pd.DataFrame(
        {
            "measured": asked["step_s"].to_numpy(float),
            "predicted": prediction.predicted,
            "low": prediction.low,
            "high": prediction.high,
            "line": line_predictor(known, asked, "step_s"),
            "mean": mean_predictor(known, asked, "step_s"),
        }
    )
    return Judged(run, way, terms, steps)


def _row(source: str, run: Run, way: str, terms: int, steps: pd.DataFrame) -> Row:
    measured = steps["measured"].to_numpy()
    line, mean = (errors_of(steps[name].to_numpy(), measured) for name in ("line", "mean"))
    return replace(
        row_of("step", source, "step", run.gpu, run.framework, way, steps),
        line_median=line.median,
        line_p90=line.p90,
        mean_median=mean.median,
        mean_p90=mean.p90,
        terms=terms,
        **interval_columns(steps["low"].to_numpy(), steps["high"].to_numpy(), measured),
    )
