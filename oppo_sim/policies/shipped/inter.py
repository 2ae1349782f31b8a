"""``inter``: overlap between steps."""

from pydantic import Field

from oppo_sim.policies.chunk_control import CHUNK_HELP, ChunkSetting
from oppo_sim.policies.delta_control import DeltaControl
from oppo_sim.policies.interface import ScoreGranularity, StopCheck
from oppo_sim.policies.refill import NO_OVERCOMMIT, Refill
from oppo_sim.policies.settings import (
    DEFERRALS_HELP,
    OVERCOMMIT_HELP,
    Overcommit,
    PolicySettings,
)


class InterSettings(PolicySettings):
    stop_check: StopCheck = "token"
    chunk_size: ChunkSetting = Field(256, description=CHUNK_HELP)
    max_deferrals: int | None = Field(None, ge=0, description=DEFERRALS_HELP)
    overcommit: Overcommit | DeltaControl = Field(0.0625, description=OVERCOMMIT_HELP)
    score_granularity: ScoreGranularity = "batch"


class Inter(Refill):
    """Overcommit a few prompts, end at B finished, carry the unfinished."""

    name = "inter"
    summary = "overcommit a few prompts, carry the unfinished"
    without_tail = NO_OVERCOMMIT
    Settings = InterSettings
    inherited = ("chunk_size", "stop_check", "max_deferrals", "overcommit")
