"""What a fit is given: a training log, a folder of one of our own runs or of a recorded one, or a log beside
its rollouts."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oppo_sim.columns import (
    COLD_START,
    FINISHED_S,
    LENGTH_MEAN,
    PROMPT_LENGTH,
    RESPONSE_LENGTH,
    SLOWEST_LENGTH,
    SLOWEST_TOOL_S,
    STAGES,
    STEP,
    TIMING_STEP,
    TOOL_SECONDS,
    TOOL_TOKENS,
    TRAINED_STEP,
    timing,
)
from oppo_sim.errors import OppoError
from oppo_sim.finished_run import read_run_folder
from oppo_sim.fit.log.names import LogNames
from oppo_sim.fit.log.reading import read_step_log, step_log
from oppo_sim.fit.log.segments import Gathered
from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.fit.terms.stages import OTHER
from oppo_sim.given_command import flag_given
from oppo_sim.run_files import MANIFEST
from oppo_sim.traces.journal import is_journal, read_journal
from oppo_sim.traces.recorded import WORKLOAD, read_recorded_run

if TYPE_CHECKING:
    import pandas as pd

_STEPS = "steps.parquet"
_ROLLOUTS = "rollouts.parquet"
_OTHER = 0.05
"""Relative difference of mean lengths from which on rollouts are others."""
_SAME = 0.01
_TIMES = 4.0
"""By so much rollouts are nearer to the mean lengths of another step, where they are that step's."""
_FEWEST = 3


def open_log(
    path: str | Path | StepLog,
    framework: str = "auto",
    *,
    fields: Mapping[str, str] | None = None,
    unit: str = "auto",
    lengths: Any = None,
    from_step: int | None = None,
) -> StepLog:
    """A log for a fit; of one that was read before, only ``lengths`` and ``from_step`` are looked at.
    ``lengths``: a trace (name, path, frame or opened) with a ``step`` column, whose rollouts are the log's.
    ``from_step``: the first step to use.

    Raises OppoError for what cannot be read, or has no seconds.
    """
    log = path if isinstance(path, StepLog) else _read(path, framework, fields, unit)
    log = log if isinstance(path, StepLog) else replace(log, path=str(path))
    log = log if lengths is None else _with_trace(log, lengths)
    return log if from_step is None else log.since(from_step)


def _read(path: str | Path, framework: str, fields: Mapping[str, str] | None, unit: str) -> StepLog:
    root = Path(path)
    recorded = (root / WORKLOAD).is_file() or (root.is_dir() and is_journal(root))
    if recorded or (root / MANIFEST).is_file():
        if fields or framework != "auto" or unit != "auto":
            raise OppoError(
                f"{root} is a run folder of this tool, in seconds: leave --from, --field and --unit out (in"
                " Python: framework, fields and unit)"
            )
        return _recorded_run(root) if recorded else _own_run(root)
    return read_step_log(root, framework, fields=fields, unit=unit)


def _own_run(root: Path) -> StepLog:
    """A run that ``oppo run`` or ``oppo simulate`` wrote."""
    run = read_run_folder(root)
    if _STEPS not in run.files:
        raise OppoError(
            f"{root} holds a {run.manifest.get('kind')}, not the steps of one run: name a run's folder"
        )
    frame = run.frame(_STEPS)
    policy = run.manifest.get("policy")
    if policy not in (None, "sequential"):
        raise OppoError(f"{root} is a run of policy '{policy}', whose stages overlap: fit a sequential run")
    seconds = [
        timing(stage)
        for stage in STAGES
        if stage != OTHER and timing(stage) in frame and (frame[timing(stage)] > 0).any()
    ]
    frame = frame.copy()
    frame[COLD_START] = frame[STEP] == frame[STEP].min()
    numeric = [name for name in frame if frame[name].dtype.kind in "ifb"]
    frame = frame[numeric].astype(dict.fromkeys((*seconds, TIMING_STEP), "float64"))
    responses = prompts = None
    if _ROLLOUTS in run.files:
        rollouts = run.frame(_ROLLOUTS, [TRAINED_STEP, RESPONSE_LENGTH, PROMPT_LENGTH])
        if len(rollouts):
            responses = _by_step(rollouts, TRAINED_STEP, RESPONSE_LENGTH)
            prompts = _by_step(rollouts, TRAINED_STEP, PROMPT_LENGTH)
    return StepLog(
        name=root.name,
        frame=frame,
        framework="oppo",
        covers={column: (column.removeprefix("timing_s/"),) for column in seconds},
        note=f"a {run.manifest.get('kind')} run of this tool; every stage by itself",
        files=({"name": _STEPS, **run.manifest["files"][_STEPS]},),
        lengths=responses,
        prompts=prompts,
    )


def _recorded_run(root: Path) -> StepLog:
    """A run that a recorder wrote down, or writes down still."""
    journal = is_journal(root)
    run = read_journal(root) if journal else read_recorded_run(root)
    if run.steps is None:
        raise OppoError(
            f"{root} holds rollouts but no seconds of any stage: fit the framework's log, with --lengths"
            f" {root}"
        )
    import pandas as pd

    trace = run.as_trace()
    rows = {
        int(row[STEP]): {str(name): float(value) for name, value in row.items() if pd.notna(value)}
        for row in run.steps.to_dict("records")
    }
    left_out = run.manifest.get("left_out", {})
    gathered = Gathered(rows, Counter(left_out if isinstance(left_out, dict) else {}))
    for row in gathered.rows.values():
        del row[STEP]
    names = LogNames(str(run.manifest.get("framework") or "recorded"), "generic", (), ())
    files = sorted(root.glob("*.jsonl" if journal else "*.parquet"))
    log = step_log(root, names, gathered, files, "s")
    return replace(_with_rollouts(log, trace), note="a recorded run; every rollout is known")


def _by_step(rollouts: "pd.DataFrame", step: str, name: str) -> dict[int, list[int]]:
    known = rollouts[rollouts[name].notna()]
    steps, values = known[step].astype(int).to_numpy(), known[name].astype(int).to_numpy()
    return {int(number): values[steps == number].tolist() for number in np.unique(steps)}


def _with_trace(log: StepLog, lengths: Any) -> StepLog:
    from oppo_sim.traces.opening import open_trace

    opened = open_trace(lengths)
    frame, name = opened.frame, str(lengths) if isinstance(lengths, str | Path) else opened.title
    if STEP not in frame or frame[STEP].isna().all():
        raise OppoError(
            f"{_flag()} {name} has no step column, so its rollouts belong to no step: import one that has"
        )
    return _of_this_run(_with_rollouts(log, frame), name)


def _flag() -> str:
    return flag_given("--lengths", "--trace")


def _of_this_run(log: StepLog, lengths: str) -> StepLog:
    """A note where the rollouts are others than those that the log has means of. Raises OppoError where they
    are those of the step before or after."""
    assert log.lengths is not None
    if LENGTH_MEAN not in log.frame:
        return log
    known = log.frame.dropna(subset=[LENGTH_MEAN])
    logged = dict(zip(known[STEP].astype(int).tolist(), known[LENGTH_MEAN].tolist(), strict=True))
    means = {step: float(np.mean(each)) for step, each in log.lengths.items() if each}

    def off(shift: int) -> float:
        found = [
            abs(means[step + shift] / mean - 1.0) for step, mean in logged.items() if step + shift in means
        ]
        return float(np.median(found)) if len(found) >= _FEWEST else np.inf

    if not np.isfinite(off(0)):
        return log
    for shift, place in ((-1, "after"), (1, "before")):
        if off(shift) <= _SAME and off(0) > _TIMES * off(shift):
            raise OppoError(
                f"{_flag()} {lengths}: the rollouts of a step are those that {log.name} logs of the step"
                f" {place} it: number their steps as the log does"
            )
    if off(0) <= _OTHER:
        return log
    note = (
        f"the rollouts of {lengths} have other mean lengths than the log ({off(0):.0%} off): are they all,"
        " and of this run?"
    )
    return replace(log, notes=(*log.notes, note))


def _with_rollouts(log: StepLog, frame: "pd.DataFrame") -> StepLog:
    responses, prompts = _by_step(frame, STEP, RESPONSE_LENGTH), _by_step(frame, STEP, PROMPT_LENGTH)
    whole = {step: each for step, each in prompts.items() if len(each) == len(responses.get(step, ()))}
    return _with_tool_waits(replace(log, lengths=responses, prompts=whole or None), frame)


def _with_tool_waits(log: StepLog, frame: "pd.DataFrame") -> StepLog:
    """With what the rollout of each step that finished last waited for tools, where rollouts have it."""
    if TOOL_SECONDS not in frame:
        return log
    waits = frame[TOOL_SECONDS].map(lambda each: float(sum(each)) if isinstance(each, Iterable) else 0.0)
    if not (waits > 0).any():
        return log
    if FINISHED_S not in frame or frame[FINISHED_S].isna().all():
        note = (
            "rollouts waited for tools, and nothing shows which of them finished last: what that lengthened"
            " generation by is taken for decoding"
        )
        return replace(log, notes=(*log.notes, note), tool_tokens_apart=TOOL_TOKENS in frame)
    timed = frame.assign(**{SLOWEST_TOOL_S: waits, SLOWEST_LENGTH: frame[RESPONSE_LENGTH].astype("float64")})
    timed = timed[timed[FINISHED_S].notna()]
    slowest = timed.loc[timed.groupby(STEP)[FINISHED_S].idxmax(), [STEP, SLOWEST_TOOL_S, SLOWEST_LENGTH]]
    others = log.frame.drop(columns=[SLOWEST_TOOL_S, SLOWEST_LENGTH], errors="ignore")
    return replace(
        log, frame=others.merge(slowest, on=STEP, how="left"), tool_tokens_apart=TOOL_TOKENS in frame
    )
