"""Memory of a process that computes on the CPU."""

import subprocess
import sys

_FAULTS = """
import resource
from oppo_real.placement.cores import keep_memory
assert keep_memory({device!r}) == ({device!r} == "cpu")
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        bytearray(b"1") * (64 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def page_faults(device: str) -> int:
    """Of asking for 64 MiB, writing and freeing it, ten times, after the first ten."""
    code = _FAULTS.format(device=device)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_what_is_freed_is_not_faulted_in_again() -> None:
    assert page_faults("cuda:0") > 1000
    assert page_faults("cpu") < 100
