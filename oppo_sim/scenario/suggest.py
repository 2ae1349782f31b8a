"""What an unknown field may have meant, across sections: ``overcommit`` is ``policy.overcommit``."""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, get_args

from pydantic import BaseModel

from oppo_sim.policies.registry import SHIPPED
from oppo_sim.scenario.schema import Scenario

_CLOSE = 0.76
"""Of 1, how alike two names must be across sections; within one section less is enough."""


_MOST: Final = 3
"""Fields of one name that a question names."""


@cache
def _nested() -> tuple[tuple[str, str, bool], ...]:
    """(name, full name, whether it is a section) of all fields below the top; those of ``policy`` are the
    settings of all shipped policies."""
    found = dict.fromkeys(
        field
        for name, each in Scenario.model_fields.items()
        if name not in ("policy", "policies")
        for field in _fields_of(each.annotation, name, ())
    )
    settings = dict.fromkeys(
        ["name", *(name for each in SHIPPED.values() for name in each.Settings.model_fields)]
    )
    found |= dict.fromkeys((name, f"policy.{name}", False) for name in settings)
    return tuple(found)


def _fields_of(annotation: Any, above: str, inside: tuple[type, ...]) -> Iterator[tuple[str, str, bool]]:
    """The fields of the models that an annotation has in it, and of theirs."""
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        for part in get_args(annotation):
            yield from _fields_of(part, above, inside)
        return
    if annotation in inside:
        return
    for name, field in annotation.model_fields.items():
        below = list(_fields_of(field.annotation, f"{above}.{name}", (*inside, annotation)))
        yield name, f"{above}.{name}", bool(below)
        yield from below


def likely_fields(name: str) -> list[str]:
    """Full names of the nested fields that a name at the top of a scenario may mean: those of just this
    name, else of the closest one, unless a field at the top is as close. Empty: none is near."""
    exact = _homes(name)
    if exact or name in Scenario.model_fields:
        return exact
    nested = sorted({name for name, _, _ in _nested()})
    begun = [field for field in nested if len(name) > 3 and field.startswith(f"{name}_")]
    near = get_close_matches(name, [*Scenario.model_fields, *nested], n=1, cutoff=_CLOSE) or begun[:1]
    return [] if not near or near[0] in Scenario.model_fields else _homes(near[0])


def likely_elsewhere(path: Sequence[object], siblings: Sequence[str]) -> str:
    """The question for an unknown field at any depth: what its last word may have meant in another section.
    Empty where a sibling is near, or nothing."""
    if len(path) == 1:
        homes = likely_fields(str(path[0]))
    elif below := _below(".".join(map(str, path))):
        homes = below
    elif get_close_matches(name := str(path[-1]), siblings, n=1):
        homes = []
    elif path[0] == "policy" and get_close_matches(name, ["name"], n=1):
        homes = ["policy.name"]
    else:
        homes = likely_fields(name)
    # A field of another kind of the same section is no other place.
    return meant(homes) if homes and ".".join(map(str, path)) not in homes else ""


def likely_choice(name: str) -> str:
    """``did you mean …?`` for a section that was given a single value: fields of its name that take one."""
    homes = [
        full for last, full, section in _nested() if last == name and not section and full in _homes(name)
    ]
    return meant(homes) if homes else ""


def likely_setting(field: str, settings: Iterable[str]) -> str:
    """``: did you mean …?`` for a setting that no policy has; empty where none is near."""
    close = get_close_matches(field.removeprefix("policy."), sorted(set(settings)), n=1)
    return f": did you mean policy.{close[0]}?" if close else ""


def of_other_policies(setting: str) -> str:
    """What to do with a setting that the scenario's policy lacks; empty where no policy has it."""
    have = [name for name, each in SHIPPED.items() if setting in each.Settings.model_fields]
    if not have:
        return ""
    listed = ", ".join(have[:_MOST]) + (", …" if len(have) > _MOST else "")
    it = "has it: set policy.name to it" if len(have) == 1 else "have it: set policy.name to one"
    return f"{listed} {it}"


def meant(fields: Sequence[str]) -> str:
    """The question to ask."""
    return f"did you mean {' or '.join(fields)}?"


def _below(path: str) -> list[str]:
    """Fields of just this path inside another section: ``rollout.dtype`` is ``costs.rollout.dtype``."""
    return _least_deep(full for _, full, _ in _nested() if full.endswith(f".{path}"))


def _homes(name: str) -> list[str]:
    """Where fields of a name are: the least deep ones."""
    return _least_deep(full for last, full, _ in _nested() if last == name)


def _least_deep(fields: Iterable[str]) -> list[str]:
    homes = list(dict.fromkeys(fields))
    least = min((full.count(".") for full in homes), default=0)
    return [full for full in homes if full.count(".") == least][:_MOST]
