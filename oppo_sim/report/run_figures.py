"""Pictures of one run, from its step rows and the lengths it trained on."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.report.labels import Unit, format_percent, format_seconds, format_signed, significant, time_unit
from oppo_sim.report.style import (
    FAINT,
    INK,
    LOSSES,
    TRACE,
    TRAINED,
    legend_below,
    new_figure,
    set_title,
    stage_colour,
    stairs,
    whole_numbers,
)
from oppo_sim.runs.distributions import counted
from oppo_sim.tables import largest, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ECDF_POINTS = 513
_WHAT = "step"


def stage_times_figure(
    steps: "pd.DataFrame", title: str = "", unit: Unit | None = None, warmup_steps: int = 0
) -> "Figure":
    """Stage times of every step, stacked, with the median step time after the warm-up, which is shaded.

    Where stages overlap (parallel training stages, asynchronous policies) the stack is higher than the step;
    a black line then shows the step itself. Stages that never took time are left out. Raises OppoError
    without the timing columns.
    """
    total = numbers(steps, c.TIMING_STEP, _WHAT)
    edges = _edges(numbers(steps, c.STEP, _WHAT))
    if not largest(total):
        raise OppoError(f"no step has a time in '{c.TIMING_STEP}': there is nothing to show")
    unit = unit or time_unit(largest(total))
    figure, (axis,) = new_figure([4.2])
    handles: list[Artist] = []
    base = np.zeros(len(total))
    for stage in c.STAGES:
        if c.timing(stage) not in steps.columns:
            continue
        seconds = np.nan_to_num(numbers(steps, c.timing(stage), _WHAT))
        if not seconds.any():
            continue
        top = base + seconds
        style: dict[str, Any] = {"fill": True, "color": stage_colour(stage), "label": stage}
        handles.append(stairs(axis, top / unit.seconds, edges, base / unit.seconds, **style))
        base = top
    if largest(np.abs(base - total)) > 0.01 * largest(total):
        style = {"color": INK, "linewidth": 1.2, "label": "step (stages overlap)"}
        handles.append(stairs(axis, total / unit.seconds, edges, None, **style))
    median = float(np.nanmedian(total[_kept(len(total), warmup_steps)]))
    style = {"color": INK, "linewidth": 1.0, "linestyle": (0, (4, 3))}
    label = f"median step: {format_seconds(median, unit)}"
    handles.append(axis.axhline(median / unit.seconds, **style, label=label))
    handles += _shade_warmup(axis, edges, warmup_steps)
    axis.set_ylabel(f"stage time ({unit.name})")
    axis.set_ylim(bottom=0)
    _step_axis(axis, edges)
    set_title(axis, title)
    legend_below(figure, handles, columns=5)
    return figure


def response_length_figure(
    rollouts: "pd.DataFrame", trace_lengths: ArrayLike | None, title: str = "", warmup_steps: int = 0
) -> "Figure":
    """Response lengths that were trained against those of the trace: distribution, and quantile by quantile.
    None: no trace decided them, and their distribution is all there is.

    A curve above the trace's means that shorter responses were trained than the trace has (length bias).
    Rollouts without a ``trained_step`` (empty or negative), and those trained in the warm-up, are left out.
    Raises OppoError where nothing was trained, and for a trace without lengths.
    """
    trained_step = numbers(rollouts, c.TRAINED_STEP, "rollout")
    trained = numbers(rollouts, c.RESPONSE_LENGTH, "rollout")[trained_step >= max(0, warmup_steps)]
    if not len(trained):
        raise OppoError("no rollout was trained: there are no response lengths to show")
    shares = np.linspace(0.0, 1.0, _ECDF_POINTS)
    trained_at = np.quantile(trained, shares)
    if trace_lengths is None:
        figure, (axis,) = new_figure([3.8])
        _draw_lengths(axis, shares, {"trained": (trained, TRAINED, 1.6)})
        set_title(axis, title)
        return figure
    trace = np.asarray(trace_lengths, dtype=np.float64)
    trace = trace[np.isfinite(trace)]
    if not len(trace):
        raise OppoError(
            "the trace has no response lengths: there is nothing to compare the trained ones with"
        )
    trace_at = np.quantile(trace, shares)
    bias = float(np.mean(trained) / np.mean(trace) - 1.0)

    figure, (left, right) = new_figure([3.8], columns=2)
    _draw_lengths(left, shares, {"trace": (trace, TRACE, 2.2), "trained": (trained, TRAINED, 1.6)})

    inner = (shares >= 0.01) & (shares <= 0.99)
    right.axhline(0.0, color=TRACE, linewidth=2.2)
    right.plot(
        shares[inner],
        (trained_at[inner] / np.maximum(trace_at[inner], 1.0) - 1.0) * 100,
        color=TRAINED,
        linewidth=1.6,
    )
    right.axhline(bias * 100, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
    right.annotate(
        f"mean: {format_signed(bias)}",
        (0.02, bias * 100),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=8.5,
        color=INK,
    )
    right.set_xlabel("quantile")
    right.set_ylabel("trained against trace (%)")
    right.set_xlim(0, 1)
    _at_least(right, 2.0)
    set_title(left, title)
    return figure


def _draw_lengths(
    axis: "Axes", shares: "NDArray[np.float64]", drawn: "Mapping[str, tuple[NDArray[np.float64], str, float]]"
) -> None:
    """Curves by name: lengths, colour and width. On a logarithmic axis where the first has a long tail."""
    for name, (lengths, colour, width) in drawn.items():
        label = f"{name}: mean {significant(float(np.mean(lengths)), 4)}"
        axis.plot(np.quantile(lengths, shares), shares, color=colour, linewidth=width, label=label)
    first, *_ = drawn.values()
    if np.max(first[0]) > 20 * max(1.0, float(np.median(first[0]))):
        axis.set_xscale("log")
    axis.set_xlabel("response length (tokens)")
    axis.set_ylabel("share of rollouts not longer")
    axis.set_ylim(0, 1.02)
    axis.legend(fontsize=8.5, frameon=False, loc="lower right")


def controls_figure(steps: "pd.DataFrame", title: str = "") -> "Figure | None":
    """Δ and chunk size in force by step, with the mean reward that steers Δ if there is one; None when
    neither of them varies."""
    panels = [
        (name, label)
        for name, label in ((c.OVERCOMMIT, "Δ (rollouts)"), (c.CHUNK_SIZE, "chunk size (tokens)"))
        if name in steps.columns and len(np.unique(_present(numbers(steps, name, _WHAT)))) > 1
    ]
    if not panels:
        return None
    if (
        panels[0][0] == c.OVERCOMMIT
        and c.REWARD_MEAN in steps.columns
        and len(_present(numbers(steps, c.REWARD_MEAN, _WHAT)))
    ):
        panels.append((c.REWARD_MEAN, "mean reward"))
    edges = _edges(numbers(steps, c.STEP, _WHAT))
    figure, axes = new_figure([2.0] * len(panels), share_x=True)
    for axis, (name, label) in zip(axes, panels, strict=True):
        values = numbers(steps, name, _WHAT)
        stairs(axis, values, edges, None, color=FAINT if name == c.REWARD_MEAN else TRAINED, linewidth=1.5)
        axis.set_ylabel(label, fontsize=9.5)
        if name != c.REWARD_MEAN:
            whole_numbers(axis.yaxis)
            highest = largest(values)
            axis.set_ylim(-0.04 * highest, 1.08 * highest)
    _step_axis(axes[-1], edges)
    set_title(axes[0], title)
    return figure


def staleness_figure(steps: "pd.DataFrame", title: str = "") -> "Figure":
    """How many versions old the trained rollouts' first tokens were, over the steps given (warm-up left out).
    Raises OppoError without the histogram column."""
    counts = counted(steps, "staleness")
    return _shares_figure(counts, "staleness (weight updates between first token and training)", title)


def deferrals_figure(steps: "pd.DataFrame", title: str = "") -> "Figure":
    """How often the trained rollouts had been deferred, over the steps given (warm-up left out). Raises
    OppoError without the histogram column."""
    counts = counted(steps, "deferrals")
    return _shares_figure(counts, "deferrals (steps in which it decoded and did not finish)", title)


def _shares_figure(counts: NDArray[np.float64], label: str, title: str) -> "Figure":
    portions = counts / counts.sum()
    figure, (axis,) = new_figure([3.4])
    values = np.arange(len(counts))
    bars = axis.bar(values, portions * 100, width=0.8, color=TRAINED)
    if len(counts) <= 16:
        axis.bar_label(
            bars, [format_percent(share) if share else "" for share in portions], fontsize=8.5, padding=2
        )
    mean = float(np.sum(values * portions))
    axis.annotate(
        f"mean {significant(mean)}, highest {int(np.flatnonzero(counts)[-1])}",
        (1.0, 1.0),
        xycoords="axes fraction",
        ha="right",
        va="top",
        fontsize=9,
    )
    axis.set_xlabel(label)
    axis.set_ylabel("trained rollouts (%)")
    axis.set_xlim(-0.6, max(3.6, len(counts) - 0.4))
    axis.set_ylim(0, min(109.0, float(portions.max()) * 118))
    whole_numbers(axis.xaxis)
    set_title(axis, title)
    return figure


def in_flight_figure(steps: "pd.DataFrame", title: str = "", warmup_steps: int = 0) -> "Figure":
    """Rollouts deferred (unfinished, carried), surplus (finished, not trained yet) and, if any, dropped, by
    step; their means after the warm-up, which is shaded."""
    edges = _edges(numbers(steps, c.STEP, _WHAT))
    shown = [("deferred", c.ROLLOUTS_DEFERRED, TRAINED), ("surplus", c.ROLLOUTS_SURPLUS, LOSSES[1])]
    if c.ROLLOUTS_DROPPED in steps.columns and np.nansum(numbers(steps, c.ROLLOUTS_DROPPED, _WHAT)):
        shown.append(("dropped", c.ROLLOUTS_DROPPED, LOSSES[0]))
    figure, (axis,) = new_figure([3.4])
    handles: list[Artist] = []
    base = np.zeros(len(steps))
    for name, column, colour in shown:
        values = np.nan_to_num(numbers(steps, column, _WHAT))
        mean = float(values[_kept(len(values), warmup_steps)].mean())
        label = f"{name}: mean {significant(mean)}"
        bars = stairs(axis, base + values, edges, base, fill=True, color=colour, label=label)
        handles.append(bars)
        base = base + values
    handles += _shade_warmup(axis, edges, warmup_steps)
    axis.set_ylabel("rollouts at the end of gen")
    axis.set_ylim(0, max(1.0, float(base.max()) * 1.08))
    whole_numbers(axis.yaxis)
    _step_axis(axis, edges)
    set_title(axis, title)
    legend_below(figure, handles)
    return figure


# ---- inside ------------------------------------------------------------------------------------------------


def _edges(step: NDArray[np.float64]) -> NDArray[np.float64]:
    """Left edges of the steps and the right edge of the last; steps that are missing widen the one before."""
    return np.append(step - 0.5, step[-1] + 0.5)


def _kept(count: int, warmup_steps: int) -> slice:
    """Steps that numbers are taken over: one at least."""
    return slice(min(warmup_steps, count - 1), None)


def _shade_warmup(axis: "Axes", edges: NDArray[np.float64], warmup_steps: int) -> "list[Artist]":
    """Steps that are shown and left out of every number."""
    count = _kept(len(edges) - 1, warmup_steps).start
    if not count:
        return []
    style: dict[str, Any] = {
        "color": FAINT,
        "alpha": 0.25,
        "linewidth": 0,
        "label": "warm-up, not in the numbers",
    }
    return [axis.axvspan(edges[0], edges[count], **style)]


def _present(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[~np.isnan(values)]


def _step_axis(axis: "Axes", edges: NDArray[np.float64]) -> None:
    axis.set_xlim(edges[0], edges[-1])
    axis.set_xlabel("step")
    whole_numbers(axis.xaxis)


def _at_least(axis: "Axes", reach: float) -> None:
    """Keep noise from filling the picture: show at least ± ``reach`` around 0."""
    low, high = axis.get_ylim()
    axis.set_ylim(min(low, -reach), max(high, reach))
