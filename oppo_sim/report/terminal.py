"""Tables on a terminal: what identifies a row always stays, whatever the width."""

import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


_LONGEST_WORD: Final = 20
"""Characters of a word, such as a path, beyond which it is broken."""


class Column(NamedTuple):
    """A column of texts."""

    head: str
    leaves: int = 0
    """0: it always stays; of the others, the highest leaves first where the table is too wide."""
    left: bool = False
    """Flush left."""
    folds_at: int | None = None
    """It may be folded, to no fewer characters than these; None: it is not."""


def table_console() -> "Console":
    """Standard output; where it is no terminal, as wide as the environment's COLUMNS says, else wide enough
    for the tables."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=140)


def fitted(
    title: str, columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int, bold: Sequence[int] = ()
) -> "tuple[Table, tuple[str, ...]]":
    """A table of texts as they are, no markup, not wider than ``width`` characters if columns can leave; and
    the heads of those that left. ``bold``: rows to stress, by number."""
    from rich import box
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    texts = [list(row) for row in rows]
    shown = list(range(len(columns)))
    console = Console(width=10_000)
    while True:
        table = Table(
            title=Text(title) if title else None,
            box=box.SIMPLE_HEAD,
            title_justify="left",
            min_width=len(title) if len(title) <= min(100, width) else None,
        )
        for i in shown:
            column = columns[i]
            table.add_column(
                Text(_head(column)),
                justify="left" if column.left else "right",
                no_wrap=column.folds_at is None,
                overflow="fold",
                min_width=_least(column, [row[i] for row in texts]),
            )
        for number, row in enumerate(texts):
            # Names may be paths with brackets, intervals have some: none of it is markup.
            table.add_row(*(Text(row[i]) for i in shown), style="bold" if number in bold else None)
        needed = Measurement.get(console, console.options, table).maximum
        for i in shown:
            cells = [row[i] for row in texts]
            if (least := _least(columns[i], cells)) is not None:
                longest = max(len(line) for text in (_head(columns[i]), *cells) for line in text.split("\n"))
                needed -= max(0, longest - least)
        may_leave = [i for i in shown if columns[i].leaves]
        if needed <= width or not may_leave:
            gone = [columns[i].head for i in range(len(columns)) if i not in shown]
            return table, tuple(head.replace("\n", " ") for head in gone)
        shown.remove(max(may_leave, key=lambda i: columns[i].leaves))


def _head(column: Column) -> str:
    """The head, a long field name in lines that end at a dot or an underscore."""
    if column.folds_at is None or len(column.head) <= _LONGEST_WORD or " " in column.head:
        return column.head
    lines = [""]
    for part in re.findall(r"[^._]*[._]?", column.head):
        if lines[-1] and len(lines[-1] + part) > _LONGEST_WORD:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _least(column: Column, cells: Sequence[str]) -> int | None:
    """Characters below which a column that folds is not folded; no word is broken but a very long one."""
    if column.folds_at is None:
        return None
    words = [word for text in (_head(column), *cells) for word in text.split()]
    return max(column.folds_at, min(_LONGEST_WORD, max(map(len, words), default=0)))


def left_out(heads: Sequence[str], width: int, where: str) -> str:
    """A sentence on columns that left; empty: none did."""
    return f"not shown at {width} columns: {', '.join(heads)} ({where})" if heads else ""
