"""``async``: generation never waits for training."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from oppo_sim.policies.controllers import ChunkControl
from oppo_sim.policies.interface import Batch, PoolView, Schedule, ScoreGranularity, StepPlan
from oppo_sim.policies.knobs import Knob
from oppo_sim.policies.refill import ShippedPolicy
from oppo_sim.policies.settings import ChunkSize, PolicySettings


class AsyncSettings(PolicySettings):
    max_staleness: int = Field(
        1, ge=0, le=1000, description="bounds admission: admitted < B · (updates done + max_staleness + 1)"
    )
    score_granularity: ScoreGranularity = "rollout"
    chunk_size: ChunkSize | ChunkControl = 256


class Async(ShippedPolicy):
    """Generation never waits for training, within a bound on admission."""

    name = "async"
    summary = "generation goes on during training, within a staleness bound"
    schedule: ClassVar[Schedule] = "async"
    Settings = AsyncSettings
    inherited = ("chunk_size",)

    def __init__(self, batch: Batch, settings: AsyncSettings) -> None:
        super().__init__(batch, settings.score_granularity, "token", settings.chunk_size)
        self.max_staleness = settings.max_staleness

    def plan(self, pool: PoolView) -> StepPlan:
        bound = self.batch.rollout_batch_size * (pool.weight_version + self.max_staleness + 1)
        return StepPlan(admit=max(0, bound - pool.admitted), chunk_size=self.chunk_size)

    def knobs(self, max_response_length: int) -> Sequence[Knob]:
        return (Knob("max_staleness", "int", 0, 8), *super().knobs(max_response_length))
