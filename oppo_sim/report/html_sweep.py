"""The chapter of a sweep."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from oppo_sim import columns as c
from oppo_sim.report.html_parts import (
    Chapter,
    Explorer,
    Grid,
    Section,
    cost_source,
    explorer_data,
    joined,
    picture,
    run_provenance,
    run_text,
    scenario_section,
    times_faster,
)
from oppo_sim.report.labels import (
    capital,
    counted,
    format_percent,
    format_seconds,
    measure_of,
    measured_label,
    other_lengths,
    settings_label,
    short_label,
    significant,
    stopped,
    value_label,
    value_text,
)
from oppo_sim.report.points import FAILED, STOPPED, Points, SweepFolder, read_sweep
from oppo_sim.report.ranges import (
    drawn_words,
    few_seeds_sentence,
    machine_sentence,
    over_words,
    placement_sentence,
    replayed_sentence,
    widest_sentence,
)
from oppo_sim.report.sweep_figures import HEAT, figures_of

_MOST_REASONS: Final = 20
_PRICES: Final = (
    (c.COMPARED_STALENESS_MEAN, "mean staleness"),
    (c.COMPARED_STALENESS_MAX, "highest staleness"),
    (c.LENGTH_BIAS_PAIRED, "length bias against sequential"),
    (c.DEFERRED, "deferred rollouts a step"),
)
_AIMS: Final = {
    c.SPEEDUP: "gains most over its own baseline",
    c.HOURS_TO_REWARD: "reaches the target reward first",
}
"""Objective → what the best does, where it is not the least seconds."""


def sweep_chapter(folder: Path, stem: str) -> Chapter:
    """Read a sweep's folder. ``stem`` starts the names of its pictures. Raises OppoError as
    ``read_sweep``."""
    sweep = read_sweep(folder)
    points, record = sweep.points, sweep.record
    best = points.best_row()
    scenario, fixed = str(record["spec"]["scenario"]), record["spec"].get("set", {})
    choice = [] if best is None else [*fixed.items(), *points.label_of(best)]
    pictures = {
        one.name: picture(f"{stem}-{one.name}", one.figure, one.title, one.alt) for one in figures_of(points)
    }
    code = scenario_section(record)
    return Chapter(
        title=f"Sweep: {sweep.name}",
        kind="sweep",
        source=cost_source(record["costs"]),
        measured=False,
        question=_question(sweep),
        answer=_answer(sweep),
        settings=tuple((axis, value_text(value)) for axis, value in choice),
        copy_text="" if best is None else run_text(scenario, fixed, points.label_of(best)),
        sections=(
            Section("Pictures", pictures=tuple(one for name, one in pictures.items() if name != HEAT)),
            *_failures(points),
            *([code] if code else []),
        ),
        explorer=Explorer(
            explorer_data(points, "configuration", run_text(scenario, fixed)), pictures.get(HEAT)
        ),
        provenance=_provenance(sweep),
        notes=tuple(str(note) for note in record.get("warnings", ())),
    )


# ---- inside ------------------------------------------------------------------------------------------------


def _question(sweep: SweepFolder) -> str:
    points, record = sweep.points, sweep.record
    varied = joined([f"{short_label(axis)} ({_range(points.values(axis))})" for axis in points.axes])
    aim = _AIMS.get(points.objective, "trains fastest")
    steps = record["steps"]
    length = counted(steps, "step") if isinstance(steps, int) else f"{steps[0]:,} to {steps[-1]:,} steps"
    return (
        f"Which {varied} {aim} on {sweep.name}, and at what price?"
        f" {counted(len(points.table), 'configuration')}, each {counted(len(record['seeds']), 'seed')} ×"
        f" {length}, of which {record['warmup_steps']} are warm-up."
    )


def _range(values: Sequence[Any]) -> str:
    labels = [value_label(value) for value in values]
    return ", ".join(labels) if len(labels) <= 5 else f"{len(labels)} values from {labels[0]} to {labels[-1]}"


def _answer(sweep: SweepFolder) -> tuple[str, ...]:
    points, record = sweep.points, sweep.record
    best = points.best_row()
    if best is None:
        return ("No configuration ran all its seeds: the table says why.",)

    def of(column: str) -> float:
        return float(points.measured(column)[best]) if points.has(column) else float("nan")

    first = f"{capital(settings_label(points.label_of(best)))}: {format_seconds(of(c.STEP_S))} a step"
    if np.isfinite(of(c.SPEEDUP)):
        ends = of(c.SPEEDUP_LOW), of(c.SPEEDUP_HIGH)
        together = of(c.SPEEDUP_BOTH_LOW), of(c.SPEEDUP_BOTH_HIGH)
        first += f", {times_faster(of(c.SPEEDUP), *ends, _baseline(sweep), together)}"
    if points.objective == c.HOURS_TO_REWARD:
        ends = of(c.HOURS_TO_REWARD_LOW), of(c.HOURS_TO_REWARD_HIGH)
        between = f" (95 % interval {significant(ends[0])} to {significant(ends[1])})"
        first += f"; {significant(of(points.objective))} h to the target reward"
        first += between if np.isfinite(ends).all() else ""
    effects = int(record.get("to_reward", {}).get("draws", 0))
    drawn = drawn_words(points.has(c.P_BEST), str(record["objective"]), effects)
    price = [
        f"{label} {measured_label(of(column), measure_of(column).kind)}"
        for column, label in _PRICES
        if np.isfinite(of(column))
    ]
    return (
        f"{first}.",
        *([f"Its price: {joined(price)}."] if price else []),
        *([f"{capital(other)}."] if (other := other_lengths(of(c.LENGTH_BIAS_PAIRED))) else []),
        *_machine(sweep, best),
        *_flatness(points, best, len(record["seeds"]), float(record["spec"].get("practical", 0)), drawn),
        *(stopped(capital(edge["sentence"]), edge["command"]) for edge in record.get("edges", ())),
        *_worst(points, best),
        *_left_out(points),
    )


def _machine(sweep: SweepFolder, best: int) -> list[str]:
    """What intervals of the machine rest on, and how probably the best is the best."""
    record = sweep.record
    replayed = replayed_sentence(record["trace"].get("sampling"), len(record["seeds"]))
    found = [f"{capital(sentence)}." for sentence in (replayed, machine_sentence(record)) if sentence]
    table = sweep.points.table
    if sweep.points.has(c.P_BEST):
        count = counted(int(table[c.P_BEST].notna().sum()), "configuration")
        share = format_percent(float(table[c.P_BEST].iloc[best]))
        widest = widest_sentence(table.iloc[[best]], "best")
        found.append(
            f"Of the {count} that could be the best, this one is in {share} of the"
            f" draws{'; ' if widest else ''}{widest}."
        )
    if sweep.points.has(c.DIFFERENCE_WIDEST_SHARE):
        others = table.drop(table.index[best])[[c.DIFFERENCE_WIDEST, c.DIFFERENCE_WIDEST_SHARE]]
        between = placement_sentence(others.itertuples(index=False, name=None))
        found += [f"{capital(between)}."] if between else []
    return found


def _baseline(sweep: SweepFolder) -> str:
    labels = list(sweep.record["baselines"])
    return str(labels[0]) if len(labels) == 1 else "its sequential baseline"


def _flatness(points: Points, best: int, seeds: int, practical: float, of: str) -> list[str]:
    """What the region says: how far each field may move without a difference that shows. ``of``: what draws
    are of."""
    drawn = points.has(c.P_BEST)
    over = over_words("paired seeds", of)
    if seeds < 2 and not drawn:
        return ["With one seed nothing says how sure this is: sweep with more seeds."]
    rows = sorted(points.region | {best})
    if len(rows) == 1:
        return (
            [f"Every other configuration is slower over {over} (5 % level)."] if len(points.table) > 1 else []
        )
    inside = Points(points.table.iloc[rows].reset_index(drop=True), points.axes)
    spans = []
    for axis in points.axes:
        labels = [value_label(value) for value in inside.values(axis)]
        if len(labels) > 1:
            spans.append(
                f"{short_label(axis)}"
                f" {f'{labels[0]} to {labels[-1]}' if points.numeric(axis) else joined(labels, 'or')}"
            )
    within = f": {joined(spans)}" if spans else ""
    share = float(points.table[c.P_BEST].iloc[best]) if drawn else float("nan")
    few = few_seeds_sentence(share, seeds, practical)
    return [
        f"{counted(len(rows) - 1, 'other configuration')} cannot be told apart from it over {over} (5 %"
        f" level){f', or within {100 * practical:g} % of it' if practical else ''}{within}.",
        *([f"{capital(few)}."] if few else []),
    ]


def _worst(points: Points, best: int) -> list[str]:
    """Which field matters most, each moved alone from the best point over the values that were tried."""
    values = points.measured(points.objective)
    values = 1.0 / values if measure_of(points.objective).better == "high" else values
    losses = []
    for axis in points.axes:
        rows = [row for row in points.like(best, free=(axis,)) if np.isfinite(values[row])]
        if len(rows) > 1:
            losses.append((float(values[rows].max() / values[best]) - 1.0, short_label(axis)))
    if not losses:
        return []
    parts = [f"{label} up to {format_percent(loss)}" for loss, label in sorted(losses, reverse=True)]
    return [f"Moved alone over the values tried, a field costs: {joined(parts)}."]


def _left_out(points: Points) -> list[str]:
    sentences = []
    counts = Counter(map(str, points.table[c.STATUS]))
    if counts[FAILED]:
        sentences.append(
            f"{counts[FAILED]:,} of {len(points.table):,} configurations could not run; the reasons stand"
            " below."
        )
    if counts[STOPPED]:
        sentences.append(
            f"{counted(counts[STOPPED], 'configuration')} got fewer seeds, being clearly slower after the"
            " first ones."
        )
    return sentences


def _failures(points: Points) -> list[Section]:
    """Reasons of failed points, the most common first, each with one configuration it hit."""
    failed = [row for row, status in enumerate(points.table[c.STATUS]) if status == FAILED]
    if not failed:
        return []
    reasons = [str(points.table[c.ERROR].iloc[row]) for row in failed]
    first = {reason: row for row, reason in zip(reversed(failed), reversed(reasons), strict=True)}
    rows = tuple(
        (reason, f"{count:,}", settings_label(points.label_of(first[reason])))
        for reason, count in Counter(reasons).most_common(_MOST_REASONS)
    )
    left = len(first) - len(rows)
    text = f"{counted(len(failed), 'configuration')} could not run." + (
        f" {left} further reasons are in the table of points." if left else ""
    )
    return [
        Section(
            "What failed, and why",
            (text,),
            (Grid("Reasons", ("reason", "configurations", "the first"), rows, frozenset({1})),),
        )
    ]


def _provenance(sweep: SweepFolder) -> tuple[tuple[str, str], ...]:
    record = sweep.record
    seeds = record["seeds"]
    baselines: Mapping[str, int] = record["baselines"]
    return (
        *run_provenance(record),
        ("varied", "; ".join(f"{axis}: {_range(sweep.points.values(axis))}" for axis in sweep.points.axes)),
        *([("splits", record["splits"])] if record.get("splits") else []),
        (
            "baselines",
            ", ".join(f"{label} ({counted(count, 'configuration')})" for label, count in baselines.items()),
        ),
        ("seeds", f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])),
        ("configurations", ", ".join(f"{status}: {count:,}" for status, count in record["statuses"].items())),
        ("engines", ", ".join(f"{name}: {count:,} runs" for name, count in record["engines"].items())),
    )
