"""Values of a log's record, checked: an error names the file and the line."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from oppo_sim.errors import OppoError
from oppo_sim.traces.config import MAX_LENGTH

HIGHEST_STEP: Final = 2**53
_HIGHEST: Final = 10**300
"""Whole numbers beyond it are no floats."""
_REASONS: Final = {
    "stop": (
        "stop", "eos", "eos_token", "completed", "complete", "finished", "stop_sequence", "end_turn",
        "tool_calls",
    ),
    "length": (
        "length", "truncated", "max_tokens", "max_length", "max_new_tokens", "max_output_tokens",
        "max_total_tokens",
    ),
    "abort": ("abort", "aborted", "cancelled", "canceled", "error", "failed", "timeout"),
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A line of a log."""

    path: Path
    line: int
    unit: str = "line"

    def error(self, what: str) -> OppoError:
        """The sentence ``FILE, line N: what``; ``what`` says how to mend it."""
        return OppoError(f"{self.path}, {self.unit} {self.line}: {what}")

    def tokens(self, value: Any, name: str) -> int:
        """A number of tokens: a whole number, or a list of token ids. Raises OppoError."""
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            return len(value)
        return self.whole(value, name, MAX_LENGTH)

    def whole(self, value: Any, name: str, highest: int = HIGHEST_STEP) -> int:
        """A whole number from 0 to ``highest``, also as text or 7.0. Raises OppoError."""
        number = _number(value)
        if number is None or not math.isfinite(number) or number != math.floor(number):
            raise self.error(
                f"{name} is {_shown(value)} but must be a whole number: correct the line, or leave it out"
            )
        if not 0 <= number <= highest:
            raise self.error(
                f"{name} is {_shown(value)} but must lie between 0 and {highest:,}: correct the line, or"
                " leave it out"
            )
        return int(number)

    def real(self, value: Any, name: str) -> float | None:
        """A finite number; None for a missing or non-finite one. Raises OppoError for anything else."""
        if value is None or value == "":
            return None
        number = _number(value)
        if number is None:
            raise self.error(
                f"{name} is {_shown(value)} but must be a number: correct it, or name another field with"
                " --field"
            )
        return number if math.isfinite(number) else None

    def text(self, value: Any, name: str) -> str:
        """Text, or the contents of a list of chat messages. Raises OppoError."""
        if isinstance(value, str):
            return value
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            parts = [each.get("content") if isinstance(each, Mapping) else each for each in value]
            if all(part is None or isinstance(part, str) for part in parts):
                return "".join(part for part in parts if part)
        raise self.error(
            f"{name} is {_shown(value)} but must be text or a list of messages: name another field with"
            " --field"
        )

    def dig(self, record: Mapping[str, Any], name: str) -> Any:
        """``record[name]``, or ``record["a"]["b"]`` for ``a.b``. Raises OppoError if it is not there."""
        if name in record:
            return record[name]
        value: Any = record
        for part in name.split("."):
            if not isinstance(value, Mapping) or part not in value:
                there = ", ".join(list(record)[:12])
                raise self.error(f"there is no field '{name}': give --field one of {there}")
            value = value[part]
        return value


def known_reason(value: Any) -> str | None:
    """``stop``, ``length`` or ``abort`` for a framework's word; None for an unknown one."""
    word = str(value).strip().lower()
    return next((reason for reason, words in _REASONS.items() if word in words), None)


def short_id(text: str) -> str:
    """A name for a prompt that does not hold its text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _number(value: Any) -> float | int | None:
    if isinstance(value, int) and abs(value) > _HIGHEST:
        return math.inf
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        try:
            return int(value) if value.strip().lstrip("+-").isdecimal() and len(value) < 40 else float(value)
        except ValueError:
            return None
    if isinstance(value, Sequence) and len(value) == 1:
        return _number(value[0])
    return None


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a list of {len(value)}"
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 40 else text[:37] + "…"
