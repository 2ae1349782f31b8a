"""The policies that have a name, as they are shown to who chooses one."""

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from pydantic import BaseModel

from oppo_sim.errors import OppoError
from oppo_sim.plain_json import plain
from oppo_sim.policies.interface import Policy
from oppo_sim.policies.registry import ENTRY_POINT_GROUP, SHIPPED, policy_class


@dataclass(frozen=True)
class Setting:
    """One setting of a policy."""

    name: str
    default: Any
    """As JSON has it."""
    description: str


@dataclass(frozen=True)
class Listed:
    """A policy, or why an installed one cannot be loaded."""

    name: str
    summary: str
    settings: tuple[Setting, ...] = ()
    schedule: str | None = None
    bound: bool = False
    """It sees response lengths: a bound, never a recommendation."""
    source: str = "shipped"
    """Or the object of the installed package, ``module:Class``."""

    def record(self) -> dict[str, Any]:
        """For JSON."""
        settings = {
            each.name: {"default": each.default, "description": each.description} for each in self.settings
        }
        return {
            "name": self.name,
            "summary": self.summary,
            "schedule": self.schedule,
            "bound": self.bound,
            "source": self.source,
            "settings": settings,
        }


def listed_policies() -> tuple[Listed, ...]:
    """Shipped policies in their order, then those that installed packages bring."""
    return (*(_listed(name, found) for name, found in SHIPPED.items()), *_installed())


def _installed() -> list[Listed]:
    found = []
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        if point.name in SHIPPED:  # the shipped one has the name
            continue
        try:
            found.append(_listed(point.name, policy_class(point.name), point.value))
        except OppoError as error:
            found.append(Listed(point.name, str(error), source=point.value))
    return found


def _listed(name: str, found: type[Policy], source: str = "shipped") -> Listed:
    fields = {} if found.Settings is None else found.Settings.model_fields
    settings = tuple(
        Setting(key, _default(field.default), field.description or "") for key, field in fields.items()
    )
    return Listed(name, found.summary, settings, found.schedule, found.oracle, source)


def _default(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else plain(value)
