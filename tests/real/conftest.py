"""Says how many of the torch engine's public calls the CUDA machine without a GPU has tests of; torch on one thread."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch on one thread, as before afterwards: tests share the machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_report_collectionfinish() -> str:
    """Counted from what the collected tests say of themselves, which each proves when it runs."""
    covered = sys.modules.get("tests.real.fake_cuda.covered")
    if covered is None:
        return ""
    calls = covered.public_calls()
    tests = {test for call in calls for test in covered.COVERED.get(call, ())}
    return f"fake CUDA: {len(calls & covered.COVERED.keys())} of {len(calls)} public engine calls, {len(tests)} tests"
