"""Runs into run folders: tables as they come, then figures, timeline and manifest."""

import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any, Final

from oppo_sim.columns import (
    FINISH_REASON,
    RESPONSE_LENGTH,
    ROLLOUT_COLUMNS,
    TRAINED_STEP,
    RolloutRow,
)
from oppo_sim.errors import OppoError
from oppo_sim.fast.choose import engine_of
from oppo_sim.manifest import run_manifest
from oppo_sim.one_run import ProgressSink, check_timeline, run_setup, with_step_warnings
from oppo_sim.plain_json import plain
from oppo_sim.report.labels import Unit, clock_unit, told_done
from oppo_sim.results.sinks import FINISH_REASONS, FrameSink, Sink, Sinks, typed_columns
from oppo_sim.results.spans import Marker, Span
from oppo_sim.results.summary import summarise, summary_record
from oppo_sim.run_folder import RunFolder, open_run_folder
from oppo_sim.run_kinds import SIMULATED
from oppo_sim.runs.machine import EXACT, MachineDraws, headline_intervals
from oppo_sim.scenario.build import Setup

if TYPE_CHECKING:
    import pandas as pd

    from oppo_sim.tables import ParquetTable


STEPS: Final = "steps.parquet"
ROLLOUTS: Final = "rollouts.parquet"
SUMMARY: Final = "summary.json"
TIMELINE: Final = "timeline.json"
GANTT: Final = "figures/gantt.png"


@dataclass(frozen=True)
class RunOutput:
    """What a run has output, whole or up to an interruption."""

    policy: str
    title: str
    """Of its figures."""
    steps: "pd.DataFrame"
    warmup_steps: int
    """As asked for; one step at least is kept."""
    lengths: "Callable[[], pd.DataFrame] | None"
    """Trained step and response length of each trained rollout, asked for only if figures are drawn; None:
    they were not kept."""
    trace_lengths: Sequence[int] | None
    """Tokens, what the lengths are shown beside; None: no trace decided them."""
    spans: Sequence[Span]
    markers: Sequence[Marker]
    interrupted: bool


@dataclass(frozen=True)
class StoredRun:
    """A run and where it was written."""

    folder: Path
    policy: str
    steps: "pd.DataFrame"
    summary: "pd.DataFrame"
    manifest: Mapping[str, Any]
    warmup_steps: int
    interrupted: bool
    spans: Sequence[Span] = ()
    """Of the timeline."""
    markers: Sequence[Marker] = ()


def finish_run(
    folder: RunFolder,
    output: RunOutput,
    manifest: Mapping[str, Any],
    *,
    timeline: tuple[int, int] | None,
    figures: bool,
) -> StoredRun:
    """Write all but the tables of rollouts, and finish the folder. ``timeline``: first and last step asked
    for, of which an interrupted run has a part. Raises OppoError when the disk refuses.
    """
    steps = output.steps
    warmup = min(output.warmup_steps, len(steps) - 1)
    summary = summarise(steps, warmup)
    folder.write_frame(STEPS, steps)
    folder.write_json(SUMMARY, summary_record(summary))
    if figures:
        _write_figures(folder, output, clock_unit(manifest))
    if timeline is not None and output.spans:
        _write_timeline(folder, output, timeline, figures, clock_unit(manifest))
    facts = {**manifest, "steps_done": len(steps), "interrupted": output.interrupted}
    folder.finish(facts)
    return StoredRun(
        folder.root,
        output.policy,
        steps,
        summary,
        facts,
        warmup,
        output.interrupted,
        output.spans,
        output.markers,
    )


def run_record(run: StoredRun) -> str:
    """The run as one JSON document for scripts."""
    return json.dumps(
        {
            "folder": str(run.folder),
            "policy": run.policy,
            "steps": len(run.steps),
            "warmup_steps": run.warmup_steps,
            "interrupted": run.interrupted,
            **({"machine": plain(run.manifest["machine"])} if "machine" in run.manifest else {}),
            "summary": summary_record(run.summary),
        },
        indent=1,
    )


def _write_figures(folder: RunFolder, output: RunOutput, unit: Unit | None) -> None:
    from oppo_sim.report import run_figures as figures

    warmup = min(output.warmup_steps, len(output.steps) - 1)
    kept = output.steps.iloc[warmup:]
    folder.write_figure(
        "figures/stage_times.png", figures.stage_times_figure(output.steps, output.title, unit, warmup)
    )
    folder.write_figure("figures/deferrals.png", figures.deferrals_figure(kept, output.title))
    folder.write_figure("figures/staleness.png", figures.staleness_figure(kept, output.title))
    folder.write_figure("figures/in_flight.png", figures.in_flight_figure(output.steps, output.title, warmup))
    controls = figures.controls_figure(output.steps, output.title)
    if controls is not None:
        folder.write_figure("figures/controls.png", controls)
    if output.lengths is not None:
        lengths = figures.response_length_figure(output.lengths(), output.trace_lengths, output.title, warmup)
        folder.write_figure("figures/response_length.png", lengths)


def _write_timeline(
    folder: RunFolder, output: RunOutput, asked: tuple[int, int], figures: bool, unit: Unit | None
) -> None:
    from oppo_sim.report.perfetto import write_trace

    write_trace({"": (output.spans, output.markers)}, folder.path(TIMELINE))
    if figures:
        from oppo_sim.report.timeline import gantt_figure

        shown = asked[0], min(asked[1], max(span.step for span in output.spans))
        title = f"{output.title}, steps {shown[0]} to {shown[1]}"
        folder.write_figure(GANTT, gantt_figure(output.spans, output.markers, shown, title, unit))


@dataclass(frozen=True)
class SimulationRequest:
    """What to simulate and what to write."""

    setup: Setup
    policy: str
    folder: Path
    force: bool = False
    timeline: tuple[int, int] | None = None
    rollouts: bool = True
    figures: bool = True
    machine: MachineDraws = EXACT
    """Draws on which the means that the terminal shows are looked at, too."""
    settings: Mapping[str, Any] | None = None
    """Of the policy; None: those that the scenario gives it."""
    also: Sink | None = None
    """Takes the rows, too."""


def shown_steps(setup: Setup) -> tuple[int, int]:
    """First and last step of the timeline where nobody says: three after the warm-up, as far as there are."""
    first = min(setup.warmup_steps, setup.steps - 1)
    return first, min(first + 2, setup.steps - 1)


class RolloutTableSink:
    """Streams rollout rows into a Parquet table; memory does not grow with the run."""

    def __init__(self, table: "ParquetTable") -> None:
        self._table = table

    def on_step(self, row: Mapping[str, Any]) -> None:
        """Steps are kept elsewhere."""

    def on_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        columns: dict[str, Any] = dict(typed_columns(rows))
        columns[FINISH_REASON] = [FINISH_REASONS[code] for code in columns[FINISH_REASON]]
        self._table.append(columns)


class StoppingSink:
    """Ends the run between two steps, when every sink before it has the whole of the step that is done."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        self._asked = asked
        self.steps_done = 0

    def on_step(self, row: Mapping[str, Any]) -> None:
        """The rollouts of the step are still to come."""

    def on_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        self.steps_done += 1
        if self._asked():
            raise KeyboardInterrupt


@contextmanager
def _first_interrupt_noted() -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether Ctrl-C was pressed; pressed again, it interrupts as ever.

    Does nothing outside of the main thread, and where somebody else handles or ignores the signal.
    """
    if (
        current_thread() is not main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield lambda: False
        return
    pressed = False

    def note(_number: int, _frame: object) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def simulate_to_folder(request: SimulationRequest, progress: Callable[[int], None]) -> StoredRun:
    """Simulate and write a run folder. An interruption (Ctrl-C) ends the run after the step in progress, a
    second one at once; either way the folder is finished with the steps that are done.

    Raises OppoError for a folder that is taken, a disk that refuses, and a run that fails, of which nothing
    is kept.
    """
    check_timeline(request.timeline, request.setup.steps)
    with open_run_folder(request.folder, SIMULATED, force=request.force) as folder:
        return _simulate_into(folder, request, progress)


def _simulate_into(
    folder: RunFolder, request: SimulationRequest, progress: Callable[[int], None]
) -> StoredRun:
    from oppo_sim.tables import ParquetTable

    setup = request.setup
    frames = FrameSink(keep_rollouts=False)
    sinks: list[Sink] = [frames, ProgressSink(progress)]
    if request.also is not None:
        sinks.append(request.also)
    table = ParquetTable(folder.path(ROLLOUTS), ROLLOUT_COLUMNS) if request.rollouts else None
    if table is not None:
        sinks.append(RolloutTableSink(table))
    spans: list[Span] = []
    markers: list[Marker] = []
    interrupted = False
    try:
        with _first_interrupt_noted() as asked:
            last = StoppingSink(asked)
            spans, markers = run_setup(
                setup, Sinks(*sinks, last), timeline=request.timeline, rollouts=request.rollouts
            )
    except KeyboardInterrupt:
        interrupted = True
    except BaseException as error:
        if table is not None:
            table.abandon()
        folder.withdraw()
        done = len(frames.steps())
        if isinstance(error, OppoError) and done:
            raise OppoError(
                f"{error} ({told_done(done)}; nothing of the run is kept in {request.folder})"
            ) from error
        raise
    if table is not None:
        table.close()
    # A second Ctrl-C may fall between a step's row and its rollouts.
    steps = frames.steps()[: last.steps_done]
    if not len(steps) or not (table is None or table.path.is_file()):
        folder.withdraw()
        raise KeyboardInterrupt
    output = RunOutput(
        policy=request.policy,
        title=f"{setup.scenario.name}, {request.policy}",
        steps=steps,
        warmup_steps=setup.warmup_steps,
        lengths=None if table is None else lambda: _lengths(table.path),
        trace_lengths=setup.replay.response_lengths,
        spans=spans,
        markers=markers,
        interrupted=interrupted,
    )
    manifest = run_manifest(setup, request.policy, request.settings, engine=engine_of(setup))
    if request.machine.sentence and not interrupted:
        manifest["machine"] = _machine_record(setup, request.machine)
    return finish_run(
        folder,
        output,
        with_step_warnings(manifest, setup.scenario, steps, min(setup.warmup_steps, len(steps) - 1)),
        timeline=request.timeline,
        figures=request.figures,
    )


def _machine_record(setup: Setup, machine: MachineDraws) -> dict[str, Any]:
    return {**machine.record(), "intervals": headline_intervals(setup, machine)}


def _lengths(path: Path) -> "pd.DataFrame":
    import pandas as pd

    return pd.read_parquet(path, columns=[TRAINED_STEP, RESPONSE_LENGTH])
