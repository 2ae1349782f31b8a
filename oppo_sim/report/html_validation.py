"""The chapter of a validation: predictions beside measurements."""

import math
from collections.abc import Mapping
from typing import Any

from oppo_sim.finished_run import FinishedRun
from oppo_sim.report.html_parts import (
    Chapter,
    Grid,
    Section,
    joined,
    run_provenance,
    scenario_section,
    stored_picture,
)
from oppo_sim.report.labels import DISTRIBUTIONS, NOTHING, counted, format_percent, format_signed, significant

_LEAST_SHARE = 0.001
_FIGURES = {
    "figures/stages.png": (
        "Stages, predicted and measured",
        "Two stacked bars a policy, predicted and measured, by stage. The table of stages has the numbers.",
    ),
    "figures/speedups.png": (
        "Speed-ups, predicted and measured",
        "Predicted against measured speed-up, a point a policy. The table of speed-ups has the numbers.",
    ),
    "figures/steps.png": (
        "Steps, predicted and measured",
        "Step time by step, predicted and measured, one panel a policy.",
    ),
}


def validation_chapter(run: FinishedRun, stem: str) -> Chapter:
    """Read a validation's folder. Raises OppoError for a folder that lacks its result."""
    manifest, record = run.manifest, run.json("validation.json")
    name, policies, unit = (
        str(record["scenario"]),
        [str(policy) for policy in record["policies"]],
        str(record["unit"]),
    )
    pictures = [
        stored_picture(run.path(file), f"{stem}-figure-{number}", title, alt)
        for number, (file, (title, alt)) in enumerate(_FIGURES.items())
        if file in run.files
    ]
    code = scenario_section(manifest)
    return Chapter(
        title=f"Validation: {name}",
        kind="validation",
        source="Measured on real engines, beside predictions from the calibrated profile alone.",
        measured=True,
        question=(
            f"How far are predictions from real runs of {joined(policies)} on {name}?"
            f" {counted(record['repeats'], 'repeat')} of {counted(record['steps'], 'step')}, of which"
            f" {record['warmup_steps']} are warm-up; numbers are {unit}."
        ),
        answer=_answer(record),
        sections=(
            *([Section("Speed-ups", grids=(_speedups(record),))] if record["speedups"] else []),
            Section("Pictures", pictures=tuple(pictures)),
            Section("Stages", grids=(_stages(record, unit),)),
            Section(
                "Decisions",
                ("Who was trained, deferred and left over, step by step.",),
                (_decisions(record),),
            ),
            *_shares(record),
            *([code] if code else []),
        ),
        provenance=(*run_provenance(manifest),),
        notes=tuple(manifest.get("warnings", ())),
    )


# ---- inside ------------------------------------------------------------------------------------------------


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _signed(share: Any) -> str:
    return format_signed(_number(share))


def _within(interval: list[Any]) -> str:
    low, high = (_number(end) for end in interval)
    return f"{low:.2f} to {high:.2f}" if math.isfinite(low) and math.isfinite(high) else NOTHING


def _answer(record: Mapping[str, Any]) -> tuple[str, ...]:
    predicted = [one for one in record["speedups"] if one["predicted"] is not None]
    sentences = [
        f"{one['policy']}: the calibration disagrees with itself, so nothing is predicted."
        for one in record["speedups"]
        if one["predicted"] is None
    ]
    if predicted:
        worst = max(predicted, key=lambda one: abs(_number(one["error"])))
        sentences.append(
            f"The largest error of a predicted speed-up is {_signed(worst['error'])} ({worst['policy']})."
        )
    for policy, worst_stage in record["largest_error"].items():
        sentences.append(
            f"{policy}: the error of {worst_stage['stage']} moves the step most, by"
            f" {_signed(worst_stage['of_step'])} of it."
        )
    agreement = _number(record["rank_agreement"])
    if math.isfinite(agreement):
        sentences.append(
            f"The order of the policies by step time agrees with Kendall's tau {significant(agreement)} (1:"
            " the same order)."
        )
    if apart := record.get("pairs_told_apart"):
        ordered = apart - sum(one["told_apart"] for one in record["swaps"])
        sentences.append(
            f"Of {counted(apart, 'pair')} that the repeats tell apart, {ordered}"
            f" {'is' if ordered == 1 else 'are'} in the predicted order."
        )
    if (regret := record.get("regret")) is not None and math.isfinite(agreement):
        unsure = "; the repeats do not tell the two apart" if record.get("regret_told_apart") is False else ""
        sentences.append(
            f"Regret of the policy that is predicted fastest: {format_percent(float(regret))} of the best"
            f" step{unsure}."
        )
    alike = sum(one["alike"] for one in record["decisions"])
    total = sum(one["steps"] for one in record["decisions"])
    if total:
        sentences.append(f"{alike:,} of {total:,} steps made the same decisions.")
    shares = [run["core_share"] for run in record.get("runs", ()) if run["core_share"] is not None]
    if shares:
        span = f"{format_percent(min(shares))} to {format_percent(max(shares))}"
        sentences.append(
            f"A busy process got {span} of its core just before a run (100 % on a quiet machine)."
        )
    return tuple(sentences)


def _speedups(record: Mapping[str, Any]) -> Grid:
    rows = tuple(
        (
            str(one["policy"]),
            "not predicted" if one["predicted"] is None else f"{significant(float(one['predicted']))}×",
            _within(one["predicted_interval"]),
            f"{significant(_number(one['measured']))}×",
            _within(one["measured_interval"]),
            _signed(one["error"]),
        )
        for one in record["speedups"]
    )
    heads = ("policy", "predicted", "95 % interval", "measured", "95 % interval", "error")
    return Grid(f"Speed-up against {record['policies'][0]}", heads, rows, frozenset(range(1, 6)))


def _stages(record: Mapping[str, Any], unit: str) -> Grid:
    rows = []
    for policy, cells in record["stages"].items():
        step = max(_number(cells["step"]["measured"]), _number(cells["step"]["predicted"]))
        for stage, cell in cells.items():
            predicted, measured = _number(cell["predicted"]), _number(cell["measured"])
            if not step or max(predicted, measured) < _LEAST_SHARE * step:
                continue
            spread = f"{significant(_number(cell['lowest']))} to {significant(_number(cell['highest']))}"
            rows.append(
                (
                    f"{policy}: {stage}",
                    significant(predicted),
                    significant(measured),
                    spread,
                    _signed(cell["error"]),
                )
            )
    heads = ("policy: stage", "predicted", "measured", "lowest to highest repeat", "error")
    return Grid(f"A step after the warm-up, {unit}", heads, tuple(rows), frozenset(range(1, 5)))


def _decisions(record: Mapping[str, Any]) -> Grid:
    rows = tuple(
        (
            str(one["policy"]),
            str(one["repeat"] + 1),
            f"{one['alike']} of {one['steps']}",
            format_percent(_number(one["trained_alike"])),
            "none" if one["first_difference"] is None else f"step {one['first_difference']}: {one['why']}",
        )
        for one in record["decisions"]
    )
    return Grid(
        "Decisions of each real run",
        ("policy", "repeat", "steps alike", "trained in the same step", "first difference, steps from 0"),
        rows,
        frozenset({1, 2, 3}),
    )


def _shares(record: Mapping[str, Any]) -> tuple[Section, ...]:
    found = record.get("shares", {})
    grids = []
    for name in dict.fromkeys(name for named in found.values() for name in named):
        shares = {policy: named[name] for policy, named in found.items() if name in named}
        longest = max(len(one["measured"]) for one in shares.values())
        rows = tuple(
            (
                f"{policy}: {side}",
                *(format_percent(_number(part)) if part else NOTHING for part in one[side]),
                *[NOTHING] * (longest - len(one[side])),
            )
            for policy, one in shares.items()
            for side in ("predicted", "measured")
        )
        if longest > 1:
            heads = ("policy", *map(str, range(longest)))
            title = f"Trained rollouts by {name}, after the warm-up"
            grids.append(Grid(title, heads, rows, frozenset(range(1, longest + 1))))
    return (Section("Staleness and deferrals", (DISTRIBUTIONS,), tuple(grids)),) if grids else ()
