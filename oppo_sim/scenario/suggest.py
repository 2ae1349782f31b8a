"""What an unknown field may have meant, across sections: ``overcommit`` is ``policy.overcommit``."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from types import MappingProxyType

from oppo_sim.policies.registry import SHIPPED
from oppo_sim.scenario.schema import Scenario

_CLOSE = 0.75
"""Of 1, how alike two names must be across sections; within one section less is enough."""


@cache
def _sections() -> "MappingProxyType[str, frozenset[str]]":
    """Section → its fields; those of ``policy`` are the settings of all shipped policies."""
    sections = {
        name: frozenset(getattr(field.annotation, "model_fields", ()))
        for name, field in Scenario.model_fields.items()
    }
    sections["policy"] = frozenset(["name"]).union(*(each.Settings.model_fields for each in SHIPPED.values()))
    return MappingProxyType({name: fields for name, fields in sections.items() if fields})


def likely_fields(name: str) -> list[str]:
    """Full names of the nested fields that a name at the top of a scenario may stand for: those of just this
    name, else of the closest one, unless a field at the top is as close. Empty: none is near."""
    exact = _homes(name)
    if exact or name in Scenario.model_fields:
        return exact
    nested = sorted({field for fields in _sections().values() for field in fields})
    begun = [field for field in nested if len(name) > 3 and field.startswith(f"{name}_")]
    near = get_close_matches(name, [*Scenario.model_fields, *nested], n=1, cutoff=_CLOSE) or begun[:1]
    return [] if not near or near[0] in Scenario.model_fields else _homes(near[0])


def likely_setting(field: str, settings: Iterable[str]) -> str:
    """``: did you mean …?`` for a setting that no policy has; empty where none is near."""
    close = get_close_matches(field.removeprefix("policy."), sorted(set(settings)), n=1)
    return f": did you mean policy.{close[0]}?" if close else ""


def meant(fields: Sequence[str]) -> str:
    """The question to ask."""
    return f"did you mean {' or '.join(fields)}?"


def _homes(name: str) -> list[str]:
    return [f"{section}.{name}" for section, fields in _sections().items() if name in fields]
