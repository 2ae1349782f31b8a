"""Policies whose classes only this program holds: of a script that runs, a notebook's cell or a function. No
other process can import them, so their runs are made in this one."""

import hashlib
import inspect
import pickle
import sys
from pathlib import Path
from types import CodeType
from typing import Any
from uuid import uuid4

from oppo_sim.policies.interface import Policy

_held: dict[str, tuple[type[Policy], str]] = {}
"""Name → class, and the digest of its code."""


def hold(policy: type[Policy]) -> str:
    """The name of a class that is to be found by it from now on; a later class of that name replaces it."""
    name = policy.__name__
    # A script's values may have changed since.
    if held(name) is not policy or _script(policy) is not None:
        _held[name] = policy, _digest(policy)
    return name


def held(name: str) -> type[Policy] | None:
    """The class of that name; None: there is none."""
    return _held[name][0] if name in _held else None


def held_digest(name: str) -> str:
    """SHA-256 (hex) that changes with the code of the class of that name."""
    return _held[name][1]


def source_file(code: Any) -> str | None:
    """The file of a class or function; None where it has none, as in a notebook's cell."""
    try:
        return inspect.getsourcefile(code)
    except (OSError, TypeError):
        return None


def plain_values(policy: type[Policy]) -> dict[str, Any]:
    """Numbers, words and switches that its code reads: class attributes and global variables, by name."""
    kinds = (int, float, str, bool, type(None))
    return {name: value for name, value in _values(policy).items() if isinstance(value, kinds)}


def _digest(policy: type[Policy]) -> str:
    """Of the script that defines the class, and of the values that its code reads. Elsewhere what it does may
    depend on other cells, or on variables around it, which nobody can look up: then no other class has the
    same."""
    script = _script(policy)
    if script is None:
        return hashlib.sha256(uuid4().bytes).hexdigest()
    digest = hashlib.sha256(script.read_bytes())
    for name, value in sorted(_values(policy).items()):
        digest.update(f"\n{name} = ".encode() + _as_bytes(value))
    return digest.hexdigest()


def _script(policy: type[Policy]) -> Path | None:
    """The file that says all about the class; None: there is none."""
    file = getattr(sys.modules.get(policy.__module__), "__file__", None)
    try:
        inspect.getsource(policy)
    except (OSError, TypeError):
        return None
    return Path(file) if file is not None and "<locals>" not in policy.__qualname__ else None


def _values(policy: type[Policy]) -> dict[str, Any]:
    """Class attributes, and global variables that its code and what that calls in the same script name."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    left: list[Any] = [policy]
    while left:
        item = left.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, type):
            for name, value in vars(item).items():
                inner = getattr(value, "__func__", getattr(value, "fget", value))
                if inspect.isfunction(inner):
                    left.append(inner)
                elif not name.startswith("__") and not inspect.isdatadescriptor(value):
                    found[f"{item.__qualname__}.{name}"] = value
            left += [base for base in item.__mro__[1:] if base.__module__ == policy.__module__]
            continue
        for name in _names(item.__code__):
            value = item.__globals__.get(name)
            if inspect.isfunction(value) or isinstance(value, type):
                left += [value] if value.__module__ == policy.__module__ else []
            elif name in item.__globals__ and not inspect.ismodule(value):
                found[name] = value
    return found


def _names(code: CodeType) -> set[str]:
    """What a function, and the functions inside it, name beside its own variables."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _as_bytes(value: Any) -> bytes:
    """Different for what cannot be told to be the same."""
    try:
        return pickle.dumps(value)
    except Exception:
        return uuid4().bytes
