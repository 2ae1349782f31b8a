"""Tables and figures of the reviewers' questions, from the rows of ``asking.py``.

Every number is a median over machines with the range of 95 % of another machine, its rollouts drawn anew.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import matplotlib as mpl
import pandas as pd
from study import RESULTS

from oppo_sim.runs.ranges import machine_interval

mpl.use("Agg")
import matplotlib.pyplot as plt

_MACHINE: Final = ["setup", "world"]
_BLUE, _RED, _GREEN = "#4575b4", "#d73027", "#1a9850"
_COLOURS: Final = (_BLUE, _RED, _GREEN, "#984ea3", "#ff7f00", "#7f7f7f", "#a65628", "#e377c2", "#17becf")
_GAINS: Final = ("intra", "inter", "oppo")


def by_machine(rows: pd.DataFrame, column: str = "step_s") -> pd.DataFrame:
    """One row a machine, one column a run, in the order in which they were made."""
    return rows.pivot(index=_MACHINE, columns="run", values=column)[list(dict.fromkeys(rows["run"]))]


def ranged(values: "pd.Series[float]") -> str:
    """Median and range; positive values."""
    told = values.dropna()
    if not len(told):
        return "–"
    low, high = machine_interval(told.tolist())
    return f"{told.median():.3g} [{low:.3g}, {high:.3g}]"


def shared(values: "pd.Series[float]") -> str:
    """The same of shares, which may be 0 or negative: 2.5 and 97.5 % quantiles."""
    low, middle, high = values.dropna().quantile([0.025, 0.5, 0.975])
    return f"{100 * middle:.3g} [{100 * low:.3g}, {100 * high:.3g}] %"


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Markdown."""
    return "\n".join(
        [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(line)} |" for line in lines)]
    )


def _faster(seconds: pd.DataFrame, prefix: str, run: str, over: str = "sequential") -> "pd.Series[float]":
    return seconds[f"{prefix}: {over}"] / seconds[f"{prefix}: {run}"]


def _prefixes(rows: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(run.rpartition(": ")[0] for run in rows["run"]))


def bars(groups: Mapping[str, Mapping[str, "pd.Series[float]"]], letter: str, label: str) -> None:
    """A group a line of bars, one each of its series: median and 95 %."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    figure, axes = plt.subplots(figsize=(7, 0.9 + 0.42 * len(groups)))
    for place, group in enumerate(groups.values()):
        for name, values in group.items():
            at = place + 0.22 * (names.index(name) - (len(names) - 1) / 2)
            low, high = machine_interval(values.dropna().tolist())
            colour = _COLOURS[names.index(name)]
            axes.plot([low, high], [at, at], color=colour, lw=3, alpha=0.5, solid_capstyle="butt")
            axes.plot([values.median()], [at], "o", ms=4, color=colour, label=name if not place else None)
    axes.set_yticks(range(len(groups)), list(groups), fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color="grey", lw=0.8, zorder=0)
    axes.set_xlabel(label, fontsize=8)
    axes.legend(fontsize=7)
    save(figure, letter)


def save(figure: "plt.Figure", letter: str) -> None:
    """Store and close."""
    figure.tight_layout()
    figure.savefig(RESULTS / f"question_{letter}.png", dpi=110)
    plt.close(figure)


def page_a(rows: pd.DataFrame) -> str:
    """Chunks, or each finished rollout."""
    seconds = by_machine(rows)
    scoring = rows[rows["run"] == "batch"].set_index(_MACHINE)
    share = (scoring["reward_s"] / scoring["step_s"]).reindex(seconds.index)
    pairs = {"alone": ("rollout", "chunk"), "beside overcommit 14": ("inter + rollout", "inter + chunk")}
    figure, axes = plt.subplots(figsize=(6, 3.6))
    for (label, (left, right)), colour in zip(pairs.items(), (_BLUE, _RED), strict=True):
        axes.plot(share, seconds[left] / seconds[right], ".", ms=4, color=colour, label=label)
    axes.axhline(1, color="grey", lw=0.8)
    axes.set_xlabel("scoring's share of a sequential step")
    axes.set_ylabel("times faster than\nrollout scoring")
    axes.legend(fontsize=8)
    save(figure, "a")
    lines = []
    for low, high in ((0.0, 0.1), (0.1, 0.2), (0.2, 0.4), (0.4, 1.0)):
        part = seconds[(share >= low) & (share < high)]
        compared = (*pairs.values(), ("rollout", "chunk in rounds"))
        cells = [ranged(part[left] / part[right]) for left, right in compared]
        lines.append([f"{low:.0%} to {high:.0%}", str(len(part)), *cells])
    head = [
        "scoring of a step",
        "machines",
        "chunks over rollouts",
        "beside overcommit 14",
        "chunks in rounds",
    ]
    return table(head, lines)


def page_b(rows: pd.DataFrame) -> str:
    """With an engine in place of ``generate``."""
    seconds = by_machine(rows)
    tails = rows.drop_duplicates(_MACHINE).set_index(_MACHINE)["tail"].reindex(seconds.index)
    groups, lines = {}, []
    for engine in _prefixes(rows):
        groups[engine] = {run: _faster(seconds, engine, run) for run in _GAINS}
        own = seconds["generate: sequential"] / seconds[f"{engine}: sequential"]
        oppo = groups[engine]["oppo"]
        apart = [ranged(oppo[tails == tail]) for tail in ("light", "heavy", "cut")]
        lines.append([engine, ranged(own), *map(ranged, groups[engine].values()), *apart])
    bars(groups, "b", "times faster than sequential on the same engine")
    head = ["generation by", "the engine alone, over generate", *_GAINS]
    return table([*head, *(f"oppo, {tail} tail" for tail in ("light", "heavy", "cut"))], lines)


_BANDS: Final = {"on policy": 0, "none older than one update": 1, "any age": 10**6}


def page_c(rows: pd.DataFrame) -> str:
    """Competitors at equal staleness."""
    rows = rows.assign(family=[run.split()[0] for run in rows["run"]])
    sequential = rows[rows["run"] == "sequential"].set_index(_MACHINE)
    rows = rows.join(sequential[["step_s", "worth"]].add_suffix("_sequential"), on=_MACHINE)
    rows["faster"] = rows["step_s_sequential"] / rows["step_s"]
    rows["sooner"] = rows["faster"] * rows["worth"] / rows["worth_sequential"]
    cells: dict[str, list[str]] = {family: [] for family in dict.fromkeys(rows["family"])}
    for column, bands in (("faster", _BANDS), ("sooner", {"to a reward": 10**6})):
        for most in bands.values():
            best = rows[rows["stalest"] <= most].pivot_table(
                index=_MACHINE, columns="family", values=column, aggfunc="max"
            )
            first = best.idxmax(axis=1)
            for family, made in cells.items():
                if family not in best or best[family].count() < len(best) / 2:
                    made.append("–")
                else:
                    made.append(f"{ranged(best[family])}; {100 * (first == family).mean():.0f} %")
    figure, axes = plt.subplots(figsize=(7, 4.2))
    for family, colour in zip(cells, _COLOURS, strict=True):
        part = rows[rows["family"] == family].groupby("run")[["staleness", "faster"]].median()
        axes.plot(part["staleness"], part["faster"], "o", ms=5, color=colour, label=family)
    axes.axhline(1, color="grey", lw=0.8)
    axes.set_xlabel("mean staleness of trained rollouts, updates (median of machines)")
    axes.set_ylabel("times faster than sequential\n(median of machines)")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save(figure, "c")
    head = ["policy, best of its settings", *_BANDS, "time to a reward, any age"]
    return table(head, ([family, *made] for family, made in cells.items()))


def page_d(rows: pd.DataFrame) -> str:
    """Deferral, staleness and length bias by Δ."""
    rows = rows.assign(later=1 - rows["own_step"], to_reward=rows["step_s"] / rows["worth"])
    names = ("step_s", "to_reward", "later", "beyond_one", "staleness", "length_bias", "stalest")
    columns = {name: by_machine(rows, name) for name in names}
    stalest = columns["stalest"]
    lines, drawn = [], {}
    for delta in stalest.columns:
        constant = delta.split()[1]
        faster = columns["step_s"]["overcommit 0"] / columns["step_s"][delta]
        sooner = columns["to_reward"]["overcommit 0"] / columns["to_reward"][delta]
        drawn[int(constant)] = (faster.median(), sooner.median(), columns["staleness"][delta].median())
        lines.append(
            [
                constant,
                *(shared(columns[name][delta]) for name in ("later", "beyond_one")),
                f"{columns['staleness'][delta].median():.3g}",
                f"{stalest[delta].median():.0f}, {stalest[delta].max():.0f}",
                shared(columns["length_bias"][delta]),
                ranged(faster),
                ranged(sooner),
            ]
        )
    figure, axes = plt.subplots(figsize=(6, 3.4))
    for at, (label, colour) in enumerate((("seconds a step", _BLUE), ("time to a reward", _RED))):
        axes.plot(list(drawn), [values[at] for values in drawn.values()], "o-", color=colour, label=label)
    axes.set_xlabel("overcommit Δ (B = 112)")
    axes.set_ylabel("times better than none")
    beside = axes.twinx()
    beside.plot(list(drawn), [values[2] for values in drawn.values()], "s--", color="grey", ms=3)
    beside.set_ylabel("mean staleness (grey)")
    axes.legend(fontsize=8)
    save(figure, "d")
    head = [
        "Δ", "trained in a later step", "older than one update", "mean staleness, updates",
        "oldest: median, most", "mean length over the trace's, −1",
        "times faster a step", "times sooner at a reward",
    ]  # fmt: skip
    return table(head, lines)


def page_e(rows: pd.DataFrame) -> str:
    """Control, or a good constant."""
    rows = rows.assign(to_reward=rows["step_s"] / rows["worth"])
    found = {column: by_machine(rows, column) for column in ("step_s", "to_reward")}
    constants = [run for run in found["step_s"].columns if run.startswith("constant ")]
    lines = [
        [run, *(ranged(values["constant 14"] / values[run]) for values in found.values())]
        for run in found["step_s"].columns
    ]
    best = [ranged(values["constant 14"] / values[constants].min(axis=1)) for values in found.values()]
    lines.append(["best constant of each machine (known afterwards)", *best])
    figure, axes = plt.subplots(figsize=(6, 3.4))
    deltas = [int(run.split()[1]) for run in constants]
    labels = ("seconds a step", "time to a reward")
    for values, label, colour in zip(found.values(), labels, (_BLUE, _RED), strict=True):
        ratios = [values["constant 0"] / values[name] for name in constants]
        axes.plot(deltas, [ratio.median() for ratio in ratios], "o-", color=colour, label=label)
        low, high = ([ratio.quantile(q) for ratio in ratios] for q in (0.1, 0.9))
        axes.fill_between(deltas, low, high, color=colour, alpha=0.15)
    axes.set_xlabel("constant overcommit (B = 112)")
    axes.set_ylabel("times better than none\n(median, 80 % of machines)")
    axes.legend(fontsize=8)
    save(figure, "e")
    return table(["", "seconds a step against constant 14", "time to a reward against constant 14"], lines)


def page_f(rows: pd.DataFrame) -> str:
    """By what scores."""
    seconds, waited = by_machine(rows), by_machine(rows, "reward_s")
    groups, lines = {}, []
    for reward in _prefixes(rows):
        whole = f"{reward}: sequential"
        groups[reward] = {run: _faster(seconds, reward, run) for run in _GAINS}
        finished = _faster(seconds, reward, "rollout-overlap")
        share = waited[whole] / seconds[whole]
        lines.append(
            [reward, str(len(share.dropna())), shared(share)]
            + [ranged(values) for values in (finished, *groups[reward].values())]
        )
    bars(groups, "f", "times faster than sequential with the same reward")
    head = ["reward by", "machines", "its share of a sequential step", "each finished rollout", *_GAINS]
    return table(head, lines)


def page_g(rows: pd.DataFrame) -> str:
    """By loss."""
    seconds, generated, bias = by_machine(rows), by_machine(rows, "gen_s"), by_machine(rows, "length_bias")
    groups, lines = {}, []
    for loss in _prefixes(rows):
        whole = f"{loss}: sequential"
        groups[loss] = {run: _faster(seconds, loss, run) for run in _GAINS}
        share = generated[whole] / seconds[whole]
        lines.append(
            [loss, shared(share), *map(ranged, groups[loss].values()), shared(bias[f"{loss}: oppo"])]
        )
    bars(groups, "g", "times faster than sequential with the same loss")
    head = ["loss", "generation's share of a sequential step", *_GAINS, "length bias of oppo"]
    return table(head, lines)


_GROWS: Final = {"tail": "tail: p99 over mean", "tools": "tools: seconds a call"}


def page_h(rows: pd.DataFrame) -> str:
    """Growth of one thing at a time."""
    seconds = by_machine(rows)
    drawn: dict[str, dict[str, dict[str, pd.Series[float]]]] = {}
    for prefix in _prefixes(rows):
        what, _, value = prefix.rpartition(" ")
        gains = {run: _faster(seconds, prefix, run) for run in ("intra", "oppo")}
        drawn.setdefault(what, {})[value] = gains
    figure, panels = plt.subplots(2, 3, figsize=(10, 5.4), sharey=True)
    for axes, (what, values) in zip(panels.flat, drawn.items(), strict=True):
        for run, colour in (("intra", _BLUE), ("oppo", _RED)):
            series = [gains[run] for gains in values.values()]
            axes.plot(range(len(series)), [each.median() for each in series], "o-", color=colour, label=run)
            low, high = ([each.quantile(q) for each in series] for q in (0.1, 0.9))
            axes.fill_between(range(len(series)), low, high, color=colour, alpha=0.15)
        axes.set_xticks(range(len(values)), list(values))
        axes.set_title(_GROWS.get(what, what), fontsize=9)
        axes.axhline(1, color="grey", lw=0.8)
    panels.flat[0].legend(fontsize=7)
    for row in panels:
        row[0].set_ylabel("times faster than sequential\n(median, 80 % of machines)", fontsize=8)
    save(figure, "h")
    lines = [
        [what, value, *map(ranged, gains.values())]
        for what, values in drawn.items()
        for value, gains in values.items()
    ]
    return table(["what grows", "to", "intra", "oppo"], lines)
