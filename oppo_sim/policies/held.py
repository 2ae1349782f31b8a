"""Policies whose classes only this program holds: of a script that runs, a notebook's cell or a function. No
other process can import them, so their runs are made in this one."""

import hashlib
import inspect
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from oppo_sim.policies.interface import Policy

_held: dict[str, tuple[type[Policy], str]] = {}
"""Name → class, and the digest that stands for its code."""


def hold(policy: type[Policy]) -> str:
    """The name of a class that is to be found by it from now on; a later class of that name replaces it."""
    name = policy.__name__
    if held(name) is not policy:
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


def _digest(policy: type[Policy]) -> str:
    """Of the script that defines the class. Elsewhere what it does may depend on other cells, or on variables
    around it, which nobody can look up: then no other class has the same."""
    file = getattr(sys.modules.get(policy.__module__), "__file__", None)
    try:
        inspect.getsource(policy)
        if file is not None and "<locals>" not in policy.__qualname__:
            return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except (OSError, TypeError):
        pass
    return hashlib.sha256(uuid4().bytes).hexdigest()
