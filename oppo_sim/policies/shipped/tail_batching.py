"""``tail-batching``: short steps drop their tail, long steps run it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from oppo_sim.policies.chunk_control import ChunkSetting
from oppo_sim.policies.interface import Batch, PoolView, ScoreGranularity, StepPlan, StopCheck
from oppo_sim.policies.knobs import Knob
from oppo_sim.policies.refill import ShippedPolicy
from oppo_sim.policies.settings import PolicySettings


class TailBatchingSettings(PolicySettings):
    over_issue: float = Field(1.25, ge=1.0, le=100.0, description="η: a short step admits η · B")
    stop_check: StopCheck = "token"
    score_granularity: ScoreGranularity = "batch"
    chunk_size: ChunkSetting = 256


class TailBatching(ShippedPolicy):
    """Short steps over-issue and drop; dropped prompts run again in long steps. Strictly
    on-policy (RollPacker)."""

    name = "tail-batching"
    summary = "short steps drop their tail, long steps run the dropped prompts"
    carries = False
    without_tail: ClassVar[Mapping[str, Any] | None] = {"over_issue": 1.0}
    Settings = TailBatchingSettings
    inherited = ("stop_check", "chunk_size")

    def __init__(self, batch: Batch, settings: TailBatchingSettings) -> None:
        super().__init__(batch, settings.score_granularity, settings.stop_check, settings.chunk_size)
        self._short_step = batch.whole_groups(round(settings.over_issue * batch.rollout_batch_size, 9))
        self._long_queue: list[int] = []

    def plan(self, pool: PoolView) -> StepPlan:
        size = self.batch.rollout_batch_size
        if len(self._long_queue) >= size:
            readmit = tuple(self._long_queue[:size])
            del self._long_queue[:size]
            return StepPlan(admit=0, chunk_size=self.chunk_size, readmit=readmit)
        return StepPlan(
            admit=self._short_step, chunk_size=self.chunk_size, overcommit=self._short_step - size
        )

    def knobs(self, max_response_length: int) -> Sequence[Knob]:
        return (Knob("over_issue", "float", 1.0, 2.0), *super().knobs(max_response_length))

    def drop(self, pool: PoolView) -> Collection[int]:
        dropped = pool.in_flight_ids
        self._long_queue += dropped
        self._long_queue.sort()
        return dropped

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"long_queue": list(self._long_queue)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._long_queue = list(state["long_queue"])
