"""Memory of a process that computes on the CPU."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from oppo_real.placement.shared_weights import shared_weights
from oppo_sim.errors import OppoError

_FAULTS = """
import resource
from oppo_real.placement.cores import keep_memory
from oppo_real.run.signals import TrainingThread
assert keep_memory({device!r}) == ({device!r} == "cpu")
def ask():
    for _ in range(5):
        held = [bytearray(b"1") * (8 << 20) for _ in range(16)]
        del held
thread = TrainingThread()
for way in (ask, lambda: thread.do_now(ask)):
    way()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    way()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(device: str) -> list[int]:
    """Of asking for 128 MiB, writing and freeing it, five times, after the first five; in the first thread, and
    in the one that trains."""
    code = _FAULTS.format(device=device)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [int(count) for count in done.stdout.split()]


def test_what_is_freed_is_not_faulted_in_again() -> None:
    assert min(page_faults("cuda:0")) > 1000
    assert max(page_faults("cpu")) < 100


_UPDATES = """
import resource
import torch
from oppo_real.ppo.trainer import PPOTrainer
from oppo_real.run.start import run_real
from tests.real.real_scenario import MODEL, real_scenario
torch.set_num_threads(1)
found = []
def counted(trainer, *batch):
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    told = update(trainer, *batch)
    found.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
    return told
update, PPOTrainer.update = PPOTrainer.update, counted
model = MODEL | {{"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2}}
section = {{
    "models": {{"actor": model, "reward": MODEL}},
    "ppo": {{"enabled": True}},
    "placement": {{"kind": {kind!r}, "threads": 1}},
}}
lengths = {{"path": {trace!r}, "sampling": "in_order"}}
run_real(real_scenario(section, trace=lengths, policy="sequential", steps={steps}, max_response_length=240))
print(*found)
"""


@pytest.mark.parametrize("kind", ["inline", "processes"])
def test_updates_wait_for_no_memory(kind: str, tmp_path: Path) -> None:
    """Neither because one is the largest so far, nor because memory was given back after the one before."""
    trace = tmp_path / "trace.csv"
    batches = [[10, 12, 9, 11], [230, 240, 235, 238], [60, 200, 90, 120], [230, 220, 40, 238]]
    lengths = [length for batch in batches for length in batch]
    trace.write_text("prompt_length,response_length\n" + "".join(f"6,{length}\n" for length in lengths))
    code = _UPDATES.format(trace=str(trace), kind=kind, steps=len(batches))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    faults = [int(count) for count in done.stdout.split()]
    assert len(faults) == len(batches)
    assert sum(faults) < 5000, "twenty thousand and more where each update has a thread of its own"


def test_shared_memory_that_is_refused_says_how_much_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(block: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("No space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    with pytest.raises(OppoError, match=r"^no 1 MiB of shared memory for the weights \(No space left"):
        shared_weights({"small": torch.zeros(3)})
