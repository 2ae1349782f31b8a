"""YAML in and out, as plain data: the core types of YAML 1.2, safe, no duplicate keys, no anchors.

PyYAML follows YAML 1.1, where ``no`` is false, ``010`` is 8, ``1:30`` is 90 and ``1e-3`` is a string; a
scenario file means what it shows.
"""

import json
import math
import re
from collections.abc import Hashable
from typing import Any

import yaml

from oppo_sim.errors import OppoError

_TAG = "tag:yaml.org,2002:"
_RESOLVERS = (
    ("null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    ("int", re.compile(r"[-+]?[0-9]+$"), list("-+0123456789")),
    (
        "float",
        re.compile(
            r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+0123456789."),
    ),
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own registry, replaced here

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem="aliases (*name) are not supported: write the value out", problem_mark=mark
            )
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node)
        if len(str(text)) > 30:
            raise yaml.MarkedYAMLError(
                problem="a number of more than 30 digits", problem_mark=node.start_mark
            )
        return int(str(text))

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        value = float(str(self.construct_scalar(node)).lower().replace(".inf", "inf").replace(".nan", "nan"))
        if not math.isfinite(value):
            raise yaml.MarkedYAMLError(problem="a number that is not finite", problem_mark=node.start_mark)
        return value

    def refuse_tag(self, node: yaml.Node) -> None:
        raise yaml.MarkedYAMLError(
            problem=f"the tag {node.tag} is not supported: write plain YAML", problem_mark=node.start_mark
        )

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} is not a name: quote it", problem_mark=key_node.start_mark
                )
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key '{key}' is given twice: keep one", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    # Keeps PyYAML's own resolvers beside ours: a string that either reading would take for something else is
    # quoted.
    def ignore_aliases(self, data: Any) -> bool:
        return True


for _name, _pattern, _first in _RESOLVERS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _name, _pattern, _first)
for _name in ("int", "float"):
    _Loader.add_constructor(_TAG + _name, getattr(_Loader, f"construct_yaml_{_name}"))
for _tag in (*(_TAG + name for name in ("timestamp", "binary", "omap", "pairs", "set")), None):
    _Loader.add_constructor(_tag, _Loader.refuse_tag)


def parse_yaml(text: str, where: str) -> Any:
    """The one document in ``text`` as dicts, lists, strings, ints, floats, bools and None.

    ``where`` names the text in the OppoError raised for broken or unsafe YAML, duplicate keys, anchors and
    numbers that are not finite.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        words = (
            (error.context, error.problem)
            if str(error.problem).startswith("but ")
            else (error.problem or error.context,)
        )
        problem = " ".join(" ".join(map(str, words)).split())
        raise OppoError(f"{where}{place}: {problem}") from None
    except yaml.YAMLError as error:
        raise OppoError(f"{where}: not YAML ({' '.join(str(error).split())})") from None
    except RecursionError:
        raise OppoError(f"{where}: nested too deeply to be meant: flatten it") from None
    except ValueError as error:
        raise OppoError(f"{where}: {error}") from None


def dump_yaml(data: Any) -> str:
    """Plain data as YAML that ``parse_yaml`` reads back unchanged; keys keep their order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def show_value(value: Any, limit: int = 60) -> str:
    """A value as one short piece of a sentence, in the spelling of the file."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= limit else text[: limit - 1] + "…"
