"""What a sweep varies: lists and ranges of values for grids, intervals and choices for sampling."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from oppo_sim.errors import OppoError
from oppo_sim.scenario.yaml_text import parse_yaml, show_value

MOST_VALUES: Final = 100_000

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"\s*({_NUMBER})\s*:\s*({_NUMBER})\s*(?::\s*([+*])\s*({_NUMBER})\s*)?$")
_INTERVAL = re.compile(rf"\s*({_NUMBER})\s*\.\.\s*({_NUMBER})\s*((?::\s*\w+\s*)*)$")
_OPENING, _CLOSING = "[{(", "]})"
LIST_SYNTAX: Final = (
    "give values (64,128,256), a range (0:32:+4 adds, 64:1024:*2 multiplies), or both (0,1,4:32:+4)"
)
SAMPLE_SYNTAX: Final = (
    "give LOW..HIGH, with :log or :int after it as needed (64..1024:log:int), "
    "or values to choose from (a,b,c)"
)


@dataclass(frozen=True)
class GridAxis:
    """A field that takes each of some values."""

    field: str
    """Dotted, as in ``--set``."""
    values: tuple[Any, ...]
    """Plain values, distinct, in the order given."""


@dataclass(frozen=True)
class SampledAxis:
    """A field that is drawn: from an interval, or, with ``choices``, one of them, all equally likely."""

    field: str
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    """Uniform in the logarithm."""
    integer: bool = False
    """Whole numbers, ``high`` included."""
    choices: tuple[Any, ...] = ()

    def at(self, share: float) -> Any:
        """The value at ``share`` of the way, 0 ≤ share < 1."""
        if self.choices:
            return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]
        # Each whole number owns an interval of width one.
        low, high = (
            (self.low - 0.5, self.high + 0.5) if self.integer and not self.log else (self.low, self.high)
        )
        if self.log:
            if self.integer:
                low, high = max(low - 0.5, 0.5), high + 0.5
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        if not self.integer:
            return min(max(value, self.low), self.high)
        return min(max(math.floor(value + 0.5), int(self.low)), int(self.high))


Axis = GridAxis | SampledAxis


def grid_axis(field: str, given: Any) -> GridAxis:
    """An axis of a grid from text (``64:1024:*2``, ``a,b,c``), a list (whose texts may be ranges), a mapping
    ``{from, to, add|times}``, or one value. Raises OppoError."""
    if isinstance(given, str) and (match := _INTERVAL.match(given)) is not None:
        low, high, _ = match.groups()
        raise OppoError(
            f"{field}={given}: LOW..HIGH is a range to draw from; of a grid it takes a step,"
            f" {field}={low}:{high}:+STEP or :*FACTOR"
        )
    values = _distinct(field, _values(field, given))
    if not values:
        raise OppoError(f"{field} has no values: {LIST_SYNTAX}")
    if len(values) > MOST_VALUES:
        raise OppoError(f"{field} has {len(values):,} values: give at most {MOST_VALUES:,}, or draw samples")
    return GridAxis(field, tuple(values))


def sampled_axis(field: str, given: Any) -> SampledAxis:
    """A sampled axis from text (``64..1024:log:int``, ``a,b,c``), a list of choices, or a mapping
    ``{low, high, log, int}``.

    Bounds that are both whole numbers are sampled as whole numbers. Raises OppoError.
    """
    if isinstance(given, Mapping):
        return _sampled_mapping(field, given)
    if isinstance(given, str) and (match := _INTERVAL.match(given)) is not None:
        low, high, rest = match.groups()
        kinds = [kind.strip() for kind in rest.split(":") if kind.strip()]
        unknown = [kind for kind in kinds if kind not in ("log", "int", "float")]
        if unknown:
            raise OppoError(f"{field}={given}: ':{unknown[0]}' is not known: use :log, :int or :float")
        if {"int", "float"} <= set(kinds):
            raise OppoError(f"{field}={given}: choose one of :int and :float")
        integer = True if "int" in kinds else False if "float" in kinds else None
        return _interval(field, _number(low), _number(high), "log" in kinds, integer)
    values = _distinct(field, _values(field, given))
    if len(values) < 2:
        raise OppoError(f"{field}={show_value(given)} leaves nothing to draw: {SAMPLE_SYNTAX}")
    return SampledAxis(field, choices=tuple(values))


def split_assignment(text: str, option: str) -> tuple[str, str]:
    """``FIELD=VALUES`` in two. Raises OppoError for anything else."""
    field, equals, values = text.partition("=")
    if not equals or not all(part.strip() for part in field.split(".")) or not values.strip():
        raise OppoError(
            f"{option} {show_value(text)} is not of the form FIELD=VALUES, such as"
            " policy.chunk_size=128,256,512"
        )
    return ".".join(part.strip() for part in field.split(".")), values


# ---- inside ------------------------------------------------------------------------------------------------


def _values(field: str, given: Any) -> list[Any]:
    if isinstance(given, str):
        return [value for part in _parts(given) for value in _expanded(field, part)]
    if isinstance(given, Mapping) and "from" in given:
        return _range_mapping(field, given)
    if isinstance(given, Sequence) and not isinstance(given, bytes):
        # In a file or in Python a list has values of its own; only a range is taken apart.
        return [value for item in given for value in _item_values(field, item)]
    return [_plain(given)]


def _item_values(field: str, item: Any) -> list[Any]:
    return _expanded(field, item) if isinstance(item, str) and _RANGE.match(item) else [_plain(item)]


def _plain(value: Any) -> Any:
    """Numpy's numbers as Python's."""
    return value.item() if hasattr(value, "item") and not isinstance(value, str | Mapping) else value


def _parts(text: str) -> list[str]:
    """``text`` at the commas outside of brackets and quotes."""
    parts, depth, quote, begin = [], 0, "", 0
    for position, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in _OPENING:
            depth += 1
        elif letter in _CLOSING:
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[begin:position])
            begin = position + 1
    parts.append(text[begin:])
    return [part.strip() for part in parts if part.strip()]


def _expanded(field: str, text: str) -> list[Any]:
    match = _RANGE.match(text)
    if match is None:
        return [parse_yaml(text, f"{field}={text}")]
    low, high, sign, by = match.groups()
    return _range(field, text, _number(low), _number(high), sign or "+", _number(by) if by else 1)


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)


def _range_mapping(field: str, given: Mapping[str, Any]) -> list[Any]:
    unknown = set(given) - {"from", "to", "add", "times"}
    if unknown or "to" not in given or ("add" in given and "times" in given):
        raise OppoError(f"{field}: a range is {{from: …, to: …, add: …}} or {{from: …, to: …, times: …}}")
    numbers = [
        value for value in given.values() if isinstance(value, bool) or not isinstance(value, int | float)
    ]
    if numbers:
        raise OppoError(f"{field}: {show_value(numbers[0])} is no number: a range has numbers only")
    sign = "*" if "times" in given else "+"
    return _range(
        field,
        show_value(dict(given)),
        given["from"],
        given["to"],
        sign,
        given.get("times", given.get("add", 1)),
    )


def _range(field: str, text: str, low: float, high: float, sign: str, by: float) -> list[Any]:
    """Low to high, high included if it is met; whole numbers stay whole."""
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise OppoError(f"{field}={text}: a range goes from the lower number to the higher: swap them")
    if sign == "*" and (by <= 1 or low <= 0):
        raise OppoError(f"{field}={text}: a range that multiplies starts above 0 and has a factor above 1")
    if sign == "+" and by <= 0:
        raise OppoError(f"{field}={text}: a range that adds has a step above 0")
    length = math.log(high / low) / math.log(by) if sign == "*" else (high - low) / by
    if length > MOST_VALUES:
        raise OppoError(
            f"{field}={text} has about {length:,.0f} values: give at most {MOST_VALUES:,}, or draw samples"
        )
    whole = isinstance(low, int) and isinstance(high, int) and (sign == "*" or isinstance(by, int))
    values: list[Any] = []
    for number in range(int(length + 1e-9) + 1):
        value = low * by**number if sign == "*" else low + number * by
        # Twelve digits: 0.1 + 0.1 + 0.1 is meant to be 0.3.
        values.append(round(value) if whole else float(f"{value:.12g}"))
    return values


def _sampled_mapping(field: str, given: Mapping[str, Any]) -> SampledAxis:
    unknown = set(given) - {"low", "high", "log", "int"}
    if unknown or "low" not in given or "high" not in given:
        raise OppoError(
            f"{field}: a drawn field is {{low: …, high: …, log: false, int: false}} or a list of values to"
            " choose from"
        )
    for name in ("low", "high"):
        if isinstance(given[name], bool) or not isinstance(given[name], int | float):
            raise OppoError(f"{field}: {name} is {show_value(given[name])} but must be a number")
    for name in ("log", "int"):
        if not isinstance(given.get(name, False), bool):
            raise OppoError(f"{field}: {name} is {show_value(given[name])} but must be true or false")
    return _interval(field, given["low"], given["high"], given.get("log", False), given.get("int"))


def _interval(field: str, low: float, high: float, log: bool, integer: bool | None) -> SampledAxis:
    text = f"{low}..{high}"
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise OppoError(f"{field}={text}: an interval goes from the lower number to the higher: swap them")
    if log and low <= 0:
        raise OppoError(f"{field}={text}:log starts at {low}, which has no logarithm: start above 0")
    whole = isinstance(low, int) and isinstance(high, int)
    if integer and not whole:
        raise OppoError(
            f"{field}={text}:int has bounds that are no whole numbers: write them without a point"
        )
    return SampledAxis(field, float(low), float(high), log, whole if integer is None else integer)


def _distinct(field: str, values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    seen: set[str] = set()
    for value in values:
        key = f"{type(value).__name__} {value!r}"
        if key in seen:
            raise OppoError(f"{field} has the value {show_value(value)} twice: give it once")
        seen.add(key)
        found.append(value)
    return found
