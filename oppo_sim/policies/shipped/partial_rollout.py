"""``partial-rollout``: rounds of a token budget."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from oppo_sim.policies.interface import ScoreGranularity, StopCheck
from oppo_sim.policies.knobs import Knob
from oppo_sim.policies.refill import NO_OVERCOMMIT, Refill
from oppo_sim.policies.settings import ChunkSize, Overcommit, PolicySettings


class PartialRolloutSettings(PolicySettings):
    token_budget: ChunkSize = Field(1024, description="iterations of a round")
    overcommit: Overcommit = Field(0.5, description="Δ: rollouts, or a share of B")
    max_deferrals: int | None = Field(None, ge=0)
    stop_check: ClassVar[StopCheck] = "chunk"
    score_granularity: ClassVar[ScoreGranularity] = "batch"

    @property
    def chunk_size(self) -> int:
        """A round is the token budget."""
        return self.token_budget


class PartialRollout(Refill):
    """Decode in rounds of a token budget, carry the rest (Kimi k1.5)."""

    name = "partial-rollout"
    summary = "rounds of a token budget, the rest continues"
    without_tail = NO_OVERCOMMIT
    Settings = PartialRolloutSettings
    inherited = ("max_deferrals",)

    def knobs(self, max_response_length: int) -> Sequence[Knob]:
        """The budget in the place of the chunk size, which it is."""
        return [
            replace(knob, field="token_budget") if knob.field == "chunk_size" else knob
            for knob in super().knobs(max_response_length)
        ]
