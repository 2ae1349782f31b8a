"""How functions of the compiled path are compiled. Importing it imports numba."""

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])
_numba: Any = numba  # what it says of its types differs from version to version


def compiled(function: F) -> F:
    """Called by compiled code only, so the wrappers for other callers are not compiled."""
    options = {"error_model": "numpy", "nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(F, _numba.njit(**options)(function))


def rule(function: Any, **rules: Any) -> Any:
    """A plain function of the model, compiled; ``rules`` are the compiled ones that it calls."""
    return compiled(FunctionType(function.__code__, {**function.__globals__, **rules}))
