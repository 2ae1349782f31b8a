"""Importing is cheap, and heavy packages wait until they are needed."""

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def modules_after(statement: str) -> set[str]:
    out = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(out.stdout.split())


@pytest.mark.parametrize(
    "statement",
    ["import oppo_sim", "import oppo_sim; oppo_sim.simulate, oppo_sim.compare, oppo_sim.load_scenario"],
)
def test_importing_the_simulator_imports_neither_torch_nor_matplotlib(statement: str) -> None:
    loaded = modules_after(statement)
    assert not loaded & {
        "torch",
        "transformers",
        "vllm",
        "matplotlib",
        "ray",
        "aiconfigurator_core",
        "oppo_real",
    }


def test_the_bare_package_and_the_help_text_need_no_data_frames() -> None:
    for statement in ("import oppo_sim", "from oppo_sim.cli.main import run; run(['--help'])"):
        assert not modules_after(statement) & {
            "pandas",
            "numpy",
            "scipy",
            "pyarrow",
            "rich",
            "pydantic",
            "simpy",
        }


def test_listing_the_importers_needs_no_data_frames() -> None:
    loaded = modules_after("from oppo_sim.cli.main import run; run(['trace', 'import', '--list'])")
    assert "oppo_sim.traces.importers.formats.verl" in loaded
    assert not loaded & {"pandas", "pyarrow", "scipy"}


def test_runs_do_not_know_who_makes_them() -> None:
    modules = ("evaluate", "execute", "journal", "request", "statistics", "store")
    loaded = modules_after("import " + ", ".join(f"oppo_sim.runs.{name}" for name in modules))
    above = ("oppo_sim.comparison", "oppo_sim.sweep", "oppo_sim.tune", "oppo_sim.cli", "oppo_sim.report")
    assert not {name for name in loaded if name.startswith(above)}
    assert not loaded & {"torch", "ray", "joblib", "numba", "matplotlib", "pandas", "scipy"}


def imported(node: ast.AST, modules: Collection[str]) -> Iterator[str]:
    """Those of the modules that are imported anywhere below, functions included; not what only type checkers
    import."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        names: list[str] = []
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom) and child.module:
            inner = [f"{child.module}.{alias.name}" for alias in child.names]
            names = [name if name in modules else child.module for name in inner]
        yield from (name for name in names if name in modules)
        yield from imported(child, modules)


def import_graph(package: str) -> dict[str, set[str]]:
    """Module → the package's modules that it imports."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / package).rglob("*.py")
    }
    return {name: set(imported(ast.parse(path.read_text()), modules)) for name, path in modules.items()}


@pytest.mark.parametrize("package", ["oppo_sim", "oppo_real"])
def test_no_module_imports_itself_through_others(package: str) -> None:
    TopologicalSorter(import_graph(package)).prepare()  # raises CycleError, which names the circle


def test_imports_run_down_the_layers_of_the_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    table = page.split("|---|---|---|---|\n")[1].split("\n\n")[0]
    depth = {
        name.removesuffix(".py").rstrip("/"): number
        for number, row in enumerate(table.splitlines())
        for name in re.findall(r"`([^`]+)`", row.split("|")[2])
    }
    faces = {"oppo_sim", "oppo_sim.__main__"}
    graph = import_graph("oppo_sim")
    rooms = {module: module.split(".")[1] for module in graph.keys() - faces}
    assert set(rooms.values()) <= depth.keys()
    assert [
        f"{module} -> {other}"
        for module, others in graph.items()
        for other in others - faces
        if module in rooms and depth[rooms[other]] < depth[rooms[module]]
    ] == []
