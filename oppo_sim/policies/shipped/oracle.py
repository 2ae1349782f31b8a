"""``oracle``: what one could do who knows the lengths."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from oppo_sim.policies.chunk_control import ChunkSetting
from oppo_sim.policies.interface import (
    Arrangement,
    Batch,
    OraclePoolView,
    PoolView,
    ScoreGranularity,
    StepPlan,
    StopCheck,
)
from oppo_sim.policies.refill import ShippedPolicy
from oppo_sim.policies.settings import PolicySettings


class OracleSettings(PolicySettings):
    window: int = Field(4, ge=1, le=1000, description="batches whose lengths it knows and sorts")
    stop_check: StopCheck = "token"
    score_granularity: ScoreGranularity = "chunk"
    chunk_size: ChunkSetting = 256


class Oracle(ShippedPolicy):
    """Sorts a window of batches by length and runs it shortest first (docs/model.md C18). A bound, never a
    recommendation."""

    name = "oracle"
    summary = "knows the lengths and sorts them: a bound, not a recommendation"
    oracle = True
    carries = False
    without_tail: ClassVar[Mapping[str, Any] | None] = {"window": 1}
    Settings = OracleSettings
    inherited = ("stop_check", "chunk_size")

    def __init__(self, batch: Batch, settings: OracleSettings) -> None:
        super().__init__(batch, settings.score_granularity, settings.stop_check, settings.chunk_size)
        self._window = settings.window

    @property
    def window(self) -> int:
        """Batches that it knows at once."""
        return self._window

    def plan(self, pool: PoolView) -> StepPlan:
        admit = 0 if pool.in_flight else self._window * self.batch.rollout_batch_size
        ahead = admit + pool.in_flight - self.batch.rollout_batch_size
        return StepPlan(admit=admit, chunk_size=self.chunk_size, overcommit=max(0, ahead))

    def arrange(self, pool: PoolView) -> Arrangement:
        assert isinstance(pool, OraclePoolView)
        lengths = pool.response_lengths
        groups: dict[int, list[int]] = {}
        for view in pool.unfinished:
            groups.setdefault(view.group_id, []).append(view.rollout_id)
        shortest_first = sorted(groups, key=lambda group: (max(lengths[i] for i in groups[group]), group))
        chosen = [i for group in shortest_first for i in groups[group]][: self.batch.rollout_batch_size]
        load = [0] * pool.num_replicas
        move = {}
        for rollout_id in sorted(chosen, key=lambda i: (-lengths[i], i)):
            replica = load.index(min(load))
            load[replica] += lengths[rollout_id]
            move[rollout_id] = replica
        running = set(chosen)
        return Arrangement(
            hold=frozenset(view.rollout_id for view in pool.unfinished if view.rollout_id not in running),
            move=move,
        )
