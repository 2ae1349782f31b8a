"""How frameworks take their options: Hydra overrides, flags, YAML, TOML."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from oppo_sim.scenario.yaml_text import dump_yaml
from oppo_sim.tune.frameworks.facts import Line


def hydra(command: str, lines: Sequence[Line]) -> str:
    """``key=value`` after a command, one a line."""
    return _continued([command, *(shlex.quote(f"{knob}={_word(value)}") for knob, value in _said(lines))])


def flags(command: str, lines: Sequence[Line], switches: Mapping[str, bool]) -> str:
    """``--flag value`` after a command, one a line; a switch stands alone, or is left out."""
    words = [command] if command else []
    for knob, value in _said(lines):
        if not switches.get(knob, False):
            words.append(f"{knob} {shlex.quote(_word(value))}")
        elif value:
            words.append(knob)
    return _continued(words)


def yaml(lines: Sequence[Line]) -> str:
    """A part of a YAML file."""
    return dump_yaml(_nested(lines)).rstrip()


def toml(lines: Sequence[Line]) -> str:
    """A part of a TOML file."""
    tables: dict[str, list[str]] = {}
    for knob, value in _said(lines):
        table, _, key = knob.rpartition(".")
        tables.setdefault(table, []).append(f"{key} = {json.dumps(value)}")
    return "\n\n".join("\n".join([f"[{table}]", *keys]) for table, keys in tables.items())


def _said(lines: Sequence[Line]) -> list[tuple[str, Any]]:
    return [(line.knob, line.value) for line in lines if line.knob is not None]


def _nested(lines: Sequence[Line]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for knob, value in _said(lines):
        node, (*above, key) = data, knob.split(".")
        for part in above:
            node = node.setdefault(part, {})
        node[key] = value
    return data


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _continued(words: Sequence[str]) -> str:
    return " \\\n  ".join(words)
