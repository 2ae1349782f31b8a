"""A real run into a run folder: tables, the trace it made, figures, timeline, manifest."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oppo_real.checkpoint import FILE, Checkpoints
from oppo_real.run.record import Record
from oppo_real.run.setup import RealSetup
from oppo_real.run.start import Progress, execute, real_manifest
from oppo_sim.columns import RESPONSE_LENGTH, TRAINED_STEP
from oppo_sim.errors import OppoError
from oppo_sim.report.run_folder import JOURNAL, RunFolder, open_run_folder
from oppo_sim.results.sinks import FrameSink
from oppo_sim.results.spans import Marker, Span
from oppo_sim.results.summary import summarise, summary_record
from oppo_sim.traces.storage import save_trace

if TYPE_CHECKING:
    import pandas as pd

STEPS = "steps.parquet"
ROLLOUTS = "rollouts.parquet"
TRACE = "trace.parquet"
TRAINING = "training.parquet"
SUMMARY = "summary.json"
TIMELINE = "timeline.json"
GANTT = "figures/gantt.png"


@dataclass(frozen=True)
class RealRequest:
    """What to run and what to write."""

    setup: RealSetup
    folder: Path
    force: bool = False
    resume: bool = False
    timeline: tuple[int, int] | None = None
    figures: bool = True


@dataclass(frozen=True)
class WrittenRealRun:
    """A run and where it was written."""

    folder: Path
    policy: str
    steps: "pd.DataFrame"
    summary: "pd.DataFrame"
    manifest: Mapping[str, Any]
    warmup_steps: int
    interrupted: bool


def run_to_folder(request: RealRequest, progress: Progress) -> WrittenRealRun:
    """Run and write a run folder. An interruption (Ctrl-C) finishes the folder with the steps that are done.

    Raises OppoError for a folder that is taken, a disk that refuses, a checkpoint that does not fit, and a run that fails; with a
    checkpoint in the folder, such a run can be resumed.
    """
    setup = request.setup
    path = request.folder / FILE
    every = setup.checkpoint_every
    if request.resume and every is None:
        raise OppoError("--resume needs checkpoints: set real.checkpoint_every, and choose a synchronous policy")
    checkpoints = None if every is None else Checkpoints(path, setup, every, resume=request.resume)
    if checkpoints is not None:
        checkpoints.load()  # refuse before anything is removed
    folder = open_run_folder(request.folder, force=request.force or request.resume)
    if not request.resume:
        path.unlink(missing_ok=True)
    frames, record = FrameSink(), Record(setup)
    interrupted = False
    try:
        execute(setup, frames, timeline=request.timeline, progress=progress, checkpoints=checkpoints, record=record)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        if not record.metric_rows:
            _leave(folder)
    if not record.metric_rows:
        raise KeyboardInterrupt
    count = len(record.metric_rows)
    steps = frames.steps()[:count]
    rollouts = frames.rollouts()
    rollouts = rollouts[rollouts[TRAINED_STEP] < count]
    warmup = min(setup.base.warmup_steps, count - 1)
    summary = summarise(steps, warmup)
    folder.write_frame(STEPS, steps)
    folder.write_frame(ROLLOUTS, rollouts)
    save_trace(record.trace(), folder.path(TRACE))
    if setup.config.trains:
        folder.write_frame(TRAINING, record.training())
    folder.write_json(SUMMARY, summary_record(summary))
    if request.figures:
        _write_figures(folder, setup, steps, rollouts)
    if request.timeline is not None and record.spans:
        _write_timeline(folder, request, record.spans, record.markers)
    manifest = real_manifest(setup, record.resolved) | {
        "steps_done": count,
        "interrupted": interrupted,
        "resumed": request.resume,
        "metrics": [] if not setup.config.trains else sorted(set().union(*record.metric_rows)),
    }
    folder.finish(manifest)
    return WrittenRealRun(request.folder, setup.policy_name, steps, summary, manifest, warmup, interrupted)


def _leave(folder: RunFolder) -> None:
    """Nothing was done: do not leave a folder that looks like a run."""
    if (folder.root / FILE).exists():
        return
    with suppress(OSError):
        (folder.root / JOURNAL).unlink()
        folder.root.rmdir()


def _write_figures(folder: RunFolder, setup: RealSetup, steps: "pd.DataFrame", rollouts: "pd.DataFrame") -> None:
    from oppo_sim.report import figures

    title = f"{setup.base.scenario.name}, {setup.policy_name}, measured"
    folder.write_figure("figures/stage_times.png", figures.stage_times_figure(steps, title))
    folder.write_figure("figures/staleness.png", figures.staleness_figure(steps, title))
    folder.write_figure("figures/in_flight.png", figures.in_flight_figure(steps, title))
    controls = figures.controls_figure(steps, title)
    if controls is not None:
        folder.write_figure("figures/controls.png", controls)
    replays = setup.config.mode == "replay"
    of_trace = setup.base.replay.response_lengths if replays else rollouts[RESPONSE_LENGTH].tolist()
    lengths = rollouts[[TRAINED_STEP, RESPONSE_LENGTH]]
    folder.write_figure("figures/response_length.png", figures.response_length_figure(lengths, of_trace, title))


def _write_timeline(folder: RunFolder, request: RealRequest, spans: list[Span], markers: list[Marker]) -> None:
    from oppo_sim.report.perfetto import write_trace

    assert request.timeline is not None
    write_trace({"": (spans, markers)}, folder.path(TIMELINE))
    if request.figures:
        from oppo_sim.report.gantt import gantt_figure

        first, last = request.timeline
        title = f"{request.setup.base.scenario.name}, {request.setup.policy_name}, measured, steps {first} to {last}"
        folder.write_figure(GANTT, gantt_figure(spans, markers, request.timeline, title))
