"""TRL's trainers, imported once."""

import gc
import importlib.util
import os

import pytest

if importlib.util.find_spec("trl") is None and "OPPO_REQUIRE_TRL" not in os.environ:
    # Only what can be said without TRL; where the tests are meant to run in full, OPPO_REQUIRE_TRL=1 turns
    # its absence into failures.
    collect_ignore = [
        "test_trl_sequential.py",
        "test_trl_continuous.py",
        "test_trl_refusals.py",
        "test_grpo.py",
        "test_record_grpo.py",
        "test_record_openrlhf.py",
        "test_prompts_of_metrics.py",
    ]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    if importlib.util.find_spec("trl") is not None:
        import torch

        torch.set_num_threads(1)
        # TRL collects garbage several times a step; what was imported by now need not be searched each time.
        gc.freeze()
