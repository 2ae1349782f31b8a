"""Code of a page as a cell of a notebook."""

from __future__ import annotations

import ast
from typing import Any

from IPython.core.formatters import DisplayFormatter


def run_cell(code: str, space: dict[str, Any]) -> dict[str, Any]:
    """Run it; gives what a notebook shows of a last expression, by its kind (``image/png``). Nothing of
    Matplotlib is switched on for it."""
    body = ast.parse(code).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), space)
    if last is None:
        return {}
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), space)  # type: ignore[attr-defined]
    shown: dict[str, Any] = DisplayFormatter().format(value)[0]  # type: ignore[no-untyped-call]
    return shown
