"""``oppo``: both overlaps."""

from pydantic import Field

from oppo_sim.policies.controllers import ChunkControl, DeltaControl
from oppo_sim.policies.interface import ScoreGranularity
from oppo_sim.policies.refill import NO_OVERCOMMIT, Refill
from oppo_sim.policies.settings import CHUNK_HELP, OVERCOMMIT_HELP, ChunkSize, Overcommit
from oppo_sim.policies.shipped.inter import InterSettings


class OppoSettings(InterSettings):
    chunk_size: ChunkSize | ChunkControl = Field(ChunkControl(), description=CHUNK_HELP)
    overcommit: Overcommit | DeltaControl = Field(DeltaControl(), description=OVERCOMMIT_HELP)
    score_granularity: ScoreGranularity = "chunk"


class Oppo(Refill):
    """Stream chunks, overcommit and carry; Δ and chunk size controlled online or fixed."""

    name = "oppo"
    summary = "both overlaps; overcommit and chunk size controlled online or fixed"
    without_tail = NO_OVERCOMMIT
    Settings = OppoSettings
    inherited = ("chunk_size", "stop_check", "max_deferrals", "overcommit")
