"""One log of a fit, with what the model needs of it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oppo_sim.columns import STEP_SAVE_S, STEP_TESTING_S
from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.fit.terms.features import Features
from oppo_sim.fit.terms.stages import Measurement
from oppo_sim.scenario.schema import Scenario


@dataclass(frozen=True)
class LogPart:
    """A log with what the model needs of it."""

    log: StepLog
    scenario: Scenario
    features: Features
    members: tuple[Measurement, ...]

    @property
    def events(self) -> npt.NDArray[np.bool_]:
        """Steps that validate or save, as the log says; not first ones, which take longer anyway."""
        frame = self.log.frame
        timed = [column for column in (STEP_TESTING_S, STEP_SAVE_S) if column in frame]
        return (frame[timed] > 0).any(axis=1).to_numpy(dtype=np.bool_) & ~self.features.cold
