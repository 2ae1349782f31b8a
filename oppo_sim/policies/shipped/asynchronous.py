"""``async``: generation never waits for training."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from oppo_sim.policies.chunk_control import ChunkSetting
from oppo_sim.policies.interface import Batch, PoolView, Schedule, ScoreGranularity, StepPlan, TrainOrder
from oppo_sim.policies.knobs import Knob
from oppo_sim.policies.refill import ShippedPolicy
from oppo_sim.policies.settings import PolicySettings


class AsyncSettings(PolicySettings):
    max_staleness: int = Field(
        1, ge=0, le=1000, description="bounds admission: admitted < B · (updates done + max_staleness + 1)"
    )
    max_staleness_strategy: Literal["admission", "wait"] = Field(
        "admission",
        description="admission: max_staleness bounds no more than that; wait: the trainer also waits for the"
        " oldest that must be trained now, so that nothing it trains is staler than max_staleness",
    )
    train_order: TrainOrder = Field(
        "oldest", description="of what is scored: oldest weights first, or in order of the scores"
    )
    partial_rollout: bool = Field(
        True,
        strict=True,
        description="an update interrupts rollouts, which go on under the new weights; false: it waits until"
        " those that have begun are done",
    )
    score_granularity: ScoreGranularity = "rollout"
    chunk_size: ChunkSetting = 256

    @model_validator(mode="after")
    def _oldest_where_waited_for(self) -> "AsyncSettings":
        if self.max_staleness_strategy == "wait" and self.train_order != "oldest":
            raise ValueError(
                "max_staleness_strategy wait needs train_order oldest: what is waited for must be trained"
                " before all else"
            )
        return self


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
        self.train_order = settings.train_order
        self.partial_rollout = settings.partial_rollout
        self._waits = settings.max_staleness_strategy == "wait"

    def plan(self, pool: PoolView) -> StepPlan:
        bound = self.batch.rollout_batch_size * (pool.weight_version + self.max_staleness + 1)
        wait_for = self._due(pool) if self._waits else frozenset()
        admitted = pool.admitted - pool.filtered
        return StepPlan(admit=max(0, bound - admitted), chunk_size=self.chunk_size, wait_for=wait_for)

    def _due(self, pool: PoolView) -> frozenset[int]:
        """The oldest, by (version of the first token, id), that must be in this batch, so that the batches to
        come suffice for the others: after it no more than B · (max_staleness − age) may be left that are
        ``age`` updates old or more. They are B at most, as no more than B · (max_staleness − age + 1) were
        left before it."""
        size = self.batch.rollout_batch_size
        first: dict[int, int] = {}
        for view in (*pool.finished, *pool.unfinished):
            if view.head_version is not None:
                group = view.group_id
                first[group] = min(first.get(group, view.head_version), view.head_version)
        scored = {view.group_id for view in pool.finished}
        missing = 0
        for age in range(1, self.max_staleness + 1):
            aged = [group for group, version in first.items() if version <= pool.weight_version - age]
            needed = len(aged) - (self.max_staleness - age) * size // self.batch.group_size
            missing = max(missing, needed - sum([group in scored for group in aged]))
        waiting = sorted((version, group) for group, version in first.items() if group not in scored)
        due = {group for _, group in waiting[:missing]}
        return frozenset(view.rollout_id for view in pool.unfinished if view.group_id in due)

    def knobs(self, max_response_length: int) -> Sequence[Knob]:
        return (Knob("max_staleness", "int", 0, 8), *super().knobs(max_response_length))
