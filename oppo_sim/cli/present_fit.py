"""What the terminal shows of a fit."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from oppo_sim.cli.progress import say_notes
from oppo_sim.columns import TIMING_STEP
from oppo_sim.report.html_fit import answer_of, identified_text, interval_text
from oppo_sim.report.labels import NOTHING, format_percent
from oppo_sim.report.terminal import Column, fitted, left_out, table_console
from oppo_sim.text_lines import say

_ERRORS: Final = (
    Column("log (steps)", left=True, folds_at=12),
    Column("what, how", left=True, folds_at=9, stays=True),
    Column("median"),
    Column("90th pct.", 1),
    Column("worst", 2),
    Column("in 95 %\ninterval", 3),
)
_TERMS: Final = (
    Column("term", left=True),
    Column("prior", leaves=1, left=True),
    Column("now", left=True, stays=True),
    Column("identified?", left=True, folds_at=10),
)
_OBSERVED: Final = (
    Column("given", left=True, stays=True),
    Column("before", 1, left=True),
    Column("kept", left=True),
)


def show_fit(record: Mapping[str, Any], folder: Path) -> None:
    """Errors on steps that were not fitted, the terms, what does not fit; on standard output."""
    held = [*record.get("held_out", ()), *record.get("judged", ())]
    if held:
        rows: list[tuple[str, ...]] = []
        named = {TIMING_STEP: "part of step"} if record.get("not_fitted") else {}
        for each in held:
            name = f"{each['log']} ({each['held_steps']})"
            for column, errors in each["errors"].items():
                if column not in (TIMING_STEP, "timing_s/gen"):
                    continue
                for kind, error in errors.items():
                    covered = error["coverage"]
                    row = (
                        name,
                        f"{named.get(column, column.removeprefix('timing_s/'))}, {kind.replace('_', ' ')}",
                        *(format_percent(error[one]) for one in ("median", "p90", "worst")),
                        NOTHING if covered is None else format_percent(covered),
                    )
                    rows.append(row)
                    name = ""  # once is enough
        _print("errors on steps that were not fitted", _ERRORS, rows)
    observed = record.get("observed", ())
    if observed:
        rows = [
            (each["text"], interval_text(each["prior"], ""), interval_text(each["posterior"], ""))
            for each in observed
        ]
        _print("what the costs give [95 %]", _OBSERVED, rows)
    rows = [
        (
            each["term"],
            interval_text(each["prior"], each["unit"]),
            interval_text(each["posterior"], each["unit"]),
            identified_text(each),
        )
        for each in record["terms"]
    ]
    _print("terms of the costs [95 %]", _TERMS, rows)
    for sentence in answer_of(record):
        say(sentence)
    if listed := _odd_steps(record.get("odd_steps", ())):
        say(f"steps that do not fit: {', '.join(listed[:6])}{', …' if len(listed) > 6 else ''}")
    say_notes(record.get("notes", ()))
    say(f"wrote {folder}: {folder / 'scenario.yaml'} is ready for simulate, compare, sweep and tune")


def _odd_steps(odd: Sequence[Mapping[str, Any]]) -> list[str]:
    """One entry a step and reason, with all its metrics."""
    several = len({each["log"] for each in odd}) > 1
    columns: dict[tuple[str, int, str], list[str]] = {}
    for each in odd:
        place = each["log"], each["step"], each["reason"]
        columns.setdefault(place, []).append(each["column"].removeprefix("timing_s/"))
    return [
        f"{f'{log} ' if several else ''}step {step} ({', '.join(names)}: {reason})"
        for (log, step, reason), names in columns.items()
    ]


def _print(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    console = table_console()
    shown, gone = fitted(title, columns, rows, console.width)
    console.print(shown)
    if gone:
        say(left_out(gone, console.width, "fit.json holds them"))
