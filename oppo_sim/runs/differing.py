"""What differs between the settings that a folder keeps and those that are given, in words."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from oppo_sim.scenario.yaml_text import show_value

_SHOWN: Final = 3


def differing(kept: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Such as ``policy.name is "oppo" there and "intra" here``, of plain values; empty where nothing
    differs."""
    found = list(_differences("", kept, given))
    shown = ", ".join(_said(*each) for each in found[:_SHOWN])
    return f"{shown} and {len(found) - _SHOWN} more" if len(found) > _SHOWN else shown


def _differences(where: str, kept: Any, given: Any) -> Iterator[tuple[str, Any, Any]]:
    """Settings by their dotted names; one that is missing is not set."""
    if isinstance(kept, Mapping) and isinstance(given, Mapping):
        for name in dict.fromkeys((*kept, *given)):
            inner = f"{where}.{name}" if where else str(name)
            yield from _differences(inner, kept.get(name), given.get(name))
    elif kept != given:
        yield where, kept, given


def _said(name: str, there: Any, here: Any) -> str:
    words = _words(there), _words(here)
    if words[0] == words[1]:  # long values, of which the beginning is shown
        return f"{name} differs"
    return f"{name} is {words[0]} there and {words[1]} here"


def _words(value: Any) -> str:
    return "not set" if value is None else show_value(value)
