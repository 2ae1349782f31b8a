"""Worker processes on a CPU are forks of one that has the engine loaded, and see what the driver sees."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oppo_real.placement.cores import available_cores
from oppo_real.placement.engines import ENGINES
from oppo_real.placement.starting import new_process, process_context, start_method

TORCH_ON_CPU = [("torch", "cpu"), ("torch", "cpu")]


def told(connection: Any) -> None:
    connection.send((dict(os.environ), available_cores(), os.getcwd(), "transformers" in sys.modules))


def ask(context: Any) -> Any:
    ours, theirs = context.Pipe()
    process = new_process(context, told, theirs)
    process.start()
    theirs.close()
    try:
        assert ours.poll(60), "no answer"
        return ours.recv()
    finally:
        process.join(30)
        assert process.exitcode == 0


def test_a_fork_has_the_environment_and_the_cores_that_the_driver_has_when_it_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    context = process_context(TORCH_ON_CPU)
    assert context.get_start_method() == "forkserver"
    environment, cores, _, loaded = ask(context)
    assert loaded, "the server has imported what takes long"
    assert environment == dict(os.environ)
    assert cores == available_cores()

    # What changes after the server has begun.
    monkeypatch.setenv("OPPO_TEST_WORD", "new")
    monkeypatch.delenv("PATH")
    monkeypatch.chdir(tmp_path)
    before = available_cores()
    os.sched_setaffinity(0, {min(before)})
    try:
        environment, cores, folder, _ = ask(context)
    finally:
        os.sched_setaffinity(0, before)
    assert environment["OPPO_TEST_WORD"] == "new"
    assert "PATH" not in environment
    assert cores == {min(before)}
    assert folder == str(tmp_path)


def hold_a_semaphore(connection: Any) -> None:
    held = multiprocessing.get_context("spawn").Semaphore()
    connection.send(held is not None)
    connection.recv()


def end_one_by_force() -> None:
    context = process_context([("vllm", "cpu")])
    ours, theirs = context.Pipe()
    process = new_process(context, hold_a_semaphore, theirs)
    process.start()
    assert ours.recv()
    process.terminate()
    process.join()


def test_a_worker_that_is_ended_by_force_leaves_no_words_of_pythons_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import end_one_by_force as end; end()"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_beside_a_gpu_and_for_an_engine_that_says_nothing_it_is_a_new_interpreter() -> None:
    assert start_method("torch", "cpu") == "forkserver"
    assert start_method("torch", "cuda:1") == "spawn"
    assert start_method("vllm", "cpu") == "spawn"
    assert process_context([("torch", "cpu"), ("torch", "cuda")]).get_start_method() == "spawn"
    assert process_context([("vllm", "cpu"), ("torch", "cpu")]).get_start_method() == "spawn"


def test_what_is_loaded_beforehand_uses_no_gpu() -> None:
    import torch

    for module in ENGINES["torch"].preload:
        __import__(module)
    assert not torch.cuda.is_initialized()
