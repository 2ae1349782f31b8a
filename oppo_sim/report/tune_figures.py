"""Pictures of a search: how it went, how flat its end is, and what each world would regret."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.report.labels import field_label, short_label
from oppo_sim.report.style import FAINT, INK, LOSSES, TRAINED, legend_below, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STATUSES: tuple[tuple[str, str, str], ...] = (
    ("ok", TRAINED, "keeps all bounds"),
    ("infeasible", LOSSES[0], "breaks a bound"),
    ("stopped", FAINT, "stopped early"),
)
_HIGHEST = 1.6
"""Costs beyond so many times the best are drawn at the edge: what is of interest is near it."""

COST_LABELS: Final = {
    c.S_PER_ROLLOUT: "s per rollout",
    c.S_PER_TOKEN: "s per token",
    c.TIME_TO_REWARD_S: "s to the target reward",
}
"""What a search may minimise, as a column of its trials."""


def history_figure(trials: "pd.DataFrame", cost: str, title: str = "") -> "Figure":
    """Cost of every trial, and the best so far that keeps all bounds. Raises OppoError where nothing ran."""
    from matplotlib.lines import Line2D

    values = trials[cost].to_numpy(dtype=float)
    if not np.isfinite(values).any():
        raise OppoError("no trial ran: there is nothing to draw")
    numbers, statuses = trials[c.TRIAL].to_numpy(), trials[c.STATUS].to_numpy()
    kept = np.where(statuses == "ok", values, np.inf)
    best = np.minimum.accumulate(kept)
    finite = best[np.isfinite(best)]
    least = float(finite.min()) if len(finite) else float(np.nanmin(values))
    edge = least * _HIGHEST
    figure, (axis,) = new_figure([3.2], below=0.3)
    handles = []
    for status, colour, label in _STATUSES:
        chosen = (statuses == status) & np.isfinite(values)
        if chosen.any():
            drawn = np.minimum(values[chosen], edge)
            axis.scatter(numbers[chosen], drawn, s=16, color=colour, alpha=0.75, linewidths=0)
            marker: Any = {"marker": "o", "markersize": 4.5, "linestyle": ""}
            handles.append(Line2D([], [], color=colour, label=label, **marker))
    if len(finite):
        shown = np.where(np.isfinite(best), np.minimum(best, edge), np.nan)
        axis.step(numbers, shown, where="post", color=INK, linewidth=1.2)
        handles.append(Line2D([], [], color=INK, linewidth=1.2, label="best so far"))
    axis.set_xlabel("trial")
    axis.set_ylabel(COST_LABELS[cost])
    beyond = int((values > edge).sum())
    told = f" ({beyond} trial{'s' if beyond > 1 else ''} beyond the upper edge)" if beyond else ""
    _title(axis, f"{title}: search{told}")
    legend_below(figure, handles, [str(handle.get_label()) for handle in handles])
    return figure


def sensitivity_figure(
    sensitivity: "pd.DataFrame", knobs: Sequence[Mapping[str, Any]], title: str = ""
) -> "Figure":
    """Cost over the choice's as each knob changes alone, the most important on top; shaded: within 1 %.

    ``knobs``: as ``tune.json`` has them. Raises OppoError without a knob.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if not knobs:
        raise OppoError("the chosen policy has no knobs: there is nothing to draw")
    figure, axes = new_figure([1.9] * len(knobs), below=0.3)
    for axis, knob in zip(axes, knobs, strict=True):
        _knob(axis, sensitivity[sensitivity["field"] == knob["field"]], knob)
    _title(axes[0], f"{title}: around the choice")
    broken = Line2D([], [], color=LOSSES[0], marker="x", markersize=5, linestyle="", label="breaks a bound")
    handles = [
        Line2D(
            [], [], color=TRAINED, marker="o", markersize=4, label="cost over the choice's, 95 % interval"
        ),
        *([broken] if (sensitivity["status"] == "infeasible").any() else []),
        Line2D([], [], color=INK, marker="D", markersize=5, linestyle="", label="the choice"),
        Patch(facecolor=TRAINED, alpha=0.12, label="within 1 %"),
    ]
    legend_below(figure, handles, [str(handle.get_label()) for handle in handles], columns=4)
    return figure


def regret_figure(worlds: Sequence[Mapping[str, Any]], title: str = "") -> "Figure":
    """Regret of the choice and of what is best in the scenario as given, world by world, per cent."""
    from matplotlib.patches import Patch

    names = [str(one["world"]) for one in worlds]
    figure, (axis,) = new_figure([1.0 + 0.42 * len(names)], below=0.3)
    places = np.arange(len(names))
    for shift, key, colour in ((-0.19, "chosen", TRAINED), (0.19, "nominal", FAINT)):
        values = [100 * float(one[key]) for one in worlds]
        axis.barh(places + shift, values, height=0.34, color=colour)
        for place, value in zip(places, values, strict=True):
            style: Any = {"textcoords": "offset points", "va": "center", "fontsize": 8, "color": INK}
            axis.annotate(f"{value:.2f}", (value, place + shift), xytext=(4, 0), **style)
    axis.set_yticks(places, names, fontsize=8)
    axis.set_ylim(len(names) - 0.45, -0.55)
    axis.margins(x=0.12)
    axis.set_xlabel("regret (% above the best known in that world)")
    _title(axis, f"{title}: regret by world")
    handles = [
        Patch(facecolor=TRAINED, label="the choice"),
        Patch(facecolor=FAINT, label="best in the scenario as given"),
    ]
    legend_below(figure, handles, [str(handle.get_label()) for handle in handles])
    return figure


# ---- inside ------------------------------------------------------------------------------------------------


def _knob(axis: "Axes", rows: "pd.DataFrame", knob: Mapping[str, Any]) -> None:
    ran = rows[rows["status"] != "failed"]
    numeric = bool(np.isfinite(rows["value_number"]).all())
    x = (
        ran["value_number"].to_numpy(dtype=float)
        if numeric
        else rows.index.get_indexer(ran.index).astype(float)
    )
    y, low, high = 100 * ran[["relative", "relative_low", "relative_high"]].to_numpy(dtype=float).T
    kept = y[(ran["status"] == "ok").to_numpy()]
    least = min(0.0, float(kept.min())) if len(kept) else 0.0
    axis.axhspan(least, (100.0 + least) * 1.01 - 100.0, color=TRAINED, alpha=0.12, linewidth=0)
    axis.axhline(0.0, color=FAINT, linewidth=0.8)
    below, above = np.nan_to_num(np.maximum(y - low, 0)), np.nan_to_num(np.maximum(high - y, 0))
    style: Any = {"fmt": "o-" if numeric else "o", "markersize": 3.5, "color": TRAINED, "linewidth": 1.2}
    axis.errorbar(x, y, yerr=np.vstack([below, above]), elinewidth=1.0, capsize=2, **style)
    out = (ran["status"] == "infeasible").to_numpy()
    axis.plot(x[out], y[out], "x", color=LOSSES[0], markersize=7, markeredgewidth=1.8)
    here = (ran["value"] == json.dumps(knob["chosen"])).to_numpy()
    axis.plot(x[here], y[here], "D", color=INK, markersize=5)
    if numeric:
        values = rows["value_number"].to_numpy(dtype=float)
        if values.min() > 0 and values.max() / values.min() >= 20:
            axis.set_xscale("log", base=2)
            axis.set_xticks(values, [f"{value:g}" for value in values], fontsize=7, rotation=30)
            axis.minorticks_off()
    else:
        axis.set_xticks(range(len(rows)), ["none" if value == "null" else value for value in rows["value"]])
        axis.margins(x=0.1)
    axis.set_xlabel(field_label(knob["field"]), fontsize=9)
    axis.set_ylabel("% slower", fontsize=9)
    text = f"{short_label(knob['field'])}: {100 * knob['share_of_variance']:.0f} % of the variance"
    axis.set_title(text, loc="right", fontsize=8, color=INK)  # above: nothing is drawn there


def _title(axis: "Axes", title: str) -> None:
    axis.set_title(title, loc="left", fontsize=10.5)
