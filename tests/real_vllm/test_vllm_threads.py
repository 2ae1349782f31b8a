"""Threads of a process in which vLLM runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
from threading import Thread

import torch
from oppo_real.engines.interface import Sampling
from oppo_real.placement.cores import bound, set_threads
from tests.real_vllm.drive import finish, forced
from tests.real_vllm.test_vllm_actor import start

made = []


def decode():
    set_threads(1)
    actor.submit([forced(number, 20) for number in range(4)])
    made.extend(sorted(len(tokens) for tokens in finish(actor).values()))


before = torch.get_num_threads()
with bound(None, 1):
    actor = start(Path(sys.argv[1]), Sampling(temperature=0.0))
    thread = Thread(target=decode)
    thread.start()
    thread.join()
    actor.close()
assert torch.get_num_threads() == before == len(__import__("os").sched_getaffinity(0))
print(made)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: there are no fewer threads than that")
def test_an_engine_runs_in_a_thread_that_computes_with_fewer_threads_than_there_are_cores(
    actor_folder: Path,
) -> None:
    """As in a calibration, where nobody has set OMP_NUM_THREADS: vLLM had ended the process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(actor_folder)],
        env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "[20, 20, 20, 20]"
