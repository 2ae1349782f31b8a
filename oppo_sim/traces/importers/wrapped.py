"""Long lines that were broken, put together: at a fixed width, as a text copied from a terminal has them, or
anywhere, as where processes write into one file."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

_NARROWEST: Final = 40
_OFTEN: Final = 0.3
"""Share of the lines that have the width, where lines were broken at it."""
_FEWEST: Final = 3
_LONGEST: Final = 1 << 20
_BEGINS: Final = re.compile(
    rb"[^\w/]*(?:step:\d+ - |\(\w+ pid=|\d{4}-\d\d-\d\d|\w+ \d\d-\d\d |\d{1,3}%\||\{'"
    rb"|(?:INFO|WARNING|DEBUG|ERROR)\b)"
)
"""What begins a line of its own."""
_GOES_ON: Final = re.compile(
    rb"\s?(?:[\w./@-]*['\"]?:\s?['\"]?[\d.nt+-]"  # the end of a name
    rb"|[\d.eE+-]*['\")]{0,3}(?:\s-\s[A-Za-z]|[,}]|\s*$)"  # the end of a number
    rb"|[\w.]*\([\d.]"  # of what wraps a number
    rb"|-?\s?[A-Za-z][\w./@-]*:|\s*['\"][\w./@-]+['\"]:)"
)
"""Figures, from the middle of one."""
_STEP: Final = re.compile(rb"\bstep:\d+(?: - |\s?-?\s?$)")
_PART: Final = re.compile(rb"(?!step:)(?:[\w./@-]*:?[\d.eE+-]* ?- | ?)[A-Za-z][\w./@-]*:(?:np\.|[\d.+-])")
"""Of verl's line, from anywhere in it."""
_WHOLE: Final = re.compile(rb"[\w./-]+:\d+:(?:\([^()]*\) ?)?step:\d+ - ")
"""verl's line behind the file and line number that ``grep -Hn`` puts before it."""
_TITLE_ENDS: Final = re.compile(rb"\s?\w{0,9}\s?\d{0,18}:\s\{['\"]")
_SPACE_LOST: Final = re.compile(rb"(?:[\w)'\"] -|,|:)$")
_APART: Final = re.compile(rb"(?![eE][-+\d])[A-Za-z]")
"""After a number, the beginning of another line: figures have something between them."""
_WITHIN: Final = re.compile(rb"\bstep\b|\brollout\b|\bperf\b|:\s?['\"]?(?:np\.\w+\()?[\d.+-]", re.IGNORECASE)


def wrap_width(lines: Iterable[bytes]) -> int | None:
    """The width at which lines were broken: that of many, while few are longer. None: they were not."""
    widths = Counter(len(line.rstrip(b"\r\n").decode("utf-8", "replace")) for line in lines)
    total = sum(count for width, count in widths.items() if width)
    wide = {width: count for width, count in widths.items() if width >= _NARROWEST}
    if not wide:
        return None
    width = max(wide, key=lambda each: wide[each])
    longer = sum(count for each, count in widths.items() if each > width)
    if wide[width] < max(_FEWEST, _OFTEN * total) or longer > wide[width] / 4:
        return None
    return width


def unwrapped(lines: Iterable[bytes], width: int | None) -> Iterator[bytes]:
    """The lines; those of figures that were broken, at ``width`` if there is one, as one."""
    held = piece = b""
    for line in lines:
        at_width = width is not None and bool(piece) and _fills(piece, width) and _goes_on(held, line)
        if len(held) < _LONGEST and (at_width or (_is_part(held, line))):
            lost = piece[-1:].isspace() or line[:1].isspace() or not _SPACE_LOST.search(held)
            held += (b"" if lost else b" ") + line.rstrip(b"\r\n")
        else:
            if held:
                yield held + b"\n"
            held = line.rstrip(b"\r\n")
        piece = line.rstrip(b"\r\n")
    if held:
        yield held + (b"\n" if line.endswith((b"\n", b"\r")) else b"")


def _is_part(held: bytes, line: bytes) -> bool:
    """Of verl's line ``held``, and not one by itself."""
    return bool(_STEP.search(held) and _PART.match(line) and not _WHOLE.match(line))


def _goes_on(held: bytes, line: bytes) -> bool:
    if _TITLE_ENDS.match(line):
        return True
    if _BEGINS.match(line) or not _GOES_ON.match(line) or not _WITHIN.search(held):
        return False
    return not (held[-1:].isdigit() and _APART.match(line))


def _fills(piece: bytes, width: int) -> bool:
    """A terminal counts columns, of which a letter beyond ASCII takes one or two; a space at the end is lost
    where it is copied."""
    text = piece.decode("utf-8", "replace")
    beyond = sum(ord(letter) >= 0x80 for letter in text)
    short = 1 if _SPACE_LOST.search(piece) else 0
    return -beyond <= width - len(text) <= 3 * beyond + short
