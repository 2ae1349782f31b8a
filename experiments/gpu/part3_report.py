"""Part 3: tables and figures of what parts 1 and 2 measured, against the targets. Needs no GPU; what is
missing is said.

    python experiments/gpu/part3_report.py [--rehearse]

Writes ``results/README.md``, ``results/report.json`` and ``results/figures/`` into the folder of results.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan, nan
from pathlib import Path
from statistics import median
from typing import Any, Final

from configurations import Configuration, load_configurations, repeats_of
from part2_validate import journal_of, profile_of, step_seconds
from roofline_beside import beside_figure, read_beside
from subjects import Pair
from workplace import HERE, REHEARSED, Workplace, read_attention, run_main, write_json

from oppo_sim.errors import OppoError

BASELINE: Final = "sequential"
STEP_MEDIAN, STEP_WORST, SPEEDUP, TAU, REGRET = 0.05, 0.10, 0.05, 0.9, 0.02
"""Targets: errors of the step (median and worst configuration) and of a speed-up, rank agreement, loss by the
simulator's choice."""


@dataclass(frozen=True)
class Row:
    """A configuration; seconds of a step after the warm-up."""

    group: str
    label: str
    held_out: bool
    predicted: float
    measured: float
    low: float
    high: float
    repeats: int

    @property
    def error(self) -> float:
        """predicted / measured − 1."""
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True)
class Group:
    """What a group's rows say together."""

    name: str
    speedups: Mapping[str, tuple[float, float]]
    """By label, predicted and measured, against ``sequential``; empty where that was not measured."""
    tau: float
    """NaN for fewer than two rows."""
    choice: str
    best: str
    regret: float
    """Measured seconds of the simulator's choice over the best measured − 1."""


def rows_of(
    place: Workplace, configurations: Sequence[Configuration], repeats: int
) -> tuple[list[Row], list[str]]:
    """Every configuration of which a run is there; and a sentence for each that was run and cannot be
    predicted.

    Raises OppoError for a journal that cannot be read.
    """
    from oppo_real.validate.compare import mean_seconds
    from oppo_real.validate.measure import Turn

    rows, refused = [], []
    for one in configurations:
        if not place.journal(one.name).exists():
            continue
        with journal_of(place, one) as journal:
            turns = [Turn(one.policy["name"], repeat) for repeat in range(repeats)]
            runs = [run for turn in turns if (run := journal.known(turn)) is not None]
        if not runs:
            continue
        try:
            predicted, measured = step_seconds(one, runs, profile_of(place, one))
        except OppoError as error:
            refused.append(f"{one.name} was run and cannot be predicted: {error}.")
            continue
        alone = [mean_seconds([run.views], "step", one.warmup_steps) for run in runs]
        rows.append(
            Row(one.group, one.label, one.held_out, predicted, measured, min(alone), max(alone), len(runs))
        )
    return rows, refused


def group_of(name: str, rows: Sequence[Row]) -> Group:
    """Speed-ups, order and choice within a group."""
    from scipy.stats import kendalltau

    base = next((row for row in rows if row.label == BASELINE), None)
    speedups = {
        row.label: (base.predicted / row.predicted, base.measured / row.measured)
        for row in rows
        if base is not None and row is not base
    }
    tau = (
        float(kendalltau([row.predicted for row in rows], [row.measured for row in rows]).statistic)
        if len(rows) > 1
        else nan
    )
    chosen, best = min(rows, key=lambda row: row.predicted), min(rows, key=lambda row: row.measured)
    return Group(name, speedups, tau, chosen.label, best.label, chosen.measured / best.measured - 1.0)


def verdicts(rows: Sequence[Row], groups: Sequence[Group]) -> list[tuple[str, float, float, bool]]:
    """(what, found, target, reached); of nothing measured, nothing."""
    if not rows:
        return []
    found = []
    for name, part in (("all", list(rows)), ("held-out half", [row for row in rows if row.held_out])):
        if part:
            steps = [abs(row.error) for row in part]
            found.append(
                (f"step, median error, {name}", median(steps), STEP_MEDIAN, median(steps) <= STEP_MEDIAN)
            )
            found.append((f"step, worst error, {name}", max(steps), STEP_WORST, max(steps) <= STEP_WORST))
    held = {(row.group, row.label) for row in rows if row.held_out}
    errors = {
        (group.name, label): abs(there / here - 1.0)
        for group in groups
        for label, (there, here) in group.speedups.items()
    }
    halves = (
        ("all", list(errors.values())),
        ("held-out half", [value for key, value in errors.items() if key in held]),
    )
    for name, values in halves:
        if values:
            found.append((f"speed-up, worst error, {name}", max(values), SPEEDUP, max(values) <= SPEEDUP))
    taus = [group.tau for group in groups if not isnan(group.tau)]
    if taus:
        found.append(("Kendall's tau, lowest of the groups", min(taus), TAU, min(taus) >= TAU))
    worst = max(group.regret for group in groups)
    found.append(("the simulator's choice, slower than the best", worst, REGRET, worst <= REGRET))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module. Raises OppoError."""
    parser = argparse.ArgumentParser(description="Report what was measured.")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    given = parser.parse_args(arguments)
    folder = given.work or (REHEARSED if given.rehearse else HERE)
    attention = read_attention(folder)
    if bool(attention["rehearsal"]) != given.rehearse:
        raise OppoError(
            f"{folder} holds {'a rehearsal' if attention['rehearsal'] else 'measurements'}: give or leave out"
            " --rehearse"
        )
    # Written where it was measured; read anywhere.
    place = Workplace(
        folder, attention["device"], attention["hardware"], attention["versions"], given.rehearse
    )
    configurations, repeats = load_configurations(place.device, place.rehearse), repeats_of(place.rehearse)
    rows, refused = rows_of(place, configurations, repeats)
    names = dict.fromkeys(row.group for row in rows)
    groups = [group_of(name, [row for row in rows if row.group == name]) for name in names]
    found = verdicts(rows, groups)
    results = folder / "results"
    figures = [*_profile_figures(place, results), *([_scatter(rows, results)] if rows else [])]
    if not figures:
        raise OppoError(
            f"{folder} has neither profiles nor runs: run part1_calibrate.py and part2_validate.py first"
        )
    write_json(results / "report.json", _record(place, attention, rows, groups, found, figures))
    page = _page(place, attention, configurations, repeats, rows, groups, found, figures, refused)
    (results / "README.md").write_text(page, encoding="utf-8")
    for sentence in refused:
        print(sentence)
    for what, value, target, reached in found:
        print(f"{'reached' if reached else 'MISSED ':8} {what}: {value:.3f} (target {target:g})")
    print(f"{len(rows)} of {len(configurations)} configurations have runs; wrote {results / 'README.md'}")


# ---- figures -----------------------------------------------------------------------------------------------


def pair_of(name: str, device: str, rehearse: bool) -> Pair:
    """Of a profile's name, ``h200/qwen2.5-7b+1.5b/torch``. Raises OppoError for another form."""
    try:
        _, models, engine = name.split("/")
        actor, reward = models.split("+")
        return Pair(actor, f"qwen2.5-{reward}", "vllm" if engine == "vllm" else "torch", device, rehearse)
    except ValueError:
        raise OppoError(
            f"{name} is no name of a profile of this experiment (device/actor+reward/engine)"
        ) from None


def _profile_figures(place: Workplace, results: Path) -> list[dict[str, Any]]:
    from oppo_real.calibrate.report import save_figure

    made = []
    root = place.folder / "profiles"
    for path in sorted(root.glob("*/*/*.json")):
        name = path.relative_to(root).with_suffix("").as_posix()
        if name.endswith(".fit"):
            continue
        found = read_beside(path, name, pair_of(name, place.device, place.rehearse))
        figure = results / "figures" / f"{name.replace('/', '_')}.png"
        figure.parent.mkdir(parents=True, exist_ok=True)
        save_figure(beside_figure(found), figure)
        together = [
            {key: one[key] for key in ("activities", "slowdown", "lowest", "highest", "expected", "factor")}
            for one in found.contention
        ]
        made.append(
            {
                "profile": name,
                "figure": f"figures/{figure.name}",
                "measured_over_roofline": found.ratios(),
                "contention": together,
            }
        )
    return made


def _scatter(rows: Sequence[Row], results: Path) -> dict[str, Any]:
    from oppo_real.calibrate.report import save_figure
    from oppo_sim.report.style import new_figure

    figure, (axis,) = new_figure([4.6])
    ends = [min(row.low for row in rows) * 0.85, max(max(row.high, row.predicted) for row in rows) * 1.15]
    axis.plot(ends, ends, color="black", linewidth=0.8)
    axis.fill_between(
        ends,
        [0.9 * end for end in ends],
        [1.1 * end for end in ends],
        color="#999999",
        alpha=0.18,
        linewidth=0,
    )
    for place, name in enumerate(dict.fromkeys(row.group for row in rows)):
        colour = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")[place % 5]
        for held in (False, True):
            own = [row for row in rows if row.group == name and row.held_out is held]
            reach = ([row.measured - row.low for row in own], [row.high - row.measured for row in own])
            axis.errorbar(
                [row.measured for row in own],
                [row.predicted for row in own],
                xerr=reach,
                fmt="s" if held else "o",
                markerfacecolor="white" if held else colour,
                color=colour,
                markersize=5,
                elinewidth=0.8,
                linestyle="none",
                label=f"{name}{', held out' if held else ''}",
            )
    axis.set(xscale="log", yscale="log", xlabel="measured, s a step", ylabel="predicted, s a step")
    axis.legend(fontsize=7, frameon=False)
    path = results / "figures" / "predicted_measured.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, path)
    return {"figure": f"figures/{path.name}"}


# ---- text --------------------------------------------------------------------------------------------------


def _record(
    place: Workplace,
    attention: Mapping[str, Any],
    rows: Sequence[Row],
    groups: Sequence[Group],
    found: Sequence[tuple[str, float, float, bool]],
    figures: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    return {
        "format": "oppo-gpu-report/1",
        "rehearsal": place.rehearse,
        "hardware": place.hardware,
        "versions": place.versions,
        "attention": attention["paths"],
        "targets": [
            {"what": what, "found": value, "target": target, "reached": reached}
            for what, value, target, reached in found
        ],
        "configurations": [{**asdict(row), "error": row.error} for row in rows],
        "groups": [{**asdict(group), "tau": None if isnan(group.tau) else group.tau} for group in groups],
        "profiles": list(figures),
    }


def _page(
    place: Workplace,
    attention: Mapping[str, Any],
    configurations: Sequence[Configuration],
    repeats: int,
    rows: Sequence[Row],
    groups: Sequence[Group],
    found: Sequence[tuple[str, float, float, bool]],
    figures: Sequence[Mapping[str, Any]],
    refused: Sequence[str],
) -> str:
    title = (
        "Rehearsal on a CPU with tiny models: no measurement"
        if place.rehearse
        else "One GPU: calibrated, predicted, measured"
    )
    paths = ", ".join(f"{what} `{path}`" for what, path in attention["paths"].items())
    lines = [
        f"# {title}",
        "",
        f"On {place.hardware}. Attention verified in {len(attention['cases'])} cases; paths: {paths}.",
        "",
    ]
    lines += ["## Targets", "", *_table(("", "found", "target", ""), [_verdict(*one) for one in found])]
    there = {f"{row.group}/{row.label}" for row in rows} | {
        sentence.partition(" was run")[0] for sentence in refused
    }
    missing = [one.name for one in configurations if one.name not in there]
    if missing:
        lines += ["", f"Without a run yet: {', '.join(missing)}."]
    short = [f"{row.group}/{row.label} ({row.repeats})" for row in rows if row.repeats < repeats]
    if short:
        lines += ["", f"With fewer than {repeats} repeats: {', '.join(short)}."]
    for sentence in refused:
        lines += ["", sentence]
    lines += ["", "## Configurations", ""]
    lines += [
        (
            "Seconds of a step after the warm-up; the spread is of the repeats. `held out`: marked before"
            " anything was calibrated."
        ),
        "",
    ]
    heads = (
        "configuration",
        "",
        "predicted",
        "measured",
        "spread",
        "error",
        "speed-up predicted",
        "speed-up measured",
        "error",
    )
    by_name = {group.name: group for group in groups}
    lines += _table(heads, [_configuration_row(row, by_name[row.group]) for row in rows])
    lines += ["", "## Order and choice", ""]
    ranked = ("group", "Kendall's tau", "the simulator's choice", "best measured", "choice slower by")
    lines += _table(
        ranked, [(one.name, f"{one.tau:.2f}", one.choice, one.best, f"{one.regret:.1%}") for one in groups]
    )
    lines += ["", "## Measured beside roofline", ""]
    lines += [
        (
            "Median of measured / roofline, which is made of the datasheet and of assumptions"
            " (docs/costs.md); none was adjusted."
        ),
        "",
    ]
    profiles = [one for one in figures if "profile" in one]
    kinds = ("decode", "prefill", "score", "train", "sync")
    cells = [
        (one["profile"], *(_ratio(one["measured_over_roofline"].get(kind)) for kind in kinds))
        for one in profiles
    ]
    lines += _table(("profile", *kinds), cells)
    lines += [
        "",
        (
            "Slow-down of two activities in two processes on the device (median, lowest to highest of the"
            " rounds):"
        ),
        "",
    ]
    together = [(one["profile"], *_slowdowns(pair)) for one in profiles for pair in one["contention"]]
    lines += _table(("profile", "first", "second", "f"), together)
    lines += ["", *(f"![{Path(one['figure']).stem}]({one['figure']})" for one in figures), ""]
    lines += ["## Commands", "", *_commands(place, configurations), "", "Versions: "]
    lines[-1] += ", ".join(f"{name} {version}" for name, version in place.versions.items()) + "."
    return "\n".join(lines) + "\n\n" + (HERE / "limits.md").read_text(encoding="utf-8")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return ["Nothing measured yet."]
    return [
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _verdict(what: str, value: float, target: float, reached: bool) -> tuple[str, str, str, str]:
    if what.startswith("Kendall"):
        return what, f"{value:.2f}", f"≥ {target:g}", "reached" if reached else "**missed**"
    return what, f"{value:.1%}", f"≤ {target:.0%}", "reached" if reached else "**missed**"


def _configuration_row(row: Row, group: Group) -> tuple[str, ...]:
    seconds = (
        f"{row.predicted:.3f}",
        f"{row.measured:.3f}",
        f"{(row.high - row.low) / row.measured:.1%}",
        f"{row.error:+.1%}",
    )
    pair = group.speedups.get(row.label)
    speedup = (
        ("–", "–", "–")
        if pair is None
        else (f"{pair[0]:.2f}", f"{pair[1]:.2f}", f"{pair[0] / pair[1] - 1:+.1%}")
    )
    return f"{row.group}/{row.label}", "held out" if row.held_out else "", *seconds, *speedup


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _slowdowns(pair: Mapping[str, Any]) -> tuple[str, ...]:
    numbers = zip(pair["activities"], pair["slowdown"], pair["lowest"], pair["highest"], strict=True)
    return (
        *(f"{name} {slow:.2f} ({low:.2f} to {high:.2f})" for name, slow, low, high in numbers),
        f"{pair['factor']:.2f}",
    )


def _commands(place: Workplace, configurations: Sequence[Configuration]) -> list[str]:
    end = " --rehearse" if place.rehearse else ""
    pairs = dict.fromkeys(one.pair for one in configurations)
    calibrated = [
        f"    python experiments/gpu/part1_calibrate.py --actor {pair.actor} --reward {pair.reward} --engine"
        f" {pair.engine}{end}"
        for pair in pairs
    ]
    return [
        f"    python experiments/gpu/part0_attention.py{end}",
        *calibrated,
        f"    python experiments/gpu/part2_validate.py{end}",
        f"    python experiments/gpu/part3_report.py{end}",
    ]


if __name__ == "__main__":
    run_main(main)
