"""``sequential``: the baseline."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from oppo_sim.policies.chunk_control import ChunkSetting
from oppo_sim.policies.interface import ScoreGranularity, StopCheck
from oppo_sim.policies.knobs import Knob
from oppo_sim.policies.refill import Refill
from oppo_sim.policies.settings import Overcommit, PolicySettings


class SequentialSettings(PolicySettings):
    stop_check: StopCheck = Field(
        "token", description="token: end at the B-th finish; chunk: in rounds of chunk_size iterations"
    )
    chunk_size: ChunkSetting = Field(256, description="length of a round under stop_check chunk, tokens")
    overcommit: ClassVar[Overcommit] = 0
    max_deferrals: ClassVar[int | None] = None
    score_granularity: ClassVar[ScoreGranularity] = "batch"


class Sequential(Refill):
    """Generate all, score all, train."""

    name = "sequential"
    summary = "generate all, then score all, then train (the baseline)"
    carries = False
    recomputes = False
    Settings = SequentialSettings
    inherited = ("chunk_size", "stop_check")

    def knobs(self, max_response_length: int) -> Sequence[Knob]:
        """None: it is what others are measured against."""
        return ()
