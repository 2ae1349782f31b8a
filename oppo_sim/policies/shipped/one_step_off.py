"""``one-step-off``: generate the next batch while this one trains."""

from typing import ClassVar

from oppo_sim.policies.chunk_control import ChunkSetting
from oppo_sim.policies.interface import Batch, PoolView, Schedule, ScoreGranularity, StepPlan
from oppo_sim.policies.refill import ShippedPolicy
from oppo_sim.policies.settings import PolicySettings


class OneStepOffSettings(PolicySettings):
    score_granularity: ScoreGranularity = "batch"
    chunk_size: ChunkSetting = 256


class OneStepOff(ShippedPolicy):
    """The next batch is generated while this one trains."""

    name = "one-step-off"
    summary = "generate the next batch while this one trains"
    schedule: ClassVar[Schedule] = "one-step-off"
    carries = False
    recomputes = False
    Settings = OneStepOffSettings
    inherited = ("chunk_size",)

    def __init__(self, batch: Batch, settings: OneStepOffSettings) -> None:
        super().__init__(batch, settings.score_granularity, "token", settings.chunk_size)

    def plan(self, pool: PoolView) -> StepPlan:
        return StepPlan(admit=self.batch.rollout_batch_size, chunk_size=self.chunk_size)
