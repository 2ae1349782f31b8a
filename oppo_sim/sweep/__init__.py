"""Sweeps: many configurations of a scenario, simulated on the same seeds and ranked.

from oppo_sim.sweep import run_sweep
grid = {"policy.chunk_size": [128, 256, 512], "policy.overcommit": "0:16:+4"}
sweep = run_sweep("paper-stackexchange-7b", grid=grid, seeds=5)
sweep.points               # one row a configuration: step time, speed-up with its interval, staleness, ...
sweep.best, sweep.region   # the best row, and the rows that cannot be told apart from it
"""

from oppo_sim.sweep.call import run_sweep
from oppo_sim.sweep.run import Sweep
from oppo_sim.sweep.spec import SweepSpec

__all__ = ["Sweep", "SweepSpec", "run_sweep"]
