"""Figures of a fit, from its record: measured against predicted by step, residuals, errors, what was
identified."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from oppo_sim.columns import TIMING_STEP
from oppo_sim.report.labels import significant
from oppo_sim.report.style import (
    FAINT,
    INK,
    TRAINED,
    bar_figure,
    beside,
    legend_below,
    line_colour,
    new_figure,
    plain_numbers,
    set_title,
    whole_numbers,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_MOST_LOGS: Final = 4


def fit_figures(record: Mapping[str, Any]) -> "dict[str, Figure]":
    """By file-name stem; those for which the record has numbers."""
    found: dict[str, Figure] = {}
    logs = [each for each in record.get("steps", ()) if _columns(each)]
    if logs:
        found["measured_predicted"] = steps_figure(logs[:_MOST_LOGS])
        found["residuals"] = residuals_figure(logs[:_MOST_LOGS])
    if record.get("held_out") or record.get("judged"):
        found["errors"] = errors_figure([*record["held_out"], *record["judged"]])
    if record.get("terms"):
        found["terms"] = terms_figure(record["terms"])
    return found


def steps_figure(logs: Sequence[Mapping[str, Any]]) -> "Figure":
    """Seconds by step: measured points over the predicted line and its 95 % interval; a row a log."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure, axes = new_figure([2.8] * len(logs), below=0.3)
    for axis, log in zip(axes, logs, strict=True):
        for column in _shown(log):
            part, colour = log["columns"][column], _colour(column)
            steps = part["steps"]
            axis.fill_between(steps, part["low"], part["high"], color=colour, alpha=0.18, linewidth=0)
            axis.plot(steps, part["predicted"], linewidth=1.2, **_line(column))
            axis.plot(steps, part["measured"], ".", color=colour, markersize=4)
        axis.set_ylim(bottom=0)
        axis.set_ylabel("seconds")
        whole_numbers(axis.xaxis)
        set_title(axis, f"{log['log']}: measured and predicted")
    axes[-1].set_xlabel("step of the log")
    handles = [
        Line2D([], [], color=FAINT, marker=".", linestyle="", label="measured"),
        Line2D([], [], color=FAINT, linewidth=1.2, label="predicted"),
        Patch(facecolor=FAINT, alpha=0.3, label="95 % interval"),
        *_stage_handles(logs),
    ]
    legend_below(figure, handles, columns=8)
    return figure


def residuals_figure(logs: Sequence[Mapping[str, Any]]) -> "Figure":
    """Predicted over measured, minus 1, by step; a row a log."""
    figure, axes = new_figure([2.3] * len(logs), below=0.3)
    for axis, log in zip(axes, logs, strict=True):
        axis.axhline(0.0, color=FAINT, linewidth=0.8)
        for column in _shown(log):
            part = log["columns"][column]
            measured = np.array(part["measured"], dtype=np.float64)
            with np.errstate(divide="ignore", invalid="ignore"):
                off = 100.0 * (np.array(part["predicted"]) / measured - 1.0)
            axis.plot(part["steps"], off, marker=".", linewidth=0.6, markersize=4, **_line(column))
        axis.set_ylabel("prediction off by, %")
        whole_numbers(axis.xaxis)
        set_title(axis, f"{log['log']}: predicted over measured, minus 1")
    axes[-1].set_xlabel("step of the log")
    legend_below(figure, _stage_handles(logs))
    return figure


def errors_figure(held: Sequence[Mapping[str, Any]]) -> "Figure":
    """Median and 90th percentile of the error of whole steps that were not fitted, beside naive ones."""
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for each in held:
        errors = each["errors"].get(TIMING_STEP) or next(iter(each["errors"].values()), None)
        if errors is not None:
            rows += [(f"{each['log']}: {kind.replace('_', ' ')}", errors[kind]) for kind in errors]
    names = [name if len(name) < 60 else f"…{name[-58:]}" for name, _ in rows]
    figure, axis = bar_figure(names, gap_in=0.12)
    for place, (name, error) in enumerate(rows):
        colour = TRAINED if name.endswith("model") else FAINT
        low, high = 100 * error["median"], 100 * error["p90"]
        axis.plot([low, high], [place, place], color=colour, linewidth=2)
        axis.plot(low, place, "o", color=colour, markersize=6)
        axis.plot(high, place, "|", color=colour, markersize=11, markeredgewidth=2)
        beside(axis, max(low, high), place, f"{significant(low)}, {significant(high)} %")
    axis.set_xscale("symlog", linthresh=10)
    axis.set_xlim(0, 2.5 * max(10.0, axis.get_xlim()[1]))
    plain_numbers(axis.xaxis)
    axis.set_xlabel("error, %: median (●) to 90th percentile (|)")
    set_title(axis, "steps that were not fitted, by the fit (model) and by simpler guesses")
    return figure


def terms_figure(terms: Sequence[Mapping[str, Any]]) -> "Figure":
    """Each term's 95 % interval before and after, over the prior's median."""
    figure, axis = bar_figure([f"{each['term']} ({each['verdict']})" for each in terms], gap_in=0.07)
    for place, each in enumerate(terms):
        middle = each["prior"][1]
        before, after = (np.maximum(np.array(each[name]) / middle, 1e-4) for name in ("prior", "posterior"))
        axis.plot(before[[0, 2]], [place, place], color=FAINT, linewidth=5, alpha=0.5, solid_capstyle="butt")
        axis.plot(after[[0, 2]], [place, place], color=TRAINED, linewidth=2)
        axis.plot(after[1], place, "o", color=TRAINED, markersize=4)
    axis.axvline(1.0, color=FAINT, linewidth=0.8)
    axis.set_xscale("log")
    plain_numbers(axis.xaxis)
    axis.set_xlabel("over the prior's median: 95 % before (grey) and after (blue)")
    set_title(axis, "terms of the costs, and whether the log identifies them")
    return figure


def _stage_handles(logs: Sequence[Mapping[str, Any]]) -> "list[Line2D]":
    """A line for each stage that any of the logs shows."""
    from matplotlib.lines import Line2D

    shown = dict.fromkeys(column for log in logs for column in _shown(log))
    return [Line2D([], [], label=_stage(column), **_line(column)) for column in shown]


def _colour(column: str) -> str:
    return INK if column == TIMING_STEP else line_colour(_stage(column))


def _line(column: str) -> dict[str, Any]:
    """Dashed for the step: update_weights has its colour."""
    return {"color": _colour(column), "linestyle": "--" if column == TIMING_STEP else "-"}


def _columns(log: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = log["columns"]
    return found


def _shown(log: Mapping[str, Any]) -> list[str]:
    """The step, and metrics of at least two percent of it."""
    columns = log["columns"]
    typical = {name: float(np.nanmedian(part["measured"])) for name, part in columns.items()}
    most = max(typical.values())
    return [name for name in columns if typical[name] >= 0.02 * most]


def _stage(column: str) -> str:
    return column.removeprefix("timing_s/")
