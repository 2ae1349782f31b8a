"""``python -m oppo_sim.fast``: compile the kernel at low priority, unless that is being done, or was."""

import os

from oppo_sim.fast.compiled_run import compile_alone
from oppo_sim.fast.compiling import is_being_compiled, is_compiled

if __name__ == "__main__":
    os.nice(10)
    if not is_being_compiled() and not is_compiled():
        compile_alone()
