"""How another process is started that runs a module of this very package."""

import os
import sys
from collections.abc import Sequence


def own_python(module: str, *arguments: str) -> tuple[Sequence[str], dict[str, str]]:
    """Command and environment of ``module`` in a Python of its own.

    The same package as here: Python would look into the current folder first (``-P``: it must not), which may
    hold a checkout of another version.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    return [sys.executable, "-P", "-m", module, *arguments], environment
