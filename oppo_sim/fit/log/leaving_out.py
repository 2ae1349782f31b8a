"""Metrics that a user leaves out of a fit: a run has their seconds, but not of what is simulated."""

from collections.abc import Sequence
from dataclasses import replace

from oppo_sim.columns import TIMING_STEP, timing
from oppo_sim.errors import OppoError
from oppo_sim.fit.log.names import FRAMEWORKS, stages_in
from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.traces.importers.figures import PREFIXES


def without_metrics(logs: Sequence[StepLog], names: Sequence[str]) -> list[StepLog]:
    """The logs, each marked with those of its metrics that ``names`` leaves out: our column, the framework's
    own name of it, or a stage (``gen``). Raises OppoError for a name that no log has, and where nothing is
    left to fit."""
    found = [{column for name in names for column in _columns(log, name)} for log in logs]
    for name in names:
        if not any(_columns(log, name) for log in logs):
            has = "; ".join(f"{log.name} has {', '.join(_listed(log))}" for log in logs)
            raise OppoError(f"--leave-out {name} is no metric that is fitted: {has}")
    return [_without(log, columns) for log, columns in zip(logs, found, strict=True)]


def _without(log: StepLog, columns: set[str]) -> StepLog:
    if not set(_listed(log)) - columns:
        raise OppoError(f"--leave-out leaves nothing of {log.name} to fit: leave out fewer of its metrics")
    frame = log.frame.drop(columns=[TIMING_STEP]) if TIMING_STEP in columns else log.frame
    return replace(log, frame=frame, not_fitted=tuple(each for each in _listed(log) if each in columns))


def _listed(log: StepLog) -> list[str]:
    """What may be left out of a log."""
    return [*log.covers, *([TIMING_STEP] if TIMING_STEP in log.frame else [])]


def _columns(log: StepLog, name: str) -> list[str]:
    named = timing(name.strip().removeprefix("timing_s/"))
    listed = _listed(log)
    if named in listed:
        return [named]
    own = [column for column in _of_framework(log, name.strip()) if column in listed]
    return own or [each for each in listed if named in map(timing, stages_in(each))]


def _of_framework(log: StepLog, name: str) -> list[str]:
    """Columns that a framework's own metric is read as."""
    asked = {name, *(name.removeprefix(prefix) for prefix in PREFIXES)}
    return [
        column
        for names in FRAMEWORKS
        if names.name == log.framework
        for column, known in (
            (TIMING_STEP, names.step),
            *((timed.column, timed.names) for timed in names.stages),
        )
        if asked & set(known)
    ]
