"""JSON schemas of scenarios."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic.json_schema import models_json_schema

from oppo_sim.policies.registry import SHIPPED
from oppo_sim.scenario.schema import DEFAULT_POLICY, FORMAT, REQUIRED_IN_FILES, Scenario


@cache
def model_schema() -> Mapping[str, Any]:
    """JSON schema of ``Scenario`` alone, settings of policies left open."""
    return Scenario.model_json_schema()


def json_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of scenario files, with the settings of every shipped policy."""
    _, both = models_json_schema(
        [(Scenario, "validation"), *((shipped.Settings, "validation") for shipped in SHIPPED.values())]
    )
    definitions = both["$defs"]
    schema = definitions.pop("Scenario")
    definitions.pop("PolicyConfig", None)
    schema["properties"]["policy"] = {
        "anyOf": _policies(definitions),
        "default": {"name": DEFAULT_POLICY},
        "description": schema["properties"]["policy"]["description"],
    }
    schema["properties"]["policies"] |= {
        "properties": {
            name: {"$ref": f"#/$defs/{shipped.Settings.__name__}"} for name, shipped in SHIPPED.items()
        },
    }
    schema["required"] = [*REQUIRED_IN_FILES, *schema["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{FORMAT} scenario",
        **{key: value for key, value in schema.items() if key != "title"},
        "$defs": definitions,
    }


def _policies(definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """What ``policy`` may be. ``definitions`` get the shipped policies with their settings."""
    found: list[dict[str, Any]] = [{"type": "string", "minLength": 1}]
    for name, shipped in SHIPPED.items():
        settings = definitions[shipped.Settings.__name__]
        with_name = {"name": {"const": name, "type": "string"}, **settings.get("properties", {})}
        required = [] if name == DEFAULT_POLICY else ["name"]
        definition = {
            "type": "object",
            "description": shipped.summary,
            "properties": with_name,
            "additionalProperties": False,
        }
        definitions[f"policy {name}"] = {**definition, "required": required} if required else definition
        found.append({"$ref": f"#/$defs/policy {name}".replace(" ", "%20")})
    own_name = {"type": "string", "minLength": 1, "not": {"enum": list(SHIPPED)}}
    own = "a policy of your own, with the settings that its class has"
    found.append(
        {"type": "object", "required": ["name"], "properties": {"name": own_name}, "description": own}
    )
    return found
