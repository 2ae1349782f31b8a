"""Memory of a process that computes on the CPU."""

import subprocess
import sys
from pathlib import Path

_FAULTS = """
import resource
from threading import Thread
from oppo_real.placement.cores import keep_memory
assert keep_memory({device!r}) == ({device!r} == "cpu")
def ask():
    for _ in range(5):
        held = [bytearray(b"1") * (8 << 20) for _ in range(16)]
        del held
def in_thread():
    thread = Thread(target=ask)
    thread.start()
    thread.join()
for way in (ask, in_thread):
    way()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    way()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(device: str) -> list[int]:
    """Of asking for 128 MiB, writing and freeing it, five times, after the first five; in the first thread, and
    in a new one each time, as a run trains."""
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
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    told = update(trainer, *batch)
    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return told
update, PPOTrainer.update = PPOTrainer.update, counted
model = MODEL | {{"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2}}
models = {{"actor": model, "reward": MODEL}}
section = {{"models": models, "ppo": {{"enabled": True}}, "placement": {{"threads": 1}}}}
lengths = {{"path": {trace!r}, "sampling": "in_order"}}
run_real(real_scenario(section, trace=lengths, policy="sequential", steps=3, max_response_length=240))
print(*found)
"""


def test_no_update_waits_for_memory_because_it_is_the_largest_so_far(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    lengths = [10, 12, 9, 11] * 2 + [230, 240, 235, 238]
    trace.write_text("prompt_length,response_length\n" + "".join(f"6,{length}\n" for length in lengths))
    code = _UPDATES.format(trace=str(trace))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    faults = [int(count) for count in done.stdout.split()]
    assert len(faults) == 3
    assert max(faults) < 3000, "12,000 pages where nothing was asked for before"
