"""Packages that are called by their name: ``oppo_sim.sweep(…)`` beside ``from oppo_sim.sweep import …``.

The function of package ``oppo_sim.sweep`` is ``oppo_sim.sweep.call.sweep``; it is imported when it is asked
for.
"""

import sys
from importlib import import_module
from inspect import Signature, signature
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package with a function of its name in its module ``call``."""

    @property
    def __call__(self) -> Any:  # a property: what is shown in a notebook is the function's own help
        return getattr(import_module(f"{self.__name__}.call"), self.__name__.rpartition(".")[2])

    @property
    def __signature__(self) -> Signature:
        return signature(self.__call__)


def make_callable(name: str) -> None:
    """Let the package be called. A module's class may be changed for this (Python's data model, "Customizing
    module attribute access")."""
    sys.modules[name].__class__ = CallablePackage
