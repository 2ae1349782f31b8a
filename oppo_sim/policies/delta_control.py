"""The online controller of Δ (docs/model.md §4): a pure state machine that sees step reports and nothing
else."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from oppo_sim.errors import OppoError
from oppo_sim.policies.interface import Batch, StepPace


class DeltaControl(BaseModel):
    """Δ follows the slope of the reward."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    control: Literal["reward_slope"] = "reward_slope"
    initial: int | None = Field(
        None, ge=0, description="Δ of the first steps; default: half of max, rounded up"
    )
    min: int = Field(0, ge=0, description="Δ_min")
    max: int | None = Field(None, ge=0, description="Δ_max; default: rollout_batch_size / 8, rounded up")
    increment: int = Field(1, ge=1, description="δ_inc")
    decrement: int = Field(1, ge=1, description="δ_dec")
    window: int = Field(10, ge=1, description="w, steps over which the slope is taken")
    proportional: bool = Field(False, description="change by max(1, floor(Δ/4)) instead")

    @model_validator(mode="after")
    def _ordered(self) -> "DeltaControl":
        if self.max is not None and self.min > self.max:
            raise ValueError(f"overcommit min {self.min} is above max {self.max}")
        if self.initial is not None and (
            self.initial < self.min or (self.max is not None and self.initial > self.max)
        ):
            raise ValueError(
                f"overcommit initial {self.initial} lies outside min {self.min} to max {self.max}"
            )
        return self


class DeltaController:
    """Holds Δ; changes it after each step."""

    def __init__(self, control: DeltaControl, batch: Batch) -> None:
        self.control = control
        self._round = batch.whole_groups
        self.minimum = self._round(control.min)
        self.maximum = self._round(-(-batch.rollout_batch_size // 8) if control.max is None else control.max)
        start = (
            max(self.minimum, self._round(-(-self.maximum // 2)))
            if control.initial is None
            else self._round(control.initial)
        )
        if not self.minimum <= start <= self.maximum:
            # Only a max that was not given can be below the others: the settings are checked among
            # themselves.
            named = "min" if self.minimum > self.maximum else "initial"
            raise OppoError(
                f"overcommit {named} {getattr(control, named)} is above max, which is {self.maximum} where it"
                f" is not given (an eighth of rollout_batch_size {batch.rollout_batch_size}): give"
                " overcommit.max"
            )
        self.value = start
        self._rewards: deque[float] = deque(maxlen=control.window + 1)

    def observe(self, report: StepPace) -> None:
        """Take the step's mean reward; a step without one changes nothing."""
        if report.reward_mean is None:
            return
        self._rewards.append(report.reward_mean)
        if len(self._rewards) <= self.control.window:
            return
        slope = (self._rewards[-1] - self._rewards[0]) / self.control.window
        if self.control.proportional:
            up = down = max(1, self.value // 4)
        else:
            up, down = self.control.increment, self.control.decrement
        if slope > 0:
            self.value = min(self.maximum, self.value + self._round(up))
        else:
            self.value = max(self.minimum, self.value - self._round(down))

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "rewards": list(self._rewards)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value = int(state["value"])
        self._rewards.clear()
        self._rewards.extend(state["rewards"])
