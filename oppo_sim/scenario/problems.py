"""What is wrong with a scenario, said in one sentence: the field, the given value, what is allowed."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from oppo_sim.scenario.yaml_text import show_value

Path = tuple[str | int, ...]
Schema = Mapping[str, Any]

_WORDS = (
    (re.compile(r"^Input should be "), "must be "),
    (re.compile(r"\ba valid integer\b"), "a whole number"),
    (re.compile(r"\ba valid number\b"), "a number"),
    (re.compile(r"\ba finite number\b"), "a finite number"),
    (re.compile(r"\ba valid string\b"), "text"),
    (re.compile(r"\ba valid boolean\b"), "true or false"),
    (re.compile(r"\ban object\b|\ba valid dictionary\b"), "a mapping"),
    (re.compile(r"\ba valid (?:array|tuple|list)\b"), "a list"),
    (re.compile(r"\bgreater than or equal to\b"), "at least"),
    (re.compile(r"\bless than or equal to\b"), "at most"),
    (re.compile(r"\bgreater than\b"), "above"),
    (re.compile(r"\bless than\b"), "below"),
    (re.compile(r"^(?:Tuple|List|Array|String|Dictionary) should have "), "must have "),
    (re.compile(r" after validation, not \d+$"), ""),
)
_WRONG_TYPE = ("int_type", "float_type", "bool_type", "string_type", "none_required")
_NOT_A_CONTAINER = ("model_type", "model_attributes_type", "dict_type", "tuple_type", "list_type")


class ScenarioProblem(NamedTuple):
    """One thing to mend."""

    path: Path
    sentence: str


def dotted(path: Sequence[str | int]) -> str:
    """A path as it is written in ``--set``: ``policy.overcommit.min``, ``trace.sources[0]``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def problems_of(
    error: ValidationError, data: Any, schema: Schema, prefix: Path = (), of: str = ""
) -> list[ScenarioProblem]:
    """The complaints of validating ``data`` against the model of JSON schema ``schema``, one for each field,
    in the order of the fields.

    ``prefix`` is where ``data`` sits in the file, ``of`` names its owner in messages.
    """
    by_path: dict[Path, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        by_path.setdefault(_located(details, data), []).append(details)
    misspelt = _misspelt(by_path)
    found = []
    for path, group in by_path.items():
        if path in misspelt:
            continue  # its wrong name is reported
        value = _value_at(data, path)
        inside = any(other[: len(path)] == path and len(other) > len(path) for other in by_path)
        if inside and isinstance(value, dict | list) and all(_about_type(details) for details in group):
            continue  # a union's other members, which wanted something simpler
        found.append(
            ScenarioProblem((*prefix, *path), _sentence(prefix, path, value, group, schema, data, of))
        )
    return found


def more_than_one(problems: Sequence[object]) -> str:
    """What follows the sentence of the first of several problems; empty where it is the only one."""
    more = len(problems) - 1
    return f"; {more} more problem{'s' if more > 1 else ''} after that" if more else ""


def unknown_field(path: Path, allowed: Sequence[str], of: str = "", hint: str = "") -> str:
    """The sentence for a key that the file may not have; ``allowed`` are its siblings' names, ``of`` their
    owner."""
    close = get_close_matches(str(path[-1]), allowed, n=1, cutoff=0.6)
    if close:
        hint = hint or f"did you mean '{close[0]}'?"
    elif allowed:
        hint = hint or f"there {'is' if len(allowed) == 1 else 'are'} {', '.join(allowed)}"
    return f"unknown field {dotted(path)}{f' of {of}' if of else ''}: {hint or 'remove it'}"


def allowed_fields(schema: Schema, path: Path, data: Any) -> list[str]:
    """Names of the fields that the mapping at ``path`` may have, from a JSON schema; ``data`` decides between
    tagged alternatives."""
    names: dict[str, None] = {}
    for node in _nodes_at(schema, path, data):
        names.update(dict.fromkeys(node.get("properties", {})))
    return list(names)


def _misspelt(by_path: Mapping[Path, Sequence[ErrorDetails]]) -> set[Path]:
    """Fields that are missing where an unknown one beside them is nearly of their name."""
    kinds = {path: group[0]["type"] for path, group in by_path.items()}
    missing = {path for path, kind in kinds.items() if kind == "missing"}
    return {
        path
        for path in missing
        for other, kind in kinds.items()
        if kind == "extra_forbidden"
        and other[:-1] == path[:-1]
        and get_close_matches(str(other[-1]), [str(path[-1])])
    }


def _located(details: ErrorDetails, data: Any) -> Path:
    """The place of an error in the file: the location without the tags of unions that pydantic puts
    between."""
    path: list[str | int] = []
    node = data
    location = details["loc"]
    for position, part in enumerate(location):
        last = position == len(location) - 1
        inside = (
            part in node and (last or node.get("kind") != part)
            if isinstance(node, dict)
            else _is_item(node, part)
        )
        if inside:
            node = node[part]
        elif last and details["type"] == "missing":
            path.append(part)
            break
        else:
            continue
        path.append(part)
    return tuple(path)


def _is_item(node: Any, part: str | int) -> bool:
    return isinstance(node, list) and isinstance(part, int) and part < len(node)


def _value_at(data: Any, path: Path) -> Any:
    node = data
    for part in path:
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            return None
    return node


def _about_type(details: ErrorDetails) -> bool:
    return (
        details["type"] in _WRONG_TYPE
        or details["type"] in _NOT_A_CONTAINER
        or details["type"] == "literal_error"
    )


def _sentence(
    prefix: Path, path: Path, value: Any, group: list[ErrorDetails], schema: Schema, data: Any, of: str
) -> str:
    first = group[0]
    full = (*prefix, *path)
    name = dotted(full) or "the file"
    kinds = {details["type"] for details in group}
    if "missing" in kinds:
        return f"{name} is missing{_described(schema, path, data)}"
    if "extra_forbidden" in kinds:
        return unknown_field(full, allowed_fields(schema, path[:-1], data), of)
    if tagged := [details for details in group if details["type"].startswith("union_tag")]:
        first = tagged[0]
    if "union_tag_not_found" in kinds:
        tag = str(first["ctx"]["discriminator"]).strip("'")
        return f"{name}.{tag} is missing: it must be one of {', '.join(_tags(schema, path, data))}"
    if "union_tag_invalid" in kinds:
        tag = str(first["ctx"]["discriminator"]).strip("'")
        return (
            f"{name}.{tag} is {show_value(first['ctx']['tag'])} but must be one of"
            f" {first['ctx']['expected_tags']}"
        )
    if "value_error" in kinds:
        message = next(details["msg"] for details in group if details["type"] == "value_error").removeprefix(
            "Value error, "
        )
        return f"{name}: {message}" if full else message
    if not isinstance(value, dict | list):
        # A value of one alternative's type that breaks its bounds: the other alternatives are not what was
        # meant.
        group = [details for details in group if not _about_type(details)] or group
    wanted = list(dict.fromkeys(_in_words(details["msg"]) for details in group))
    if "must be a number" in wanted:
        wanted = [text for text in wanted if text != "must be a whole number"]
    verb = wanted[0].split(" ")[0] + " " + wanted[0].split(" ")[1] if wanted[0].startswith("must ") else ""
    rest = [text.removeprefix(verb + " ") if verb else text for text in wanted]
    described = _described(schema, path, data)
    return f"{name} is {show_value(value)} but {verb} {' or '.join(rest)}{described}".replace("  ", " ")


def _in_words(message: str) -> str:
    for pattern, words in _WORDS:
        message = pattern.sub(words, message)
    return message


def _described(schema: Schema, path: Path, data: Any) -> str:
    for node in _property_nodes(schema, path, data):
        if "description" in node:
            return f" ({' '.join(str(node['description']).split())})"
    return ""


def _tags(schema: Schema, path: Path, data: Any) -> list[str]:
    for node in _property_nodes(schema, path, data):
        for member in (node, *node.get("anyOf", ())):
            if "discriminator" in member:
                return sorted(member["discriminator"]["mapping"])
    return []


def _property_nodes(schema: Schema, path: Path, data: Any) -> Iterator[Schema]:
    """The schemas of a field as its parents declare it, references not followed."""
    if not path or isinstance(path[-1], int):
        return
    for parent in _nodes_at(schema, path[:-1], data):
        node = parent.get("properties", {}).get(path[-1])
        if node is not None:
            yield node


def _nodes_at(schema: Schema, path: Path, data: Any) -> list[Schema]:
    nodes = list(_alternatives(schema, schema, data))
    value = data
    for part in path:
        value = _value_at(value, (part,))
        below: list[Schema] = []
        for node in nodes:
            if isinstance(part, int):
                child = node.get("items", {})
            else:
                more = node.get("additionalProperties")
                child = node.get("properties", {}).get(part, more if isinstance(more, dict) else {})
            below.extend(_alternatives(schema, child, value))
        nodes = below
    return nodes


def _alternatives(root: Schema, node: Schema, value: Any) -> Iterator[Schema]:
    """A schema with references followed and unions opened; of a tagged union, the member that ``value`` names
    if it names one."""
    if "$ref" in node:
        yield from _alternatives(root, root["$defs"][node["$ref"].removeprefix("#/$defs/")], value)
        return
    members = node.get("oneOf", node.get("anyOf"))
    if members is None:
        yield node
        return
    tagged = node.get("discriminator")
    if tagged and isinstance(value, dict) and value.get(tagged["propertyName"]) in tagged["mapping"]:
        members = [{"$ref": tagged["mapping"][value[tagged["propertyName"]]]}]
    for member in members:
        yield from _alternatives(root, member, value)
