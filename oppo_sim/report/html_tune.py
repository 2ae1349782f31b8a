"""The chapter of a tuning: its advice, how the search went, and what the surroundings of the choice look
like."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.files import file_errors
from oppo_sim.inside import file_inside
from oppo_sim.plain_json import read_json
from oppo_sim.report.html_parts import (
    Chapter,
    Explorer,
    Grid,
    Picture,
    Section,
    explorer_data,
    flat,
    joined,
    picture,
    versions_text,
)
from oppo_sim.report.labels import counted, option_text, value_label, value_text
from oppo_sim.report.points import Points
from oppo_sim.report.tune_figures import COST_LABELS, history_figure, regret_figure, sensitivity_figure
from oppo_sim.tables import read_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TUNE: Final = "tune.json"
_TRIALS: Final = "trials.parquet"
_SENSITIVITY: Final = "sensitivity.parquet"
_BEST: Final = "best.yaml"
_COSTS: Final = tuple(COST_LABELS)
_MEND: Final = "run the same command again, its finished runs are kept"


def tune_chapter(folder: Path, stem: str) -> Chapter:
    """Read a tuning's folder. ``stem`` starts the names of its pictures. Raises OppoError for one that is
    damaged or lacks its tables."""
    record = _record(folder)
    try:
        return _chapter(folder, record, stem)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise OppoError(f"{folder / TUNE} is damaged ({error}): {_MEND}") from None


# ---- inside ------------------------------------------------------------------------------------------------


def _record(folder: Path) -> Mapping[str, Any]:
    record = read_json(file_inside(folder, TUNE), _MEND)
    if not isinstance(record, dict):
        raise OppoError(f"{folder / TUNE} is damaged: {_MEND}")
    return record


def _chapter(folder: Path, record: Mapping[str, Any], stem: str) -> Chapter:
    advice, name = record["advice"], str(record["scenario"])
    sections: Mapping[str, Sequence[str]] = advice["sections"]
    (_, answer), *others = sections.items()
    trials, sensitivity = (read_table(file_inside(folder, name), _MEND) for name in (_TRIALS, _SENSITIVITY))
    points = _points(trials, record)
    choice = _settings(advice["choice"])
    seeds = record["seeds"]
    return Chapter(
        title=f"Tuning: {name}",
        kind="tune",
        source=(
            "Predicted: every step was simulated. What the seconds rest on is said under “What these numbers"
            " are not”."
        ),
        measured=False,
        question=(
            f"Which policy and knobs train fastest on {name}{_bounds(record)}?"
            f" {counted(record['trials'], 'trial')} over {joined(record['policies'])}, each"
            f" {counted(len(seeds), 'seed')} × {counted(record['steps'], 'step')}, of which"
            f" {record['warmup_steps']} are warm-up; checked on"
            f" {counted(len(record['fresh_seeds']), 'fresh seed')}."
        ),
        answer=(" ".join(answer[:2]), *answer[2:]),
        settings=tuple((field, option_text(value)) for field, value in choice),
        copy_text=advice["next"][0] if advice["next"] else "",
        sections=(
            *(Section(title, tuple(sentences)) for title, sentences in others if sentences),
            *_frameworks(advice["frameworks"]),
            Section("Pictures", pictures=_pictures(record, trials, sensitivity, points.objective, stem)),
            *_failures(record["failures"]),
            *_best_file(folder),
        ),
        explorer=Explorer(explorer_data(points, c.TRIAL, advice["next"][0] if advice["next"] else "")),
        provenance=_provenance(record),
    )


def _settings(choice: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    if choice is None:
        return []
    own = [(f"policy.{field}", value) for field, value in choice["policy_settings"].items()]
    return [("policy.name", choice["policy"]), *own, *choice["machine"].items()]


def _bounds(record: Mapping[str, Any]) -> str:
    kept = [
        f"{name} ≤ {value_label(limit)}"
        for name, limit in flat(record["constraints"])
        if limit not in ("null", "–")
    ]
    return f" with {joined(kept)}" if kept else ""


def _points(trials: "pd.DataFrame", record: Mapping[str, Any]) -> Points:
    """Trials as points: a trial is a row, what was tried its fields, the choice the best."""
    cost = next(name for name in _COSTS if name in trials.columns)
    columns = [str(name) for name in trials.columns]
    fields = tuple(columns[columns.index(c.TRIAL) + 1 : columns.index(cost)])
    table = trials.reset_index(drop=True).copy()
    for field in fields:
        values = table[field]
        if (
            values.dtype.kind == "f"
            and values.notna().any()
            and np.equal(np.mod(values.dropna(), 1), 0).all()
        ):
            table[field] = values.astype("Int64")
    table[c.ERROR] = [
        error or (f"breaks {broken}" if broken else None)
        for error, broken in zip(table[c.ERROR], table[c.BROKEN], strict=True)
    ]
    rows = {int(number): row for row, number in enumerate(table[c.TRIAL])}
    chosen = record["chosen"]
    best = rows.get(chosen["trial"]) if chosen else None
    alike = [rows[one["trial"]] for one in record["others"] if one["alike"] and one["trial"] in rows]
    region = frozenset(alike if best is None else [best, *alike])
    return Points(table.drop(columns=[c.BROKEN]), fields, best, region, cost)


def _frameworks(found: Mapping[str, Mapping[str, Any]]) -> list[Section]:
    """One section each, folded: what to paste, and every knob with what it does."""
    sections = []
    for name, told in found.items():
        rows = tuple(
            (
                str(entry["knob"] or "no such knob"),
                "" if entry["knob"] is None else value_text(entry["value"]),
                str(entry["meaning"]),
            )
            for entry in told["lines"]
        )
        blocks = tuple((f"To paste: {block['how']}.", str(block["text"])) for block in told["blocks"])
        names = (f"Names of {told['names']}.",) if told["names"] else ()
        grid = Grid(name, ("knob", "value", "what it does here"), rows)
        sections.append(Section(f"In the words of {name}", names, (grid,), blocks=blocks, folded=True))
    return sections


def _pictures(
    record: Mapping[str, Any], trials: "pd.DataFrame", sensitivity: "pd.DataFrame", cost: str, stem: str
) -> tuple[Picture, ...]:
    name, worlds, found = str(record["scenario"]), record["advice"]["worlds"], []

    def add(kind: str, figure: "Figure", title: str, alt: str) -> None:
        found.append(picture(f"{stem}-{kind}", figure, title, alt))

    if trials[cost].notna().any():
        unit = "rollout" if cost == c.S_PER_ROLLOUT else "token"
        alt = f"Seconds a {unit} of every trial, and the best so far."
        add("history", history_figure(trials, cost, name), "How the search went", alt)
    if len(sensitivity):
        alt = "Cost over the choice's as each knob changes alone, with 95 % intervals."
        figure = sensitivity_figure(sensitivity, record["knobs"], name)
        add("sensitivity", figure, "Which knob matters", alt)
    if worlds:
        alt = "Regret of the choice and of what is best in the scenario as given, world by world."
        add("regret", regret_figure(worlds, name), "Regret by world", alt)
    return tuple(found)


def _failures(failures: Sequence[Mapping[str, Any]]) -> list[Section]:
    rows = tuple((str(one["error"]), f"{one['trials']:,}") for one in failures)
    grid = Grid("Reasons", ("reason", "trials"), rows, frozenset({1}))
    return [Section("What failed, and why", grids=(grid,))] if rows else []


def _best_file(folder: Path) -> list[Section]:
    path = file_inside(folder, _BEST)
    if not path.is_file():
        return []
    with file_errors(path):
        return [Section("The tuned scenario", code=path.read_text(encoding="utf-8"), folded=True)]


def _provenance(record: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    rows = [
        ("scenario", str(record["scenario"])),
        ("scenario, SHA-256", str(record["scenario_sha256"])),
        ("objective", str(record["objective"])),
        ("worlds", joined([str(name) for name in record["world_names"]])),
        ("seeds of the search", _span(record["seeds"])),
        ("fresh seeds", _span(record["fresh_seeds"])),
        ("trials", ", ".join(f"{status}: {count:,}" for status, count in record["statuses"].items())),
        ("engines", ", ".join(f"{name}: {count:,} runs" for name, count in record["runs_by_engine"].items())),
        ("next", "; ".join(record["advice"].get("next", ()))),
        ("versions", versions_text(record["versions"])),
    ]
    return tuple((name, value) for name, value in rows if value)


def _span(seeds: Sequence[int]) -> str:
    return f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0]) if seeds else ""
