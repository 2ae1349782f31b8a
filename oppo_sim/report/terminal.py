"""Tables on a terminal: what identifies a row always stays, whatever the width."""

import os
import re
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Final, NamedTuple

from oppo_sim.text_lines import text_width

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


_LONGEST_WORD: Final = 20
"""Characters of a word, such as a path, beyond which it may be broken."""
_KEPT_SPACE: Final = "\N{NO-BREAK SPACE}"
LEAST_TEXT: Final = 40
"""Characters of a line of a title or a caption, where the table below is narrower."""


class Column(NamedTuple):
    """A column of texts."""

    head: str
    leaves: int = 0
    """Where the table is too wide, the highest leaves first. 0: it leaves only where it does not fit beside
    the name of a row; in a table without ranks the last leaves first."""
    left: bool = False
    """Flush left."""
    folds_at: int | None = None
    """It may be folded, to no fewer characters than these, and, as far as the width lasts, to no more than
    two lines; None: it is not."""
    stays: bool = False
    """It names or marks a row, as the first column does: it leaves last."""


def table_console() -> "Console":
    """Standard output; where it is no terminal, as wide as the environment's COLUMNS says, else wide enough
    for the tables."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=140)


def fitted(
    title: str, columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int, bold: Sequence[int] = ()
) -> "tuple[Table, tuple[str, ...]]":
    """A table of texts as they are, no markup, not wider than ``width`` characters; and the heads of columns
    that left for it. Where that is possible, what folds takes two lines, and the rest one. ``bold``: rows to
    stress, by number."""
    layout, shown = _laid_out(columns, [list(row) for row in rows], width)
    gone = [column.head.replace("\n", " ") for i, column in enumerate(columns) if i not in shown]
    return _drawn(title, layout, width, bold), tuple(filter(None, gone))


class _Cells(NamedTuple):
    """A column as it is laid out."""

    column: Column
    head: str
    cells: list[str]
    least: int
    """Characters below which a word or a number would be cut."""
    most: int
    """Characters that it takes with nothing folded."""

    def wrapped(self, width: int) -> "_Cells":
        """Folded to ``width`` characters where they are fewer than it takes."""
        if width >= self.most:
            return self
        cells = [_folded(text, width) for text in self.cells]
        return self._replace(head=_folded(self.head, width), cells=cells, least=width, most=width)


class _Layout(NamedTuple):
    """The columns that are shown, each as wide as it will be."""

    columns: list[_Cells]
    tight: bool
    """Without a margin."""

    @property
    def needed(self) -> int:
        """Characters of a line at least."""
        return sum(each.least for each in self.columns) + self.between

    @property
    def between(self) -> int:
        """Characters that hold no text."""
        return 3 * len(self.columns) + (-1 if self.tight else 1)


def _laid_out(
    columns: Sequence[Column], texts: Sequence[Sequence[str]], width: int
) -> tuple[_Layout, list[int]]:
    """The columns and their numbers: of four ways the first in which they fit."""

    def laid(shown: Sequence[int], lines: int | None, word: int, tight: bool) -> _Layout:
        cells = ([row[i] for row in texts] for i in shown)
        found = [
            _cells(columns[i], each, lines, word, tight, width) for i, each in zip(shown, cells, strict=True)
        ]
        return _Layout(found, tight)

    ranked = any(column.leaves for column in columns)
    leaving = sorted(
        range(1, len(columns)),
        key=lambda i: (columns[i].stays, not columns[i].leaves, -columns[i].leaves, i if ranked else -i),
    )
    soft = [i for i in leaving if columns[i].leaves and not columns[i].stays]
    short, long = _LONGEST_WORD, max(_LONGEST_WORD, 2 * width // 5)
    ways = (
        (2, long, False, soft),
        (None, long, False, soft),
        (None, short, False, soft),
        (None, short, True, leaving),
    )
    for lines, word, tight, may_leave in ways:
        shown, gone = list(range(len(columns))), list(may_leave)
        while (layout := laid(shown, lines, word, tight)).needed > width and gone:
            shown.remove(gone.pop(0))
        if layout.needed <= width:
            break
    if layout.tight:  # a narrow one may still have a place
        for i in reversed([i for i in leaving if i not in shown]):
            more = sorted([*shown, i])
            if (wider := laid(more, None, short, True)).needed <= width:
                layout, shown = wider, more
    return _widened(layout, width), shown


def _widened(layout: _Layout, width: int) -> _Layout:
    """What is left of the width goes to columns that fold, the narrowest first; one alone is held to it."""
    room = width - layout.between
    sizes = [each.least for each in layout.columns]
    if sum(sizes) > room:
        sizes = [max(1, room)]
    growing = [i for i, each in enumerate(layout.columns) if sizes[i] < each.most]
    while growing and sum(sizes) < room:
        narrowest = min(growing, key=sizes.__getitem__)
        sizes[narrowest] += 1
        growing = [i for i in growing if sizes[i] < layout.columns[i].most]
    return layout._replace(
        columns=[each.wrapped(size) for each, size in zip(layout.columns, sizes, strict=True)]
    )


def _drawn(title: str, layout: _Layout, width: int, bold: Sequence[int]) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title) if title else None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        pad_edge=not layout.tight,
        min_width=len(title) if len(title) <= min(100, width) else min(LEAST_TEXT, width),
    )
    for each in layout.columns:
        table.add_column(
            Text(each.head), justify="left" if each.column.left else "right", overflow="fold", width=each.most
        )
    # Names may be paths with brackets, intervals have some: none of it is markup.
    for number, row in enumerate(zip(*(each.cells for each in layout.columns), strict=True)):
        table.add_row(*(Text(text) for text in row), style="bold" if number in bold else None)
    return table


def _cells(column: Column, cells: list[str], lines: int | None, word: int, tight: bool, width: int) -> _Cells:
    head = column.head
    if column.folds_at is not None and len(head) > _LONGEST_WORD and " " not in head:
        head = "\n".join(_pieces(head, _LONGEST_WORD))
    if tight and column.folds_at is None:
        head, *cells = (re.sub(r" (?=[\[(±])", "\n", text) for text in (head, *cells))
        head = _folded(head, max(_longest(cells), _longest(_words(head))))
    most = _longest((head, *cells))
    return _Cells(
        column, head, cells, min(most, _least(column, head, cells, lines, word, width) or most), most
    )


def _least(
    column: Column, head: str, cells: Sequence[str], lines: int | None, word: int, width: int
) -> int | None:
    """Characters below which a column that folds is not folded; no ``word`` of so many is broken. With
    ``lines`` so many that cells take no more of them, where a third of the ``width`` is enough."""
    if column.folds_at is None:
        return None
    words = _longest(word for text in (head, *cells) for word in _words(text))
    least = max(column.folds_at, min(words, word))
    if lines is None:
        return least
    fitting = (
        each
        for each in range(least, width // 3 + 1)
        if all(len(wrap(text, each, break_on_hyphens=False)) <= lines for text in cells)
    )
    return next(fitting, least)


def _longest(texts: Iterable[str]) -> int:
    """Characters of the longest line."""
    from rich.cells import cell_len

    return max((cell_len(line) for text in texts for line in text.split("\n")), default=0)


def _words(text: str) -> list[str]:
    return re.findall(r"\[[^\]]*\]|\S+", text)


def _folded(text: str, width: int) -> str:
    """In lines of at most ``width`` characters; a word that is longer ends at a dot, an underscore or before
    a capital."""
    lines = []
    for line in text.split("\n"):
        words = [piece.replace(" ", _KEPT_SPACE) for word in _words(line) for piece in _pieces(word, width)]
        lines += wrap(" ".join(words), width, break_on_hyphens=False) or [""]
    return "\n".join(lines).replace(_KEPT_SPACE, " ")


def _pieces(word: str, width: int) -> list[str]:
    """A word in pieces of at most ``width`` characters, as far as it has places to part."""
    if len(word) <= width:
        return [word]
    pieces = [""]
    for part in re.split(r"(?<=[._/:])|(?<=[a-z0-9])(?=[A-Z])", word):
        if pieces[-1] and len(pieces[-1] + part) > width:
            pieces.append("")
        pieces[-1] += part
    return pieces


def told(name: str, lines: Iterable[str], name_width: int) -> str:
    """A name, and beside it what is told of it; as wide as the terminal, or as COLUMNS. In a pipe each line
    stays one."""
    from click import wrap_text

    width = max(text_width() or 10_000, name_width + 20)
    heads = (f"{name:<{name_width}}  ", " " * (name_width + 2))
    return "\n".join(wrap_text(line, width, heads[number > 0], heads[1]) for number, line in enumerate(lines))


def left_out(heads: Sequence[str], width: int, where: str) -> str:
    """A sentence on columns that left; empty: none did."""
    return f"not shown at {width} columns: {', '.join(heads)} ({where})" if heads else ""
