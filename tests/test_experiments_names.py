"""What the scripts under experiments/ import from this project is there: no type checker reads them."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "experiments").rglob("*.py"))


@cache
def names_of(module: str) -> frozenset[str] | None:
    """What a module defines or imports at its top level, and its submodules; None: there is none."""
    place = ROOT / module.replace(".", "/")
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not file.exists():
        return None
    found = {path.stem for path in place.iterdir()} if place.is_dir() else set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name | ast.Constant):
            # Names that a package resolves when they are asked for stand in a table of texts.
            found.add(str(node.id if isinstance(node, ast.Name) else node.value))
    return frozenset(found)


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_a_script_imports_is_there(script: str) -> None:
    missing = [
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse((ROOT / script).read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("oppo_sim", "oppo_real")
        for alias in node.names
        if alias.name not in (names_of(str(node.module)) or ())
    ]
    assert not missing


def test_a_name_that_is_gone_is_found() -> None:
    assert "progress_bar" in (names_of("oppo_sim.cli.progress") or ())
    assert "progress_bar" not in (names_of("oppo_sim.cli.options") or ())
    assert names_of("oppo_sim.no_such_module") is None
