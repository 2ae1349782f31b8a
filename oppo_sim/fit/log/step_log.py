"""The steps of one run, as a log has them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from oppo_sim.columns import STEP, TIMING_STEP
from oppo_sim.errors import OppoError
from oppo_sim.fit.log.names import REWARDS_ALONG

if TYPE_CHECKING:
    import pandas as pd

LENGTH_SLACK: Final = 0.05
"""By which a logged length may be beyond the maximum of a scenario that is the run's."""


Covers = dict[str, tuple[str, ...]]
"""Stages that a column of seconds holds."""


@dataclass(frozen=True)
class StepLog:
    """The steps of one run."""

    name: str
    frame: "pd.DataFrame"
    """One row a step, by step number; columns of ``oppo_sim.columns``, NaN where a step lacks a figure."""
    framework: str
    covers: Covers
    note: str = ""
    """What the framework's stages hold."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Steps, cells or lines left out, by reason."""
    notes: tuple[str, ...] = ()
    files: tuple[dict[str, object], ...] = ()
    """Name, bytes and SHA-256 of each file read."""
    path: str = ""
    """As it was given."""
    lengths: "Mapping[int, Sequence[int]] | None" = None
    """Response lengths of every rollout by step, where they are known."""
    prompts: "Mapping[int, Sequence[int]] | None" = None
    tool_tokens_apart: bool = False
    """Lengths are known not to hold what tools answered."""
    not_fitted: tuple[str, ...] = ()
    """Columns that are left out of the fit (``leaving_out``)."""
    rewards_hidden: bool = False
    """Rewards were computed behind generation: their metric holds hardly any seconds, or there is none."""
    not_shown: Mapping[str, str] = field(default_factory=dict)
    """Stages that the run perhaps did not run, and the metric that it would have logged else."""
    generation_steps: int = 1
    """How many steps train what one generates, where lines show it; figures are then their means."""
    mixed: bool = False
    """What a step trained was not begun together: the run generates while it trains, or carries rollouts."""
    held_up: "Mapping[int, float]" = field(default_factory=dict)
    """Seconds of whole steps by number, of a run whose trainer waits for generation beside it."""

    @property
    def ramp(self) -> int:
        """How many of its first steps are not as it goes on: what a mixed run trains in them are the shortest
        of what was begun."""
        return ramp(len(self.frame)) if self.mixed else 0

    @property
    def whole_steps(self) -> "Mapping[int, float]":
        """Seconds by step number where generation is not fitted: of a run that it holds up, or whose metric
        of it is left out. Empty elsewhere."""
        left = [column for column in self.not_fitted if "gen" in self.covers.get(column, ())]
        if self.held_up or not left or TIMING_STEP not in self.frame:
            return self.held_up
        whole = self.frame[[STEP, TIMING_STEP]].dropna()
        return dict(zip(whole[STEP].astype(int).tolist(), whole[TIMING_STEP].tolist(), strict=True))

    @property
    def rewards_along(self) -> bool:
        """Rewards were computed as rollouts finished, behind generation."""
        together = any({"gen", "reward"} <= set(stages) for stages in self.covers.values())
        return self.rewards_hidden or (together and self.framework in REWARDS_ALONG)

    def since(self, step: int) -> "StepLog":
        """Without the steps before ``step``, which are counted. Raises OppoError where none is left."""
        before = self.frame[STEP] < step
        if before.all():
            raise OppoError(
                f"{self.name} has no step from {step} on, its last is {self.frame[STEP].max()}: lower"
                " --from-step"
            )
        if not before.any():
            return self
        left_out = {**self.left_out, f"step before --from-step {step}": int(before.sum())}
        return replace(self, frame=self.frame[~before].reset_index(drop=True), left_out=left_out)


def ramp(steps: int) -> int:
    """First steps of a run that carries rollouts which are not as it goes on."""
    return steps // 3
