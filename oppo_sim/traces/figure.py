"""A picture of a trace: how long, how heavy the tail, how it drifts."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from oppo_sim.columns import FINISH_REASON, RESPONSE_LENGTH
from oppo_sim.errors import OppoError
from oppo_sim.files import new_file
from oppo_sim.traces.stats import TraceStats, drift_by_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from oppo_sim.notebook_figure import Figure

BLUE: Final = "#0072B2"
ORANGE: Final = "#D55E00"
GREY: Final = "#8A8A8A"
SUFFIXES: Final = (".png", ".svg", ".pdf")


def save_figure(
    frame: pd.DataFrame, stats: TraceStats, title: str, path: str | Path, *, overwrite: bool = False
) -> None:
    """``trace_figure`` into a file. Raises OppoError for another suffix than .png, .svg, .pdf, an existing
    file, or the disk."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise OppoError(f"{path} is no figure by its name: it must end in .png, .svg or .pdf")
    metadata: dict[str, Any] = {
        ".png": {"Software": None},
        ".svg": {"Date": None},
        ".pdf": {"CreationDate": None},
    }
    with new_file(path, overwrite=overwrite) as partial:
        trace_figure(frame, stats, title).savefig(partial, metadata=metadata[path.suffix])


def trace_figure(frame: pd.DataFrame, stats: TraceStats, title: str) -> "Figure":
    """A checked trace: histogram, survival function on log axes, and mean, median and p90 over the steps if
    it has several."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from oppo_sim.notebook_figure import Figure

    lengths = (
        frame.loc[(frame[FINISH_REASON] != "abort").fillna(True), RESPONSE_LENGTH].clip(lower=1).to_numpy()
    )
    drift = drift_by_step(frame, bins=60)
    drifting = len(drift) > 1
    figure = Figure(figsize=(8.0, 6.2 if drifting else 3.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplot_mosaic("hs;dd" if drifting else "hs")
    pooled = f", {stats.sources} sources pooled" if stats.sources > 1 else ""
    figure.suptitle(f"{title}   ({stats.rows:,} responses{pooled})", fontsize=11)
    for axis in axes.values():
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8.5)
    _histogram(axes["h"], lengths, stats)
    _survival(axes["s"], lengths, stats)
    if drifting:
        _drift(axes["d"], drift)
    return figure


def _histogram(axis: "Axes", lengths: Any, stats: TraceStats) -> None:
    # Up to p99: the far tail belongs to the panel beside, here it would leave the body one bar wide.
    edge = max(stats.p99, 10.0)
    step = max(1.0, edge / 50)
    bins = np.arange(0.5, edge + step + 0.5, step)
    within = lengths[lengths <= bins[-1]]
    axis.hist(
        within, bins=bins.tolist(), weights=np.full(len(within), 100 / len(lengths)), color=BLUE, alpha=0.85
    )
    top = axis.get_ylim()[1]
    axis.set_ylim(0, top * 1.18)
    near = abs(stats.mean - stats.p50) < 0.22 * edge
    for value, name, style, height in (
        (stats.p50, "median", "-", 1.1),
        (stats.mean, "mean", "--", 1.02 if near else 1.1),
    ):
        axis.axvline(value, ymax=0.85, color=ORANGE, linestyle=style, linewidth=1.2)
        late = value > 0.7 * edge
        axis.annotate(
            f"{name} {value:,.0f}",
            (value, top * height),
            xytext=(-3 if late else 3, 0),
            textcoords="offset points",
            ha="right" if late else "left",
            va="center",
            fontsize=8.5,
            color=ORANGE,
        )
    beyond = 100 * float((lengths > bins[-1]).mean())
    axis.set_xlabel(
        "response length, tokens" + (f"  ({beyond:.1f} % lie further right)" if beyond >= 0.05 else ""),
        fontsize=9,
    )
    axis.set_ylabel("% of responses", fontsize=9)
    axis.set_xlim(0, bins[-1])
    axis.locator_params(axis="x", nbins=6)
    axis.xaxis.set_major_formatter("{x:,.0f}")


def _survival(axis: "Axes", lengths: Any, stats: TraceStats) -> None:
    values, counts = np.unique(lengths, return_counts=True)
    at_least = np.cumsum(counts[::-1])[::-1] / len(lengths)
    floor = 0.6 / len(lengths)
    # The last one is the longest: nothing is longer, so the line ends at the floor.
    axis.step(
        np.append(values, values[-1]), np.append(at_least, floor), where="pre", color=BLUE, linewidth=1.6
    )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_ylim(floor, 2.0)
    _plain_ticks(axis.xaxis, "{:,.0f}", wide=values[-1] > 100 * values[0])
    _plain_ticks(axis.yaxis, "{:g} %", wide=True, factor=100)
    for share, value, name in ((0.5, stats.p50, "p50"), (0.1, stats.p90, "p90"), (0.01, stats.p99, "p99")):
        if share * len(lengths) < 1:
            continue
        axis.plot([value], [share], "o", color=ORANGE, markersize=4)
        axis.annotate(
            f"{name} {value:,.0f}",
            (value, share),
            xytext=(-6, -2),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=8.5,
            color=ORANGE,
        )
    if stats.clip_ratio:
        axis.text(
            0.97,
            0.97,
            f"{100 * stats.clip_ratio:.1f} % cut",
            transform=axis.transAxes,
            ha="right",
            va="top",
            fontsize=8.5,
            color=GREY,
        )
    axis.set_xlabel("response length, tokens", fontsize=9)
    axis.set_ylabel("share at least as long", fontsize=9)


def _plain_ticks(axis: Any, text: str, *, wide: bool, factor: float = 1) -> None:
    """1, 10, 100 instead of powers of ten; over less than two decades also 2 and 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _position: text.format(factor * value)))
    axis.set_minor_formatter(NullFormatter())


def _drift(axis: "Axes", drift: pd.DataFrame) -> None:
    middle = (drift["first_step"] + drift["last_step"]) / 2
    axis.plot(middle, drift["p90"], color=GREY, linewidth=1.3, label="p90")
    axis.plot(middle, drift["mean"], color=BLUE, linewidth=1.8, label="mean")
    axis.plot(middle, drift["p50"], color=ORANGE, linewidth=1.3, linestyle="--", label="median")
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.set_xlabel("training step", fontsize=9)
    axis.set_ylabel("response length, tokens", fontsize=9)
    axis.legend(
        fontsize=8.5, frameon=False, ncols=3, loc="upper left", bbox_to_anchor=(0.0, 1.12), borderaxespad=0.0
    )
