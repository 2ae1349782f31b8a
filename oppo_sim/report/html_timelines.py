"""Timelines in a report: of one folder, and of several runs on one time axis."""

from collections.abc import Mapping, Sequence

from oppo_sim.report.gantt import compare_gantt
from oppo_sim.report.html_parts import Section
from oppo_sim.report.html_pictures import picture
from oppo_sim.report.perfetto_read import read_trace
from oppo_sim.report.run_folder import FinishedRun
from oppo_sim.report.timeline import STEP_END, Timeline

TIMELINE = "timeline.json"
MOST_STEPS = 3


def recorded_steps(timeline: Timeline) -> set[int]:
    """Steps whose end was recorded."""
    _, markers = timeline
    return {marker.step for marker in markers if marker.name == STEP_END}


def shared_steps(runs: Mapping[str, Timeline], most: int = MOST_STEPS) -> tuple[int, int] | None:
    """First and last of the earliest steps in a row that every run has, at most ``most``; None: they share no
    step."""
    common = set.intersection(*(recorded_steps(timeline) for timeline in runs.values())) if runs else set()
    if not common:
        return None
    first = last = min(common)
    while last + 1 in common and last + 1 - first < most:
        last += 1
    return first, last


def timeline_section(run: FinishedRun, stem: str) -> Sequence[Section]:
    """The timeline of a folder, if it has one."""
    if TIMELINE not in run.files:
        return ()
    return side_by_side(read_trace(run.path(TIMELINE)), stem, "Timeline")


def side_by_side(
    runs: Mapping[str, Timeline], stem: str, title: str = "Timelines side by side"
) -> Sequence[Section]:
    """Several runs, one under the other on one time axis; nothing where they share no recorded step."""
    steps = shared_steps(runs)
    if steps is None:
        return ()
    first, last = steps
    said = f"steps {first} to {last}" if last > first else f"step {first}"
    named = ", ".join(name for name in runs if name)
    lanes = (
        "a lane for each replica, scoring worker and trainer; the share of the time it was busy stands on the"
        " right"
    )
    alt = f"Gantt chart of {said}{f' of {named}' if named else ''}: {lanes}."
    closer = "The folder's timeline.json opens in ui.perfetto.dev for a closer look."
    text = (
        f"Each run from the start of its first shown step, on one time axis. {closer}"
        if len(runs) > 1
        else closer
    )
    return (
        Section(
            title, (text,), pictures=(picture(f"{stem}-timeline", compare_gantt(runs, steps), title, alt),)
        ),
    )
