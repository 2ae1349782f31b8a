"""``april``: issue about twice the batch."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from oppo_sim.policies.chunk_control import ChunkSetting
from oppo_sim.policies.interface import ScoreGranularity, StopCheck
from oppo_sim.policies.knobs import Knob
from oppo_sim.policies.refill import NO_OVERCOMMIT, Refill
from oppo_sim.policies.settings import Overcommit, PolicySettings


class AprilSettings(PolicySettings):
    overcommit: Overcommit = Field(1.0, description="Δ: rollouts, or a share of B")
    max_deferrals: int | None = Field(None, ge=0)
    score_granularity: ScoreGranularity = "batch"
    chunk_size: ChunkSetting = 256
    stop_check: ClassVar[StopCheck] = "token"


class April(Refill):
    """Issue about twice the batch, stop at B finished, carry the rest (APRIL)."""

    name = "april"
    summary = "issue about twice the batch, stop at B, carry the rest"
    without_tail = NO_OVERCOMMIT
    Settings = AprilSettings
    inherited = ("max_deferrals", "chunk_size")

    def knobs(self, max_response_length: int) -> Sequence[Knob]:
        """Δ from half of B to twice B: below that it is ``inter``."""
        size = self.batch.rollout_batch_size
        return [
            replace(knob, low=self.batch.whole_groups(size / 2), high=2 * size)
            if knob.field == "overcommit"
            else knob
            for knob in super().knobs(max_response_length)
        ]
