"""``oppo``: both overlaps."""

from pydantic import Field

from oppo_sim.policies.chunk_control import CHUNK_HELP, ChunkSetting, RaceControl
from oppo_sim.policies.delta_control import DeltaControl
from oppo_sim.policies.interface import ScoreGranularity
from oppo_sim.policies.refill import NO_OVERCOMMIT, Refill
from oppo_sim.policies.settings import OVERCOMMIT_HELP, Overcommit
from oppo_sim.policies.shipped.inter import InterSettings


class OppoSettings(InterSettings):
    chunk_size: ChunkSetting = Field(RaceControl(), description=CHUNK_HELP)
    overcommit: Overcommit | DeltaControl = Field(DeltaControl(), description=OVERCOMMIT_HELP)
    score_granularity: ScoreGranularity = "chunk"


class Oppo(Refill):
    """Stream chunks, overcommit and carry; Δ and chunk size controlled online or fixed."""

    name = "oppo"
    summary = "both overlaps; overcommit and chunk size controlled online or fixed"
    without_tail = NO_OVERCOMMIT
    Settings = OppoSettings
    inherited = ("chunk_size", "stop_check", "max_deferrals", "overcommit")
