"""What differs between the settings that a folder keeps and those that are given, in words."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from oppo_sim.scenario.yaml_text import show_value

_SHOWN: Final = 3
_NONE: Final = object()
"""Of a setting that one of both does not have."""


def differing(kept: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Such as ``policy.name is "oppo" there and "intra" here``, of plain values; empty where nothing
    differs."""
    found = list(_differences("", kept, given))
    shown = ", ".join(
        f"{name} is {_words(there)} there and {_words(here)} here" for name, there, here in found[:_SHOWN]
    )
    return f"{shown} and {len(found) - _SHOWN} more" if len(found) > _SHOWN else shown


def _differences(where: str, kept: Any, given: Any) -> Iterator[tuple[str, Any, Any]]:
    """Settings by their dotted names."""
    if isinstance(kept, Mapping) and isinstance(given, Mapping):
        for name in dict.fromkeys((*kept, *given)):
            inner = f"{where}.{name}" if where else str(name)
            yield from _differences(inner, kept.get(name, _NONE), given.get(name, _NONE))
    elif kept != given:
        yield where, kept, given


def _words(value: Any) -> str:
    return "not set" if value is _NONE or value is None else show_value(value)
