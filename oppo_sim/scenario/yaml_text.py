"""YAML 1.2 in and out, as plain data: safe, no duplicate keys, no anchors, only the core types."""

import io
import json
import math
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import VersionedResolver

from oppo_sim.errors import OppoError

_TAG = "tag:yaml.org,2002:"
_SCALARS = {_TAG + name for name in ("null", "bool", "int", "float", "str")}
_KNOWN = _SCALARS | {_TAG + "map", _TAG + "seq"}


class _Resolver(VersionedResolver):
    processing_version = (1, 2)  # whatever a %YAML line says

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """No dates, merges or digit groups: YAML 1.2's core types have none."""
        tag = super().resolve(kind, value, implicit)
        core = kind is not ScalarNode or (str(tag) in _SCALARS and "_" not in value)
        return tag if core else self.DEFAULT_SCALAR_TAG


class _Composer(Composer):
    def compose_node(self, parent: Node | None, index: Any) -> Any:
        if self.parser.check_event(AliasEvent):
            raise _problem("aliases (*name) are not supported: write the value out", self.parser.peek_event())
        return super().compose_node(parent, index)


class _Constructor(SafeConstructor):
    def construct_object(self, node: Node, deep: bool = False) -> Any:
        tag = str(node.tag)
        if tag not in _KNOWN:
            raise _problem(f"the tag {tag} is not supported: write plain YAML", node)
        if tag == _TAG + "int" and len(node.value) > 30:
            raise _problem("a number of more than 30 digits", node)
        value = super().construct_object(node, deep)
        if isinstance(value, float) and not math.isfinite(value):
            raise _problem("a number that is not finite", node)
        return value

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> Any:
        names = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _problem(f"the key {key!r} is not a name: quote it", key_node)
            if key in names:
                raise _problem(f"the key '{key}' is given twice: keep one", key_node)
            names.add(key)
        return super().construct_mapping(node, deep=deep)


class _Representer(SafeRepresenter):
    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Yaml(YAML):
    def __init__(self) -> None:
        super().__init__(typ="safe", pure=True)
        self.Resolver, self.Composer, self.Constructor = _Resolver, _Composer, _Constructor
        self.Representer, self.width = _Representer, 10_000
        self.default_flow_style = False
        self.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # the library annotates it as None

    def official_plug_ins(self) -> list[str]:
        """None: looking for some in the library's folder takes longer than reading a value."""
        return []


def parse_yaml(text: str, where: str) -> Any:
    """The one document in ``text`` as dicts, lists, strings, ints, floats, bools and None.

    ``where`` names the text in the OppoError raised for broken or unsafe YAML, duplicate keys, anchors and
    numbers that are not finite.
    """
    try:
        return _Yaml().load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        words = (
            (error.context, error.problem)
            if str(error.problem).startswith("but ")
            else (error.problem or error.context,)
        )
        problem = " ".join(" ".join(map(str, words)).split())
        raise OppoError(f"{where}{place}: {problem}") from None
    except YAMLError as error:
        raise OppoError(f"{where}: not YAML ({' '.join(str(error).split())})") from None
    except RecursionError:
        raise OppoError(f"{where}: nested too deeply to be meant: flatten it") from None
    except ValueError as error:
        raise OppoError(f"{where}: {error}") from None


def dump_yaml(data: Any) -> str:
    """Plain data as YAML that ``parse_yaml`` reads back unchanged; keys keep their order."""
    text = io.StringIO()
    _Yaml().dump(data, text)
    return text.getvalue()


def show_value(value: Any, limit: int = 60) -> str:
    """A value as one short piece of a sentence, in the spelling of the file."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _problem(sentence: str, where: Any) -> MarkedYAMLError:
    return MarkedYAMLError(problem=sentence, problem_mark=where.start_mark)
