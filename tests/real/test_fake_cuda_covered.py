"""Every public call of the torch engine has a test on the CUDA machine without a GPU."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import oppo_real
from oppo_real.engines.interface import Actor
from tests.real import test_fake_cuda_engines, test_fake_cuda_ppo
from tests.real.fake_cuda.covered import COVERED, covers, public_calls


def test_every_public_call_of_the_torch_engine_has_a_test_on_the_fake_machine() -> None:
    assert {test_fake_cuda_engines.covers, test_fake_cuda_ppo.covers} == {covers}
    assert sorted(public_calls() - COVERED.keys()) == []
    assert sorted(COVERED.keys() - public_calls()) == []


def test_one_module_names_torch_cuda() -> None:
    root = Path(oppo_real.__file__).parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr == "cuda"
        and isinstance(node.value, ast.Name)
        and node.value.id == "torch"
    }
    assert found == {"engines/device.py"}


def test_a_new_call_of_the_interface_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Actor, "pause", lambda self: None, raising=False)
    assert public_calls() - COVERED.keys() == {"TorchActor.pause"}


def test_a_test_that_does_not_make_the_call_it_names_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.real.fake_cuda.covered.COVERED", {})

    @covers("device.gpus")
    def idle() -> None:
        pass

    with pytest.raises(AssertionError, match=r"never called: \['device.gpus'\]"):
        idle()
