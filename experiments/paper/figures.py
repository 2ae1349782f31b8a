"""Figures of the page: the paper's values on the predictive ranges, and the posterior of each unknown."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from claims import Compared
from fitting import draws_file, worlds_file
from setups import SETUPS
from study import FOLDER
from unknowns import CHOICES, names_of

mpl.use("Agg")
import matplotlib.pyplot as plt

_INSIDE, _OUTSIDE, _RANGE = "#1b7837", "#c51b7d", "#8da0cb"
_COLOUR = {name: f"C{place}" for place, name in enumerate(SETUPS)}


def ranges_figure(rows: Sequence[tuple[str, float, float, float, float]], title: str, name: str) -> None:
    """One line a row: label, low, median, high and the published value, on a logarithmic axis."""
    figure, axes = plt.subplots(figsize=(7.5, 0.8 + 0.32 * len(rows)))
    for place, (_, low, middle, high, published) in enumerate(rows):
        axes.plot([low, high], [place, place], color=_RANGE, lw=5, solid_capstyle="butt", zorder=1)
        axes.plot([middle], [place], "|", color="black", ms=9, zorder=2)
        colour = _INSIDE if low <= published <= high else _OUTSIDE
        axes.plot([published], [place], "o", color=colour, ms=6, zorder=3)
    axes.set_yticks(range(len(rows)), [label for label, *_ in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    ticks = [tick for tick in (0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10) if _within(rows, tick)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.axvline(1.0, color="grey", lw=0.8, zorder=0)
    axes.set_xlabel("times; bar: 95 % of our draws, tick: median,\ndot: published (green inside)", fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(FOLDER / "results" / name, dpi=110)
    plt.close(figure)


def _within(rows: Sequence[tuple[str, float, float, float, float]], tick: float) -> bool:
    values = [value for _, *numbers in rows for value in numbers]
    return 0.8 * min(values) <= tick <= 1.25 * max(values)


def _label(one: Compared, end: str) -> str:
    """Of a claim, up to what is said beside."""
    return f"{one.claim.id} {one.claim.claim.partition(end)[0]}"


def others_figure(compared: Sequence[Compared]) -> None:
    """Others' gains."""
    rows = [
        (_label(one, ", of "), one.low, one.middle, one.high, float(one.claim.paper))
        for one in compared
        if np.isfinite(one.low)
    ]
    if rows:
        ranges_figure(rows, "Others' published gains on ranges from the baseline alone", "others.png")


def claims_figure(compared: Sequence[Compared]) -> None:
    """Speed-ups and gains of GPU use."""
    rows = [
        (
            f"{one.claim.id} {one.claim.claim.partition(';')[0]}",
            one.low,
            one.middle,
            one.high,
            float(one.claim.paper),
        )
        for one in compared
        if one.claim.quantity in ("speedup", "gpu_use_gain") and one.claim.paper and np.isfinite(one.low)
    ]
    if rows:
        ranges_figure(rows, "Published gains on ranges from the baseline alone", "claims.png")


def posterior_figure() -> None:
    """A panel an unknown with few values: prior, and posterior of each set-up from its baseline."""
    names = [name for name in SETUPS if draws_file(name).exists()]
    if not names:
        return
    unknowns = [name for name, choice in CHOICES.items() if choice.of_baseline]
    figure, panels = plt.subplots(2, -(-len(unknowns) // 2), figsize=(11, 5.2))
    for axes, unknown in zip(panels.flat, unknowns, strict=False):
        values = list(CHOICES[unknown].values)
        odds = CHOICES[unknown].odds or [1 / len(values)] * len(values)
        having = [name for name in names if unknown in names_of(SETUPS[name])]
        width = 0.8 / (len(having) + 1)
        axes.bar(np.arange(len(values)), odds, width, color="lightgrey", label="prior")
        for place, name in enumerate(having, start=1):
            worlds = pd.read_csv(worlds_file(name)).set_index("world")
            drawn = worlds.loc[pd.read_csv(draws_file(name))["world"], unknown].astype(str)
            shares = [float((drawn == str(value)).mean()) for value in values]
            axes.bar(np.arange(len(values)) + place * width, shares, width, color=_COLOUR[name], label=name)
        labels = [str(value).replace("utilization/", "") for value in values]
        axes.set_xticks(np.arange(len(values)) + 0.4 - width / 2, labels, fontsize=7)
        axes.set_title(unknown, fontsize=9)
        axes.set_ylim(0, 1)
    for axes in list(panels.flat)[len(unknowns) :]:
        axes.axis("off")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, ncols=len(labels), loc="lower center")
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(FOLDER / "results" / "posterior.png", dpi=110)
    plt.close(figure)


def lengths_figure() -> None:
    """Mean response length, prior (grey) and posterior, by set-up."""
    names = [name for name in SETUPS if draws_file(name).exists()]
    if not names:
        return
    figure, axes = plt.subplots(1, len(names), figsize=(2.4 * len(names), 2.4), squeeze=False)
    for panel, name in zip(axes[0], names, strict=True):
        worlds = pd.read_csv(worlds_file(name)).set_index("world")
        drawn = worlds.loc[pd.read_csv(draws_file(name))["world"], "mean"]
        bins = np.geomspace(worlds["mean"].min(), worlds["mean"].max(), 16)
        panel.hist(worlds["mean"], bins, density=True, color="lightgrey")
        panel.hist(drawn, bins, density=True, histtype="step", color=_INSIDE)
        panel.set_xscale("log")
        panel.set_xticks([100, 300, 1000, 3000], ["100", "300", "1,000", "3,000"])
        panel.minorticks_off()
        panel.set_title(f"{name}\nmean response, tokens", fontsize=8)
        panel.set_yticks([])
        panel.tick_params(labelsize=7)
    figure.tight_layout()
    figure.savefig(FOLDER / "results" / "lengths.png", dpi=110)
    plt.close(figure)
