"""Two texts that are the same up to rounding: words exactly, numbers with a point within two units of their
last digit or one per mille."""

import re
from typing import Final

RELATIVE: Final = 1e-3
LAST_DIGITS: Final = 2.0

_NUMBER: Final = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


def differences(stored: str, made: str) -> list[str]:
    """One sentence for each line that differs. White space counts as one blank: tables move with their widest
    number."""
    lines = [text.splitlines() for text in (stored, made)]
    if len(lines[0]) != len(lines[1]):
        return [f"{len(lines[0])} lines are stored, {len(lines[1])} were made"]
    return [
        f"stored '{before.strip()}', made '{after.strip()}'"
        for before, after in zip(*lines, strict=True)
        if not _same(before, after)
    ]


def _same(before: str, after: str) -> bool:
    words = [" ".join(_NUMBER.sub("#", text).split()) for text in (before, after)]
    if words[0] != words[1]:
        return False
    return all(_close(*pair) for pair in zip(_NUMBER.findall(before), _NUMBER.findall(after), strict=True))


def _close(before: str, after: str) -> bool:
    if before == after:
        return True
    if "." not in before or "." not in after:
        return False  # a count
    unit = 10.0 ** -len(before.partition(".")[2])
    left, right = (float(text.replace(",", "").replace("−", "-")) for text in (before, after))
    return abs(left - right) <= max(LAST_DIGITS * unit, RELATIVE * abs(left)) * (1 + 1e-9)
