"""Mistakes made on purpose, one at a time, in whatever of the torch engine and the trainer touches a device:
a tensor left on the CPU, a wait removed, a copy that waits. Each must fail a test on the CUDA machine without
a GPU.

    python -m experiments.fake_cuda.mutations            # all; writes the counts into README.md
    python -m experiments.fake_cuda.mutations --every 10 --no-page

One that no test notices either changes nothing (both sides lie on the CPU, or the wait was made elsewhere) or
is missed; the page lists all of them with what was found on reading. Exit code 1 for one that is not listed.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import io
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from tests.real import test_fake_cuda_engines, test_fake_cuda_ppo  # noqa: F401 - imported before the forks
from tests.real.test_fake_cuda_order import mutated

MODULES: Final = (
    "engines.device", "engines.models", "engines.packed_attention", "engines.packed_graphs",
    "engines.packed_model", "engines.packed_plan", "engines.packed_store", "engines.torch_actor",
    "engines.torch_sampling", "engines.torch_scorer", "placement.shared_weights",
    "ppo.batching", "ppo.experience", "ppo.formulas", "ppo.forward", "ppo.optimize", "ppo.trainer",
)  # fmt: skip
TESTS: Final = ("test_fake_cuda_order.py::test_the_exercises_pass_as_they_are", "test_fake_cuda_engines.py",
                "test_fake_cuda_ppo.py")  # fmt: skip
WAITS: Final = {"synchronize", "wait_stream", "wait_event"}
PAGE: Final = Path(__file__).parent / "README.md"
FAILED, PASSED, NOTHING = 1, 0, 3
"""Exit codes of a child: a test failed, none did, the mutation changed no function."""


@dataclass(frozen=True)
class Mutation:
    """One mistake."""

    module: ModuleType
    kind: str
    line: int
    was: str
    text: str
    """Of the whole module, with it."""

    @property
    def place(self) -> str:
        return f"{self.module.__name__.removeprefix('oppo_real.')}: {self.was}"


def mutations(module: ModuleType) -> Iterator[Mutation]:
    """All of one module, in the order of its lines."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text("utf-8")
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    data = source.encode()

    def span(node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def instead(kind: str, node: ast.expr | ast.stmt | ast.keyword, new: bytes) -> Mutation:
        begin, end = span(node)
        was = " ".join(data[begin:end].decode().split())
        return Mutation(module, kind, node.lineno, was, (data[:begin] + new + data[end:]).decode())

    def code(node: ast.expr) -> bytes:
        begin, end = span(node)
        return data[begin:end]

    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("to_device", "to_host") and node.args:
            kind = "left on the CPU" if name == "to_device" else "a wait removed"
            yield instead(kind, node, b"(" + code(node.args[0]) + b")")
        if name == "to" and isinstance(node.func, ast.Attribute) and _moves(node):
            yield instead("left where it was", node, b"(" + code(node.func.value) + b")")
        if name in WAITS:
            yield instead("a wait removed", node, b"None")
        for keyword in node.keywords:
            if keyword.arg == "device":
                yield instead("left on the CPU", keyword, b"device='cpu'")
            if keyword.arg == "non_blocking":
                yield instead("a copy that waits", keyword, b"non_blocking=False")


def _moves(call: ast.Call) -> bool:
    """To a device, not to a dtype."""
    return bool(call.args) and ast.unparse(call.args[0]).endswith(("device", "place"))


def survives(one: Mutation) -> int:
    """Run the tests with it in a fork of this process, which has torch loaded."""
    child = os.fork()
    if child == 0:
        code = FAILED
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                code = _tested(one)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _tested(one: Mutation) -> int:
    folder = Path(__file__).parents[2] / "tests" / "real"
    try:
        with mutated(one.module, one.text):
            return (
                PASSED if pytest.main(["-x", "-q", *(str(folder / test) for test in TESTS)]) == 0 else FAILED
            )
    except (AssertionError, ValueError):  # of ``mutated``: no function has other code
        return NOTHING


def main() -> int:
    """Make them all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1, help="only each n-th")
    parser.add_argument("--page", action=argparse.BooleanOptionalAction, default=True)
    chosen = parser.parse_args()
    found = [one for name in MODULES for one in mutations(importlib.import_module(f"oppo_real.{name}"))]
    noticed: Counter[str] = Counter()
    made: Counter[str] = Counter()
    missed: list[Mutation] = []
    for one in found[:: chosen.every]:
        code = survives(one)
        if code == NOTHING:
            continue
        made[one.kind] += 1
        noticed[one.kind] += code != PASSED
        if code == PASSED:
            missed.append(one)
        print(
            f"{'missed ' if code == PASSED else 'noticed'} {one.kind}: {one.place} (line {one.line})",
            flush=True,
        )
    lines = [f"| {kind} | {count} | {noticed[kind]} |" for kind, count in made.items()]
    listed = PAGE.read_text("utf-8") if PAGE.exists() else ""
    print(f"{sum(noticed.values())} of {sum(made.values())} noticed")
    if chosen.page:
        before, _, rest = listed.partition("<!-- counts -->")
        after = rest.partition("<!-- end of counts -->")[2]
        table = "\n".join(["| mistake | made | noticed |", "|---|---|---|", *lines])
        PAGE.write_text(f"{before}<!-- counts -->\n{table}\n<!-- end of counts -->{after}", "utf-8")
    unlisted = [one for one in missed if f"`{one.place}`" not in listed]
    for one in unlisted:
        print(f"not listed in {PAGE.name}: `{one.place}`")
    return 1 if unlisted else 0


if __name__ == "__main__":
    sys.exit(main())
