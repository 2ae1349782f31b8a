"""Store the names of a framework's options, which the advice of ``oppo tune`` is checked against.

    python experiments/framework_names.py verl TREE --version 0.9.1 --date 2026-09-20 --source "wheel of PyPI"

``TREE`` is the unpacked source or the installed package's folder. Only names are stored, and which of them
are switches; nothing of the framework is imported or run.
"""

import argparse
import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

STORED = Path(__file__).parents[1] / "oppo_sim" / "tune" / "frameworks" / "names"


class Where(NamedTuple):
    """Where a framework's options stand."""

    reader: str
    """``yaml``, ``flags`` or ``classes``."""
    files: tuple[str, ...]
    """In the tree."""
    root: str = ""
    """Of ``classes``: the one whose fields are the top of the configuration."""
    prefix: str = ""


HOMES: Mapping[str, tuple[Where, ...]] = {
    "verl": (
        Where("yaml", ("verl/trainer/config/_generated_ppo_trainer.yaml",)),
        Where("yaml", ("verl/experimental/one_step_off_policy/config/one_step_off_ppo_trainer.yaml",)),
    ),
    "OpenRLHF": (Where("flags", ("openrlhf/cli/train_ppo_ray.py",)),),
    "slime": (Where("flags", ("slime/utils/arguments.py", "slime/backends/sglang_utils/arguments.py")),),
    "NeMo-RL": (
        Where("yaml", ("examples/configs/ppo_math_1B.yaml",)),
        Where("classes", ("nemo_rl/algorithms/ppo.py",), "PPOConfig", "ppo."),
        Where("yaml", ("examples/configs/grpo_math_1B.yaml",)),
    ),
    "AReaL": (Where("classes", ("areal/api/cli_args.py",), "PPOConfig"),),
    "ROLL": (
        Where(
            "classes",
            (
                "roll/pipeline/rlvr/rlvr_config.py",
                "roll/configs/base_config.py",
                "roll/configs/worker_config.py",
                "roll/configs/generating_args.py",
                "roll/configs/model_args.py",
                "roll/configs/training_args.py",
                "roll/configs/data_args.py",
            ),
            "RLVRConfig",
        ),
    ),
    "prime-rl": (
        Where(
            "classes",
            (
                "packages/prime-rl-configs/src/prime_rl/configs/rl.py",
                "packages/prime-rl-configs/src/prime_rl/configs/orchestrator.py",
                "packages/prime-rl-configs/src/prime_rl/configs/inference.py",
                "packages/prime-rl-configs/src/prime_rl/configs/trainer.py",
                "packages/prime-rl-configs/src/prime_rl/configs/shared.py",
            ),
            "RLConfig",
        ),
    ),
    "TRL": (
        Where(
            "classes",
            (
                "trl/experimental/ppo/ppo_config.py",
                "trl/trainer/base_config.py",
                "transformers/training_args.py",
            ),
            "PPOConfig",
        ),
        Where(
            "classes",
            (
                "trl/trainer/grpo_config.py",
                "trl/trainer/base_config.py",
                "transformers/training_args.py",
            ),
            "GRPOConfig",
        ),
    ),
}


def yaml_names(text: str) -> Iterator[tuple[str, bool]]:
    """Dotted paths of the leaves of a YAML file; an empty mapping is a leaf that takes keys of its own."""

    def leaves(node: Any, path: str) -> Iterator[str]:
        if isinstance(node, dict) and node:
            for key, value in node.items():
                yield from leaves(value, f"{path}.{key}" if path else str(key))
        elif path:
            yield path

    data = YAML(typ="safe").load(text)
    return ((path, False) for path in leaves(data, "") if not path.startswith(("defaults", "hydra.")))


def flag_names(text: str) -> Iterator[tuple[str, bool]]:
    """Flags that ``add_argument`` or ``reset_arg`` is given as plain text, and whether they are switches."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called not in ("add_argument", "reset_arg"):
            continue
        action = next((word.value for word in node.keywords if word.arg == "action"), None)
        switch = isinstance(action, ast.Constant) and str(action.value).startswith("store_")
        for given in node.args:
            if isinstance(given, ast.Constant) and str(given.value).startswith("--"):
                yield given.value, switch


def class_names(files: Mapping[str, str], root: str, prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Dotted paths of the annotated fields of a class and of the classes that its fields are, over files
    (name → text). A name is looked up in the file that uses it, then in the others in their order."""
    homes = {name: _classes(text) for name, text in files.items()}
    named = {(name, alias): words for name, text in files.items() for alias, words in _unions(text).items()}

    def found(name: str, near: str) -> tuple[str, ast.ClassDef] | None:
        for home in (near, *homes):
            if name in homes[home]:
                return home, homes[home][name]
        return None

    def fields(home: str, each: ast.ClassDef) -> dict[str, tuple[str, ast.expr]]:
        all_of: dict[str, tuple[str, ast.expr]] = {}
        for base in reversed(each.bases):
            above = found(_last(base), home)
            if above is not None and above[1] is not each:
                all_of |= fields(*above)
        for line in each.body:
            if not (isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)):
                continue
            if "ClassVar" not in ast.dump(line.annotation) and line.target.id[0] != "_":
                all_of[line.target.id] = home, line.annotation
        return all_of

    def paths(home: str, each: ast.ClassDef, before: str, above: tuple[str, ...]) -> Iterator[str]:
        for name, (where, annotation) in fields(home, each).items():
            words = [inner for word in _words(annotation) for inner in named.get((where, word), (word,))]
            kinds = [found(word, where) for word in words]
            inner = [kind for kind in kinds if kind is not None and kind[1].name not in above]
            nested = [kind for kind in inner if fields(*kind)]
            yield before + name
            for kind in nested:
                yield from paths(*kind, f"{before}{name}.", (*above, kind[1].name))

    start = found(root, next(iter(homes)))
    if start is None:
        raise SystemExit(f"there is no class {root} in {', '.join(files)}")
    return ((path, False) for path in paths(*start, prefix, (root,)))


def names_in(framework: str, tree: Path) -> dict[str, bool]:
    """Option → whether it is a switch, of an unpacked source tree."""
    found: dict[str, bool] = {}
    for home in HOMES[framework]:
        texts = {file: (tree / file).read_text(encoding="utf-8") for file in home.files}
        for text in texts.values() if home.reader != "classes" else ():
            found |= dict((yaml_names if home.reader == "yaml" else flag_names)(text))
        if home.reader == "classes":
            found |= dict(class_names(texts, home.root, home.prefix))
    return found


def _classes(text: str) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}


def _unions(text: str) -> dict[str, Iterable[str]]:
    """Name of a type that stands for others → their names."""
    return {
        node.target.id: _words(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
        if _last(node.annotation) == "TypeAlias"
    }


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _words(annotation: ast.expr) -> Iterable[str]:
    return [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("framework", choices=list(HOMES))
    parser.add_argument("tree", type=Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--date", required=True, help="of the release or commit")
    parser.add_argument(
        "--source", required=True, help="where the tree is from: repository and commit, or package"
    )
    given = parser.parse_args()
    found = names_in(given.framework, given.tree)
    head = [f"# {word}: {getattr(given, word)}" for word in ("framework", "version", "date", "source")]
    lines = [f"{name} switch" if found[name] else name for name in sorted(found)]
    path = STORED / f"{given.framework}.txt"
    path.write_text("\n".join([*head, *lines, ""]), encoding="utf-8")
    print(f"{path.name}: {len(found)} names")


if __name__ == "__main__":
    main()
