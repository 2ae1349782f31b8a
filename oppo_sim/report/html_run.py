"""The chapter of one run, simulated or measured, and timelines of several on one axis."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.finished_run import FinishedRun
from oppo_sim.report.activities import STEP_END, Timeline
from oppo_sim.report.html_parts import (
    Chapter,
    Grid,
    Picture,
    Section,
    cost_source,
    flat,
    picture,
    policy_yaml,
    run_provenance,
    scenario_section,
    stored_picture,
)
from oppo_sim.report.labels import (
    Unit,
    clock_unit,
    counted,
    format_percent,
    format_seconds,
    measured_label,
    stage_rows,
)
from oppo_sim.report.perfetto import read_trace
from oppo_sim.report.run_figures import (
    controls_figure,
    deferrals_figure,
    in_flight_figure,
    stage_times_figure,
    staleness_figure,
)
from oppo_sim.report.timeline import compare_gantt
from oppo_sim.run_kinds import MEASURED

if TYPE_CHECKING:
    import pandas as pd

_LENGTHS = "figures/response_length.png"


def run_chapter(run: FinishedRun, stem: str) -> Chapter:
    """Read the folder of a simulated or real run. Raises OppoError for a folder that lacks its step table."""
    manifest = run.manifest
    steps = run.frame("steps.parquet")
    measured = manifest.get("kind") == MEASURED
    warmup = min(int(manifest.get("warmup_steps", 0)), len(steps) - 1)
    kept = steps.iloc[warmup:]
    name, policy, seed = str(manifest["scenario"]), str(manifest["policy"]), manifest.get("seed")
    unit = clock_unit(manifest)
    settings = dict(manifest.get("policy_settings", {}))
    code = scenario_section(manifest)
    return Chapter(
        title=f"{'Real run' if measured else 'Simulated run'}: {name}, {policy}",
        kind="real run" if measured else "simulated run",
        source=(
            cost_source(manifest["costs"])
            if not measured
            else "Counted in lock-step on real engines: times are decode iterations, not seconds."
            if unit
            else "Measured on real engines."
        ),
        measured=measured,
        question=(
            f"What does a step of {policy} on {name} take, and where does the time go?"
            f" {counted(len(kept), 'step')} after {warmup} of warm-up, seed"
            f" {seed}{'; the run was interrupted' if manifest.get('interrupted') else ''}."
        ),
        answer=_answer(kept, unit),
        settings=(("policy.name", policy), *((f"policy.{field}", value) for field, value in flat(settings))),
        copy_text=policy_yaml(policy, settings),
        sections=(
            Section("Stages", grids=(stage_grid(kept, unit),)),
            Section("Pictures", pictures=_pictures(run, steps, warmup, stem, unit)),
            *timeline_section(run, stem),
            *([code] if code else []),
        ),
        provenance=(
            *run_provenance(manifest),
            *([("engine", str(manifest["engine"]))] if isinstance(manifest.get("engine"), str) else []),
        ),
        notes=tuple(manifest.get("warnings", ())),
    )


def stage_grid(steps: "pd.DataFrame", unit: Unit | None) -> Grid:
    """Where the time of a step goes. ``steps``: warm-up left out."""
    heads = ("stage", "mean", "median", "95th percentile", "share of the step")
    return Grid("Time of a step by stage", heads, tuple(stage_rows(steps, unit)), frozenset({1, 2, 3, 4}))


# ---- inside ------------------------------------------------------------------------------------------------


def _answer(steps: "pd.DataFrame", unit: Unit | None) -> tuple[str, ...]:
    seconds = steps[c.TIMING_STEP]
    if not np.isfinite(seconds.to_numpy(dtype=np.float64)).any():
        raise OppoError(f"the table of steps has no number under {c.TIMING_STEP}: simulate the run again")
    stages = {
        stage: float(steps[c.timing(stage)].mean()) for stage in c.STAGES if c.timing(stage) in steps.columns
    }
    longest = max(stages, key=lambda stage: np.nan_to_num(stages[stage]))
    mean = float(seconds.mean())
    sentences = [
        f"A step takes {format_seconds(mean, unit)} on average (median"
        f" {format_seconds(float(seconds.median()), unit)}); the longest stage is {longest},"
        f" {format_seconds(stages[longest], unit)} or {format_percent(stages[longest] / mean)} of it."
    ]
    if c.STALENESS_MEAN in steps.columns and c.LENGTH_MEAN in steps.columns:
        stale, oldest = float(np.nanmean(steps[c.STALENESS_MEAN])), float(np.nanmax(steps[c.STALENESS_MAX]))
        sentences.append(
            f"Mean staleness is {measured_label(stale, 'number')} (highest"
            f" {measured_label(oldest, 'count')})."
        )
        if _of_a_trace(steps):
            bias = float(np.nanmean(steps[c.LENGTH_MEAN]) / np.nanmean(steps[c.TRACE_LENGTH_MEAN])) - 1.0
            which = "shorter" if bias < 0 else "longer"
            sentences.append(
                f"Trained responses are {format_percent(abs(bias))} {which} than the trace's mean; one run's"
                " draws are part of that, a comparison pairs them with sequential."
            )
    return tuple(sentences)


def _of_a_trace(steps: "pd.DataFrame") -> bool:
    """Lengths were those of a trace; a run that trains on a task samples its own."""
    column = c.TRACE_LENGTH_MEAN
    return column in steps.columns and bool(np.isfinite(steps[column].to_numpy(dtype=np.float64)).any())


def _pictures(
    run: FinishedRun, steps: "pd.DataFrame", warmup: int, stem: str, unit: Unit | None
) -> tuple[Picture, ...]:
    kept = steps.iloc[warmup:]
    mean = format_seconds(float(np.nanmean(kept[c.TIMING_STEP])), unit)
    found = [
        picture(
            f"{stem}-stages",
            stage_times_figure(steps, unit=unit, warmup_steps=warmup),
            "Stage times by step",
            f"Stage times of {len(steps)} steps, stacked; after the warm-up a step takes {mean} on average.",
        )
    ]
    if c.STALENESS_HISTOGRAM in steps.columns:
        found.append(
            picture(
                f"{stem}-staleness",
                staleness_figure(kept),
                "Staleness",
                "Share of trained rollouts by staleness.",
            )
        )
    if c.DEFERRALS_HISTOGRAM in steps.columns:
        alt = "Share of trained rollouts by how often they were deferred."
        found.append(picture(f"{stem}-deferrals", deferrals_figure(kept), "Deferrals", alt))
    if c.ROLLOUTS_DEFERRED in steps.columns:
        alt = "Rollouts deferred and surplus at the end of generation, by step."
        found.append(
            picture(
                f"{stem}-in-flight", in_flight_figure(steps, warmup_steps=warmup), "Rollouts in flight", alt
            )
        )
    controls = controls_figure(steps)
    if controls is not None:
        found.append(
            picture(
                f"{stem}-controls", controls, "Knobs by step", "Overcommit and chunk size in force, by step."
            )
        )
    if _LENGTHS in run.files:
        title, alt = "Response lengths", "Distribution of the response lengths that were trained."
        if _of_a_trace(steps):
            title += " (length bias)"
            alt = f"{alt[:-1]}, against the trace's, and by quantile."
        found.append(stored_picture(run.path(_LENGTHS), f"{stem}-lengths", title, alt))
    return tuple(found)


TIMELINE = "timeline.json"
MOST_STEPS = 3


def recorded_steps(timeline: Timeline) -> set[int]:
    """Steps whose end was recorded."""
    _, markers = timeline
    return {marker.step for marker in markers if marker.name == STEP_END}


def shared_steps(runs: Mapping[str, Timeline]) -> tuple[int, int] | None:
    """First and last of the earliest steps in a row that every run has, at most ``MOST_STEPS``; None: they
    share no step."""
    common = set.intersection(*(recorded_steps(timeline) for timeline in runs.values())) if runs else set()
    if not common:
        return None
    first = last = min(common)
    while last + 1 in common and last + 1 - first < MOST_STEPS:
        last += 1
    return first, last


def timeline_section(run: FinishedRun, stem: str) -> Sequence[Section]:
    """The timeline of a folder, if it has one."""
    if TIMELINE not in run.files:
        return ()
    return side_by_side(read_trace(run.path(TIMELINE)), stem, "Timeline", clock_unit(run.manifest))


def side_by_side(
    runs: Mapping[str, Timeline], stem: str, title: str = "Timelines side by side", unit: Unit | None = None
) -> Sequence[Section]:
    """Several runs, one under the other on one time axis; nothing where they share no recorded step."""
    steps = shared_steps(runs)
    if steps is None:
        return ()
    first, last = steps
    shown = f"steps {first} to {last}" if last > first else f"step {first}"
    named = ", ".join(name for name in runs if name)
    lanes = (
        "a lane for each replica, scoring worker and trainer; the share of the time it was busy stands on the"
        " right"
    )
    alt = f"Gantt chart of {shown}{f' of {named}' if named else ''}: {lanes}."
    closer = "The folder's timeline.json opens in ui.perfetto.dev for a closer look."
    text = (
        f"Each run from the start of its first shown step, on one time axis. {closer}"
        if len(runs) > 1
        else closer
    )
    return (
        Section(
            title,
            (text,),
            pictures=(picture(f"{stem}-timeline", compare_gantt(runs, steps, unit), title, alt),),
        ),
    )
