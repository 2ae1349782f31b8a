"""Policies by name: shipped ones (every class in ``shipped/``), entry points of the group
``oppo_sim.policies``, and ``path/to/file.py:ClassName``."""

import difflib
import hashlib
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, Final, get_args

from pydantic import ValidationError

from oppo_sim.errors import OppoError
from oppo_sim.policies import shipped
from oppo_sim.policies.chunk_control import ChunkControl
from oppo_sim.policies.held import held, held_digest, hold, plain_values, source_file
from oppo_sim.policies.interface import Batch, Policy, Schedule
from oppo_sim.policies.own import make_own
from oppo_sim.policies.refill import ShippedPolicy
from oppo_sim.policies.settings import PolicySettings

ENTRY_POINT_GROUP = "oppo_sim.policies"
BASELINE: Final = "sequential"
"""What every policy is compared with."""


def _classes_in(package: ModuleType) -> dict[str, type[ShippedPolicy]]:
    """Policy classes that the modules of a package define, by name: the baseline first, then those that can
    be stale, bounds last."""
    found: list[type[ShippedPolicy]] = []
    for entry in iter_modules(package.__path__):
        module = import_module(f"{package.__name__}.{entry.name}")
        found += [
            each
            for each in vars(module).values()
            if isinstance(each, type)
            and issubclass(each, ShippedPolicy)
            and each.__module__ == module.__name__
        ]
    schedules = get_args(Schedule)
    found.sort(
        key=lambda each: (
            each.name != BASELINE,
            each.oracle,
            schedules.index(each.schedule),
            each.carries,
            each.name,
        )
    )
    return {each.name: each for each in found}


SHIPPED: Final[Mapping[str, type[ShippedPolicy]]] = _classes_in(shipped)


def policy_class(name: str, base_dir: Path | None = None) -> type[Policy]:
    """The class of a policy: what it is stands on it. ``base_dir`` is where relative ``file.py:Class`` paths
    start.

    Raises OppoError for an unknown name, or a file that gives no policy.
    """
    return SHIPPED[name] if name in SHIPPED else held(name) or _find_class(name, base_dir)


def policy_name(policy: str | type) -> str:
    """The name under which scenarios find a policy: of a class of one's own its file and name; where no other
    process could import it as it is here (of a script that runs, a notebook's cell, a function; changed since
    its file was imported), its name in this process.

    Raises OppoError for what is no policy, and for such a class with the name of a shipped one.
    """
    if isinstance(policy, str):
        return policy
    shipped = next((name for name, found in SHIPPED.items() if found is policy), None)
    if shipped is not None:
        return shipped
    if not isinstance(policy, type):
        raise OppoError(f"policy {policy!r} is neither a name nor a class: give one of them")
    source = source_file(policy)
    label = f"{source}:{policy.__name__}"
    if (
        source is None
        or policy.__module__ == "__main__"
        or policy.__qualname__ != policy.__name__
        or plain_values(policy) != plain_values(_find_class(label, None))
    ):
        own = _as_policy_class(policy, policy.__name__)
        if own.__name__ in SHIPPED:
            raise OppoError(f"policy class {own.__name__} has the name of a shipped policy: give it another")
        return hold(own)
    return label


def name_and_settings(label: str) -> tuple[str, tuple[str, ...]]:
    """The policy of a label, and its settings as they are written."""
    # One of a user's own has a colon in its name, path/to/file.py:ClassName, and its path may have anything.
    folder, mark, rest = label.rpartition(".py:")
    name, *settings = rest.split(":")
    return f"{folder}{mark}{name}", tuple(settings)


def check_settings(
    name: str, settings: Mapping[str, Any], base_dir: Path | None = None
) -> PolicySettings | Mapping[str, Any]:
    """``settings`` as the policy takes them: its ``Settings``, defaults filled in, or the mapping itself
    where it has none. Raises OppoError if ``name`` is unknown or they do not fit it."""
    return _checked(policy_class(name, base_dir), name, settings)


def make_policy(name: str, batch: Batch, settings: Mapping[str, Any], base_dir: Path | None = None) -> Policy:
    """A fresh policy. ``base_dir`` as of ``policy_class``.

    Raises OppoError for an unknown name, unknown or impossible settings, or a file that gives no policy.
    """
    return policy_maker(name, batch, settings, base_dir)()


def policy_maker(
    name: str, batch: Batch, settings: Mapping[str, Any], base_dir: Path | None
) -> Callable[[], Policy]:
    """What gives a fresh policy at each call, its settings checked once. Raises OppoError as ``make_policy``;
    a policy of a user's own may refuse later."""
    found = policy_class(name, base_dir)
    checked = _checked(found, name, settings)
    if name in SHIPPED:
        return lambda: found(batch, checked)
    return lambda: make_own(found, name, batch, checked)


def source_digest(name: str, base_dir: Path | None = None) -> str | None:
    """SHA-256 (hex) of the file that defines a policy of a user's own, or as ``held_digest``; None for a
    shipped one. Raises OppoError if it is not found."""
    if name in SHIPPED:
        return None
    if held(name) is not None:
        return held_digest(name)
    source = source_file(_find_class(name, base_dir))
    try:
        return hashlib.sha256(Path(source or "").read_bytes()).hexdigest()
    except OSError:
        return None


def inherited_settings(
    name: str, settings: Mapping[str, Any], base_dir: Path | None = None
) -> dict[str, Any]:
    """The part of another policy's settings that ``name`` shares, for a comparison on equal terms."""
    shared = policy_class(name, base_dir).inherited
    return {key: value for key, value in settings.items() if key in shared}


def baseline_settings(
    name: str, settings: Mapping[str, Any], batch: Batch, base_dir: Path | None = None
) -> dict[str, Any] | None:
    """Settings of the sequential baseline that stops as ``name`` does (same ``stop_check``, same rounds);
    None: it has no stop check.

    The rounds of a policy of a user's own are its attribute ``chunk_size``. Raises OppoError as
    ``make_policy``.
    """
    policy = make_policy(name, batch, settings, base_dir)
    if policy.schedule != "synchronous":
        return None
    if policy.stop_check == "token":
        return {}
    checked = check_settings(name, settings, base_dir)
    chunk_size = getattr(checked if name in SHIPPED else policy, "chunk_size", None)
    if isinstance(chunk_size, ChunkControl):
        return {"stop_check": "chunk", "chunk_size": chunk_size.model_dump(mode="json")}
    if not isinstance(chunk_size, int):
        raise OppoError(
            f"policy '{name}' stops in rounds: give it an attribute chunk_size, so that the baseline can run"
            " the same rounds"
        )
    return {"stop_check": "chunk", "chunk_size": chunk_size}


def _checked(
    found: type[Policy], name: str, settings: Mapping[str, Any]
) -> PolicySettings | Mapping[str, Any]:
    model = found.Settings
    if model is None:
        return settings
    for key in settings:
        if key not in model.model_fields:
            close = difflib.get_close_matches(key, model.model_fields, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(model.model_fields)}"
            raise OppoError(f"policy '{name}' has no field '{key}': {hint}")
    try:
        # As JSON, so that a list is taken for a tuple while nothing else is converted.
        return model.model_validate_json(json.dumps(dict(settings)), strict=True)
    except TypeError:
        raise OppoError(
            f"policy '{name}' has settings that are no plain values: give numbers, text, lists and dicts"
        ) from None
    except ValidationError as error:
        # Of a union's complaints the one about the alternative that was meant: a rule that the values break,
        # else the innermost.
        first = max(
            error.errors(), key=lambda details: (details["type"] == "value_error", len(details["loc"]))
        )
        where = (
            ".".join(
                str(part) for part in first["loc"] if isinstance(part, str) and part in model.model_fields
            )
            or "settings"
        )
        given = settings.get(where, first.get("input"))
        why = first["msg"].removeprefix("Value error, ")
        field = model.model_fields.get(where)
        if first["type"] != "value_error" and field is not None and field.description:
            why = f"{why} ({field.description})"
        raise OppoError(
            f"policy '{name}', {where} = {given!r}: {why}; mend it in the scenario or with --set"
        ) from None


def _find_class(name: str, base_dir: Path | None) -> type[Policy]:
    path, colon, class_name = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _from_file((base_dir or Path()) / path, class_name)
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            found = point.load()
        except (Exception, SystemExit) as error:
            raise OppoError(
                f"policy '{name}' ({point.value}) cannot be imported ({type(error).__name__}: {error}): mend"
                " its package"
            ) from error
        return _as_policy_class(found, f"entry point '{name}'")
    close = difflib.get_close_matches(name, SHIPPED, n=1)
    hint = (
        f"did you mean '{close[0]}'?"
        if close
        else f"shipped are {', '.join(SHIPPED)}; your own is 'path/to/file.py:ClassName'"
    )
    raise OppoError(f"unknown policy '{name}': {hint}")


def _from_file(path: Path, class_name: str) -> type[Policy]:
    if not path.is_file():
        raise OppoError(f"policy file {path} does not exist: check the path before ':{class_name}'")
    # Known to Python under a name of its own: dataclasses and pickle look a class's module up.
    module_name = (
        f"oppo_user_policy_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    )
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise OppoError(
            f"policy file {path} cannot be imported ({type(error).__name__}: {error}): mend the file"
        ) from error
    if not hasattr(module, class_name):
        raise OppoError(f"policy file {path} has no class '{class_name}': name one that it defines")
    return _as_policy_class(getattr(module, class_name), f"{path}:{class_name}")


def _as_policy_class(candidate: object, where: str) -> type[Policy]:
    if not (isinstance(candidate, type) and issubclass(candidate, Policy)):
        raise OppoError(f"{where} is not a policy: make it a subclass of oppo_sim.policies.Policy")
    return candidate
