"""What a validation is asked for."""

from dataclasses import dataclass
from math import inf
from pathlib import Path

from oppo_real.calibrate.session import Effort
from oppo_real.calibrate.sizes import Sizes, sizes_of
from oppo_sim.run_folder import beside
from oppo_sim.scenario.policy_label import LabelledPolicy
from oppo_sim.scenario.schema import Scenario


@dataclass(frozen=True)
class ValidateRequest:
    """What to validate, and where it may keep what is finished."""

    scenario: Scenario
    variants: tuple[LabelledPolicy, ...]
    """Speed-ups are against the first."""
    repeats: int
    steps: int
    profile: Path | None
    """None: calibrate first (in lock-step nothing is)."""
    work: Path
    """Journal, profile and finished points lie under this name with suffixes; a folder of the same name is
    the result."""
    calibration: Effort = Effort(repeats=3, budget_s=inf)  # noqa: RUF009 (frozen)
    measure: bool = True
    """False: conclude from what an interrupted validation of the same request kept, in its complete
    rounds."""

    @property
    def policies(self) -> tuple[str, ...]:
        """Labels of the variants."""
        return tuple(one.label for one in self.variants)

    @property
    def sizes(self) -> Sizes:
        """What a calibration for these variants has to cover."""
        return sizes_of(self.scenario, [(one.policy, one.settings) for one in self.variants])

    def beside(self, suffix: str) -> Path:
        """A file beside the run folder."""
        return beside(self.work, suffix)
