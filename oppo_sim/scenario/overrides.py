"""Settings laid over a scenario (``--set``, ``--trace``): how they are written, what they change in it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from oppo_sim.errors import OppoError
from oppo_sim.policies.registry import SHIPPED, inherited_settings
from oppo_sim.scenario.aliases import Plain, Translated, merge, policy_name, translate
from oppo_sim.scenario.problems import dotted
from oppo_sim.scenario.yaml_text import parse_yaml, show_value

_TRACE_FILE = "trace.path"
_NO_TRACE_FILE = ("trace.name", "trace.synth", "trace.sources")
"""Fields that a trace file of the user's own leaves empty."""


class Override(NamedTuple):
    """One ``--set``."""

    text: str
    path: tuple[str, ...]
    value: Any


Overrides = Mapping[str, Any] | Sequence[str] | None
"""Settings laid over a scenario: field → value, or ``a.b=c`` texts."""


def own_trace(path: Path) -> tuple[str, ...]:
    """Overrides that let a scenario replay the trace at ``path``, or, where nothing is there, the shipped one
    of that name. Raises OppoError if there is none."""
    if not path.exists():
        from oppo_sim.traces.catalog import close_traces, list_traces

        shipped = {entry.name: entry.kind for entry in list_traces()}
        if shipped.get(str(path), "rollouts") != "rollouts":
            raise OppoError(
                f"trace {path} is a per-step table, not a trace of rollouts: see 'oppo trace list'"
            )
        if str(path) in shipped:
            return *(f"{field}=null" for field in (_TRACE_FILE, *_NO_TRACE_FILE[1:])), f"trace.name={path}"
        if hint := close_traces(str(path)):
            raise OppoError(f"trace {path} is no file here, and no shipped trace: {hint}")
        raise OppoError(f"trace {path} does not exist: paths are from the current folder, {Path.cwd()}")
    return *(f"{field}=null" for field in _NO_TRACE_FILE), f"{_TRACE_FILE}={json.dumps(str(path.resolve()))}"


def without_own_trace(fields: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The path of ``own_trace`` and the other fields, where these are among ``fields``; else None and all."""
    if not fields.get(_TRACE_FILE) or any(fields.get(field, "") is not None for field in _NO_TRACE_FILE):
        return None, dict(fields)
    rest = {name: value for name, value in fields.items() if name not in (_TRACE_FILE, *_NO_TRACE_FILE)}
    return str(fields[_TRACE_FILE]), rest


_TRACE = "trace"


def with_trace(overrides: Overrides, trace: Any) -> list[str]:
    """Texts of a trace to replay, as ``--trace``, and then of ``overrides``; a trace of None: of these alone.
    Raises OppoError where both say which trace, and as ``override_texts``."""
    texts = override_texts(overrides)
    if trace is None:
        return texts
    if _TRACE in (overrides or ()) or any(text.startswith("trace=") for text in texts):
        raise OppoError("trace is given twice, on its own and among the overrides: give it once")
    return [*override_texts({_TRACE: trace}), *texts]


def override_texts(overrides: Overrides) -> list[str]:
    """Overrides as ``a.b=c`` texts. ``trace`` may be a path, a shipped name, a frame, response lengths or an
    opened trace: it is then the trace that is replayed, as ``--trace``. Raises OppoError for values that are
    no plain data."""
    if overrides is None:
        return []
    if isinstance(overrides, str):
        raise OppoError(
            f"overrides are {overrides!r}: give a mapping of fields to values, or a list of texts"
        )
    if not isinstance(overrides, Mapping):
        return list(overrides)
    texts: list[str] = []
    for field, value in overrides.items():
        if field == _TRACE and value is not None and not isinstance(value, Mapping):
            from oppo_sim.traces.given import trace_file

            texts += own_trace(trace_file(value))
            continue
        plain = value.tolist() if hasattr(value, "tolist") else value
        try:
            texts.append(f"{field}={json.dumps(plain, ensure_ascii=False, allow_nan=False)}")
        except (TypeError, ValueError):
            raise OppoError(f"the override of {field} is {value!r}, which a scenario cannot hold") from None
    return texts


def override_fields(texts: Sequence[str]) -> dict[str, Any]:
    """Field → value of ``a.b=c`` texts. Raises OppoError for a value that is no YAML."""
    return {name: parse_yaml(value, name) for name, _, value in (text.partition("=") for text in texts)}


def parse_override(text: str) -> Override:
    """One ``--set``, read. Raises OppoError for a text of another form, and for a value that is no YAML."""
    key, equals, value = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path):
        raise OppoError(
            f"--set {show_value(text)} is not of the form field=value or section.field=value, such as"
            " policy.overcommit=8"
        )
    return Override(text, path, parse_yaml(value, f"--set {text}"))


def overridden(
    data: Plain, overrides: Sequence[Override], canonical: frozenset[str]
) -> tuple[Plain, Translated]:
    """``data`` with the overrides laid over it, and the overrides in canonical names.

    Raises OppoError for one below a value, and for names and values that cannot be translated.
    """
    overlay: Plain = {}
    replaced: set[tuple[str, ...]] = set()
    for override in overrides:
        node = overlay
        for depth, part in enumerate(override.path[:-1], start=1):
            child = node.get(part)
            if child is None or (part == "policy" and isinstance(child, str)):
                child = {} if child is None else {"name": child}
                node[part] = child
            if not isinstance(child, dict):
                parent = dotted(override.path[:depth])
                raise OppoError(
                    f"--set {override.text}: {parent} was set to {show_value(child)}, which has no fields"
                )
            node = child
        node[override.path[-1]] = override.value
        replaced = {path for path in replaced if path != override.path}
        if isinstance(override.value, dict) or override.path == ("policy",):
            replaced.add(override.path)
    below = data
    for path in replaced:  # a mapping that is set replaces the file's, it is not merged into it
        below = _without(below, path)
    below = _renamed(below, overrides)
    for override in overrides:
        below = _opened(below, override)
    try:
        translated = translate(overlay, canonical, below)
    except OppoError as error:
        raise OppoError(f"--set {' --set '.join(o.text for o in overrides)}: {error}") from None
    return merge(below, translated.data), translated


def _without(data: Plain, path: tuple[str, ...]) -> Plain:
    if path[0] not in data:
        return data
    if len(path) == 1:
        return {key: value for key, value in data.items() if key != path[0]}
    inner = data[path[0]]
    return {**data, path[0]: _without(inner, path[1:])} if isinstance(inner, dict) else data


def _renamed(data: Plain, overrides: Sequence[Override]) -> Plain:
    """Where ``policy.name`` names another policy than the file, that one starts as in a comparison: with the
    settings that it shares with the file's, and those under ``policies``. The others are not its own."""
    names = [override.value for override in overrides if override.path == ("policy", "name")]
    if not names or names[-1] == policy_name(data) or not isinstance(names[-1], str):
        return data
    name, given, others = names[-1], data.get("policy"), data.get("policies")
    settings = given if isinstance(given, dict) else {}
    shared = inherited_settings(name, settings) if name in SHIPPED else {}
    if isinstance(others, dict) and isinstance(others.get(name), dict):
        shared |= others[name]
        data = _without(data, ("policies", name))
    return {**data, "policy": {**shared, "name": name}}


def _opened(data: Plain, override: Override) -> Plain:
    """A policy given by its name alone becomes a mapping when one of its settings is set."""
    if override.path[0] == "policy" and len(override.path) > 1 and isinstance(data.get("policy"), str):
        return {**data, "policy": {"name": data["policy"]}}
    return data
