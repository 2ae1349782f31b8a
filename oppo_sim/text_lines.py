"""Sentences on lines as wide as the terminal; what is to be copied stays whole."""

import os
import re
from textwrap import fill
from typing import Final

_WORD: Final = 20
"""Characters of a word that a line holds, however narrow."""
_KEPT_SPACE: Final = "\N{NO-BREAK SPACE}"
_COMMAND: Final = re.compile(r"oppo (?!\w+: )")
"""Begins a command; "oppo calibrate: would take …" is a sentence about one."""
_TO_COPY: Final = 4
"""Spaces before a line that is to be copied as it is."""


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
    if len(line) <= width or len(indent) >= _TO_COPY or _COMMAND.match(words):
        return line
    sentence, colon, command = words.partition(": oppo ")
    if colon:
        return f"{_wrapped(f'{indent}{sentence}:', width)}\n{indent}{' ' * _TO_COPY}oppo {command}"
    kept = re.sub(r"(?<=\d) (?=%)", _KEPT_SPACE, words)  # 95 % is one word
    return fill(
        kept,
        max(width, len(indent) + _WORD),
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    ).replace(_KEPT_SPACE, " ")


def say(text: str) -> None:
    """Sentences on standard output, as wide as the terminal, or as COLUMNS."""
    from click import echo

    echo(in_lines(text, text_width()))
