"""Costs of a scenario from training logs, with what stays unknown of them; see docs/fit.md.

fitted = oppo_sim.fit("train.log", "mine.yaml", folder="fit")
fitted.point, fitted.draws       # terms of the costs: their mean, and draws of what stays unknown
fitted.held_out                  # errors on steps that were not fitted
"""

from oppo_sim.callable_package import make_callable

make_callable(__name__)
