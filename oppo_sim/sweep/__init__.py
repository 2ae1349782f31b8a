"""Sweeps: many configurations of a scenario, simulated on the same seeds and ranked.

    from oppo_sim.sweep import run_sweep
    sweep = run_sweep("paper-stackexchange-7b", grid={"policy.chunk_size": [128, 256, 512],
    "policy.overcommit": "0:16:+4"}, seeds=5) sweep.points                # one row a configuration: step
    time, speed-up with its interval, staleness, ... sweep.best, sweep.region    # the best row, and the rows
    that cannot be told apart from it

Names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oppo_sim.sweep.call import run_sweep
    from oppo_sim.sweep.run import Sweep
    from oppo_sim.sweep.spec import SweepSpec

_HOME = {
    "Sweep": "oppo_sim.sweep.run",
    "SweepSpec": "oppo_sim.sweep.spec",
    "run_sweep": "oppo_sim.sweep.call",
}

__all__ = ["Sweep", "SweepSpec", "run_sweep"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'oppo_sim.sweep' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)
