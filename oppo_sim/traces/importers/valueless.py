"""Metrics that a log names without a number, as where a mean is of nothing."""

import math
import re
from typing import Any, Final

_WORDS: Final = frozenset({"", "nan", "none", "null", "inf", "-inf", "infinity", "-infinity"})
_PAIR: Final = re.compile(
    r"""(?<![\w./@-])['"]?([A-Za-z][\w./@-]*)['"]?\s*:\s*(?:np\.\w+\(|tensor\()?['"]?"""
    r"""(?:nan|none|null|-?inf(?:inity)?)(?![\w./])""",
    re.IGNORECASE,
)


def is_valueless(value: Any) -> bool:
    """Of a value where a number is expected."""
    if isinstance(value, str):
        return value.strip().lower() in _WORDS
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def valueless_of(line: str) -> list[str]:
    """Names of such metrics in a line of a console."""
    return _PAIR.findall(line)
