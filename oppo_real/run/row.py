"""The rows of a real run, made by the simulator's own row code from measured counts."""

from typing import Any

from oppo_sim.costs.interface import Costs
from oppo_sim.costs.linear import LinearEngine, LinearTraining
from oppo_sim.model.row import BusyReading, StepFacts, step_row
from oppo_sim.model.tally import Tally

UNKNOWN_PEAKS = Costs(LinearEngine(1.0), LinearEngine(1.0), LinearTraining(), {})
"""No datasheet rates: achieved rates are left empty."""


def real_step_row(num_replicas: int, num_workers: int, tally: Tally, facts: StepFacts) -> dict[str, Any]:
    """One row of the step table, columns as the simulator's."""
    return step_row(tally, num_replicas, num_workers, UNKNOWN_PEAKS, facts)


class Meter:
    """Busy seconds of the devices since the run began."""

    def __init__(self, num_replicas: int, num_workers: int) -> None:
        self.rollout = [0.0] * num_replicas
        self.scoring = [0.0] * num_workers
        self.training = [0.0]

    def read(self, at: float) -> BusyReading:
        """The meters now."""
        return BusyReading(at, tuple(self.rollout), tuple(self.scoring), tuple(self.training))
