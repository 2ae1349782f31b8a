"""Tables on a terminal: what identifies a row always stays, whatever the width."""

import os
import re
from collections.abc import Iterable, Sequence
from textwrap import fill, wrap
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


_LONGEST_WORD: Final = 20
"""Characters of a word, such as a path, beyond which it is broken."""
_KEPT_SPACE: Final = "\N{NO-BREAK SPACE}"
_TO_COPY: Final = 4
"""Spaces before a line that is to be copied as it is."""


class Column(NamedTuple):
    """A column of texts."""

    head: str
    leaves: int = 0
    """0: it always stays; of the others, the highest leaves first where the table is too wide."""
    left: bool = False
    """Flush left."""
    folds_at: int | None = None
    """It may be folded, to no fewer characters than these, and, as far as the width lasts, to no more than
    two lines; None: it is not."""


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
    the heads of those that left. Where that is possible, what folds takes two lines. ``bold``: rows to
    stress, by number."""
    texts = [list(row) for row in rows]
    for lines in (2, None):
        shown = list(range(len(columns)))
        while True:
            table, needed = _made(title, columns, texts, shown, lines, width, bold)
            leaving = [i for i in shown if columns[i].leaves]
            if needed <= width or not leaving:
                break
            shown.remove(max(leaving, key=lambda i: columns[i].leaves))
        if needed <= width:
            break
    gone = [columns[i].head for i in range(len(columns)) if i not in shown]
    return table, tuple(head.replace("\n", " ") for head in gone)


def _made(
    title: str,
    columns: Sequence[Column],
    texts: Sequence[Sequence[str]],
    shown: Sequence[int],
    lines: int | None,
    width: int,
    bold: Sequence[int],
) -> "tuple[Table, int]":
    """The table of the columns ``shown``, and the characters that it needs at least."""
    from rich import box
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title) if title else None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        min_width=len(title) if len(title) <= min(100, width) else None,
    )
    spare = 0
    for i in shown:
        cells, head = [row[i] for row in texts], _head(columns[i])
        least = _least(columns[i], cells, lines, width)
        table.add_column(
            Text(head),
            justify="left" if columns[i].left else "right",
            no_wrap=least is None,
            overflow="fold",
            min_width=least,
        )
        if least is not None:
            longest = max(len(line) for text in (head, *cells) for line in text.split("\n"))
            spare += max(0, longest - least)
    for number, row in enumerate(texts):
        # Names may be paths with brackets, intervals have some: none of it is markup.
        table.add_row(*(Text(row[i]) for i in shown), style="bold" if number in bold else None)
    console = Console(width=10_000)
    return table, Measurement.get(console, console.options, table).maximum - spare


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


def _least(column: Column, cells: Sequence[str], lines: int | None, width: int) -> int | None:
    """Characters below which a column that folds is not folded; no word is broken but a very long one. With
    ``lines`` so many that cells take no more of them, where a third of the ``width`` is enough."""
    if column.folds_at is None:
        return None
    words = [word for text in (_head(column), *cells) for word in text.split()]
    least = max(column.folds_at, min(_LONGEST_WORD, max(map(len, words), default=0)))
    if lines is None:
        return least
    fitting = (
        each
        for each in range(least, width // 3 + 1)
        if all(len(wrap(text, each, break_on_hyphens=False)) <= lines for text in cells)
    )
    return next(fitting, least)


def told(name: str, lines: Iterable[str], name_width: int) -> str:
    """A name, and beside it what is told of it; as wide as the terminal, or as COLUMNS. In a pipe each line
    stays one."""
    from click import wrap_text

    width = max(text_width() or 10_000, name_width + 20)
    heads = (f"{name:<{name_width}}  ", " " * (name_width + 2))
    return "\n".join(wrap_text(line, width, heads[number > 0], heads[1]) for number, line in enumerate(lines))


def text_width(*, errors: bool = False) -> int | None:
    """Characters of a line of the terminal, or COLUMNS; None: in a pipe, where a sentence is a line.
    ``errors``: of standard error."""
    from rich.console import Console

    console = Console(stderr=errors)
    return console.width if console.is_terminal or "COLUMNS" in os.environ else None


def in_lines(text: str, width: int | None) -> str:
    """Sentences on lines of at most ``width`` characters, no word broken, further lines of a sentence set in
    by two; None: as they are. What is to be copied stays whole: lines indented by four or more, and a
    command, on a line of its own if need be."""
    return text if width is None else "\n".join(_wrapped(line, width) for line in text.split("\n"))


def _wrapped(line: str, width: int) -> str:
    words = line.lstrip()
    indent = line[: len(line) - len(words)]
    if len(line) <= width or len(indent) >= _TO_COPY or words.startswith("oppo "):
        return line
    sentence, colon, command = words.partition(": oppo ")
    if colon:
        return f"{_wrapped(f'{indent}{sentence}:', width)}\n{indent}{' ' * _TO_COPY}oppo {command}"
    kept = re.sub(r"(?<=\d) (?=%)", _KEPT_SPACE, words)  # 95 % is one word
    return fill(
        kept,
        max(width, len(indent) + _LONGEST_WORD),
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    ).replace(_KEPT_SPACE, " ")


def say(text: str) -> None:
    """Sentences on standard output, as wide as the terminal, or as COLUMNS."""
    from click import echo

    echo(in_lines(text, text_width()))


def left_out(heads: Sequence[str], width: int, where: str) -> str:
    """A sentence on columns that left; empty: none did."""
    return f"not shown at {width} columns: {', '.join(heads)} ({where})" if heads else ""
