"""Mistakes made on purpose, one at a time, in whatever of the torch engine and the trainer touches a device:
a tensor left on the CPU, a wait removed, a copy that waits, and those of ``BY_HAND``. Each must fail a test
on the CUDA machine without a GPU.

    python -m experiments.fake_cuda.mutations            # all; writes the counts into README.md
    python -m experiments.fake_cuda.mutations --every 10 --no-page
    python -m experiments.fake_cuda.mutations --drawn 50 --seed 1    # any mistake, at drawn places; no page

One that no test notices either changes nothing (both sides lie on the CPU, or the wait was made elsewhere) or
is missed; the page lists all of them with what was found on reading. Exit code 1 for one that is not listed.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import io
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from tests.real import test_fake_cuda_engines, test_fake_cuda_ppo  # noqa: F401 - imported before the forks
from tests.real.test_fake_cuda_order import mutated

MODULES: Final = (
    "engines.attention_check", "engines.device", "engines.models", "engines.packed_attention",
    "engines.packed_graphs", "engines.packed_kernels", "engines.packed_model", "engines.packed_plan",
    "engines.packed_store", "engines.torch_actor",
    "engines.torch_sampling", "engines.torch_scorer", "placement.shared_weights",
    "ppo.batching", "ppo.experience", "ppo.formulas", "ppo.forward", "ppo.optimize", "ppo.trainer",
)  # fmt: skip
TESTS: Final = ("test_fake_cuda_order.py::test_the_exercises_pass_as_they_are", "test_fake_cuda_engines.py",
                "test_fake_cuda_ppo.py")  # fmt: skip
ANYWHERE: Final = ("test_torch_actor.py", "test_torch_scorer.py", "test_torch_models.py",
                   "test_torch_graphs.py", "test_torch_attention.py", "test_ppo_trainer.py",
                   "test_ppo_forward.py", "test_ppo_formulas.py")  # fmt: skip
"""For a mistake that is one on every machine."""
WAITS: Final = {"synchronize", "wait_stream", "wait_event"}
PAGE: Final = Path(__file__).parent / "README.md"
BY_HAND: Final = (
    ("a wait added", "engines.torch_sampling", "    # The first token whose",
     "    assert bool((cumulative[:, -1] > 0).all())\n    # The first token whose"),
    ("a wait added", "engines.torch_sampling",
     "told, chances = to_host(torch.cat((tokens.double(), chosen.double()), dim=1)).t().tolist()",
     "told, chances = to_host(tokens)[:, 0].tolist(), to_host(chosen)[:, 0].tolist()"),
    ("a wait added", "ppo.trainer", "                    loss.backward()",
     "                    assert bool(loss.isfinite())\n                    loss.backward()"),
    ("a wait added", "ppo.trainer", "                steps.append(sums / count)\n                value_steps",
     "                steps.append(sums.cpu() / count)\n                value_steps"),
    ("a wait added", "ppo.experience", "rewards = penalties.index_add(0, ends, batch.scores)",
     "rewards = penalties.cpu().index_add(0, ends.cpu(), batch.scores.cpu()).to(penalties.device)"),
    ("another type", "placement.shared_weights", "_Place(name, tensor.dtype,",
     "_Place(name, torch.bfloat16,"),
    ("another type", "engines.packed_graphs", "arange(rows + 1, dtype=torch.int32",
     "arange(rows + 1, dtype=torch.int64"),
    ("another type", "engines.packed_kernels", "table = torch.tensor(spans, dtype=torch.int32)",
     "table = torch.tensor(spans, dtype=torch.int64)"),
    ("another type", "engines.packed_store", "dtype=like.dtype, device", "dtype=torch.float32, device"),
    ("another device", "ppo.forward", "head(_states_before_tokens(model, rows))",
     "head(_states_before_tokens(model, rows).cpu())"),
    ("another device", "ppo.forward", "return widened(head(_states_before_tokens(model, rows))).squeeze(1)",
     "return widened(head(_states_before_tokens(model, rows))).squeeze(1).to('cuda:0')"),
    ("too early a read", "placement.shared_weights", "view.copy_(weights[name])",
     "view.copy_(weights[name], non_blocking=True)"),
    ("a graph's memory", "engines.packed_graphs",
     "replay, logits = self._record(lambda: self._step(static[0], static[1], batch))",
     "replay, logits = self._record(lambda: self._step(*static[:2].clone(), batch))\n"
     "        static = static.clone()"),
    ("a graph's memory", "engines.packed_graphs", "        static.zero_()\n", "        pass\n"),
    ("a graph's memory", "engines.packed_graphs", "static.zero_()", "static = torch.zeros_like(static)"),
    ("a graph's memory", "engines.packed_graphs", "key = (rows_bucket(rows), bound)",
     "key = (rows_bucket(rows), 64)"),
    ("a graph's memory", "engines.packed_model", "own[name].copy_(tensor, non_blocking=True)",
     "own[name].data = tensor.to(self.device, non_blocking=True).clone()"),
    ("a graph's memory", "engines.packed_model", "shrink=not captured", "shrink=True"),
    ("a graph's memory", "engines.packed_store", "self._size = size\n            self.generation += 1",
     "self._size = size"),
    ("a graph's memory", "engines.device", "pool=self._pool, stream=stream", "stream=stream"),
    ("a graph's stream", "engines.device", ", pool=self._pool, stream=stream)", ", pool=self._pool)"),
    ("a graph's stream", "engines.device", "for _ in range(2):", "for _ in range(0):"),
    ("a graph's stream", "engines.device", "with torch.cuda.stream(stream):", "if True:"),
)  # fmt: skip
"""(Kind, module, what is there once, what is there instead)."""
MOST_S: Final = 600
"""Of a core for one mistake's tests: longer is a loop without end."""
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


_TURNED: Final[dict[type[ast.AST], bytes]] = {
    ast.Lt: b">=", ast.LtE: b">", ast.Gt: b"<=", ast.GtE: b"<", ast.Eq: b"!=", ast.NotEq: b"==",
    ast.Is: b"is not", ast.IsNot: b"is", ast.In: b"not in", ast.NotIn: b"in",
    ast.Add: b"-", ast.Sub: b"+", ast.Mult: b"+", ast.FloorDiv: b"*", ast.Div: b"*",
    ast.And: b"or", ast.Or: b"and",
}  # fmt: skip


def anywhere(module: ModuleType) -> Iterator[Mutation]:
    """Mistakes of any kind: something turned round, a number off by one, a statement left out."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text("utf-8")
    data = source.encode()
    starts = [0]
    for row in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))

    def begin(node: ast.expr | ast.stmt) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def end(node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return starts[node.end_lineno - 1] + node.end_col_offset

    def instead(kind: str, node: ast.expr | ast.stmt, first: int, last: int, new: bytes) -> Mutation:
        was = " ".join(data[begin(node) : end(node)].decode().split())
        text = (data[:first] + new + data[last:]).decode()
        return Mutation(module, kind, node.lineno, f"{was} [{new.decode()}]", text)

    def between(node: ast.expr, left: ast.expr, operator: ast.AST, right: ast.expr) -> Iterator[Mutation]:
        gap = data[end(left) : begin(right)]
        if type(operator) in _TURNED and b"(" not in gap and b")" not in gap and b"#" not in gap:
            new = b" " + _TURNED[type(operator)] + b" "
            yield instead("turned round", node, end(left), begin(right), new)

    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                yield from between(node, left, operator, right)
            case ast.BinOp(left=left, op=operator, right=right):
                yield from between(node, left, operator, right)
            case ast.BoolOp(op=operator, values=[left, right]):
                yield from between(node, left, operator, right)
            case ast.Constant(value=bool()):
                yield instead("turned round", node, begin(node), end(node), str(not node.value).encode())
            case ast.Constant(value=int()):
                yield instead(
                    "a number off by one", node, begin(node), end(node), str(node.value + 1).encode()
                )
            case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete():
                yield instead("a statement left out", node, begin(node), end(node), b"pass")
            case ast.If(test=test):
                yield instead("turned round", test, begin(test), begin(test), b"not ")


def by_hand() -> Iterator[Mutation]:
    """Those of ``BY_HAND``. Raises ValueError for one whose place has gone."""
    for kind, name, was, instead in BY_HAND:
        module = importlib.import_module(f"oppo_real.{name}")
        assert module.__file__ is not None
        text = Path(module.__file__).read_text("utf-8")
        if text.count(was) != 1:
            raise ValueError(f"{name} has {text.count(was)} times: {was}")
        line = text[: text.index(was)].count("\n") + 1
        yield Mutation(module, kind, line, " ".join(was.split()), text.replace(was, instead))


def _moves(call: ast.Call) -> bool:
    """To a device, not to a dtype."""
    return bool(call.args) and ast.unparse(call.args[0]).endswith(("device", "place"))


def survives(one: Mutation | None, tests: Sequence[str] = TESTS) -> int:
    """Run the tests with it (None: with no mistake) in a fork of this process, which has torch loaded."""
    child = os.fork()
    if child == 0:
        code = FAILED
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_S + int(time.process_time()), resource.RLIM_INFINITY))
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                code = _tested(one, tests)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _tested(one: Mutation | None, tests: Sequence[str]) -> int:
    folder = Path(__file__).parents[2] / "tests" / "real"
    try:
        with nullcontext() if one is None else mutated(one.module, one.text):
            return (
                PASSED if pytest.main(["-x", "-q", *(str(folder / test) for test in tests)]) == 0 else FAILED
            )
    except (AssertionError, ValueError):  # of ``mutated``: no function has other code
        return NOTHING


def draw(count: int, seed: int, named: str | None = None) -> int:
    """``count`` mistakes of any kind at drawn places, each noticed by the fake machine's tests or by those of
    every machine. 1 where one passes both."""
    if survives(None, (*TESTS, *ANYWHERE)) != PASSED:
        print("the tests fail without a mistake, too")
        return 1
    found = [one for name in MODULES for one in anywhere(importlib.import_module(f"oppo_real.{name}"))]
    random.Random(seed).shuffle(found)
    where: Counter[str] = Counter()
    for one in found:
        if sum(where.values()) == count:
            break
        if named is not None and named not in one.place:
            continue
        code = survives(one)
        if code == NOTHING:
            continue
        name = "noticed by the fake machine"
        if code == PASSED:
            name = "missed" if survives(one, ANYWHERE) == PASSED else "noticed by tests of any machine"
        where[name] += 1
        print(f"{name}: {one.kind}: {one.place} (line {one.line})", flush=True)
    print(dict(where))
    return 1 if where["missed"] else 0


def main() -> int:
    """Make them all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1, help="only each n-th")
    parser.add_argument("--kind", help="only this one")
    parser.add_argument("--page", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--drawn", type=int, help="so many of any kind, at drawn places, instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--named", help="of those drawn only such with this text")
    chosen = parser.parse_args()
    if chosen.drawn:
        return draw(chosen.drawn, chosen.seed, chosen.named)
    found = [one for name in MODULES for one in mutations(importlib.import_module(f"oppo_real.{name}"))]
    found += by_hand()
    found = [one for one in found if chosen.kind in (None, one.kind)]
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
