"""Options and output that the ``oppo trace`` commands share."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oppo_sim.cli.progress import say_notes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from oppo_sim.report.terminal import Column
    from oppo_sim.traces.stats import TraceStats

SOURCES = click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="PATTERN",
    help="Keep rows of this source (* and ? allowed); repeatable.",
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
FORCE = click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
OUTPUT = click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="File to write: .parquet, .csv or .csv.gz by its name.",
)


def refuse_output(output: Path, force: bool) -> None:
    """Say before the work that the output cannot be written. Raises OppoError."""
    from oppo_sim.files import refuse_unwritable
    from oppo_sim.traces.storage import suffix_of

    suffix_of(output)
    refuse_unwritable(output, overwrite=force)


def in_short(stats: "TraceStats") -> str:
    """One line about a trace."""
    cut = f", {100 * stats.clip_ratio:.1f} % cut" if stats.clip_ratio else ""
    return (
        f"{stats.rows:,} rows, mean {stats.mean:,.0f}, p50 {stats.p50:,.0f}, p99 {stats.p99:,.0f}, max"
        f" {stats.max:,}{cut}"
    )


def token_count(value: Any) -> str:
    """A number of tokens, short."""
    number = float(value)
    return f"{number:,.0f}" if number < 1e9 else f"{number:.3g}"


def text_table(*columns: str) -> "Table":
    """Columns by title; '>' in front aligns to the right. Without titles there is no header."""
    from rich import box
    from rich.table import Table

    titled = any(column.lstrip(">") for column in columns)
    table = Table(
        box=box.SIMPLE_HEAD if titled else None, show_header=titled, pad_edge=False, header_style=""
    )
    for column in columns:
        right = column.startswith(">")
        table.add_column(
            column.lstrip(">"), justify="right" if right else "left", no_wrap=right, overflow="fold"
        )
    return table


def print_fitted(console: "Console", columns: "Sequence[Column]", rows: "Sequence[Sequence[str]]") -> None:
    """A table as wide as the console, and which columns it has not."""
    from oppo_sim.report.terminal import fitted, left_out
    from oppo_sim.text_lines import say

    table, gone = fitted("", columns, rows, console.width)
    console.print(table)
    if sentence := left_out(gone, console.width, "--json has them"):
        say(sentence)


def verbatim(text: str, style: str = "") -> Any:
    """Text that is shown as it is: a name may hold what rich takes for markup."""
    from rich.text import Text

    return Text(text, style=style)


def as_plain(value: Any) -> Any:
    """Data classes and numpy values as plain data."""
    from oppo_sim.plain_json import plain

    return plain(value)


def print_json(value: Any) -> None:
    """On standard output."""
    from oppo_sim.plain_json import json_bytes

    click.echo(json_bytes(value).decode(), nl=False)


def note(sentence: str) -> None:
    """What a user should know, on standard error; nothing where the command is to be quiet."""
    say_notes([sentence])
