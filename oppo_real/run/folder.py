"""A real run into a run folder: tables, the trace it made, figures, timeline, manifest."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oppo_real.checkpoint import FILE, Checkpoints, nothing_left
from oppo_real.run.record import Record
from oppo_real.run.setup import RealSetup
from oppo_real.run.start import Progress, execute, real_manifest
from oppo_sim.columns import RESPONSE_LENGTH, TRAINED_STEP
from oppo_sim.errors import OppoError
from oppo_sim.files import partial_path
from oppo_sim.report.labels import counted, told_done
from oppo_sim.results.sinks import FrameSink
from oppo_sim.run_files import JOURNAL, MANIFEST, TRACE
from oppo_sim.run_folder import RunFolder, open_run_folder
from oppo_sim.run_kinds import MEASURED
from oppo_sim.simulation_folder import ROLLOUTS, RunOutput, StoredRun, finish_run
from oppo_sim.traces.storage import save_trace

TRAINING = "training.parquet"


@dataclass(frozen=True)
class RealRequest:
    """What to run and what to write."""

    setup: RealSetup
    folder: Path
    force: bool = False
    resume: bool = False
    timeline: tuple[int, int] | None = None
    figures: bool = True


def run_to_folder(
    request: RealRequest, progress: Progress, tell: Callable[[str], None] = lambda phase: None
) -> StoredRun:
    """Run and write a run folder. An interruption (Ctrl-C) finishes the folder with the steps that are done;
    one before a checkpoint is restored leaves what is there, and raises KeyboardInterrupt that says so.
    ``tell``: called with what is done before the first step.

    Raises OppoError for a folder that is taken, a disk that refuses, a checkpoint that does not fit, and a
    run that fails: then the folder keeps the last checkpoint, to resume from, or nothing if there is none.
    """
    setup = request.setup
    path = request.folder / FILE
    every = setup.checkpoint_every
    if request.resume and every is None:
        raise OppoError(
            "--resume needs checkpoints: set real.checkpoint_every, and choose a synchronous policy"
        )
    # A run that was killed before its first checkpoint goes on from its beginning.
    begun = (request.folder / JOURNAL).is_file() and not path.exists()
    resume = request.resume and not begun
    checkpoints = None if every is None else Checkpoints(path, setup, every, resume=resume)
    if checkpoints is not None:
        saved = checkpoints.load()  # refuse before anything is removed
        at_end = saved is not None and saved.next_step == setup.base.steps
        if at_end and (request.folder / MANIFEST).is_file():
            raise nothing_left(path, setup.base.steps)
    force = request.force or request.resume
    with open_run_folder(request.folder, MEASURED, force=force, keep_earlier=resume) as folder:
        if not resume:
            path.unlink(missing_ok=True)
        partial_path(path).unlink(missing_ok=True)
        return _run_into(folder, request, progress, checkpoints, tell)


def can_resume(folder: Path, setup: RealSetup) -> bool:
    """Whether ``--resume`` goes on in this folder: from a checkpoint, or from the beginning of a run that was
    killed before its first."""
    held = (folder / FILE).is_file() or (folder / JOURNAL).is_file()
    return setup.checkpoint_every is not None and held


def _run_into(
    folder: RunFolder,
    request: RealRequest,
    progress: Progress,
    checkpoints: Checkpoints | None,
    tell: Callable[[str], None],
) -> StoredRun:
    setup = request.setup
    frames, record = FrameSink(), Record(setup)
    interrupted = False
    try:
        execute(
            setup,
            frames,
            timeline=request.timeline,
            progress=progress,
            checkpoints=checkpoints,
            record=record,
            restored=folder.clear,
            tell=tell,
        )
    except KeyboardInterrupt:
        interrupted = True
        if folder.holds_earlier:
            _leave(folder)
            raise KeyboardInterrupt(_still_there(checkpoints)) from None
        if not record.metric_rows:
            _leave(folder)
            raise
    except OppoError as error:
        raise _failed(error, record, _leave(folder)) from error
    except BaseException:
        _leave(folder)
        raise
    count = len(record.metric_rows)
    rollouts = frames.rollouts()
    rollouts = rollouts[rollouts[TRAINED_STEP] < count]
    folder.write_frame(ROLLOUTS, rollouts)
    save_trace(record.trace(), folder.path(TRACE))
    if setup.config.trains:
        folder.write_frame(TRAINING, record.training())
    output = RunOutput(
        policy=setup.policy_name,
        title=f"{setup.base.scenario.name}, {setup.policy_name}, measured",
        steps=frames.steps()[:count],
        warmup_steps=setup.base.warmup_steps,
        lengths=lambda: rollouts[[TRAINED_STEP, RESPONSE_LENGTH]],
        trace_lengths=setup.base.replay.response_lengths if setup.config.mode == "replay" else None,
        spans=record.spans,
        markers=record.markers,
        interrupted=interrupted,
    )
    manifest = real_manifest(setup, record.resolved) | {
        "resumed": request.resume,
        "metrics": [] if not setup.config.trains else sorted(set().union(*record.metric_rows)),
    }
    return finish_run(folder, output, manifest, timeline=request.timeline, figures=request.figures)


def _leave(folder: RunFolder) -> bool:
    """A run came to nothing: leave a folder that it can be resumed from (True), or none that looks like a
    run."""
    if folder.holds_earlier:
        folder.leave_earlier()
        return True
    if (folder.root / FILE).exists():
        return True
    folder.withdraw()
    return False


def _still_there(checkpoints: Checkpoints | None) -> str:
    """Of a run that did not begin to go on."""
    saved = None if checkpoints is None else checkpoints.load()
    steps = "" if saved is None else f" of {counted(saved.next_step, 'step')}"
    return f"the checkpoint{steps} is kept, and what was written beside it; with --resume"


def _failed(error: OppoError, record: Record, resumable: bool) -> OppoError:
    """What failed, and what is left of the run."""
    if not record.metric_rows:
        return error
    done = told_done(len(record.metric_rows))
    if resumable:
        return OppoError(
            f"{error} ({done}; the folder keeps a checkpoint: --resume goes on from it, --force starts anew)"
        )
    return OppoError(f"{error} ({done}; without a checkpoint nothing of the run is kept)")
