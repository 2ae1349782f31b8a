"""Sweeps: many configurations of a scenario, simulated on the same seeds and ranked; see docs/sweep.md.

grid = {"policy.chunk_size": [128, 256, 512], "policy.overcommit": "0:16:+4"}
swept = oppo_sim.sweep("paper-stackexchange-7b", grid=grid, seeds=5)
swept.points                 # one row a configuration: step time, speed-up with its interval, …
swept.best, swept.region()   # the best row, and the rows that cannot be told apart from it
swept.heatmap(), swept.explore()
"""

from oppo_sim.callable_package import make_callable
from oppo_sim.sweep.result import Sweep
from oppo_sim.sweep.spec import SweepSpec

__all__ = ["Sweep", "SweepSpec"]

make_callable(__name__)
