"""What every run folder holds, simulated or measured: step table, summary, figures, timeline, manifest."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oppo_sim.report.run_folder import RunFolder
from oppo_sim.results.spans import Marker, Span
from oppo_sim.results.summary import summarise, summary_record

if TYPE_CHECKING:
    import pandas as pd

STEPS: Final = "steps.parquet"
ROLLOUTS: Final = "rollouts.parquet"
SUMMARY: Final = "summary.json"
TIMELINE: Final = "timeline.json"
GANTT: Final = "figures/gantt.png"


@dataclass(frozen=True)
class RunMade:
    """What a run has made, whole or up to an interruption."""

    policy: str
    title: str
    """Of its figures."""
    steps: "pd.DataFrame"
    warmup_steps: int
    """As asked for; one step at least is kept."""
    lengths: "Callable[[], pd.DataFrame] | None"
    """Trained step and response length of each trained rollout, asked for only if figures are drawn; None:
    they were not kept."""
    trace_lengths: Sequence[int]
    """Tokens, what the lengths are shown beside."""
    spans: Sequence[Span]
    markers: Sequence[Marker]
    interrupted: bool


@dataclass(frozen=True)
class WrittenRun:
    """A run and where it was written."""

    folder: Path
    policy: str
    steps: "pd.DataFrame"
    summary: "pd.DataFrame"
    manifest: Mapping[str, Any]
    warmup_steps: int
    interrupted: bool


def finish_run(
    folder: RunFolder,
    made: RunMade,
    manifest: Mapping[str, Any],
    *,
    timeline: tuple[int, int] | None,
    figures: bool,
) -> WrittenRun:
    """Write all but the tables of rollouts, and finish the folder. ``timeline``: first and last step asked
    for, of which an interrupted run has a part. Raises OppoError when the disk refuses.
    """
    steps = made.steps
    warmup = min(made.warmup_steps, len(steps) - 1)
    summary = summarise(steps, warmup)
    folder.write_frame(STEPS, steps)
    folder.write_json(SUMMARY, summary_record(summary))
    if figures:
        _write_figures(folder, made)
    if timeline is not None and made.spans:
        _write_timeline(folder, made, timeline, figures)
    written = {**manifest, "steps_done": len(steps), "interrupted": made.interrupted}
    folder.finish(written)
    return WrittenRun(folder.root, made.policy, steps, summary, written, warmup, made.interrupted)


def run_record(run: WrittenRun) -> str:
    """The run as one JSON document for scripts."""
    return json.dumps(
        {
            "folder": str(run.folder),
            "policy": run.policy,
            "steps": len(run.steps),
            "warmup_steps": run.warmup_steps,
            "interrupted": run.interrupted,
            "summary": summary_record(run.summary),
        },
        indent=1,
    )


def _write_figures(folder: RunFolder, made: RunMade) -> None:
    from oppo_sim.report import figures

    folder.write_figure("figures/stage_times.png", figures.stage_times_figure(made.steps, made.title))
    folder.write_figure("figures/staleness.png", figures.staleness_figure(made.steps, made.title))
    folder.write_figure("figures/in_flight.png", figures.in_flight_figure(made.steps, made.title))
    controls = figures.controls_figure(made.steps, made.title)
    if controls is not None:
        folder.write_figure("figures/controls.png", controls)
    if made.lengths is not None:
        lengths = figures.response_length_figure(made.lengths(), made.trace_lengths, made.title)
        folder.write_figure("figures/response_length.png", lengths)


def _write_timeline(folder: RunFolder, made: RunMade, asked: tuple[int, int], figures: bool) -> None:
    from oppo_sim.report.perfetto import write_trace

    write_trace({"": (made.spans, made.markers)}, folder.path(TIMELINE))
    if figures:
        from oppo_sim.report.gantt import gantt_figure

        shown = asked[0], min(asked[1], max(span.step for span in made.spans))
        title = f"{made.title}, steps {shown[0]} to {shown[1]}"
        folder.write_figure(GANTT, gantt_figure(made.spans, made.markers, shown, title))
