"""A validation for the terminal, as JSON, and as a page."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from oppo_real.validate.accuracy import Prediction, PredictionAccuracy
from oppo_real.validate.sentences import interval, sentences
from oppo_real.validate.session import Validated
from oppo_real.validate.views import STAGES
from oppo_sim.cli.progress import say_notes
from oppo_sim.columns import DISTRIBUTIONS
from oppo_sim.plain_json import plain
from oppo_sim.report.labels import NOTHING, format_percent, format_signed, significant

if TYPE_CHECKING:
    from rich.table import Table

FORMAT: Final = "oppo-validation/1"
LEAST_SHARE: Final = 0.001
"""Of the step: stages below it on both sides are left out of tables (not of the JSON)."""
Rows = list[tuple[str, ...]]


# ---- JSON --------------------------------------------------------------------------------------------------


def record(validated: Validated) -> dict[str, Any]:
    """Everything, as nested values."""
    found, request = validated.comparison, validated.request
    profile, lost = validated.profile, found.lost_to
    slices, slowdowns = (None, None) if profile is None else (profile.time_slices, profile.slowdowns)
    return {
        "format": FORMAT,
        "scenario": request.scenario.name,
        "unit": unit_of(validated),
        "policies": list(request.policies),
        "repeats": request.repeats,
        "steps": request.steps,
        "warmup_steps": found.warmup_steps,
        "speedups": [
            {
                "policy": one.policy,
                "baseline": request.policies[0],
                "settled": one.settled,
                "predicted": one.predicted if one.settled else None,
                "predicted_interval": [one.predicted_low, one.predicted_high],
                "measured": one.measured,
                "measured_interval": [one.measured_low, one.measured_high],
                "error": one.error if one.settled else None,
            }
            for one in found.speedups
        ],
        "rank_agreement": None if found.unsettled else found.rank_agreement,
        "regret": None if found.unsettled else found.regret,
        "regret_told_apart": None if found.unsettled or lost is None else lost.told_apart,
        "pairs_told_apart": len(found.told_apart),
        "swaps": []
        if found.unsettled
        else [asdict(one) | {"told_apart": one.told_apart} for one in found.swaps],
        "stages": {
            policy: {stage: _cell(cell) for stage, cell in cells.items()}
            for policy, cells in found.stages.items()
        },
        "largest_error": {
            policy: dict(zip(("stage", "of_step"), found.largest_error(policy), strict=True))
            for policy in found.stages
        },
        "by_step": {
            policy: [{stage: _cell(cell) for stage, cell in row.items()} for row in rows]
            for policy, rows in found.steps.items()
        },
        "work": {
            policy: {name: _cell(cell) for name, cell in cells.items()}
            for policy, cells in found.work.items()
        },
        "shares": {
            policy: {name: asdict(one) for name, one in named.items()}
            for policy, named in found.shares.items()
        },
        "decisions": [asdict(one) for one in found.agreements],
        "runs": [
            {**asdict(run.turn), "load": run.load, "core_share": run.core_share, "wall_s": run.wall_s}
            for run in validated.runs
        ],
        "load_at_calibration": validated.load_at_calibration,
        "interference": None if profile is None else profile.contention_factor,
        "slowdowns": None if slowdowns is None else slowdowns.model_dump(mode="json"),
        "time_slices": None if slices is None else slices.model_dump(mode="json"),
        "notes": list(validated.notes),
    }


def _cell(cell: Prediction) -> dict[str, float]:
    return asdict(cell) | {"error": cell.error, "spread": cell.spread}


def unit_of(validated: Validated) -> str:
    """What the numbers count."""
    return "decode iterations" if validated.profile is None else "seconds"


# ---- rows that terminal and page share ---------------------------------------------------------------------

SPEEDUP_HEADS: Final = ("policy", "predicted", "95 %", "measured", "95 %", "error")
STAGE_HEADS: Final = (
    "policy",
    "stage",
    "predicted",
    "measured",
    "error",
    "error,\nof the step",
    "spread",
    "lowest\nto highest",
)
STEP_HEADS: Final = ("policy", "step", "predicted", "measured", "error", "spread", "gen", "reward")
DECISION_HEADS: Final = (
    "policy",
    "repeat",
    "steps alike",
    "trained in the same step",
    "first difference, steps from 0",
)


def speedup_rows(found: PredictionAccuracy) -> Rows:
    """One a policy."""
    return [
        (
            one.policy,
            f"{significant(one.predicted)}×" if one.settled else "not predicted",
            interval(one.predicted_low, one.predicted_high),
            f"{significant(one.measured)}×",
            interval(one.measured_low, one.measured_high),
            format_signed(one.error) if one.settled else NOTHING,
        )
        for one in found.speedups
    ]


def stage_rows(found: PredictionAccuracy) -> Rows:
    """One a policy and stage that takes time."""
    rows: Rows = []
    for policy, cells in found.stages.items():
        whole = cells["step"]
        for stage in STAGES:
            cell = cells[stage]
            if max(cell.measured / whole.measured, cell.predicted / whole.predicted) < LEAST_SHARE:
                continue
            share = (cell.predicted - cell.measured) / whole.measured
            rows.append(
                (
                    policy,
                    stage,
                    significant(cell.predicted),
                    significant(cell.measured),
                    format_signed(cell.error),
                    format_signed(share),
                    format_percent(cell.spread),
                    f"{significant(cell.lowest)} to {significant(cell.highest)}",
                )
            )
    return rows


def step_rows(found: PredictionAccuracy) -> Rows:
    """One a policy and step: the whole, and the errors of gen and reward."""
    rows: Rows = []
    for policy, steps in found.steps.items():
        for number, cells in enumerate(steps):
            whole = cells["step"]
            label = f"{number} (warm-up)" if number < found.warmup_steps else str(number)
            errors = (format_signed(cells["gen"].error), format_signed(cells["reward"].error))
            values = (
                significant(whole.predicted),
                significant(whole.measured),
                format_signed(whole.error),
                format_percent(whole.spread),
            )
            rows.append((policy, label, *values, *errors))
    return rows


def decision_rows(found: PredictionAccuracy) -> Rows:
    """One a real run."""
    return [
        (
            one.policy,
            str(one.repeat + 1),
            f"{one.alike} of {one.steps}",
            format_percent(one.trained_alike),
            "none" if one.first_difference is None else f"step {one.first_difference}: {one.why}",
        )
        for one in found.agreements
    ]


def share_rows(found: PredictionAccuracy, name: str) -> tuple[tuple[str, ...], Rows]:
    """Heads, and two rows a policy: shares of trained rollouts by staleness or deferrals; no row where no
    rollout has any."""
    shares = {policy: named[name] for policy, named in found.shares.items() if name in named}
    longest = max((len(one.measured) for one in shares.values()), default=0)
    rows = [
        (policy, side, *(format_percent(part) if part else NOTHING for part in parts), *[NOTHING] * missing)
        for policy, one in shares.items()
        for side, parts in (("predicted", one.predicted), ("measured", one.measured))
        for missing in (longest - len(parts),)
    ]
    return ("policy", name, *map(str, range(longest))), rows if longest > 1 else []


# ---- terminal ----------------------------------------------------------------------------------------------


def tables(found: PredictionAccuracy, baseline: str, unit: str) -> "Iterator[Table]":
    """For the terminal as wide as it is: speed-ups, stages, decisions, and shares where there are any."""
    from oppo_sim.cli.tables import table

    yield table(f"speed-up against {baseline}", SPEEDUP_HEADS, speedup_rows(found))
    yield table(f"a step after the warm-up, {unit}", STAGE_HEADS, stage_rows(found), left=(0, 1), stay=5)
    yield table("decisions", DECISION_HEADS, decision_rows(found), left=(0, 4), names=(0, 4))
    for name in DISTRIBUTIONS:
        heads, rows = share_rows(found, name)
        if rows:
            yield table("share of trained rollouts", heads, rows, left=(0, 1), stay=2)


def show(validated: Validated, as_json: bool) -> None:
    """On standard output."""
    folder = validated.request.work
    if as_json:
        click.echo(json.dumps(plain({"folder": str(folder), **record(validated)}), indent=1))
        return
    from oppo_sim.report.terminal import table_console
    from oppo_sim.text_lines import say

    console = table_console()
    for each in tables(validated.comparison, validated.request.policies[0], unit_of(validated)):
        console.print(each)
    for sentence in sentences(validated):
        say(sentence)
    say_notes(validated.notes)
    say(f"wrote {folder} (its page: {folder / 'validation.md'})")


# ---- page --------------------------------------------------------------------------------------------------


def page(validated: Validated, figures: Sequence[str]) -> str:
    """The validation in Markdown."""
    found, request = validated.comparison, validated.request
    parts = [
        f"# {request.scenario.name}: predicted and measured",
        (
            f"{request.repeats} real run(s) of each policy, interleaved, {request.steps} steps of which"
            f" {found.warmup_steps} are warm-up; numbers are {unit_of(validated)}: means of the steps after"
            " the warm-up, of the repeats the middle (Hodges-Lehmann); a speed-up is the middle of the"
            " rounds'. The spread is highest less lowest of the repeats. Predictions come from the calibrated"
            " profile alone."
        ),
        (
            f"Machine: {validated.hardware}. Versions:"
            f" {', '.join(f'{name} {number}' for name, number in validated.versions.items())}."
        ),
        *[f"![{name}]({name})" for name in figures],
        "## Speed-ups",
        _markdown(SPEEDUP_HEADS, speedup_rows(found)),
        "\n".join(f"- {sentence}" for sentence in sentences(validated)),
        "## Stages",
        _markdown(STAGE_HEADS, stage_rows(found)),
        "## Steps",
        _markdown(STEP_HEADS, step_rows(found)),
        "## Decisions",
        _markdown(DECISION_HEADS, decision_rows(found)),
    ]
    told = [share_rows(found, name) for name in DISTRIBUTIONS]
    if any(rows for _, rows in told):
        parts += ["## Staleness and deferrals", "Shares of the trained rollouts, after the warm-up."]
        parts += [_markdown(heads, rows) for heads, rows in told if rows]
    if validated.notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in validated.notes)]
    return "\n\n".join(parts) + "\n"


def _markdown(heads: Sequence[str], rows: Rows) -> str:
    lines = [[head.replace("\n", " ") for head in heads], ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
