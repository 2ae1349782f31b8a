"""The one error a user sees: a sentence that says what is wrong, where, and how to mend it; and how the
command line says a warning."""

import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO


class OppoError(Exception):
    """Bad input or an impossible request. The command line prints the message and exits with code 2."""


class OutsideWarning(UserWarning):
    """A ``table`` was ``asked`` outside its range. Runs of a search say it many times over: the command line
    says them in one sentence when it ends."""

    def __init__(self, table: str, asked: str) -> None:
        super().__init__(table, asked)
        self.table, self.asked = table, asked

    def __str__(self) -> str:
        return f"cost tables: {self.table} asked at {self.asked}, outside their range; extrapolated linearly"


_outside: list[OutsideWarning] = []


def outside_gathered() -> list[OutsideWarning]:
    """What ``show_warning`` was told since this was called last."""
    found = _outside.copy()
    _outside.clear()
    return found


def outside_sentence(gathered: list[OutsideWarning]) -> str:
    """Each table once, with what it was asked that is largest."""
    largest: dict[str, str] = {}
    for each in gathered:
        if each.table not in largest or _size(each.asked) > _size(largest[each.table]):
            largest[each.table] = each.asked
    asked = "; ".join(f"{table} at {at}" for table, at in sorted(largest.items()))
    return f"tables of the costs were asked outside their range, and extrapolated linearly: {asked}"


def _size(asked: str) -> float:
    found = re.search(r"\d[\d.]*", asked)
    return float(found[0]) if found else 0.0


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """In place of ``warnings.showwarning`` on a command line: a sentence as wide as the terminal, which names
    no line of code."""
    if isinstance(message, OutsideWarning):
        _outside.append(message)
        return
    from oppo_sim.text_lines import in_lines, text_width

    sentence = f"oppo: warning: {' '.join(str(message).split())}"
    with suppress(OSError):
        print(in_lines(sentence, text_width(errors=True)), file=file or sys.stderr, flush=True)


def hide_warning(*_args: object, **_kwargs: object) -> None:
    """The same where the command is to be quiet."""


def check_count(name: str, value: object, low: int, high: int) -> None:
    """Raises OppoError for what is no whole number (numpy's are some), and for one out of range."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise OppoError(f"{name} is {value!r}: give a whole number from {low:,} to {high:,}")
    if not low <= value.__index__() <= high:
        raise OppoError(f"{name} {value} is out of range: give {low:,} to {high:,}")


def check_share(name: str, value: float) -> None:
    """Raises OppoError for what is no share below 1."""
    if not (isinstance(value, int | float) and 0 <= value < 1):
        raise OppoError(f"{name} is {value!r}: give a share from 0 on, below 1 (0.01: 1 %)")


def check_once(what: str, names: Sequence[str]) -> None:
    """Raises OppoError where one of ``names`` is there twice; ``what`` they are, such as ``policies``."""
    for name in names:
        if names.count(name) > 1:
            raise OppoError(f"{what} {', '.join(names)} name {name} twice: name each once")


class HaltError(OppoError):
    """The disk refuses, or a process was ended from outside: not the fault of what was being run, and not to
    be taken for it."""
