"""What the terminal shows of a fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from oppo_sim.cli.progress import say_notes
from oppo_sim.columns import TIMING_STEP
from oppo_sim.report.html_fit import answer_of
from oppo_sim.report.labels import format_percent, significant
from oppo_sim.report.terminal import table_console


def show_fit(record: Mapping[str, Any], folder: Path) -> None:
    """Errors on steps that were not fitted, the terms, what does not fit; on standard output."""
    from rich.table import Table
    from rich.text import Text

    console = table_console()
    held = [*record.get("held_out", ()), *record.get("judged", ())]
    if held:
        table = Table(
            "steps that were not fitted", "", "median", "90th pct.", "worst", "in 95 % interval", box=None
        )
        for each in held:
            for column, errors in each["errors"].items():
                if column not in (TIMING_STEP, "timing_s/gen"):
                    continue
                for kind, error in errors.items():
                    covered = error["coverage"]
                    cells = (
                        f"{each['log']} ({each['held_steps']})",
                        f"{column.removeprefix('timing_s/')}, {kind.replace('_', ' ')}",
                        *(format_percent(error[name]) for name in ("median", "p90", "worst")),
                        "" if covered is None else format_percent(covered),
                    )
                    table.add_row(*map(Text, cells))
        console.print(table)
    table = Table("term", "unit", "prior", "now", "", box=None)
    for each in record["terms"]:
        cells = (
            each["term"],
            each["unit"],
            _interval(each["prior"]),
            _interval(each["posterior"]),
            each["verdict"] + (f" (exchanged with {each['tied_to']})" if each["tied_to"] else ""),
        )
        table.add_row(*map(Text, cells))
    console.print(table)
    for sentence in answer_of(record):
        click.echo(sentence)
    odd = record.get("odd_steps", ())
    if odd:
        listed = ", ".join(
            f"{each['step']} ({each['column'].removeprefix('timing_s/')}: {each['reason']})"
            for each in odd[:6]
        )
        click.echo(f"steps that do not fit: {listed}{', …' if len(odd) > 6 else ''}")
    say_notes(record.get("notes", ()))
    click.echo(f"wrote {folder}: {folder / 'scenario.yaml'} is ready for simulate, compare, sweep and tune")


def _interval(values: list[float]) -> str:
    low, middle, high = (significant(value) for value in values)
    return f"{middle} [{low}, {high}]"
